"""Corpora of several languages: which text is of which, and how often each is gone through.

This file owns `LANGUAGE=PATTERN`, the sampling of multilingual BERT (google-research/bert
multilingual.md), where a language's share P of the text becomes P ** S, over the sum of these, so
that small languages are seen more often than their text is long, and the mixture that says for each
language how often its text is repeated. A vocabulary is counted and records are made by the same
rule. It must not know files, tokens or how documents become examples.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from bert_jax.configs.errors import UserError, suggest
from bert_jax.input_pipeline.randomness import digest64, mix

EXPONENT = 0.7  # multilingual BERT's S
# From which on a text that is repeated teaches less each time: as often as Poro's Finnish, and with
# Muennighoff et al. 2023 the last that was worth almost as much as new text.
MOST_REPEATS = 4.0
# en=..., ko=..., zh-Hant=...: two or three letters, so that a path with = in it is rarely one.
_NAMED = re.compile('([a-z]{2,3}(?:-[A-Za-z]+)*)=(.*)', re.DOTALL)


def split_inputs(flag: str, given: str | Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the patterns of each language, sorted; {'': PATTERNS} where none is named.

    Raises UserError where some name a language and others do not, and for an empty pattern.
    """
    given = (given,) if isinstance(given, str) else given
    by_language: dict[str, tuple[str, ...]] = {}
    for text in given:
        # A file that is there with such a name is a file.
        named = None if os.path.exists(text) else _NAMED.fullmatch(text)
        language, pattern = named.groups() if named else ('', text)
        if not pattern.strip(' ,'):
            raise UserError(f'--{flag}={text}: is empty: name a file, a folder or a glob')

        # A language may be named several times: its patterns add up, but none counts twice.
        if language and pattern in by_language.get(language, ()):
            raise UserError(
                f'--{flag}={text}: is given twice, and would be read once: '
                f'--language_repeats={language}=2 takes a text twice'
            )
        by_language[language] = (*by_language.get(language, ()), pattern)

    # Text of no language could not be weighed against the others.
    if '' in by_language and len(by_language) > 1:
        first = by_language[''][0]
        raise UserError(
            f'--{flag}={first}: names no language, and others do: '
            f'write --{flag}=CODE={first}, as in en=...'
        )
    return dict(sorted(by_language.items()))


def split_repeats(flag: str, given: Sequence[str], languages: Collection[str]) -> dict[str, float]:
    """Return what --FLAG=ko=4,en=1 says of each language; 1 for those that it does not name.

    Raises UserError for what is no such list, and for a language that no input names.
    """
    repeats = dict.fromkeys(languages, 1.0)
    for text in given:
        language, _, number = text.partition('=')
        if language not in repeats:
            names = ', '.join(sorted(repeats))
            raise UserError(
                f'--{flag}={text}: no input is named {language!r}: the languages are {names}'
                f'{suggest(language, repeats)}'
            )
        try:
            repeats[language] = float(number)
        except ValueError:
            repeats[language] = math.nan
        if not 0 < repeats[language] <= 10000:
            raise UserError(
                f'--{flag}={text}: expected how often the text is taken, above 0 and up to 10000,'
                f' as in {language}=4'
            )
    if len({text.partition('=')[0] for text in given}) < len(given):
        raise UserError(f'--{flag}={",".join(given)}: names a language twice')
    return repeats


def check_mixture(
    exponent: float | None, repeats: Sequence[str], languages: Collection[str]
) -> None:
    """Raise UserError for flags about languages where none are named, or that contradict."""
    flags = [
        *([f'--language_exponent={exponent}'] if exponent is not None else []),
        *([f'--language_repeats={",".join(repeats)}'] if repeats else []),
    ]
    if flags and '' in languages:
        raise UserError(
            f'{flags[0]}: is for text in several languages: name them, as'
            ' in --input=en=PATTERN --input=ko=PATTERN'
        )
    if len(flags) > 1:
        raise UserError(f'{flags[0]} and {flags[1]} both say how often a text is taken: give one')
    split_repeats('language_repeats', repeats, languages)


def mixture(
    sizes: Mapping[str, float], exponent: float | None, repeats: Sequence[str]
) -> dict[str, float]:
    """Return how often the text of each language is taken: 1 for each would be as much as there is.

    sizes: how much text there is of each, in any unit. exponent, repeats: the options of that name;
    without either, multilingual BERT's S.
    """
    if repeats:
        return split_repeats('language_repeats', repeats, sizes)
    return language_passes(sizes, EXPONENT if exponent is None else exponent, 1)


def too_often(repeats: Mapping[str, float]) -> list[str]:
    """Return a warning for each language whose text is taken more often than is known to help."""
    return [
        f'{language}: its text is repeated {count:.2f} times: what comes after'
        f' {MOST_REPEATS:g} times is worth less and less (docs/languages.md)'
        for language, count in repeats.items()
        if count > MOST_REPEATS
    ]


def language_passes(
    tokens: Mapping[str, float], exponent: float, dupe_factor: int
) -> dict[str, float]:
    """Return how often each language's text is gone through.

    As many tokens in all as `dupe_factor` passes over everything.
    """
    # P and P ** S. A language without a token has no share to divide by.
    total = sum(tokens.values())
    shares = {language: count / total for language, count in tokens.items() if count}
    raised = {language: share**exponent for language, share in shares.items()}

    # The share that it shall have over the share that it has, times the passes over everything.
    return {
        language: dupe_factor * raised[language] / sum(raised.values()) / share
        for language, share in shares.items()
    }


def whole_passes(passes: np.ndarray, names: np.ndarray, seed: int) -> np.ndarray:
    """Return int64 [N]: `passes` [N] rounded up for as many documents as their fractions say.

    Down for the others, by a hash of `names` [N].
    """
    # 53 bits of the hash: as many as a float64 holds without rounding up to 1.
    draw = (mix(names, digest64(seed, 'passes')) >> np.uint64(11)) * 2.0**-53
    return np.floor(passes + draw).astype(np.int64)
