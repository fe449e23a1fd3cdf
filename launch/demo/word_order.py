"""The fine-tuning task that any text gives: have words of a passage changed places?

Owns which passages are asked about, and how words change places. Half of the passages stand as they
were written; in the others words have changed places with their neighbours. Both halves have the
same words in the same numbers, so neither a word, nor a length, nor a subject gives the label away:
it takes knowledge of which word follows which, which the text alone teaches. (As the task "bigram
shift" of Conneau et al. 2018, arXiv:1805.01070, section 2, with several words moved.)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from configs.errors import UserError
from input_pipeline.tokenizer import Tokenizer
from launch.demo import tasks
from launch.demo.near_duplicates import word_places
from launch.demo.pieces import parts
from launch.demo.text_split import Document, hashed

# Of the pairs of neighbours that may change places: a half is as many as have no word in common.
SHARE = 0.5
# A passage with fewer such pairs says too little.
MIN_PAIRS = 4
MIN_ROWS = 20
ORDERED, DISORDERED = 'ordered', 'disordered'

# Where a word begins and ends in its sentence.
Place = tuple[int, int]


def word_order_task(
    documents: Iterable[Document], tokenizer: Tokenizer, pieces: int, directory: str
) -> Path:
    """Writes the task; returns its file. A passage has at most `pieces` word pieces.

    No document gives many passages before the others have given theirs. Labels take turns in an
    order by hash. Raises UserError where the text gives fewer than MIN_ROWS of a split.
    """
    # (how many passages of its document come before it, its place in a shuffle, name, passage)
    sides: dict[bool, list[tuple[int, float, str, list[str]]]] = {False: [], True: []}
    for document in documents:
        names = (f'{document.group} {i}' for i in itertools.count())
        found = zip(names, passages(document.sentences, tokenizer, pieces))
        shuffled = sorted((hashed(f'passage {name}'), name, passage) for name, passage in found)
        sides[document.held_out] += ((rank, *row) for rank, row in enumerate(shuffled))

    splits = {}
    for split, side, most in (
        ('train', sides[False], tasks.MAX_TRAIN),
        ('dev', sides[True], tasks.MAX_HELD_OUT),
    ):
        # First chosen, then shuffled, or the first rows would be of one passage a document.
        enough = (row for row in sorted(side) if _pairs_of(row[3]) >= MIN_PAIRS)
        chosen = sorted(itertools.islice(enough, most), key=lambda row: row[1])
        if len(chosen) < MIN_ROWS:
            raise UserError(
                f'the documents give {len(chosen)} passages for the {split} split, {MIN_ROWS} are'
                ' needed: use more text'
            )
        splits[split] = [
            {
                'text': ' '.join(disordered(passage, name) if number % 2 else passage),
                'label': DISORDERED if number % 2 else ORDERED,
                'source': name,
            }
            for number, (_, _, name, passage) in enumerate(chosen)
        ]
    return tasks.write(Path(directory), splits, [ORDERED, DISORDERED])


def passages(sentences: Iterable[str], tokenizer: Tokenizer, pieces: int) -> Iterator[list[str]]:
    """Runs of as many whole sentences as fit into `pieces` word pieces; longer ones are cut."""
    sentences = [part for sentence in sentences for part in parts(sentence, tokenizer, pieces)]
    sizes = [ids.size for ids in tokenizer.encode_batch(sentences)]
    current: list[str] = []
    room = pieces
    for sentence, size in zip(sentences, sizes):
        # The one that does not fit begins the next passage.
        if size > room and current:
            yield current
            current, room = [], pieces
        current.append(sentence)
        room -= size
    if current:
        yield current


def neighbours(sentence: str) -> list[tuple[Place, Place]]:
    """Places of the words that may change places with the next, in pairs.

    Not the first and the last word of the sentence, which a capital and a full stop would tell;
    nor words that punctuation parts, nor a word that is repeated.
    """
    inner = word_places(sentence)[1:-1]
    word = lambda place: sentence[slice(*place)].lower()
    return [
        (a, b)
        for a, b in itertools.pairwise(inner)
        if sentence[a[1] : b[0]] in ('', ' ') and word(a) != word(b)
    ]


def disordered(passage: Sequence[str], name: str) -> list[str]:
    """The sentences with SHARE of their pairs of neighbours changed, at least one of the passage.

    `name` seeds which. A word that has moved does not move again.
    """
    pairs = [
        (hashed(f'order {name} {i} {a[0]}'), i, a, b)
        for i, sentence in enumerate(passage)
        for a, b in neighbours(sentence)
    ]
    wanted = max(1, round(SHARE * len(pairs)))
    chosen: list[tuple[int, Place, Place]] = []
    moved: set[tuple[int, Place]] = set()
    for _, i, a, b in sorted(pairs):
        if len(chosen) < wanted and not moved & {(i, a), (i, b)}:
            chosen.append((i, a, b))
            moved |= {(i, a), (i, b)}

    # From the right, so that the places to the left stay what they are.
    result = list(passage)
    for i, a, b in sorted(chosen, reverse=True):
        text = result[i]
        first, between, second = text[slice(*a)], text[a[1] : b[0]], text[slice(*b)]
        result[i] = text[: a[0]] + second + between + first + text[b[1] :]
    return result


def _pairs_of(passage: Iterable[str]) -> int:
    return sum(len(neighbours(sentence)) for sentence in passage)
