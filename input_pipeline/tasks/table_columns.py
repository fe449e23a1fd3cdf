"""What is seen in the cells of a table: numbers, classes, texts, and columns of words and tags.

Owns which column is the sentence, the word and the tag. It must not know how such a table is read
(`conll.read_table`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.encodings import plain_name

# What people call them, in small letters; the first that is there is it.
_NAMES = {
    'sentence': (
        'sentence', 'sentence_id', 'sentence id', 'sentence #', 'sentence_number', 'sentence_idx',
        'sent', 'sent_id', 'sentid', 'sid',
    ),
    'tokens': ('word', 'token', 'form', 'words', 'tokens', 'text'),
    'tags': (
        'tag', 'ner_tag', 'ner', 'label', 'entity', 'tags', 'ner_tags', 'labels', 'pos_tag', 'upos',
        'pos',
    ),
}  # fmt: skip
WORDS_OPTION = '--columns=sentence=NAME,tokens=NAME,tags=NAME'
_ROLES = {'text': 'tokens', 'label': 'tags'}  # the names that every table's columns have


class Cells:
    """A column of a table, as far as it was looked at.

    Attributes:
      key: its name, or its place from 0.
      values: its cells, of which those of records may be lists and numbers; None where empty.
      name: its name in small letters; '' where it has none.
      given: the cells that are not empty.
      texts: those that are one text or number, as texts.
      different: the different ones of these.
      are_lists: whether cells are lists.
      are_numbers: whether all are numbers.
      are_classes: whether few different, short values come again and again.
      are_texts: whether most are of several words, or of a script that does not part them.
    """

    def __init__(self, key: str | int, values: Sequence[Any]):
        self.key, self.values = key, values
        self.name = key.strip().lower() if isinstance(key, str) else ''
        self.given = [value for value in values if value is not None and value != '']
        self.texts = [str(value) for value in self.given if not isinstance(value, list)]
        self.different = set(self.texts)
        self.are_lists = bool(self.given) and not self.texts
        self.are_numbers = bool(self.texts) and all(map(is_number, self.different))

        count, different = len(self.texts), len(self.different)
        short = all(len(text) <= 40 for text in self.different)
        whole = not self.are_numbers or all(float(text).is_integer() for text in self.different)
        few = 2 <= different <= max(2, count // 3) and different < count
        self.are_classes = short and whole and few

        wordy = sum(
            len(text.split()) > 1 or (len(text) >= 5 and not text.isascii()) for text in self.texts
        )
        self.are_texts = wordy > count / 2 and not self.are_numbers and not self.are_classes

    def __str__(self) -> str:
        return repr(self.key) if isinstance(self.key, str) else str(self.key)


def is_number(text: str) -> bool:
    """Tell whether a text spells a number in digits."""
    return bool(re.fullmatch(r'\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*', text))


def find_columns(
    path: str, columns: Sequence[Cells], named: Mapping[str, str | int], asked: bool
) -> dict[str, Any] | None:
    """Return the entries of a task file of words and tags; None for another table.

    A row is a word, and a column says of which sentence, or a row is a sentence: lists of words and
    of tags, or texts with blanks between.

    Args:
      path: the table, for errors.
      columns: its columns.
      named: role -> the column that the user says it is.
      asked: whether the user says that words have tags.

    Raises:
      UserError: it is asked, and a column is not clear.
    """
    asked = asked or bool({'sentence', 'tokens', 'tags'} & named.keys())
    named = {_ROLES.get(role, role): key for role, key in named.items()}
    by_key = {cells.key: cells for cells in columns}
    if not set(named.values()) <= set(by_key):
        return None
    free = [cells for cells in columns if cells.key not in named.values() and cells.given]
    if 'sentence' not in named:
        of_sentences = _find_sentences(named, by_key, free)
        if of_sentences is not None:
            return _describe(path, of_sentences)
    if named and not asked:
        return None
    # Names that say nothing are passed over where what is in the columns leaves no doubt.
    is_clear = asked or not any(cells.are_texts for cells in columns)
    roles = dict(named)
    for role, fits, what in (
        ('sentence', _parts_sentences, 'holds the same for all words of a sentence'),
        ('tags', _are_tags, 'holds the tag of a word'),
        ('tokens', _are_words, 'holds one word'),
    ):
        if role in roles:
            continue
        chosen = _choose_column(role, [cells for cells in free if fits(cells)], is_clear)
        if chosen is None and asked:
            shown = ', '.join(map(str, columns))[:200]
            raise UserError(
                f'{path}: which of its columns {shown} {what}? Say {role}=NAME in {WORDS_OPTION}'
            )
        if chosen is None:
            return None
        roles[role] = chosen.key
        free.remove(chosen)
    return _describe(path, roles)


def _choose_column(role: str, likely: Sequence[Cells], is_clear: bool) -> Cells | None:
    """Return the column whose name says the role; where it is clear also the only likely one."""
    by_name = {cells.name or str(cells.key): cells for cells in likely}
    for name in _NAMES[role]:
        if name in by_name:
            return by_name[name]
    if is_clear and len(by_name) == 1:
        return by_name.popitem()[1]
    return None


def _describe(path: str, roles: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a task file with these columns."""
    # Such a file would be one of columns without names, if nothing else were said.
    if plain_name(path).endswith(('.tsv', '.txt')):
        return {'columns': roles, 'format': 'tsv'}
    return {'columns': roles}


def _find_sentences(
    named: Mapping[str, Any], by_key: Mapping[Any, Cells], free: Sequence[Cells]
) -> dict[str, Any] | None:
    """Return the columns of words and of as many tags; None where rows are no sentences."""
    keys = {cells.name: cells.key for cells in free}
    roles: dict[str, Any] = {}
    for role in ('tokens', 'tags'):
        names = [name for name in _NAMES[role] if name in keys]
        if names:
            roles[role] = keys[names[0]]
    roles |= named
    if 'tokens' not in roles or 'tags' not in roles:
        return None

    words, tags = by_key[roles['tokens']], by_key[roles['tags']]
    lengths = _count_parts(tags)
    if words.are_lists != tags.are_lists or _count_parts(words) != lengths:
        return None
    several = sum(length > 1 for length in lengths)
    if not words.are_lists and several <= len(lengths) / 2:
        return None
    return roles


def _count_parts(cells: Cells) -> list[int]:
    """Return how many words or tags each cell has."""
    counts = []
    for cell in cells.values:
        parts = cell if isinstance(cell, list) else str(cell or '').split()
        counts.append(len(parts))
    return counts


def _are_words(cells: Cells) -> bool:
    """Tell whether nearly all cells have no blank inside."""
    alone = sum(len(text.split()) == 1 for text in cells.texts)
    return bool(cells.texts) and alone > 0.95 * len(cells.texts)


def _are_tags(cells: Cells) -> bool:
    """Tell whether few different words come again and again."""
    return cells.are_classes and _are_words(cells)


def _parts_sentences(cells: Cells) -> bool:
    """Tell whether a column can number sentences: its values come in runs, and none twice.

    Below the first word of a sentence cells may be empty. Of a long table only some rows are looked
    at, where a short run is a single cell: a number is enough there under a name that says it.
    """
    values = [str(value).strip() for value in cells.values if value not in (None, '')]
    firsts = [value for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
    if len(set(firsts)) < len(firsts) or len(firsts) < 2:
        return False
    is_named = cells.name in _NAMES['sentence']
    return len(firsts) < len(cells.values) / 1.5 or (cells.are_numbers and is_named)
