"""A tokenizer.json that the tokenizers library runs: WordPiece by other rules than BERT's own, and
the unigram pieces of ALBERT.

Owns the one place that encodes through that library: other normalizers, pre-tokenizers and
prefixes, and added tokens, which are found in the text before anything is split. Slower than the
rules of wordpiece.py, whose memo of words needs words to be parted by white space. The five special
tokens are not searched for, as everywhere here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers

from bert_jax.configs.errors import UserError

_WORD_MARK = '\u2581'  # begins the pieces of a unigram model that begin a word


class Compiled:
    """A tokenizer.json in the hands of its library.

    Attributes: tokens (list), starts_word (bool [V], False for a piece that continues a word).
    """

    def __init__(self, content: bytes, special_tokens: Sequence[str], where: str):
        """`content`: the bytes of a tokenizer.json; `where` names the file in errors."""
        # Special tokens are not searched for in text, and none are put around it: both are taken
        # out of the copy that encodes, not out of the content that is saved.
        self._content = content.decode()
        about = json.loads(self._content)
        about['added_tokens'] = [
            t for t in about['added_tokens'] if t['content'] not in special_tokens
        ]
        about['post_processor'] = None
        is_unigram = about['model'].get('type') == 'Unigram'
        own = [piece for piece, _ in about['model']['vocab']] if is_unigram else []
        if is_unigram:  # else `<pad>` in a text would be that piece: its copy begins as no text can
            about['model']['vocab'] = [
                ['\n' * (piece in special_tokens) + piece, score]
                for piece, score in about['model']['vocab']
            ]
        try:
            self._engine = tokenizers.Tokenizer.from_str(json.dumps(about, ensure_ascii=False))
        except Exception as error:  # the library has no kind of its own
            raise UserError(f'{where}: the tokenizers library cannot read it ({error})') from error

        # Ids in order; added tokens stand behind the vocabulary's.
        ids = self._engine.get_vocab(with_added_tokens=True)
        self.tokens = sorted(ids, key=ids.__getitem__)
        self.tokens[: len(own)] = own

        # Added and special tokens begin a word even where their text begins like a piece within.
        prefix = about['model'].get('continuing_subword_prefix', '##')
        begins = (
            (lambda token: token.startswith(_WORD_MARK))
            if is_unigram
            else (lambda token: not token.startswith(prefix))
        )
        added = {*special_tokens, *(token['content'] for token in about['added_tokens'])}
        self.starts_word = np.array([begins(token) or token in added for token in self.tokens])

    def encode_batch(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Ids of each text, int32."""
        encodings = self._engine.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def trace(self, text: str) -> list[tuple[int, int, int]]:
        """(id, start, end) of each piece of a text; text[start:end] is what it was made from."""
        encoding = self._engine.encode(text, add_special_tokens=False)
        return [
            (piece, *place) for piece, place in zip(encoding.ids, encoding.offsets, strict=True)
        ]

    def tokenizer_json(self, special_tokens: Sequence[str]) -> str:
        """The file's content."""
        del special_tokens
        return self._content
