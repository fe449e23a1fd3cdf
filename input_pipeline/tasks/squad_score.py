"""Exact match and F1 of answer texts, with the figures of SQuAD's and KorQuAD's official scorers.

This file owns the normalisation of answers and the totals (evaluate-v1.1.py, evaluate-v2.0.py,
evaluate-korquad_v1.0.py), in percent. It must not know examples or models: truths and answers are
texts by question id.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

_ARTICLES = re.compile(r'\b(a|an|the)\b', re.UNICODE)
_PUNCTUATION = str.maketrans('', '', string.punctuation)
_KOREAN_SIGNS = str.maketrans(dict.fromkeys('\'"()<>《》〈〉‘’', ' '))


def normalize(text: str) -> str:
    """Return lower case, without ASCII punctuation, articles and extra white space."""
    # In the official order: case, punctuation, articles, white space; an article next to a dash
    # depends on it.
    return ' '.join(_ARTICLES.sub(' ', text.lower().translate(_PUNCTUATION)).split())


def normalize_korquad(text: str) -> str:
    """Return lower case, without ASCII punctuation and extra white space.

    Brackets and quotes of KorQuAD's list count as blanks.
    """
    return ' '.join(text.translate(_KOREAN_SIGNS).lower().translate(_PUNCTUATION).split())


class Scorer(NamedTuple):
    """What makes two answers the same, and the units that F1 counts."""

    normalize: Callable[[str], str]
    units: Callable[[str], Sequence[str]]


SCORERS = {
    'squad': Scorer(normalize, str.split),
    'korquad': Scorer(
        normalize_korquad, lambda text: list(text.replace(' ', ''))
    ),  # characters: Korean words carry endings
}


def f1(truth: Sequence[str], answer: Sequence[str], empty_matches: bool) -> float:
    """Return F1 of two token lists; no common token is 0.

    With `empty_matches` (v2.0) two empty lists agree.
    """
    if empty_matches and (not truth or not answer):
        return float(truth == answer)

    # Tokens as a bag: each counts as often as both have it.
    common = sum((Counter(truth) & Counter(answer)).values())
    return 2.0 * common / (len(truth) + len(answer)) if common else 0.0


def _scores(
    truths: Sequence[str], answer: str, version2: bool, scorer: Scorer
) -> tuple[float, float]:
    """Return exact match and F1 against the truth that suits best."""
    # v2.0 drops truths that normalise to nothing, and a question without any has the truth ''.
    given = scorer.normalize(answer)
    if version2:
        truths = [truth for truth in truths if scorer.normalize(truth)] or ['']

    # Normalised once each: public files repeat the same answer three times.
    wanted = [scorer.normalize(truth) for truth in set(truths)]
    units = scorer.units(given)
    f1_of_each = (f1(scorer.units(truth), units, version2) for truth in wanted)
    return float(given in wanted), max(f1_of_each, default=0.0)


def version1(
    truths: Mapping[str, Sequence[str]],
    answers: Mapping[str, str],
    scorer: Scorer = SCORERS['squad'],
) -> dict[str, float]:
    """Return exact_match and f1 of evaluate-v1.1.py; no answer counts as 0."""
    scores = [
        _scores(truth, answers[name], False, scorer) if name in answers else (0.0, 0.0)
        for name, truth in truths.items()
    ]
    return {'exact_match': _mean(exact for exact, _ in scores), 'f1': _mean(f for _, f in scores)}


def version2(
    truths: Mapping[str, Sequence[str]],
    answers: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    best_texts: Mapping[str, str] | None = None,
    scorer: Scorer = SCORERS['squad'],
) -> dict[str, float]:
    """Return exact and f1 of evaluate-v2.0.py, also by HasAns and NoAns.

    Unanswered ids are left out of the mean, as there.

    These are of `answers` as they are; the official script, where it is given the odds too, first
    empties those above its --na-prob-thresh, 1.0 if none is given. With `null_odds` also its
    best_exact, best_f1 and their thresholds: the scores had '' been answered where null_odds
    exceeds the threshold, and otherwise `answers`. Those cannot find a threshold above the one that
    `answers` were made with; with `best_texts`, the best answer that is not '', tuned_exact and
    tuned_f1 can. `null_odds` and `best_texts` must have every id that `answers` has.
    """
    # Per question first; every figure below is a mean over some of them.
    scores = {
        name: _scores(truth, answers[name], True, scorer)
        for name, truth in truths.items()
        if name in answers
    }
    has_answer = {name: bool(truth) for name, truth in truths.items()}
    report: dict[str, float] = {}

    # Figures of all, and of both kinds of questions where there are any.
    for prefix, names in (
        ('', list(scores)),
        ('HasAns_', [name for name in scores if has_answer[name]]),
        ('NoAns_', [name for name in scores if not has_answer[name]]),
    ):
        if names or not prefix:
            report |= {
                f'{prefix}exact': _mean(scores[name][0] for name in names),
                f'{prefix}f1': _mean(scores[name][1] for name in names),
                f'{prefix}total': len(names),
            }
    if null_odds is None:
        return report

    # The best threshold on the null odds, over the answers as given (best), which counts all
    # questions without an answer, answered or not, as the official script does ...
    report |= _thresholds('best', scores, answers, null_odds, has_answer)
    if best_texts is not None:
        # ... and over what would be answered without any threshold (tuned).
        texts = {name: text for name, text in best_texts.items() if name in scores}
        raw = {name: _scores(truths[name], text, True, scorer) for name, text in texts.items()}
        answerable = {name: has_answer[name] for name in texts}
        report |= _thresholds('tuned', raw, texts, null_odds, answerable)
    return report


def _thresholds(
    prefix: str,
    scores: Mapping[str, tuple[float, float]],
    texts: Mapping[str, str],
    null_odds: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> dict[str, float]:
    """Return the best exact match and F1 over all thresholds, and these thresholds."""
    report: dict[str, float] = {}
    for column, metric in enumerate(('exact', 'f1')):
        points = {name: both[column] for name, both in scores.items()}
        best, threshold = best_threshold(points, texts, null_odds, has_answer)
        report |= {f'{prefix}_{metric}': best, f'{prefix}_{metric}_thresh': threshold}
    return report


def best_threshold(
    scores: Mapping[str, float],
    texts: Mapping[str, str],
    null_odds: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """Return the best mean in percent over all thresholds on null_odds, and that threshold.

    It is find_best_thresh of evaluate-v2.0.py.
    """
    # At first '' is answered everywhere, which is right where there is no answer. Then, by rising
    # odds, in the file's own order where they tie, one question after the other is given its text:
    # it gains its score, or loses the point that '' had.
    names = [name for name in sorted(null_odds, key=null_odds.__getitem__) if name in scores]
    gains = [scores[name] if has_answer[name] else -float(texts[name] != '') for name in names]
    unanswerable = sum(not answerable for answerable in has_answer.values())
    totals = np.cumsum([unanswerable, *gains], dtype=np.float64)
    best = int(totals.argmax())
    threshold = null_odds[names[best - 1]] if best else 0.0
    return 100.0 * float(totals[best]) / max(len(scores), 1), threshold


def _mean(values: Iterable[float]) -> float:
    """Return the mean in percent; 0 of nothing."""
    listed = list(values)
    return 100.0 * sum(listed) / max(len(listed), 1)
