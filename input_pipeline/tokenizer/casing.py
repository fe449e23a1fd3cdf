"""Which casing a text wants, and which different words a casing makes equal.

Owns how English is told from counted words, and what is said of a casing. Knows nothing of how
words are counted (vocabulary.py) or cased (normalizer.py).
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.trainers import count_characters
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions

# A tenth of English text, and next to nothing of any other language.
_ENGLISH_WORDS = ('the', 'of', 'and')
_ENGLISH_SHARE = 0.03
# Of the letters: English has them in names alone, and text with more is not English only.
_FOREIGN_SHARE = 0.01
_DOTLESS_SHARE = 0.01  # of the letters; Turkish and Azeri have five times as many
_LOSS = 0.01  # of the running words, from which lost accents are worth a warning
_EXAMPLES = 3


class Casing(NamedTuple):
    """Whether a vocabulary is lower-cased, and why, in words."""

    lower_case: bool
    why: str

    def applied(self, options: VocabularyOptions) -> VocabularyOptions:
        """Return the options with this casing."""
        return dataclasses.replace(options, lower_case=self.lower_case)

    def __str__(self) -> str:
        if self.lower_case:
            return f'{self.why}: lower case without accents, as BERT; --nolower_case keeps both'
        return f'{self.why}: capitals and accents stay; --lower_case takes them away'


def named(languages: Iterable[str]) -> Casing:
    """Return the casing of text in languages that the user has named."""
    codes = sorted(languages)
    english = all(code.split('-')[0] == 'en' for code in codes)
    return Casing(english, f'language: {", ".join(codes)}, as named')


def detected(words: Mapping[str, int]) -> Casing:
    """Return the casing of a text by its words, as they stand in it, and their counts."""
    common = sum(count for word, count in words.items() if word.lower() in _ENGLISH_WORDS)
    letters = _letters(words)
    common_share = common / max(1, sum(words.values()))
    foreign = sum(count for char, count in letters.items() if not char.isascii())
    foreign_share = foreign / max(1, letters.total())
    english = common_share >= _ENGLISH_SHARE and foreign_share <= _FOREIGN_SHARE
    return Casing(
        english,
        f'language: {"English" if english else "not English alone"}, by its words'
        f' ({", ".join(_ENGLISH_WORDS)}: {common_share:.1%}) and letters (beyond a to z:'
        f' {foreign_share:.1%}); --language names it',
    )


def losses(forms: Mapping[str, int], normalizer: Normalizer) -> tuple[list[str], list[str]]:
    """Return (notes, warnings) on different words that the casing makes equal.

    Args:
      forms: words with capitals and accents, and their counts.
      normalizer: the casing.
    """
    lower = dataclasses.replace(normalizer, strip_accents=False)
    steps: list[tuple[bool, str, Callable[[str], str], float, str]] = [
        # Capitals at the beginning of sentences are no other words: it is no warning.
        (normalizer.lower_case, 'lower-casing', lower.case, 1.0, ''),
        (
            normalizer.strip_accents,
            'stripping accents and vowel signs',
            normalizer.case,
            _LOSS,
            ': train with --nostrip_accents',
        ),
    ]
    notes, warnings, letters = list[str](), list[str](), _letters(forms)
    for wanted, name, rule, limit, cure in steps:
        if wanted:
            forms, share, pairs = _merged(forms, rule)
            message = (
                f'{name} makes {share:.2%} of the running words equal to more frequent other ones'
            )
            if share > limit:
                warnings.append(f'{message} ({", ".join(pairs)}){cure}')
            elif pairs:
                notes.append(f'{message} ({", ".join(pairs)})')

    if normalizer.lower_case and letters['ı'] > _DOTLESS_SHARE * letters.total():
        warnings.append(
            f'{letters["ı"] / letters.total():.1%} of the letters are ı, as in Turkish and Azeri,'
            ' of which lower-casing makes other words (SINIR becomes sinir): train with'
            ' --nolower_case'
        )
    return notes, warnings


def _merged(
    forms: Mapping[str, int], rule: Callable[[str], str]
) -> tuple[Counter[str], float, list[str]]:
    """Return the words by a rule, the share that became a more frequent word, and examples."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for form in forms:
        groups[rule(form)].append(form)
    merged, lost = Counter[str](), Counter[tuple[str, str]]()
    for word, members in groups.items():
        merged[word] = sum(forms[member] for member in members)
        commonest = max(members, key=lambda member: (forms[member], member))
        others = (member for member in members if member != commonest)
        lost.update({(member, commonest): forms[member] for member in others})
    pairs = sorted(lost, key=lambda pair: (-lost[pair], pair))[:_EXAMPLES]
    share = lost.total() / max(1, merged.total())
    return merged, share, [' = '.join(pair) for pair in pairs]


def _letters(words: Mapping[str, int]) -> Counter[str]:
    """Count the letters and the marks on them in running text."""
    characters = count_characters(words)
    return Counter({char: count for char, count in characters.items() if char.isalpha()})
