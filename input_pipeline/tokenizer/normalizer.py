"""The rules of google-research/bert for the characters of a word, before it becomes pieces.

They are kept to the letter (tokenization.py). Owns casing, accents, and what is a sign or an
ideograph. Knows no vocabulary: trainers.py counts with the same `Normalizer` as wordpiece.py cuts
with, so that what is trained on is what is looked up.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

# str.split() takes these control characters for spaces, but Google's cleaning deletes them first
NOT_SPACE = '\x0b\x0c\x1c\x1d\x1e\x1f\x85'
# Halves of a character, which a JSON file may hold and UTF-8 cannot.
_HALVES_RE = re.compile('[\ud800-\udfff]')
# What Unicode calls white space, and so do the libraries' rules; str.isspace() has four more.
SPACES = '\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000'
_SPACE_RE = re.compile(f'[{SPACES}]')
# Characters of a text from which on it is cut before any white space, and anywhere.
_LONG, _LONGEST = 1 << 16, 1 << 20
_NOT_SPACE_RE = re.compile(f'[{NOT_SPACE}]')
# Blocks of ideographs, which are written without spaces (tokenization.py:264-281); Hangul and kana
# are not among them
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class _CharTable(dict):
    """A table for `str.translate` that asks `rule` once for each character that occurs."""

    def __init__(self, rule: Callable[[str], str | None]):
        super().__init__()
        self._rule = rule

    def __missing__(self, codepoint: int) -> str | None:
        value = self[codepoint] = self._rule(chr(codepoint))
        return value


def is_ideograph(char: str) -> bool:
    """Tell whether `char` is in a block that Google's tokenizer surrounds with spaces."""
    return any(first <= ord(char) <= last for first, last in _IDEOGRAPHS)


def is_punctuation(char: str) -> bool:
    """Tell whether `char` is a token by itself (tokenization.py:386-399).

    Category P, or an ASCII sign that is no letter, digit or space.
    """
    return ('!' <= char <= '~' and not char.isalnum()) or unicodedata.category(char).startswith('P')


def _clean(char: str, ideographs: bool) -> str | None:
    """Return what cleaning makes of a character; None deletes it (tokenization.py:245-296).

    With `ideographs` these are set apart by spaces.
    """
    # The order matters: tab and line ends are control characters too, but stand for spaces.
    category = unicodedata.category(char)
    if char in '\t\n\r' or category == 'Zs':
        return ' '
    if category in ('Cc', 'Cf') or char == '\ufffd':
        return None
    return f' {char} ' if ideographs and is_ideograph(char) else char


@dataclass(frozen=True)
class Normalizer:
    """Casing and accents of a vocabulary, and how a word is split under them.

    `lower_case` and `strip_accents` are Google's `do_lower_case` taken apart (there it means both).
    `nfc` composes characters first, so that Hangul or accents typed in parts find their entries;
    Google has nothing of the kind, so released vocabularies have it off. Without `ideographs` these
    are not set apart as words of their own (Hugging Face's tokenize_chinese_chars).
    """

    lower_case: bool
    strip_accents: bool
    nfc: bool = False
    ideographs: bool = True

    @functools.cached_property
    def _clean(self) -> _CharTable:
        return _CharTable(lambda c: _clean(c, self.ideographs))

    @functools.cached_property
    def _marks(self) -> _CharTable:
        return _CharTable(lambda c: None if unicodedata.category(c) == 'Mn' else c)

    @functools.cached_property
    def _signs(self) -> _CharTable:
        return _CharTable(lambda c: f' {c} ' if is_punctuation(c) else c)

    def case(self, word: str) -> str:
        """Return the word composed, lower-cased and freed of accents, as the settings say."""
        # Composed first; then lower-cased and stripped, in Google's order, for lower-casing may
        # itself add marks (the Turkish dotted I).
        word = replace_halves(word)
        if self.nfc:
            word = unicodedata.normalize('NFC', word)
        if self.lower_case:
            word = word.lower()
        if self.strip_accents and not word.isascii():
            word = unicodedata.normalize('NFD', word).translate(self._marks)
        return word

    def compose(self, word: str) -> str:
        """Return `case`, put together again after accents went, for SentencePiece.

        Hangul syllables stay whole.
        """
        word = self.case(word)
        return unicodedata.normalize('NFC', word) if self.strip_accents else word

    def split(self, word: str) -> list[str]:
        """Return the basic tokens of a word: runs of letters, single signs, single ideographs."""
        # Signs are set apart after casing, as there: decomposing may bring signs forth.
        return self.case(word.translate(self._clean)).translate(self._signs).split()


def replace_halves(text: str) -> str:
    """Return the text with U+FFFD for halves of characters, which the libraries cannot take."""
    return text if text.isascii() else _HALVES_RE.sub('\ufffd', text)


def split_words(text: str) -> list[str]:
    """Return the whitespace words of a text, as Google's cleaning and str.split see them."""
    if not text.isprintable():  # a quick test that most text passes
        text = _NOT_SPACE_RE.sub('', text)
    return text.split()


def split_passages(
    sentences: Sequence[str], spaces: Sequence[str], parted: bool = True
) -> Iterator[list[str]]:
    """Yield a text in stretches of sentences, each with the white space before it.

    Args:
      sentences: of the text.
      spaces: the white space before each.
      parted: a stretch ends before white space; else only where it is long.
    """
    stretch: list[str] = []
    size = 0
    for space, sentence in zip(spaces, sentences, strict=True):
        ends = _SPACE_RE.match(space) and (parted or size > _LONG)
        if stretch and (ends or size > _LONGEST):
            yield stretch
            stretch, size = [], 0
        stretch.append(space + sentence)
        size += len(stretch[-1])
    if stretch:
        yield stretch


def split_segments(word: str) -> list[tuple[int, int]]:
    """Return ranges of characters that composing and decomposing cannot cross.

    Each is a character with the marks that follow it.
    """
    # Combining marks, and Hangul vowels and final consonants (U+1160 to U+11FF), go with what
    # comes before them.
    starts: list[int] = []
    for i, char in enumerate(word):
        if i == 0 or not (unicodedata.combining(char) or '\u1160' <= char <= '\u11ff'):
            starts.append(i)
    return list(itertools.pairwise([*starts, len(word)]))
