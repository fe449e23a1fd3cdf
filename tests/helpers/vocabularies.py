"""Vocabularies of a test's own words, as Google's folders hold them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from tests.helpers.files import write_lines

SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']


def write_vocabulary(folder: pathlib.Path, words: Iterable[str]) -> pathlib.Path:
    """A lower-cased WordPiece folder of the special tokens and these words."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / 'vocab.txt', [*SPECIAL, *words])
    (folder / 'tokenizer_config.json').write_text('{"do_lower_case": true}')
    return folder
