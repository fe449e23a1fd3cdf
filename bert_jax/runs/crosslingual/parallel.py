"""Parallel texts: files in which text N of one language is the translation of text N of the others.

Owns which files those are and whether they go together. It must not know models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.encodings import plain_name, read_json, read_utf8
from bert_jax.input_pipeline.text.formats import detect_lines
from bert_jax.runs.crosslingual.languages import named


def read_parallel(given: Sequence[str], flag: str = 'input') -> dict[str, list[str]]:
    """Read the texts of --FLAG=LANGUAGE=FILE, by language, in their order.

    A file ending in .conllu has its sentences (the lines "# text = ..."), one in .json its
    paragraphs (SQuAD's format, as of XQuAD), any other a text a line.

    Raises:
      UserError: there are fewer than two languages, or files do not have as many texts.
    """
    texts = {language: _texts(path) for language, path in named(flag, given).items()}
    if len(texts) < 2:
        raise UserError(f'--{flag}: name the files of two languages or more')

    # One by one, so they must be as many; what an empty line would stand for nobody knows.
    (first, of_first), *others = texts.items()
    for language, translations in others:
        if len(translations) != len(of_first):
            raise UserError(
                f'--{flag}={language}: {len(translations)} texts, and {first} has {len(of_first)}:'
                ' the Nth text of a file must be the translation of the Nth of the others'
            )
    for language, lines in texts.items():
        if empty := [number for number, text in enumerate(lines, start=1) if not text.strip()]:
            raise UserError(
                f'--{flag}={language}: text {empty[0]} is empty: leave it out of all files'
            )
    if len(of_first) < 2:
        raise UserError(f'--{flag}={first}: one text only: there is nothing to choose from')
    return texts


def _texts(path: str) -> list[str]:
    """Read the texts of a file."""
    if plain_name(path).endswith('.json'):
        try:
            articles = read_json(path)['data']
            return [
                paragraph['context'] for article in articles for paragraph in article['paragraphs']
            ]
        except (LookupError, TypeError):
            raise UserError(
                f'{path}: has no paragraphs: expected the format of SQuAD (data, paragraphs,'
                ' context)'
            ) from None
    lines = read_utf8(path).removesuffix('\n').split('\n')
    if plain_name(path).endswith('.conllu'):
        mark = '# text = '
        texts = [line.rstrip('\r').removeprefix(mark) for line in lines if line.startswith(mark)]
        if not texts:
            raise UserError(f'{path}: no line begins with {json.dumps(mark)}')
        return texts
    if (kind := detect_lines(path, '\n'.join(lines[:1000]).encode(), path)) != 'text':
        raise UserError(f'{path}: its lines are {kind}: give a file of one text a line')
    return [line.rstrip('\r') for line in lines]
