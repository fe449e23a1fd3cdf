"""The WordPiece rules of google-research/bert (tokenization.py), with character origins.

They are kept to the letter. Owns how a whitespace word becomes pieces; its characters are
normalizer.py's.

The rules run in Python, not in a library's compiled pipeline: the tokenizer works every word out
once and then finds it in a memo, so this is faster in use, and it agrees with Google where compiled
pipelines do not (final sigma, private-use characters, words of 101 to 200 characters).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from bert_jax.input_pipeline.tokenizer.directory import Kind, parse_vocab
from bert_jax.input_pipeline.tokenizer.normalizer import split_segments
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.tokenizer_json import MAX_WORD_CHARS, wordpiece_json


class WordPiece(Tokenizer):
    """Greedy longest-match-first pieces of words (tokenization.py:308-357)."""

    kind: ClassVar[Kind] = 'wordpiece'
    file = 'vocab.txt'
    refusal = ''
    marked_kind: ClassVar[Kind | None] = 'compiled'

    def _read(self, vocabulary: bytes, name: str) -> None:
        self.entries = parse_vocab(vocabulary, name)
        self.vocab_size = len(self.entries)
        self.vocabulary = ('\n'.join(self.entries) + '\n').encode()
        self.starts_word = np.array([not token.startswith('##') for token in self.entries])

        # Two tables, for the first piece of a word and for those that follow, so that no `##` is
        # joined to anything while pieces are looked up. Of two equal entries the later one counts,
        # as in Google's dict.
        self._heads = {token: i for i, token in enumerate(self.entries)}
        self._tails = {t[2:]: i for i, t in enumerate(self.entries) if t.startswith('##')}
        self._longest = max(map(len, self._heads))

    @property
    def transformers_class(self) -> str:
        """Name the class of transformers that has the same rules."""
        # BertTokenizer knows no composing, and passes over the rules of a tokenizer.json
        return super().transformers_class if self.normalizer.nfc else 'BertTokenizer'

    def tokenizer_json(self) -> str:
        """Return a tokenizer.json with which the tokenizers library gives the same ids."""
        return wordpiece_json(self.entries, self.special_tokens, self.normalizer)

    def ids(self, word: str) -> list[int]:
        """Return the ids of a whitespace word's pieces."""
        return [i for token in self.normalizer.split(word) for i, _ in self.pieces_of(token)]

    def spell(self, entry: str) -> list[int]:
        """Return ids that together spell an entry, in which `##` continues a word."""
        ids = [i for i, _ in self.pieces_of(entry.removeprefix('##'), entry.startswith('##'))]
        return [] if self.unk_id in ids else ids

    def pieces_of(self, token: str, continues: bool = False) -> list[tuple[int, int]]:
        """Return (id, characters) of a basic token's pieces.

        It is [UNK] as a whole where no pieces cover it or it is too long. With `continues` the
        token goes on a word that has begun.
        """
        # as a whole, not cut: Google's rule
        if len(token) > MAX_WORD_CHARS:
            return [(self.unk_id, len(token))]

        # From each place the longest entry, then on from its end; one gap makes all of it [UNK].
        matched, start = [], 0
        table = self._tails if continues else self._heads
        while start < len(token):
            for end in range(min(len(token), start + self._longest), start, -1):
                piece = table.get(token[start:end])
                if piece is not None:
                    break
            else:
                return [(self.unk_id, len(token))]
            matched.append((piece, end - start))
            start, table = end, self._tails
        return matched

    def trace_word(self, word: str) -> Iterable[tuple[int, int, int]]:
        """Return (id, start, end) of each piece of a whitespace word, made of word[start:end].

        Where a word cannot be followed character by character (rare reorderings of combining
        marks), each of its pieces is given the whole word.
        """
        # The pieces as `ids` finds them, and for each character of the normalised word where it
        # came from.
        split = self.normalizer.split
        pieces = [piece for token in split(word) for piece in self.pieces_of(token)]
        origin = []
        for start, end in split_segments(word):
            origin += [(start, end)] * sum(map(len, split(word[start:end])))

        # Characters that normalise differently side by side than alone: no place can be given.
        if len(origin) != sum(length for _, length in pieces):
            return [(piece, 0, len(word)) for piece, _ in pieces]

        # A piece begins where its first character came from, and ends where its last one did.
        traced, at = [], 0
        for piece, length in pieces:
            traced.append((piece, origin[at][0], origin[at + length - 1][1]))
            at += length
        return traced
