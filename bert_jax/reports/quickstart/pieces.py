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
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.reports.quickstart import text_split


def parts(sentence: str, tokenizer: Tokenizer, limit: int) -> list[str]:
    """Return the sentence in as few parts of about equal length as have `limit` pieces.

    It is cut between words; inside of a word only where one alone has more pieces than that, as a
    whole sentence of Chinese or Thai has.
    """
    starts, sizes = _words(sentence, tokenizer, limit)

    # A word belongs to the part in which its middle lies.
    total = max(1, sum(sizes))
    count = -(-total // limit)
    middles = (end - size / 2 for end, size in zip(itertools.accumulate(sizes), sizes))
    numbers = [int(middle * count / total) for middle in middles]
    borders = [at for at, (a, b) in zip(starts[1:], itertools.pairwise(numbers)) if a != b]
    return [sentence[a:b].strip() for a, b in itertools.pairwise([0, *borders, len(sentence)])]


def words(text: str, tokenizer: Tokenizer, limit: int) -> list[str]:
    """Return the words of a text with the space after them; of one over `limit` its pieces."""
    starts, _ = _words(text, tokenizer, limit)
    return [text[a:b] for a, b in itertools.pairwise([*starts, len(text)])]


def _words(text: str, tokenizer: Tokenizer, limit: int) -> tuple[list[int], list[int]]:
    """Return where the words begin, and how many pieces each has; see `words`."""
    matches = list(re.finditer(r'\S+', text))
    starts, sizes = [], []
    for word, ids in zip(matches, tokenizer.encode_batch(word[0] for word in matches)):
        if ids.size <= limit:
            starts.append(word.start())
            sizes.append(ids.size)
        else:
            pieces = tokenizer.encode_with_offsets(word[0]).starts
            starts += [word.start() + int(start) for start in pieces]
            sizes += [1] * len(pieces)
    return starts, sizes


def passages(sentences: Iterable[str], tokenizer: Tokenizer, limit: int) -> Iterator[str]:
    """Yield neighbouring sentences joined, as many as have `limit` pieces.

    A longer sentence is cut. What has fewer than half as many pieces is left out.
    """
    cut = [part for sentence in sentences for part in parts(sentence, tokenizer, limit)]
    sizes = [ids.size for ids in tokenizer.encode_batch(cut)]
    current: list[str] = []
    size = 0
    for sentence, more in [*zip(cut, sizes), ('', limit)]:
        # The one that does not fit begins the next passage; the last, which is empty, ends it.
        if size + more > limit:
            if 2 * size >= limit:
                yield ' '.join(current)
            current, size = [], 0
        current.append(sentence)
        size += more


def write_lines(text: Path, folder: Path, tokenizer: Tokenizer, limit: int) -> None:
    """Write train.txt and held_out.txt of a text folder with lines of at most `limit` pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (text_split.TRAIN, text_split.HELD_OUT):
        with (
            open(text / name, encoding='utf-8') as source,
            atomic_file(folder / name, 'w') as target,
        ):
            for line in source:
                # An empty line, the border of documents, is one empty part.
                target.writelines(f'{part}\n' for part in parts(line.strip(), tokenizer, limit))
