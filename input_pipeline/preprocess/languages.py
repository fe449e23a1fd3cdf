"""Corpora of several languages: which text is of which, and how often each is gone through.

This file owns `LANGUAGE=PATTERN` and the sampling of multilingual BERT (google-research/bert
multilingual.md): a language's share P of the text becomes P ** S, over the sum of these, so
that small languages are seen more often than their text is long. It must not know files,
tokens or how documents become examples.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import numpy as np

from configs.errors import UserError
from input_pipeline.randomness import digest64, mix

EXPONENT = 0.7  # multilingual BERT's S
# en=..., ko=..., zh-Hant=...: two or three letters, so that a path with = in it is rarely one.
_NAMED = re.compile('([a-z]{2,3}(?:-[A-Za-z]+)*)=(.*)', re.DOTALL)


def split_inputs(flag: str, given: str | Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The patterns of each language, sorted; {'': PATTERNS} where none is named.

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

        # A language may be named several times: its patterns add up.
        by_language[language] = (*by_language.get(language, ()), pattern)

    # Text of no language could not be weighed against the others.
    if '' in by_language and len(by_language) > 1:
        first = by_language[''][0]
        raise UserError(
            f'--{flag}={first}: names no language, and others do: '
            f'write --{flag}=CODE={first}, as in en=...'
        )
    return dict(sorted(by_language.items()))


def language_passes(
    tokens: Mapping[str, int], exponent: float, dupe_factor: int
) -> dict[str, float]:
    """How often each language's text is gone through.

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
    """int64 [N]: `passes` [N] rounded up for as many documents as their fractions say.

    Down for the others, by a hash of `names` [N].
    """
    # 53 bits of the hash: as many as a float64 holds without rounding up to 1.
    draw = (mix(names, digest64(seed, 'passes')) >> np.uint64(11)) * 2.0**-53
    return np.floor(passes + draw).astype(np.int64)
