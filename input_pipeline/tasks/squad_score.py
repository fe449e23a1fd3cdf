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
    # characters: Korean words carry endings
    'korquad': Scorer(normalize_korquad, lambda text: list(text.replace(' ', ''))),
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


def _score_answer(
    truths: Sequence[str], answer: str, score_version2: bool, scorer: Scorer
) -> tuple[float, float]:
    """Return exact match and F1 against the truth that suits best."""
    # v2.0 drops truths that normalise to nothing, and a question without any has the truth ''.
    given = scorer.normalize(answer)
    if score_version2:
        truths = [truth for truth in truths if scorer.normalize(truth)] or ['']

    # Normalised once each: public files repeat the same answer three times.
    wanted = [scorer.normalize(truth) for truth in set(truths)]
    units = scorer.units(given)
    f1_of_each = (f1(scorer.units(truth), units, score_version2) for truth in wanted)
    return float(given in wanted), max(f1_of_each, default=0.0)


def score_version1(
    truths: Mapping[str, Sequence[str]],
    answers: Mapping[str, str],
    scorer: Scorer = SCORERS['squad'],
) -> dict[str, float]:
    """Return exact_match and f1 of evaluate-v1.1.py; no answer counts as 0."""
    exact, f1s = [], []
    for name, truth in truths.items():
        of_answer = (0.0, 0.0)
        if name in answers:
            of_answer = _score_answer(truth, answers[name], False, scorer)
        exact.append(of_answer[0])
        f1s.append(of_answer[1])
    return {'exact_match': _mean(exact), 'f1': _mean(f1s)}


def score_version2(
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
    scores: dict[str, tuple[float, float]] = {}
    for name, truth in truths.items():
        if name in answers:
            scores[name] = _score_answer(truth, answers[name], True, scorer)
    has_answer = {name: bool(truth) for name, truth in truths.items()}
    report: dict[str, float] = {}

    # Figures of all, and of both kinds of questions where there are any.
    for prefix, kinds in (('', (True, False)), ('HasAns_', (True,)), ('NoAns_', (False,))):
        chosen = [both for name, both in scores.items() if has_answer[name] in kinds]
        if chosen or not prefix:
            report[f'{prefix}exact'] = _mean(exact for exact, _ in chosen)
            report[f'{prefix}f1'] = _mean(f1 for _, f1 in chosen)
            report[f'{prefix}total'] = len(chosen)
    if null_odds is None:
        return report

    # The best threshold on the null odds, over the answers as given (best), which counts all
    # questions without an answer, answered or not, as the official script does ...
    report |= _find_thresholds('best', scores, answers, null_odds, has_answer)
    if best_texts is not None:
        # ... and over what would be answered without any threshold (tuned).
        texts = {name: text for name, text in best_texts.items() if name in scores}
        answerable = {name: has_answer[name] for name in texts}
        raw = {}
        for name, text in texts.items():
            raw[name] = _score_answer(truths[name], text, True, scorer)
        report |= _find_thresholds('tuned', raw, texts, null_odds, answerable)
    return report


def _find_thresholds(
    prefix: str,
    scores: Mapping[str, tuple[float, float]],
    texts: Mapping[str, str],
    null_odds: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> dict[str, float]:
    """Return the best exact match and F1 in percent over all thresholds on null_odds, and these.

    It is find_best_thresh of evaluate-v2.0.py.
    """
    # At first '' is answered everywhere, which is right where there is no answer. Then, by rising
    # odds, in the file's own order where they tie, one question after the other is given its text:
    # it gains its score, or loses the point that '' had.
    names = [name for name in sorted(null_odds, key=null_odds.__getitem__) if name in scores]
    unanswerable = sum(not answerable for answerable in has_answer.values())
    report: dict[str, float] = {}
    for column, metric in enumerate(('exact', 'f1')):
        gains = [float(unanswerable)]
        for name in names:
            gains.append(scores[name][column] if has_answer[name] else -float(texts[name] != ''))
        totals = np.cumsum(gains, dtype=np.float64)
        best = int(totals.argmax())
        report[f'{prefix}_{metric}'] = 100.0 * float(totals[best]) / max(len(scores), 1)
        report[f'{prefix}_{metric}_thresh'] = null_odds[names[best - 1]] if best else 0.0
    return report


def _mean(values: Iterable[float]) -> float:
    """Return the mean in percent; 0 of nothing."""
    listed = list(values)
    return 100.0 * sum(listed) / max(len(listed), 1)
