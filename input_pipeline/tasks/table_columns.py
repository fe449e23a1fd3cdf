"""Which column of a table is what: seen in its cells and its name.

Owns what numbers, classes and texts look like, and which columns are a text and its label, or a
sentence, its words and their tags. It must not know how such a table is read
(`conll.read_table`), nor what kind of task it is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.encodings import plain_name

# What people call such columns, in small letters. Of labels the first that is there is it.
LABELS = (
    'label labels gold_label class target category sentiment intent emotion is_duplicate score'
    ' similarity rating stars tags ner_tags'.split()
)
TEXTS = (
    'text sentence review content document comment tweet message utterance body tokens'
    ' words'.split()
)
_PAIRS = (
    ('premise', 'hypothesis'), ('question', 'sentence'), ('question', 'passage'),
    ('query', 'document'), ('query', 'passage'), ('text', 'text_pair'), ('text', 'text_b'),
)  # fmt: skip
_NUMBERED = ('12', 'ab', '01')  # ends of the names of a pair, as in sentence1 and sentence2
_OPTION = '--columns=text=NAME,label=NAME'
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

        wordy = 0
        for text in self.texts:
            wordy += len(text.split()) > 1 or (len(text) >= 5 and not text.isascii())
        self.are_texts = wordy > count / 2 and not self.are_numbers and not self.are_classes

    def __str__(self) -> str:
        return repr(self.key) if isinstance(self.key, str) else str(self.key)


def is_number(text: str) -> bool:
    """Tell whether a text spells a number in digits."""
    return bool(re.fullmatch(r'\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*', text))


class TableColumns:
    """The columns of a table, as far as they were looked at, and what the user says of them.

    Attributes:
      path: the table, for errors.
      cells: its columns.
      named: role -> the column that the user says it is.
      by_key: the columns by their names or places.
      free: those with something in them that the user has not named.
    """

    def __init__(self, path: str, cells: Sequence[Cells], named: Mapping[str, str | int]):
        self.path, self.cells, self.named = path, cells, named
        self.by_key = {column.key: column for column in cells}
        self.free = [c for c in cells if c.key not in named.values() and c.given]

    def get(self, key: Any) -> Any:
        """Return a column by its name, or its place from the end too; of a list all of them."""
        if isinstance(key, list):
            return [self.by_key[each] for each in key]
        return self.by_key[key] if key in self.by_key else self.cells[key]

    # ---- words and their tags

    def find_words(self, asked: bool) -> dict[str, Any] | None:
        """Return the entries of a task file of words and tags; None for another table.

        A row is a word, and a column says of which sentence, or a row is a sentence: lists of words
        and of tags, or texts with blanks between.

        Args:
          asked: whether the user says that words have tags.

        Raises:
          UserError: it is asked, and a column is not clear.
        """
        asked = asked or bool({'sentence', 'tokens', 'tags'} & self.named.keys())
        roles = {_ROLES.get(role, role): key for role, key in self.named.items()}
        if not set(roles.values()) <= set(self.by_key):
            return None
        if 'sentence' not in roles:
            of_sentences = self._find_sentences(roles)
            if of_sentences is not None:
                return self._describe(of_sentences)
        if roles and not asked:
            return None
        # Names that say nothing are passed over where what is in the columns leaves no doubt.
        is_clear = asked or not any(column.are_texts for column in self.cells)
        free = list(self.free)
        for role, fits, what in (
            ('sentence', _parts_sentences, 'holds the same for all words of a sentence'),
            ('tags', _are_tags, 'holds the tag of a word'),
            ('tokens', _are_words, 'holds one word'),
        ):
            if role in roles:
                continue
            likely = {c.name or str(c.key): c for c in free if fits(c)}
            chosen = next((likely[name] for name in _NAMES[role] if name in likely), None)
            if chosen is None and is_clear and len(likely) == 1:
                (chosen,) = likely.values()
            if chosen is None and asked:
                raise UserError(
                    f'{self.path}: which of its columns {_show(self.cells)} {what}? Say {role}=NAME'
                    f' in {WORDS_OPTION}'
                )
            if chosen is None:
                return None
            roles[role] = chosen.key
            free.remove(chosen)
        return self._describe(roles)

    def _describe(self, roles: dict[str, Any]) -> dict[str, Any]:
        # Such a file would be one of columns without names, if nothing else were said.
        if plain_name(self.path).endswith(('.tsv', '.txt')):
            return {'columns': roles, 'format': 'tsv'}
        return {'columns': roles}

    def _find_sentences(self, named: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the columns of words and of as many tags; None where rows are no sentences."""
        keys = {column.name: column.key for column in self.free}
        roles: dict[str, Any] = {}
        for role in ('tokens', 'tags'):
            names = [name for name in _NAMES[role] if name in keys]
            if names:
                roles[role] = keys[names[0]]
        roles |= named
        if 'tokens' not in roles or 'tags' not in roles:
            return None

        words, tags = self.by_key[roles['tokens']], self.by_key[roles['tags']]
        lengths = _count_parts(tags)
        if words.are_lists != tags.are_lists or _count_parts(words) != lengths:
            return None
        several = sum(length > 1 for length in lengths)
        if not words.are_lists and several <= len(lengths) / 2:
            return None
        return roles

    # ---- a text or two, and a label

    def find_texts(self) -> dict[str, Any]:
        """Return role -> column of a task of texts; UserError where a column may be either."""
        for role, key in self.named.items():
            if key not in self.by_key and not isinstance(key, int):
                raise UserError(
                    f'--columns: no column {key!r} for {role!r} in {self.path}; it has'
                    f' {", ".join(map(str, self.by_key))[:200]}'
                )
        label: Any = self.named['label'] if 'label' in self.named else self._find_label()
        if 'text' in self.named:
            return {**self.named, 'label': label}
        taken = [*(label if isinstance(label, list) else [label]), *self.named.values()]
        left = [column for column in self.cells if column.key not in taken]
        return {**self._find_texts_among(left), **self.named, 'label': label}

    def _find_label(self) -> Any:
        """Return the column of the label, or a list of them."""
        by_name = {column.name: column for column in self.free}
        for name in LABELS:
            if name in by_name and not by_name[name].are_texts:
                return by_name[name].key
        # No column is called so: the one that looks so, or one of 0 and 1 for each label.
        likely = [c for c in self.free if c.are_classes]
        if len(likely) > 1 and all(c.different == {'0', '1'} for c in likely):
            return [c.key for c in self.free if c.different <= {'0', '1'}]
        # Or lists of labels, where no other column has lists: else they may be words and their
        # tags.
        lists = [c for c in self.free if c.are_lists]
        if not likely and len(lists) == 1:
            items = Cells('', list(itertools.chain.from_iterable(lists[0].given)))
            likely = lists if items.are_classes else []
        if len(likely) == 1:
            return likely[0].key
        what = 'may each be the label' if likely else 'do not look like labels'
        raise UserError(
            f'{self.path}: columns {_show(likely or self.cells)} {what}: say which, as in'
            f' {_name_option(self.cells)}'
        )

    def _find_texts_among(self, columns: Sequence[Cells]) -> dict[str, str | int]:
        """Return the column of the text, or those of both."""
        names = {column.name: column.key for column in columns if column.name}
        texts = [column for column in columns if column.are_texts]
        text_names = {column.name for column in texts}
        pairs = [pair for pair in _PAIRS if set(pair) <= set(names)]
        for pair in itertools.combinations(names, 2):
            if _is_pair(*pair) and set(pair) <= text_names:
                pairs.append(pair)
        if pairs:
            return {'text': names[pairs[0][0]], 'text_b': names[pairs[0][1]]}

        # By what is in them; a name decides among several.
        if len(texts) != 1:
            by_name = [name for name in TEXTS if name in names]
            if len(by_name) == 1 or (by_name and not texts):
                return {'text': names[by_name[0]]}
        if len(texts) == 1:
            return {'text': texts[0].key}
        if len(texts) == 2 and not any(column.name for column in columns):
            return {'text': texts[0].key, 'text_b': texts[1].key}
        shown = _show(texts or columns)
        if len(texts) == 2:
            raise UserError(
                f'{self.path}: columns {shown} are both texts: give'
                f' --columns=text={texts[0].key},text_b={texts[1].key} for a pair, or'
                ' --columns=text=NAME for one alone'
            )
        what = 'are all texts' if texts else 'do not look like texts'
        raise UserError(
            f'{self.path}: columns {shown} {what}: say which, as in {_name_option(columns)}'
        )


def _show(columns: Sequence[Cells]) -> str:
    """Return the names or places of columns, for errors."""
    return ', '.join(map(str, columns))[:200]


def _name_option(columns: Sequence[Cells]) -> str:
    """Return the option that names columns; of a table without texts also that for words."""
    if any(column.are_texts for column in columns):
        return _OPTION
    return f'{_OPTION}, or {WORDS_OPTION} where each row is a word'


def _is_pair(first: str, second: str) -> bool:
    """Tell whether two names differ in a number or letter that counts them."""
    if len(first) != len(second):
        return False
    differ = [a + b for a, b in zip(first, second, strict=True) if a != b]
    return len(differ) == 1 and differ[0] in _NUMBERED


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
