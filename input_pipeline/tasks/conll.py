"""Tagged sentences: column files, CoNLL-U and tables; schemes of entity tags; conlleval.

This file owns the CoNLL shared tasks' column files and CoNLL-U (a word a line with its tags on the
line, a blank line after each sentence, -DOCSTART- or # newdoc before a document), and tables of
sentences or words; what counts as an entity, and its scores. It must not know models or tasks.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.encodings import plain_name, read_utf8
from bert_jax.input_pipeline.text.tables import Cell, Table

_LOOKED_AT = 2000  # lines
_TAG = re.compile(r'O|[BIESLUM]-\S+')
_BLANKS = re.compile('[ \t]+')
_CONLLU_ID = re.compile(r'\d+([-.]\d+)?')
UPOS = 3  # the column of CoNLL-U with the universal part of speech
# The universal parts of speech (universaldependencies.org/u/pos), in the order of their names.
PARTS_OF_SPEECH = (
    'ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X'.split()
)
_COLUMN_FILES = ('.txt', '.tsv', '.conll', '.bio', '.iob', '.iob2')
# What replaces a missing name once pandas has made texts of a column.
_BLANK = frozenset({'', 'nan', 'NaN', 'None', '<NA>'})
_MANY = 200  # words: a longer sentence is rather several without what parts them
_FEW = 10  # sentences: of fewer nothing can be said
# Sides of entity tags: IOBES has ends and singles too, which BILUO calls last and unit, BMES and
# BMEW middle and whole.
# What follows is the entity's kind, or nothing where all are of one kind without a name.
_ENTITY = re.compile('[BIMELSUW](?:-.*)?', re.DOTALL)
_GOES_ON, _IN_BIO, _OPEN = frozenset('IMEL'), frozenset('BI'), frozenset('BIM')
_OTHERWISE = re.compile('[BIMELSUW](?:[-_/:].+)?|.+[-_/:][BIMELSUW]', re.I)  # B_PER, PER-B, b-per


class Sentence(NamedTuple):
    """A sentence of a file.

    Attributes:
      places: 'file:line' of each word, or of all.
      words: the words.
      tags: their tags; None in a file without.
      document: the number of its document.
    """

    places: list[str]
    words: list[str]
    tags: list[str] | None
    document: int

    @property
    def where(self) -> str:
        """Return where it begins."""
        return self.places[0]

    def place_of(self, word: int) -> str:
        """Return where that word is."""
        return self.places[word] if len(self.places) > 1 else self.places[0]


def is_column_file(path: str) -> bool:
    """Tell whether a file has a word and its tag a line, by its name or its first lines."""
    end = os.path.splitext(plain_name(path))[1]
    if end not in ('.txt', '.tsv'):
        return end in _COLUMN_FILES or end == '.conllu'
    lines = [line for _, line in itertools.islice(_lines(path), _LOOKED_AT)]
    words = [line for line in lines if line.strip() and not line.startswith('-DOCSTART-')]
    for line in words:
        cells = line.split()
        if len(cells) < 2 or not _TAG.fullmatch(cells[-1]):
            return False
    # Blank lines at the end part no sentences.
    has_sentences = '\n\n' in '\n'.join(map(str.strip, lines)).strip()
    return has_sentences and bool(words)


def read(table: Table, comment: str, untagged: bool) -> Iterator[tuple[Sentence, dict[str, Any]]]:
    """Yield (sentence, the columns of its first row, {} of a column file) of a file."""
    if table.format not in ('conll', 'conllu'):
        yield from read_table(table, untagged)
        return
    # Words first and tags last, unless the task says otherwise; CoNLL-U has places of its own.
    columns: dict[str, Any] = dict(table.columns)
    if table.format == 'conllu':
        sentences = read_conllu(table.path, columns.get('tags', UPOS), untagged)
    else:
        places = columns.get('tokens', 0), columns.get('tags', -1)
        sentences = read_columns(table.path, *places, comment, untagged)
    yield from ((sentence, {}) for sentence in sentences)


def read_columns(
    path: str, word: int = 0, tag: int = -1, comment: str = '', untagged: bool = False
) -> Iterator[Sentence]:
    """Yield the sentences of a column file; columns are counted from 0, or from the end.

    Columns are parted by tabs where a line has one, otherwise by blanks. -DOCSTART- lines are left
    out and counted.

    Args:
      path: the file.
      word: the column of words.
      tag: the column of tags.
      comment: lines that begin with it are left out.
      untagged: a file with one column is accepted, as words without tags.

    Raises:
      UserError: a line lacks those columns, or no blank line ends a sentence.
    """
    document = sentences = unparted = 0
    places: list[str] = []
    words: list[str] = []
    tags: list[str | None] = []
    for number, line in _lines(path):
        # One separator a line: words may hold blanks where tabs part columns.
        cells = line.split('\t') if '\t' in line else _BLANKS.split(line.strip(' '))
        if comment and line.startswith(comment):
            continue

        # A sentence ends. It has tags only where every word has one.
        if not line.strip() or cells[0] == '-DOCSTART-':
            if words:
                given = [tag for tag in tags if tag is not None]
                tagged = len(given) == len(tags)
                yield Sentence(places, words, given if tagged else None, document)
                sentences += 1
                unparted += cells[0] == '-DOCSTART-'
            places, words, tags = [], [], []
            document += cells[0] == '-DOCSTART-'
            continue

        # A word, with a tag or bare.
        bare = untagged and len(cells) == 1
        has_both = all(-len(cells) <= column < len(cells) for column in (word, tag))
        if not has_both or (len(cells) == 1 and not bare):
            raise UserError(
                f'{path}:{number}: {len(cells)} columns; expected a word in column {word} and its'
                f' tag in column {tag}'
            )
        places.append(f'{path}:{number}')
        words.append(cells[word])
        tags.append(None if bare else cells[tag])

    # The file's end ends the last one.
    if sentences > 1 and unparted == sentences - 1:
        raise UserError(
            f'{path}: -DOCSTART- alone ends its {sentences} sentences, so that each is a document:'
            ' a blank line belongs after each sentence'
        )


def read_conllu(path: str, tag: int = UPOS, untagged: bool = False) -> Iterator[Sentence]:
    """Yield the sentences of a CoNLL-U file, as Universal Dependencies distributes them.

    Words are the syntactic ones, which have tags: the ranges (3-4, as French "du" for "de le") and
    the empty nodes (5.1) between them are left out. Documents begin at "# newdoc".

    Args:
      path: the file.
      tag: the column of the tags, from 0; 3 is the universal part of speech.
      untagged: a sentence whose tags are all "_" is accepted, as words without tags.

    Raises:
      UserError: a line is not of the format.
    """
    document = 0
    places: list[str] = []
    words: list[str] = []
    tags: list[str] = []
    for number, line in _lines(path):
        if line.startswith('#'):
            document += line.startswith('# newdoc')
            continue
        if not line.strip():
            if words:
                given = None if set(tags) == {'_'} else tags
                if given is None and not untagged:
                    raise UserError(f'{places[0]}: no word of the sentence has a tag')
                yield Sentence(places, words, given, document)
            places, words, tags = [], [], []
            continue

        # Ten columns, of which the first says what the line is.
        cells = line.split('\t')
        if len(cells) != 10 or not _CONLLU_ID.fullmatch(cells[0]):
            raise UserError(
                f'{path}:{number}: {len(cells)} columns, the first {cells[0][:20]!r}; a line of'
                ' CoNLL-U has 10 with tabs between, and begins with the number of a word'
            )
        if cells[0].isdecimal():
            places.append(f'{path}:{number}')
            words.append(cells[1])
            tags.append(cells[tag])


def read_table(table: Table, untagged: bool) -> Iterator[tuple[Sentence, dict[str, Any]]]:
    """Yield (sentence, the columns of its first row): a row is a sentence, or one of its words.

    It is a word where the table has a column `sentence`, in which words of one sentence have the
    same, or nothing below the first of them.

    Args:
      table: the table.
      untagged: a table without tags is accepted.

    Raises:
      UserError: a row is no sentence or word.
    """
    optional = frozenset({'tags', 'sentence'} if untagged else {'sentence'})
    rows = table.rows(optional, lists=frozenset({'tokens', 'tags'}))
    if 'sentence' in table.columns:
        for group in _iterate_sentences(rows, table):
            for line, row in group:
                # A cell is a word whatever is in it, but a word there must be.
                if isinstance(row['tokens'], list) or not row['tokens'].strip():
                    raise UserError(f'{line}: {row["tokens"]!r} is not one word: delete the row')
            places, first = [line for line, _ in group], group[0][1]
            tags = [row['tags'].strip() for _, row in group] if 'tags' in first else None
            yield Sentence(places, [row['tokens'].strip() for _, row in group], tags, 0), first
        return
    for line, row in rows:
        # A list of words, or a text with blanks between.
        words = _words(row['tokens'])
        tags = _words(row['tags']) if 'tags' in row else None
        if tags is not None and len(tags) != len(words):
            raise UserError(f'{line}: {len(words)} tokens but {len(tags)} tags')
        yield Sentence([line], words, tags, 0), row


def _iterate_sentences(
    rows: Iterator[tuple[str, dict[str, Any]]], table: Table
) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Yield the rows of each sentence."""
    group: list[tuple[str, dict[str, Any]]] = []
    current = ''
    for line, row in rows:
        name = row.get('sentence', '').strip()
        name = '' if name in _BLANK else name
        if group and name not in ('', current):
            yield group
            group = []
        current = name or current
        group.append((line, row))
    if group and not current:
        raise UserError(
            f'{table.where}: column {table.columns["sentence"]!r} for the sentence is empty, or not'
            ' there'
        )
    if group:
        yield group


