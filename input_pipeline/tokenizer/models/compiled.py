"""A tokenizer.json that the tokenizers library runs.

Its rules are WordPiece by other rules than BERT's own, or the unigram pieces of ALBERT. Owns the
one place that encodes through that library: other normalizers, pre-tokenizers and prefixes, and
added tokens, which are found in the text before anything is split. Slower than the rules of
wordpiece.py, whose memo of words needs words to be parted by white space. The five special tokens
are not searched for, as everywhere here.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.models.tokenizer_json import WORD_MARK
from bert_jax.input_pipeline.tokenizer.normalizer import whole
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer


class LibraryModel(Tokenizer):
    """A vocabulary that the library encodes with, a text as a whole."""

    _engine: tokenizers.Tokenizer

    def _use(self, engine: tokenizers.Tokenizer) -> None:
        """Encode with `engine`; `entries` are its, added ones behind the vocabulary's."""
        self._engine = engine
        ids = engine.get_vocab(with_added_tokens=True)
        self.entries = [''] * (1 + max(ids.values()))  # '' for ids that nothing has
        for entry, i in ids.items():
            self.entries[i] = entry
        self.vocab_size = len(self.entries)

    def ids(self, word: str) -> list[int]:
        """Return the ids of a text."""
        return self._engine.encode(whole(word), add_special_tokens=False).ids

    def _encode(self, texts: Iterable[str]) -> list[np.ndarray]:
        encodings = self._engine.encode_batch(list(map(whole, texts)), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def trace(self, text: str) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (id, start, end, whether a word begins there) of each piece of a text."""
        encoding = self._engine.encode(whole(text), add_special_tokens=False)
        for piece, span in zip(encoding.ids, encoding.offsets, strict=True):
            yield (piece, *span, self.begins_word(piece))


def unreadable(name: str, error: Exception) -> UserError:
    """Return what to raise where the library, whose errors have no kind, refuses a file."""
    return UserError(f'{name}: the tokenizers library cannot read it ({error})')


def hidden(special: Container[str], vocab: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Return pieces and scores, the special ones with a new line in front, as no text has it."""
    return [['\n' * (piece in special) + piece, score] for piece, score in vocab]


class Compiled(LibraryModel):
    """A tokenizer.json by its own rules."""

    kind = 'compiled'
    refusal = "this tokenizer.json has markers already, or other rules than BERT's own"
    marked_kind = 'compiled'

    def _read(self, vocabulary: bytes, name: str) -> None:
        # Special tokens are not searched for in text, and none are put around it: both are taken
        # out of the copy that encodes, not out of the content that is saved.
        rules: dict[str, Any] = json.loads(vocabulary)
        special, model = self.special_tokens, rules['model']
        added = [t for t in rules['added_tokens'] if t['content'] not in special]
        rules |= {'added_tokens': added, 'post_processor': None}
        is_unigram = model.get('type') == 'Unigram'
        pieces = [piece for piece, _ in model['vocab']] if is_unigram else []
        if is_unigram:  # else `<pad>` in a text would be that piece
            model['vocab'] = hidden(special, model['vocab'])
        try:
            self._use(tokenizers.Tokenizer.from_str(json.dumps(rules, ensure_ascii=False)))
        except Exception as error:
            raise unreadable(name, error) from error
        self.entries[: len(pieces)] = pieces

        # Added and special tokens begin a word even where their text begins like a piece within.
        prefix = model.get('continuing_subword_prefix', '##')
        whole = {*special, *(token['content'] for token in added)}
        self.starts_word = np.array(
            [
                token in whole
                or token.startswith(WORD_MARK if is_unigram else prefix) == is_unigram
                for token in self.entries
            ]
        )

    def tokenizer_json(self) -> str:
        """Return the file's content."""
        return self.vocabulary.decode()
