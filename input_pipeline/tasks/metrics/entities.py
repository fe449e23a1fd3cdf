"""The schemes of entity tags, and entity scores with the figures of conlleval.

This file owns what counts as an entity. It must not know models, tasks or files.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

# Sides of entity tags: IOBES has ends and singles too, which BILUO calls last and unit, BMES and
# BMEW middle and whole.
# What follows is the entity's kind, or nothing where all are of one kind without a name.
_ENTITY = re.compile('[BIMELSUW](?:-.*)?', re.DOTALL)
_GOES_ON, _IN_BIO, _OPEN = frozenset('IMEL'), frozenset('BI'), frozenset('BIM')
_OTHERWISE = re.compile('[BIMELSUW](?:[-_/:].+)?|.+[-_/:][BIMELSUW]', re.I)  # B_PER, PER-B, b-per


def as_bio(tags: Sequence[str]) -> list[str]:
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


def beyond_bio(tags: Sequence[str]) -> int:
    """Count the tags that are of IOBES and the like, and not of BIO."""
    return sum(tag[:1] not in _IN_BIO for tag in tags if _ENTITY.fullmatch(tag))


def as_iob1(tags: Sequence[str]) -> list[str]:
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
        against_bio += sum(a != b for a, b in zip(as_bio(tags), tags, strict=True))
        against_iob1 += sum(a != b for a, b in zip(as_iob1(tags), tags, strict=True))
    return against_bio > against_iob1


def is_bio(labels: Sequence[str]) -> bool:
    """Tell whether the labels are O and B-X, I-X of some kinds X, each of which has a B-X.

    With I-X alone (IO, or IOB1 where no two entities meet), tags can only stay as they are.
    """
    begun = all(f'B{label[1:]}' in labels for label in labels if label != 'O')
    return is_entities(labels) and not beyond_bio(labels) and begun


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


def entity_scores(
    truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return entity_f1, entity_precision, entity_recall, and entity_f1_KIND of every kind.

    They are fractions; of all entities together, and by kind. Tags are of any scheme that `as_bio`
    reads. An entity is right where its first and last word and its kind are. The figures of
    conlleval (in percent there).
    """
    from seqeval.metrics import classification_report

    truth, predicted = ([as_bio(tags) for tags in side] for side in (truth, predicted))
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