def _words(cell: Cell) -> list[str]:
    return cell.split() if isinstance(cell, str) else cell


def check_lengths(name: str, lengths: Sequence[int], columns: bool) -> None:
    """Warn where the lengths of a file's sentences are hardly those of sentences.

    Args:
      name: the file.
      lengths: words of each.
      columns: whether it is a column file.

    Raises:
      UserError: they cannot be.
    """
    lone = sum(length == 1 for length in lengths)
    if len(lengths) >= _FEW and lone > 0.9 * len(lengths):
        mend = 'where a row is a word, name the column of its sentence in "columns", as in'
        mend += ' {"sentence": "Sentence #"}'
        if columns:
            mend = 'a blank line belongs only after each sentence'
        message = f'{name}: {lone} of {len(lengths)} sentences have one word: {mend}'
        impossible = lone == len(lengths)
    elif lengths and sorted(lengths)[len(lengths) // 2] > _MANY:
        message = f'{name}: {sum(lengths)} words in {len(lengths)} sentences: '
        message += 'a blank line belongs after each sentence' if columns else 'are they documents?'
        impossible = columns and len(lengths) == 1
    else:
        return
    if impossible:
        raise UserError(message)
    logging.warning('%s', message)


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield (number, line) of a file, and a blank line, which ends the last sentence."""
    for number, line in enumerate([*read_utf8(path).split('\n'), ''], start=1):
        yield number, line.removesuffix('\r')


def settle_format(name: str, split: str, table: Table) -> Table:
    """Return the table with its format settled; UserError where columns are missing."""
    # By its suffix; a .tsv with words is meant as columns here, not as a table.
    for form, endings in (('conll', _COLUMN_FILES), ('conllu', ('.conllu',))):
        if not table.format and not table.tfds and plain_name(table.path).endswith(endings):
            table = dataclasses.replace(table, format=form)
    if table.format not in ('conll', 'conllu'):
        missing = [role for role in ('tokens', 'tags') if role not in table.columns]
        if missing:
            raise UserError(
                f'task {name}: "columns" does not say which column of {split} is {missing}'
            )
        return table
    if table.only:
        raise UserError(f'task {name}: files.{split}: "only" is for tables, not for {table.path}')
    if table.format == 'conllu' and table.columns not in ({}, {'tags': 3}, {'tags': 4}):
        raise UserError(
            f'task {name}: "columns" of a CoNLL-U file is {{"tags": 3}}, the universal part of'
            f' speech, or {{"tags": 4}}, the treebank\'s own, not {table.columns}'
        )
    for role, column in table.columns.items():
        if role not in ('tokens', 'tags') or type(column) is not int:
            raise UserError(
                f'task {name}: columns.{role}: a column file has "tokens" and "tags", each by its '
                'place from 0; a table with names is "format": "tsv"'
            )
    return table


# ---- schemes of entity tags


def make_bio(tags: Sequence[str]) -> list[str]:
    """Return entity tags of any scheme as B-X and I-X, in which every entity begins with B-.

    So IOB1 tags (where B- is only between two entities of a kind), IOBES, BILUO and errors are
    read as conlleval reads them.
    """
    # The tag before decides, O before the first; behind an end or a single a new entity begins.
    bio = []
    for before, tag in zip(['O', *tags], tags, strict=False):
        same = before[:1] in _OPEN and before[1:] == tag[1:]
        side = 'I' if tag[:1] in _GOES_ON and same else 'B'
        bio.append(side + tag[1:] if _ENTITY.fullmatch(tag) else tag)
    return bio


def count_beyond_bio(tags: Sequence[str]) -> int:
    """Count the tags that are of IOBES and the like, and not of BIO."""
    return sum(tag[:1] not in _IN_BIO for tag in tags if _ENTITY.fullmatch(tag))


def make_iob1(tags: Sequence[str]) -> list[str]:
    """Return BIO tags as IOB1: B-X only right after another entity of kind X, else I-X."""
    # Two entities of a kind side by side are the only place where IOB1 says B-.
    iob1 = []
    for before, tag in zip(['O', *tags], tags, strict=False):
        parts = before != 'O' and before[1:] == tag[1:]
        iob1.append(f'I{tag[1:]}' if tag[:1] == 'B' and not parts else tag)
    return iob1


def is_iob1(sentences: Sequence[Sequence[str]]) -> bool:
    """Tell whether the tags of a file are rather IOB1 than BIO.

    They are where more entities begin with an I- that BIO would not have than with a B- that IOB1
    would not have.

    So neither a few I- by mistake among BIO tags nor a few B- among IOB1 ones change the scheme.
    """
    # Each count is how many tags would have to change for the file to be of that scheme.
    against_bio = against_iob1 = 0
    for tags in sentences:
        against_bio += sum(a != b for a, b in zip(make_bio(tags), tags, strict=True))
        against_iob1 += sum(a != b for a, b in zip(make_iob1(tags), tags, strict=True))
    return against_bio > against_iob1


def is_bio(labels: Sequence[str]) -> bool:
    """Tell whether the labels are O and B-X, I-X of some kinds X, each of which has a B-X.

    With I-X alone (IO, or IOB1 where no two entities meet), tags can only stay as they are.
    """
    begun = all(f'B{label[1:]}' in labels for label in labels if label != 'O')
    return is_entities(labels) and not count_beyond_bio(labels) and begun


def is_entities(labels: Sequence[str]) -> bool:
    """Tell whether the labels are O and, of some kinds X, those of BIO, IOBES, BILUO or BMES.

    B, I and the like alone are those of one kind without a name.
    """
    sides = set(labels) - {'O'}
    bare = {side for side in sides if len(side) == 1}
    return (
        'O' in labels
        and bool(sides)
        and all(map(_ENTITY.fullmatch, sides))
        and (not bare or bool(bare & _IN_BIO))  # S, M and L are sizes
    )


def is_otherwise_spelled(labels: Sequence[str]) -> bool:
    """Tell whether the labels are rather those of entities.

    The side comes last, or with another sign, or in lower case.
    """
    sides = [label for label in labels if label not in ('O', 'o')]
    return (
        0 < len(sides) < len(labels)
        and all(map(_OTHERWISE.fullmatch, sides))
        and any({side[0], side[-1]} & set('BIbi') for side in sides)
        and not is_entities(labels)
    )


def score_entities(
    truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return entity_f1, entity_precision, entity_recall, and entity_f1_KIND of every kind.

    They are fractions; of all entities together, and by kind. Tags are of any scheme that
    `make_bio` reads. An entity is right where its first and last word and its kind are. The figures
    of conlleval (in percent there).
    """
    from seqeval.metrics import classification_report

    truth, predicted = ([make_bio(tags) for tags in side] for side in (truth, predicted))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # an undefined precision, where nothing is predicted, is 0
        report = classification_report(truth, predicted, output_dict=True, zero_division=0)
    # micro: over all entities together, as conlleval's overall line; _ has no name.
    overall = report.pop('micro avg')
    scores = {f'entity_{name}': overall[name] for name in ('precision', 'recall')}
    scores = {'entity_f1': overall['f1-score']} | scores
    for kind, figures in report.items():
        if kind not in ('macro avg', 'weighted avg', '_'):
            scores[f'entity_f1_{kind}'] = figures['f1-score']
    return {name: float(value) for name, value in scores.items()}
