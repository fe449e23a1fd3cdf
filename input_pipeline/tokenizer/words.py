"""Whole words as a tokenizer's entries: an id for each, and its characters for a model that spells.

Owns the file words.txt and the numbers of words. Every word of a text has an id: one that stands in
the file always the same, any other the next free number, which means that word in this process
alone. So ids may go into a batch, where `characters` spells them, but into no file: whoever writes
one closes the words first, and what words.txt lacks is [UNK] then. It must not know models.

words.txt has two paragraphs, a word a line, both most frequent first: the list, special tokens in
front, which a masked-LM head chooses from; and behind a blank line further words, that are known by
their characters alone. A word is what white space and signs separate (Normalizer.split), cut after
16 characters.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.wordpiece import WordPiece

CHARACTERS = 16  # of a word that are looked at


def content(listed: Sequence[str], forms: Sequence[str]) -> bytes:
    """Return the text of words.txt."""
    return ('\n'.join(listed) + '\n\n' + ''.join(f'{word}\n' for word in forms)).encode()


def spell(words: Sequence[str]) -> np.ndarray:
    """int32 [N, 16]: the code points of each word's first 16 characters, 0 behind its end."""
    # numpy keeps texts of a fixed length as code points, filled up with zeros.
    rows = np.array(words, f'U{CHARACTERS}')
    return rows.view(np.uint32).reshape(len(rows), CHARACTERS).astype(np.int32)


class Words(WordPiece):
    """The words of words.txt, and those that came up since: WordPiece with a piece for each word.

    `vocab_size` is how many words the list has, and `starts_word` is of the words of the file.
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
        self._spelled = spell(self.entries)
        self._lock = threading.Lock()  # of what came up since: a server answers in several threads

    def close(self) -> Words:
        """Return itself; from now on a word that the file lacks is [UNK]."""
        self._closed = True
        return self

    def pieces_of(self, token: str, continues: bool = False) -> list[tuple[int, int]]:
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
                self._spelled = np.concatenate([self._spelled, spell(new)])
        return self._spelled[ids]
