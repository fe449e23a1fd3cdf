"""Text measured in word pieces of the run's own vocabulary, so that it fits the rows of its model.

Owns where a sentence is cut, and how a text folder becomes lines that are cut so. It must not know
what the parts are for.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from configs.atomic import atomic_file
from input_pipeline.tokenizer import Tokenizer
from launch.demo import text_split


def parts(sentence: str, tokenizer: Tokenizer, most: int) -> list[str]:
    """The sentence in as few parts as have at most about `most` pieces, of about equal length.

    Parts begin with a word. A word is never cut, so a part may be longer.
    """
    # Words between spaces, by the fast way; a sentence of a script without them is one long word.
    words = sentence.split()
    sizes = [ids.size for ids in tokenizer.encode_batch(words)]
    if max(sizes, default=0) > most:
        return _parts_of_unspaced(sentence, tokenizer, most)
    total, count = sum(sizes), -(-sum(sizes) // most)

    # A word belongs to the part in which its middle lies.
    found: list[list[str]] = [[] for _ in range(count)]
    ends = itertools.accumulate(sizes)
    for word, size, end in zip(words, sizes, ends):
        found[min(count - 1, int((end - size / 2) * count / total))].append(word)
    return [' '.join(part) for part in found if part]


def _parts_of_unspaced(sentence: str, tokenizer: Tokenizer, most: int) -> list[str]:
    encoding = tokenizer.encode_with_offsets(sentence)
    places = encoding.starts[:: most].tolist()
    return [sentence[a:b].strip() for a, b in zip(places, [*places[1:], len(sentence)])]


def write_lines(text: Path, folder: Path, tokenizer: Tokenizer, most: int) -> None:
    """Writes train.txt and held_out.txt of a text folder with lines of at most `most` pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (text_split.TRAIN, text_split.HELD_OUT):
        with (
            open(text / name, encoding='utf-8') as source,
            atomic_file(folder / name, 'w') as target,
        ):
            for line in source:
                target.writelines(
                    part + '\n' for part in parts(line.rstrip('\n'), tokenizer, most) or ['']
                )
