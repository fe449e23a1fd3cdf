"""Text with typing errors: the same ones for a seed and a name, whatever the share of words.

Owns the kinds of typo, which characters are beside each other on a keyboard or look alike, and what
a word is. A typo is a pure function of seed, name and word; a word that has one at some share has
the same one at every larger share. It must not know what the text is for.

A word is what white space separates, with a letter or a digit in it. A character is a base with
its combining marks, so that no mark is left without its base. insertion, deletion and swap are for
any script; keyboard is for Latin, Cyrillic, Greek, Hebrew, Arabic and Hangul, where a letter with
an accent is typed without it or as its base's neighbour; homoglyph and leet are for the letters
listed here. One is drawn of the kinds asked for that can change the word: where none can, it stays.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.randomness import digest64, mix

# Keys of a layout by rows; those of a row stand half a key right of those above. ' ': no letter.
_KEYBOARDS = (
    ('1234567890',),
    ('qwertyuiop', 'asdfghjkl', 'zxcvbnm'),
    ('йцукенгшщзхъ', 'фывапролджэ', 'ячсмитьбю'),
    (' ςερτυθιοπ', 'ασδφγηξκλ', 'ζχψωβνμ'),
    ('  קראטוןםפ', 'שדגכעיחלךף', 'זסבהנמצתץ'),
    ('ضصثقفغعهخحجد', 'شسيبلاتنمكط', 'ئءؤر ىةوزظ'),
    ('ㅂㅈㄷㄱㅅㅛㅕㅑㅐㅔ', 'ㅁㄴㅇㄹㅎㅗㅓㅏㅣ', 'ㅋㅌㅊㅍㅠㅜㅡ'),
)
# Letters that look alike: each stands for any other of its group.
_LOOK_ALIKE = (
    'aаα', 'cсϲ', 'eе', 'iіι', 'jј', 'oоο', 'pрρ', 'sѕ', 'vνѵ', 'xхχ', 'yу', 'uυ', 'wԝ',
    'AАΑ', 'BВΒ', 'CСϹ', 'EЕΕ', 'HНΗ', 'IІΙ', 'JЈ', 'KКΚ', 'MМΜ', 'NΝ', 'OОΟ', 'PРΡ', 'SЅ',
    'TТΤ', 'XХΧ', 'YΥҮ', 'ZΖ', 'гᴦ', 'кκ', 'يی', 'كک', 'へヘ', 'りリ', 'ロ口', 'ニ二', 'カ力',
    'エ工', 'ト卜', 'タ夕',
)  # fmt: skip
_LEET = dict(zip('abegilostzабвезоч', '48391105724683304', strict=True))


def _beside_each_other() -> dict[str, str]:
    """Return {a key's letter: those of the keys around it}, small letters."""
    around: dict[str, str] = {}
    for rows in _KEYBOARDS:
        # A margin without letters on all sides.
        grid = [f' {row}'.ljust(99) for row in ('', *rows, '')]
        for number, row in enumerate(rows, 1):
            for i, letter in enumerate(row, 1):
                above, below = grid[number - 1], grid[number + 1]
                keys = (grid[number][i - 1], grid[number][i + 1], above[i : i + 2])
                around[letter] = ''.join((*keys, below[i - 1 : i + 1])).replace(' ', '')
    return around


_AROUND = _beside_each_other()
_ALIKE = {letter: group.replace(letter, '') for group in _LOOK_ALIKE for letter in group}


@functools.lru_cache(maxsize=1 << 16)
def neighbours(character: str) -> tuple[str, ...]:
    """Return what a finger next to the right key types for a character; () where that is unknown.

    Capitals for a capital; of a Hangul syllable one of its letters is another.
    """
    if '가' <= character <= '힣':
        return _neighbours_of_syllable(character)
    # A letter with an accent: its base, and what is next to that.
    small = character.lower()
    base = unicodedata.normalize('NFD', small)[:1]
    keys = ''
    if small in _AROUND:
        keys = _AROUND[small]
    elif base in _AROUND:
        keys = base + _AROUND[base]
    return tuple(keys if small == character else map(str.upper, keys))


def _neighbours_of_syllable(syllable: str) -> tuple[str, ...]:
    """Return the neighbours of each letter in turn: NFC composes a syllable of letters."""
    letters, syllables = unicodedata.normalize('NFD', syllable), []
    for part, letter in enumerate(letters):
        for other in _AROUND.get(_key(letter), ''):
            jamo = _jamo(part).get(other, '')
            composed = unicodedata.normalize('NFC', letters[:part] + jamo + letters[part + 1 :])
            if jamo and len(composed) == 1:
                syllables.append(composed)
    return tuple(syllables)


@functools.cache
def _jamo(part: int) -> dict[str, str]:
    """Return {letter of a key: what it is as a syllable's initial (0), vowel (1) or final (2)}."""
    first, last = ((0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2))[part]
    return {_key(chr(point)): chr(point) for point in range(first, last + 1)}


@functools.cache
def _key(jamo: str) -> str:
    """Return the letter that a part of a syllable is; '' where it is none by itself."""
    # Unicode names them alike: HANGUL CHOSEONG KIYEOK, HANGUL JONGSEONG KIYEOK, HANGUL LETTER
    # KIYEOK.
    name = unicodedata.name(jamo).split()[-1]
    try:
        return unicodedata.lookup(f'HANGUL LETTER {name}')
    except KeyError:
        return ''


def split_characters(word: str) -> list[str]:
    """Return a word's characters, each a base with the combining marks that follow it."""
    split: list[str] = []
    for point in word:
        if split and unicodedata.category(point).startswith('M'):
            split[-1] += point
        else:
            split.append(point)
    return split


def _replace_each(word: list[str], others: Iterable[Iterable[str]]) -> list[str]:
    """Return the words in which one character is another one, of those that it has in `others`."""
    replaced = []
    for i, choices in enumerate(others):
        for other in choices:
            replaced.append(''.join((*word[:i], other, *word[i + 1 :])))
    return replaced


def _insert(word: list[str]) -> list[str]:
    """Hit a key twice, or together with a neighbour."""
    others = []
    for character in word:
        others.append([character + other for other in (character, *neighbours(character))])
    return _replace_each(word, others)


def _delete(word: list[str]) -> list[str]:
    if len(word) < 2:
        return []
    return [''.join(word[:i] + word[i + 1 :]) for i in range(len(word))]


def _swap(word: list[str]) -> list[str]:
    return [
        ''.join((*word[:i], b, a, *word[i + 2 :]))
        for i, (a, b) in enumerate(itertools.pairwise(word))
    ]


def _hit_neighbour(word: list[str]) -> list[str]:
    return _replace_each(word, map(neighbours, word))


def _replace_by_alike(word: list[str]) -> list[str]:
    return _replace_each(word, [_ALIKE.get(character, '') for character in word])


def _replace_by_leet(word: list[str]) -> list[str]:
    return _replace_each(word, [_LEET.get(character.lower(), '') for character in word])


# Each gives all the words that one typo of its kind makes of a word, in the order of its places.
KINDS: dict[str, Callable[[list[str]], list[str]]] = {
    'insertion': _insert,
    'deletion': _delete,
    'swap': _swap,
    'keyboard': _hit_neighbour,
    'homoglyph': _replace_by_alike,
    'leet': _replace_by_leet,
}


def _draw(drawn: int, number: int, bound: int) -> int:
    """Return a random number in [0, bound), the one of this number."""
    return (int(mix(drawn, number)) * bound) >> 64


def is_word(word: str) -> bool:
    """Tell whether a word has a letter or a digit."""
    return any(map(str.isalnum, word))


def one_typo(word: str, kinds: Iterable[str], *name: int | str) -> str:
    """Return the word with the typo of this name, of a kind that can change it.

    Where none can, the word as it is. Quicker than a `Typos` of every word, whose draws are others.
    """
    drawn, parts, left = digest64('one typo', *name), split_characters(word), list(kinds)
    for number in range(len(left)):
        # Kinds in random order, each asked only when its turn comes.
        kind = left.pop(_draw(drawn, 2 * number, len(left)))
        made = [other for other in KINDS[kind](parts) if other != word]
        if made:
            return made[_draw(drawn, 2 * number + 1, len(made))]
    return word


@dataclass(frozen=True)
class Typos:
    """Typos of some kinds in a share of words.

    Attributes:
      share: the chance of a word to have one, from 0 to 1.
      seed: which words and which typos.
      kinds: names in KINDS.
    """

    share: float
    seed: int = 0
    kinds: tuple[str, ...] = tuple(KINDS)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UserError(f'a share of {self.share:g} of the words: it must be from 0 to 1')
        for kind in self.kinds:
            if kind not in KINDS:
                raise UserError(f'no kind of typo is called {kind}: there are {", ".join(KINDS)}')

    def word(self, word: str, *name: int | str) -> str:
        """Return the word of that name, as (example, text, number): with a typo, or as it is."""
        if not is_word(word):
            return word
        # Draws are numbered, so that which typo it is does not depend on the share.
        drawn = digest64('typos', self.seed, *name)
        if _draw(drawn, 0, 1 << 53) * 2.0**-53 >= self.share:
            return word

        # First the kind, of those that change this word; then one of what it makes of the word.
        parts = split_characters(word)
        able: list[list[str]] = []
        for kind in self.kinds:
            made = [other for other in KINDS[kind](parts) if other != word]
            if made:
                able.append(made)
        if not able:
            return word
        choices = able[_draw(drawn, 1, len(able))]
        return choices[_draw(drawn, 2, len(choices))]

    def text(self, text: str, *name: int | str) -> str:
        """Return the text of that name, word by word; white space stays."""
        # Words and the spaces between them in turn.
        parts = re.split(r'(\s+)', text)
        return ''.join(
            part if number % 2 else self.word(part, *name, number // 2)
            for number, part in enumerate(parts)
        )
