"""The CoNLL shared tasks' column files and CoNLL-U, B-/I- tags, and entity scores.

The figures are those of conlleval.

This file owns both formats (a word a line with its tags beside it, a blank line after each
sentence, -DOCSTART- or # newdoc before a document) and what counts as an entity. It must not know
models or tasks.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from configs.errors import UserError
from input_pipeline.text.whole_text import read_utf8

_BLANKS = re.compile('[ \t]+')
_CONLLU_ID = re.compile(r'\d+([-.]\d+)?')
UPOS = 3  # the column of CoNLL-U with the universal part of speech
# The universal parts of speech (universaldependencies.org/u/pos), in the order of their names.
PARTS_OF_SPEECH = (
    'ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X'.split()
)


class Sentence(NamedTuple):
    """A sentence of a column file.

    Where it begins ('file:line'), its words, their tags (None in a file without), and the number of
    its document.
    """

    where: str
    words: list[str]
    tags: list[str] | None
    document: int


def read_columns(
    path: str, word: int = 0, tag: int = -1, comment: str = '', untagged: bool = False
) -> Iterator[Sentence]:
    """Yields the sentences of a column file; columns are counted from 0, or from the end.

    Columns are parted by tabs where a line has one, otherwise by blanks. -DOCSTART- lines are left
    out and counted.

    Args:
      comment: lines that begin with it are left out.
      untagged: a file with one column is accepted, as words without tags.

    Raises UserError for a line without those columns.
    """
    # A blank line is added at the end, so that the last sentence ends like any other.
    document, begin = 0, 0
    words: list[str] = []
    tags: list[str | None] = []
    for number, line in enumerate([*read_utf8(path).split('\n'), ''], start=1):
        line = line.removesuffix('\r')

        # One separator a line: words may hold blanks where tabs part columns.
        cells = line.split('\t') if '\t' in line else _BLANKS.split(line.strip(' '))
        if comment and line.startswith(comment):
            continue

        # A sentence ends. It has tags only where every word has one.
        if not line.strip() or cells[0] == '-DOCSTART-':
            if words:
                known = [tag for tag in tags if tag is not None]
                tagged = len(known) == len(tags)
                yield Sentence(f'{path}:{begin}', words, known if tagged else None, document)
            words, tags = [], []
            document += cells[0] == '-DOCSTART-'
            continue

        # A word: the sentence is known by the line of its first one.
        begin = begin if words else number
        bare = untagged and len(cells) == 1
        has_both = all(-len(cells) <= column < len(cells) for column in (word, tag))
        if not has_both or (len(cells) == 1 and not bare):
            raise UserError(
                f'{path}:{number}: {len(cells)} columns; expected a word in column {word} and its'
                f' tag in column {tag}'
            )
        words.append(cells[word])
        tags.append(None if bare else cells[tag])


def read_conllu(path: str, tag: int = UPOS, untagged: bool = False) -> Iterator[Sentence]:
    """Yields the sentences of a CoNLL-U file, as Universal Dependencies distributes them.

    Words are the syntactic ones, which have tags: the ranges (3-4, as French "du" for "de le") and
    the empty nodes (5.1) between them are left out. Documents begin at "# newdoc".

    Args:
      tag: the column of the tags, from 0; 3 is the universal part of speech.
      untagged: a sentence whose tags are all "_" is accepted, as words without tags.

    Raises UserError for a line that is none of the format.
    """
    # A blank line is added at the end, so that the last sentence ends like any other.
    document, begin = 0, 0
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*read_utf8(path).split('\n'), ''], start=1):
        line = line.removesuffix('\r')
        if line.startswith('#'):
            document += line.startswith('# newdoc')
            continue
        if not line.strip():
            if words:
                known = None if set(tags) == {'_'} else tags
                if known is None and not untagged:
                    raise UserError(f'{path}:{begin}: no word of the sentence has a tag')
                yield Sentence(f'{path}:{begin}', words, known, document)
            words, tags = [], []
            continue

        # Ten columns, of which the first says what the line is.
        cells = line.split('\t')
        if len(cells) != 10 or not _CONLLU_ID.fullmatch(cells[0]):
            raise UserError(
                f'{path}:{number}: {len(cells)} columns, the first {cells[0][:20]!r}; a line of'
                ' CoNLL-U has 10 with tabs between, and begins with the number of a word'
            )
        if cells[0].isdecimal():
            begin = begin if words else number
            words.append(cells[1])
            tags.append(cells[tag])


def as_bio(tags: Sequence[str]) -> list[str]:
    """Tags in which every entity begins with B-: an I-X that does not go on with an X becomes B-X.

    So IOB1 tags (where B- stands only between two entities of a kind) and BIO errors are read as
    conlleval reads them.
    """
    # The tag before decides, O before the first.
    bio = []
    for before, tag in zip(['O', *tags], tags, strict=False):
        goes_on = tag.startswith('I-') and before[:2] in ('B-', 'I-') and before[2:] == tag[2:]
        bio.append(f'B-{tag[2:]}' if tag.startswith('I-') and not goes_on else tag)
    return bio


def as_iob1(tags: Sequence[str]) -> list[str]:
    """BIO tags as IOB1 has them: B-X only right after another entity of kind X, else I-X."""
    # Two entities of a kind side by side are the only place where IOB1 says B-.
    iob1 = []
    for before, tag in zip(['O', *tags], tags, strict=False):
        parts = before != 'O' and before[2:] == tag[2:]
        iob1.append(f'I-{tag[2:]}' if tag.startswith('B-') and not parts else tag)
    return iob1


def is_iob1(sentences: Sequence[Sequence[str]]) -> bool:
    """Whether the tags of a file are rather IOB1 than BIO.

    They are where more entities begin with an I- that BIO would not have than with a B- that IOB1
    would not have.

    So neither a few I- by mistake among BIO tags nor a few B- among IOB1 ones change the scheme.
    """
    # Each count is how many tags would have to change for the file to be of that scheme.
    against_bio = against_iob1 = 0
    for tags in sentences:
        against_bio += sum(a != b for a, b in zip(as_bio(tags), tags, strict=True))
        against_iob1 += sum(a != b for a, b in zip(as_iob1(tags), tags, strict=True))
    return against_bio > against_iob1


def is_bio(labels: Sequence[str]) -> bool:
    """Whether the labels are O and B-X, I-X of some kinds X."""
    return (
        'O' in labels
        and len(labels) > 1
        and all(label == 'O' or label[:2] in ('B-', 'I-') for label in labels)
    )


def entity_scores(
    truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """F1, precision and recall of all entities together, and the F1 of every kind, as fractions.

    They are called entity_f1, entity_precision, entity_recall, and entity_f1_KIND.

    An entity is right where its first and last word and its kind are. The figures of conlleval (in
    percent there).
    """
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

    # micro: over all entities together, as conlleval's overall line; by kind beside it.
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # an undefined precision, where nothing is predicted, is 0
        precision, recall, f1, _ = precision_recall_fscore_support(
            truth, predicted, average='micro', zero_division=0
        )
        _, _, by_kind, _ = precision_recall_fscore_support(
            truth, predicted, average=None, zero_division=0
        )

    # seqeval gives kinds in alphabetical order, of both truth and predictions.
    kinds = sorted({tag[2:] for tags in (*truth, *predicted) for tag in tags if tag != 'O'})
    scores = {'entity_f1': f1, 'entity_precision': precision, 'entity_recall': recall}
    scores |= {f'entity_f1_{kind}': value for kind, value in zip(kinds, by_kind, strict=True)}
    return {name: float(value) for name, value in scores.items()}
