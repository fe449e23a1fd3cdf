"""The WordPiece rules of google-research/bert (tokenization.py), with character origins.

They are kept to the letter. Owns how a whitespace word becomes pieces, or one entry as a whole
(`Words`); its characters are normalizer.py's.

The rules run in Python, not in a library's compiled pipeline: the tokenizer works every word out
once and then finds it in a memo, so this is faster in use, and it agrees with Google where compiled
pipelines do not (final sigma, private-use characters, words of 101 to 200 characters).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.directory import Kind, parse_vocab
from bert_jax.input_pipeline.tokenizer.normalizer import split_segments
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.tokenizer_json import MAX_WORD_CHARS, make_wordpiece_json


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
        return make_wordpiece_json(self.entries, self.special_tokens, self.normalizer)

    def ids(self, word: str) -> list[int]:
        """Return the ids of a whitespace word's pieces."""
        ids: list[int] = []
        for token in self.normalizer.split(word):
            ids += [piece for piece, _ in self.cut_token(token)]
        return ids

    def spell(self, entry: str) -> list[int]:
        """Return ids that together spell an entry, in which `##` continues a word."""
        ids = [i for i, _ in self.cut_token(entry.removeprefix('##'), entry.startswith('##'))]
        return [] if self.unk_id in ids else ids

    def cut_token(self, token: str, continues: bool = False) -> list[tuple[int, int]]:
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
        pieces: list[tuple[int, int]] = []
        for token in split(word):
            pieces += self.cut_token(token)
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


# ---- whole words

CHARACTERS = 16  # of a word that are looked at


def format_words(listed: Sequence[str], forms: Sequence[str]) -> bytes:
    """Return the text of words.txt."""
    return ('\n'.join(listed) + '\n\n' + ''.join(f'{word}\n' for word in forms)).encode()


def spell_words(words: Sequence[str]) -> np.ndarray:
    """int32 [N, 16]: the code points of each word's first 16 characters, 0 behind its end."""
    # numpy keeps texts of a fixed length as code points, filled up with zeros.
    rows = np.array(words, f'U{CHARACTERS}')
    return rows.view(np.uint32).reshape(len(rows), CHARACTERS).astype(np.int32)


class Words(WordPiece):
    """The words of words.txt, and those that came up since: WordPiece with a piece for each word.

    Every word of a text has an id, for a model that spells: one that stands in the file always the
    same, any other the next free number, which means that word in this process alone. So ids may go
    into a batch, where `characters` spells them, but into no file: whoever writes one closes the
    words first, and what words.txt lacks is [UNK] then.

    words.txt has two paragraphs, a word a line, both most frequent first: the list, special tokens
    in front, which a masked-LM head chooses from; and behind a blank line further words, that are
    known by their characters alone. A word is what white space and signs separate
    (Normalizer.split), cut after 16 characters. `vocab_size` is how many words the list has, and
    `starts_word` is of the words of the file.
    """

    kind = 'words'
    file = 'words.txt'
    has_json = False
    refusal = 'whole words are known by their characters without being listed'
    marked_kind = None
    transformers_class = 'PreTrainedTokenizerFast'

    def _read(self, vocabulary: bytes, name: str) -> None:
        try:
            listed, blank, forms = vocabulary.decode().partition('\n\n')
        except UnicodeDecodeError as error:
            raise UserError(f'{name}: not UTF-8 at byte {error.start}: not words') from error
        if not blank:
            raise UserError(
                f'{name}: no blank line in it, which ends the list of words that are predicted:'
                ' restore the file'
            )

        # split, not splitlines: that also splits at U+2028 and the like.
        self.entries = [*listed.split('\n'), *forms.split('\n')[:-1]]
        self.vocab_size = listed.count('\n') + 1
        self._ids = {word: i for i, word in enumerate(self.entries)}
        if len(self._ids) < len(self.entries) or '' in self._ids:
            raise UserError(f'{name}: a word stands in it twice, or is empty: restore the file')
        self._closed = False
        self.starts_word = np.ones(len(self.entries), bool)
        self._spelled = spell_words(self.entries)
        self._lock = threading.Lock()  # of what came up since: a server answers in several threads

    def close(self) -> Words:
        """Return itself; from now on a word that the file lacks is [UNK]."""
        self._closed = True
        return self

    def cut_token(self, token: str, continues: bool = False) -> list[tuple[int, int]]:
        """(id, characters) of the word, as a list of one."""
        word = token[:CHARACTERS]
        word_id = self._ids.get(word)
        if word_id is None and self._closed:
            word_id = self.unk_id
        elif word_id is None:
            with self._lock:
                word_id = self._ids.setdefault(word, len(self.entries))
                if word_id == len(self.entries):
                    self.entries.append(word)
        return [(word_id, len(token))]

    def spell(self, entry: str) -> list[int]:
        """Return nothing: an entry is no spelling of others."""
        return []

    def listed(self, ids: np.ndarray) -> np.ndarray | bool:
        """Tell for which ids a masked-LM head has an answer: the list's alone.

        [UNK] is no word there, as it stands for what has characters.
        """
        return (ids < self.vocab_size) & (ids != self.unk_id)

    def tokenizer_json(self) -> str:
        """Raise UserError: the tokenizers library knows words of a table alone."""
        raise UserError('a tokenizer of whole words has no tokenizer.json: it is read here alone')

    def characters(self, ids: np.ndarray) -> np.ndarray:
        """int32 [..., 16]: the code points of words, 0 behind their ends."""
        with self._lock:
            new = self.entries[len(self._spelled) :]
            if new:
                self._spelled = np.concatenate([self._spelled, spell_words(new)])
        return self._spelled[ids]
