"""The WordPiece rules of google-research/bert (tokenization.py), with character origins.

They are kept to the letter. Owns how a whitespace word becomes basic tokens and pieces. Knows no
files and no special tokens: tokenizer.py does. vocabulary.py counts with the same `Normalizer`, so
that what is trained on is what is looked up.

The rules run in Python, not in a library's compiled pipeline: the tokenizer works every word out
once and then finds it in a memo, so this is faster in use, and it agrees with Google where compiled
pipelines do not (final sigma, private-use characters, words of 101 to 200 characters).
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bert_jax.input_pipeline.tokenizer import tokenizer_json

MAX_WORD_CHARS = 200  # longer words are [UNK] (tokenization.py:303); Hugging Face has 100
# str.split() takes these control characters for spaces, but Google's cleaning deletes them first
NOT_SPACE = '\x0b\x0c\x1c\x1d\x1e\x1f\x85'
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
    """Whether `char` is in one of the blocks that Google's tokenizer surrounds with spaces."""
    return any(first <= ord(char) <= last for first, last in _IDEOGRAPHS)


def is_punctuation(char: str) -> bool:
    """Whether `char` stands alone as a token (tokenization.py:386-399).

    Category P, or an ASCII sign that is no letter, digit or space.
    """
    return ('!' <= char <= '~' and not char.isalnum()) or unicodedata.category(char).startswith('P')


def _clean(char: str, ideographs: bool) -> str | None:
    """What cleaning makes of one character; None deletes it (tokenization.py:245-296).

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
        """The word composed, lower-cased and freed of accents, as far as the settings say."""
        # Composed first; then lower-cased and stripped, in Google's order, for lower-casing may
        # itself add marks (the Turkish dotted I).
        if self.nfc:
            word = unicodedata.normalize('NFC', word)
        if self.lower_case:
            word = word.lower()
        if self.strip_accents and not word.isascii():
            word = unicodedata.normalize('NFD', word).translate(self._marks)
        return word

    def compose(self, word: str) -> str:
        """`case`, put together again after accents went, for SentencePiece.

        Hangul syllables stay whole.
        """
        word = self.case(word)
        return unicodedata.normalize('NFC', word) if self.strip_accents else word

    def split(self, word: str) -> list[str]:
        """The basic tokens of a whitespace word.

        Runs of letters, single signs, single ideographs.
        """
        # Signs are set apart after casing, as there: decomposing may bring signs forth.
        return self.case(word.translate(self._clean)).translate(self._signs).split()


class WordPiece:
    """Greedy longest-match-first pieces of words (tokenization.py:308-357)."""

    def __init__(self, tokens: Sequence[str], unk_id: int, normalizer: Normalizer):
        """`tokens` in the order of their ids.

        Of two equal entries the later one counts, as in Google's dict.
        """
        # Two tables, for the first piece of a word and for those that follow, so that no `##` is
        # joined to anything while pieces are looked up.
        self._heads = {token: i for i, token in enumerate(tokens)}
        self._tails = {token[2:]: i for i, token in enumerate(tokens) if token.startswith('##')}
        self._longest = max(map(len, self._heads))
        self._unk_id, self._normalizer = unk_id, normalizer
        self._tokens = list(tokens)

    def tokenizer_json(self, special_tokens: Sequence[str]) -> str:
        """The content of a tokenizer.json with which the tokenizers library gives the same ids.

        `special_tokens`: [PAD], [UNK], [CLS], [SEP] and [MASK] in that order.
        """
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

        # The same rules in the library's terms; where it cannot follow Google to the letter is said
        # at the head of this file.
        cased, ids = self._normalizer, {token: i for i, token in enumerate(self._tokens)}
        unk = special_tokens[1]
        tokenizer = Tokenizer(
            models.WordPiece(ids, unk_token=unk, max_input_chars_per_word=MAX_WORD_CHARS)
        )
        google = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=cased.ideographs,
            strip_accents=cased.strip_accents,
            lowercase=cased.lower_case,
        )
        tokenizer.normalizer = (
            normalizers.Sequence([normalizers.NFC(), google]) if cased.nfc else google
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer_json.content(tokenizer, special_tokens)

    def ids(self, word: str) -> list[int]:
        """Ids of a whitespace word's pieces."""
        return [i for token in self._normalizer.split(word) for i, _ in self.pieces(token)]

    def pieces(self, token: str, continues: bool = False) -> list[tuple[int, int]]:
        """(id, characters) of a basic token's pieces.

        [UNK] for all of it where no pieces cover it or it is too long. With `continues` the token
        is the rest of a word that has begun.
        """
        # as a whole, not cut: Google's rule
        if len(token) > MAX_WORD_CHARS:
            return [(self._unk_id, len(token))]

        # From each place the longest entry, then on from its end; one gap makes all of it [UNK].
        matched, start, table = [], 0, self._tails if continues else self._heads
        while start < len(token):
            for end in range(min(len(token), start + self._longest), start, -1):
                piece = table.get(token[start:end])
                if piece is not None:
                    break
            else:
                return [(self._unk_id, len(token))]
            matched.append((piece, end - start))
            start, table = end, self._tails
        return matched

    def trace(self, word: str) -> list[tuple[int, int, int]]:
        """(id, start, end) of each piece of a whitespace word, made of word[start:end].

        Where a word cannot be followed character by character (rare reorderings of combining
        marks), each of its pieces is given the whole word.
        """
        # The pieces as `ids` finds them, and for each character of the normalised word where it
        # came from.
        pieces = [piece for token in self._normalizer.split(word) for piece in self.pieces(token)]
        origin = []
        for start, end in segments(word):
            origin += [(start, end)] * sum(map(len, self._normalizer.split(word[start:end])))

        # Characters that normalise differently side by side than alone: no place can be told.
        if len(origin) != sum(length for _, length in pieces):
            return [(piece, 0, len(word)) for piece, _ in pieces]

        # A piece begins where its first character came from, and ends where its last one did.
        traced, at = [], 0
        for piece, length in pieces:
            traced.append((piece, origin[at][0], origin[at + length - 1][1]))
            at += length
        return traced


def segments(word: str) -> list[tuple[int, int]]:
    """Ranges of characters that composing and decomposing cannot cross.

    Each is a character with the marks that follow it.
    """
    # Combining marks, and Hangul vowels and final consonants (U+1160 to U+11FF), go with what
    # stands before them.
    starts = [
        i
        for i, c in enumerate(word)
        if i == 0 or not (unicodedata.combining(c) or '\u1160' <= c <= '\u11ff')
    ]
    return list(zip(starts, starts[1:] + [len(word)], strict=True))
