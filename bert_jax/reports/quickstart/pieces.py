"""Text measured in word pieces of the run's own vocabulary, so that it fits the rows of its model.

Owns where a sentence is cut, what a passage is, and how a text folder becomes lines that are cut.
It must not know what they are for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from bert_jax.configs.files.atomic import atomic_file
from bert_jax.input_pipeline.tokenizer import Tokenizer
from bert_jax.reports.quickstart import text_split


def parts(sentence: str, tokenizer: Tokenizer, most: int) -> list[str]:
    """The sentence in parts of about equal length, as few as have about `most` pieces each.

    It is cut between words; inside of a word only where one alone has more pieces than that, as a
    whole sentence of Chinese or Thai has.
    """
    places, sizes = _words(sentence, tokenizer, most)

    # A word belongs to the part in which its middle lies.
    total = max(1, sum(sizes))
    count = -(-total // most)
    middles = (end - size / 2 for end, size in zip(itertools.accumulate(sizes), sizes))
    numbers = [int(middle * count / total) for middle in middles]
    borders = [place for place, (a, b) in zip(places[1:], itertools.pairwise(numbers)) if a != b]
    return [sentence[a:b].strip() for a, b in itertools.pairwise([0, *borders, len(sentence)])]


def words(text: str, tokenizer: Tokenizer, most: int) -> list[str]:
    """The words of a text, each with the space after it; the pieces of one of more than `most`."""
    places, _ = _words(text, tokenizer, most)
    return [text[a:b] for a, b in itertools.pairwise([*places, len(text)])]


def _words(text: str, tokenizer: Tokenizer, most: int) -> tuple[list[int], list[int]]:
    """Where the words begin, and how many pieces each has; see `words`."""
    found = list(re.finditer(r'\S+', text))
    places, sizes = [], []
    for word, ids in zip(found, tokenizer.encode_batch(word[0] for word in found)):
        if ids.size <= most:
            places.append(word.start())
            sizes.append(ids.size)
        else:
            starts = tokenizer.encode_with_offsets(word[0]).starts
            places += [word.start() + int(start) for start in starts]
            sizes += [1] * len(starts)
    return places, sizes


def passages(sentences: Iterable[str], tokenizer: Tokenizer, most: int) -> Iterator[str]:
    """Neighbouring sentences joined, as many as have `most` pieces; a longer sentence is cut.

    What has fewer than half as many is left out.
    """
    cut = [part for sentence in sentences for part in parts(sentence, tokenizer, most)]
    sizes = [ids.size for ids in tokenizer.encode_batch(cut)]
    current: list[str] = []
    size = 0
    for sentence, more in [*zip(cut, sizes), ('', most)]:
        # The one that does not fit begins the next passage; the last, which is none, ends it.
        if size + more > most:
            if 2 * size >= most:
                yield ' '.join(current)
            current, size = [], 0
        current.append(sentence)
        size += more


def write_lines(text: Path, folder: Path, tokenizer: Tokenizer, most: int) -> None:
    """Writes train.txt and held_out.txt of a text folder with lines of at most `most` pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (text_split.TRAIN, text_split.HELD_OUT):
        with (
            open(text / name, encoding='utf-8') as source,
            atomic_file(folder / name, 'w') as target,
        ):
            for line in source:
                # An empty line, the border of documents, is one empty part.
                target.writelines(f'{part}\n' for part in parts(line.strip(), tokenizer, most))
