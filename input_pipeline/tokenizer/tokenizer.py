"""Tokenizer directories: text to word-piece ids and back to places in the text.

Owns the directory that holds a vocabulary with its casing, and the ids of special tokens. Knows
nothing of special tokens around a sequence, of corpora, or of how a vocabulary is trained
(vocabulary.py); what the kinds of vocabularies do is model.py's, one class for each.

Text is never searched for special tokens: `[MASK]` in a sentence is `[`, `mask`, `]`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.files.atomic import atomic_folder
from bert_jax.input_pipeline.tokenizer import settings
from bert_jax.input_pipeline.tokenizer.directories import albert_files, byte_bpe_files
from bert_jax.input_pipeline.tokenizer.model import SPECIAL_TOKENS, Kind, model_class
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer


class Encoding(NamedTuple):
    """One text's pieces, as [N] arrays; text[starts[i]:ends[i]] is what piece i was made from."""

    ids: np.ndarray  # int32
    starts: np.ndarray  # int32, in characters of the original text
    ends: np.ndarray  # int32
    word_starts: np.ndarray  # bool, False for pieces that continue a word


def listed(texts: Any) -> Any:
    """Return a list of what an array or a column of a table holds; anything else as it is."""
    return texts.tolist() if hasattr(texts, 'tolist') else texts


def several(texts: Any) -> Any:
    """Return what to go through, text by text: a string is one text, an array is a list.

    Raises:
      UserError: Python would go through it without an error, though no texts come of it.
    """
    texts = listed(texts)
    if isinstance(texts, str):
        return [texts]
    # Of a record its keys would be read, of bytes numbers, and a set has no order.
    if isinstance(texts, Mapping | bytes | bytearray | set | frozenset):
        raise UserError(
            f'texts must be a text or a list of texts, not a {type(texts).__name__}:'
            f' {repr(texts)[:80]}'
        )
    return texts


class Tokenizer:
    """A vocabulary with its casing.

    Attributes:
      model: the vocabulary of its kind.
      kind: wordpiece, sentencepiece, byte_bpe, words, or compiled, which is WordPiece by foreign
        rules, or ALBERT's pieces.
      layout: how rows are made of texts.
      vocab_size: how many entries a masked-LM head chooses from.
      known: ids below it mean the same in every process: vocab_size, but for whole words.
      special_ids: pad_id, unk_id, cls_id, sep_id and mask_id, which are attributes too.
      special_tokens: their texts in the same order.
      normalizer: the casing; lower_case and strip_accents are its.
      fingerprint: sha256 of vocabulary and casing.
      starts_word: bool [V], False for a piece that continues a word.
      vocabulary: bytes, as __init__ takes it.
    """

    def __init__(
        self,
        kind: Kind,
        vocabulary: bytes,
        normalizer: Normalizer,
        special_tokens: Sequence[str] = tuple(SPECIAL_TOKENS.values()),
        name: str = 'vocabulary',
    ):
        """Make a tokenizer of its parts.

        Args:
          kind: what sort of vocabulary it is.
          vocabulary: the content of vocab.txt, spm.model or words.txt, of tokenizer.json for
            `compiled`, or for `byte_bpe` what byte_bpe_files.content makes.
          normalizer: the casing.
          special_tokens: in the order of SPECIAL_TOKENS.
          name: what errors call the file.
        """
        model = model_class(kind)(vocabulary, special_tokens, normalizer, name)
        self.model, self.kind, self.layout = model, kind, model.layout
        self.normalizer, self.special_tokens = normalizer, list(special_tokens)
        self.lower_case, self.strip_accents = normalizer.lower_case, normalizer.strip_accents
        self.vocabulary, self.starts_word = model.vocabulary, model.starts_word
        self.known, self.vocab_size = len(model.tokens), model.vocab_size

        # A vocabulary without a special token is no BERT's.
        entries = model.tokens[: self.vocab_size]
        settings.require_special(special_tokens, entries, name)
        index = {token: i for i, token in enumerate(entries)}
        self.special_ids = tuple(index[token] for token in special_tokens)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids

        # The fingerprint: all that decides which ids a text gets.
        rules = asdict(normalizer)
        if rules['ideographs']:
            # as ever: records that are there already keep the fingerprint of their tokenizer
            del rules['ideographs']
        parts = json.dumps([kind, rules, self.special_tokens])
        self.fingerprint = hashlib.sha256(parts.encode() + b'\0' + model.vocabulary).hexdigest()

    @classmethod
    def load(cls, directory: str | os.PathLike) -> Tokenizer:
        """Read a tokenizer directory: ours, or one released by Google or Hugging Face.

        Casing is read from tokenizer_config.json, else from tokenizer.json, else from the
        vocabulary: one that has words with capitals is cased, one that has words without is not.

        Raises:
          UserError: the directory is none, or nothing in it tells the casing.
        """
        with reading(os.fspath(directory)):
            path = epath.Path(directory)
            if not path.is_dir():
                raise UserError(
                    f'{path}: no such tokenizer directory (it holds vocab.txt, spm.model, words.txt'
                    ', spiece.model or vocab.json)'
                )
            for files in (byte_bpe_files, albert_files):
                if files.is_directory(path):
                    return cls(*files.read(path))
            return cls(*settings.read(path))

    def save(self, directory: str | os.PathLike) -> None:
        """Write the tokenizer directory, whole or not at all, with its casing stated.

        A directory that already holds this very tokenizer is left as it is; one that holds anything
        else is refused.
        """
        path = epath.Path(directory)
        if self.is_saved(path):
            return
        files = self.model.files()
        with atomic_folder(path) as folder:
            for name, content in files.items():
                (folder / name).write_bytes(content)

    def is_saved(self, directory: str | os.PathLike) -> bool:
        """Tell whether a directory holds this very tokenizer, or nothing yet.

        Raises:
          UserError: it holds anything else.
        """
        # Never over another tokenizer: a model's ids would silently mean other words.
        path = epath.Path(directory)
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return False
        if (
            not (path / 'tokenizer_config.json').exists()
            or Tokenizer.load(path).fingerprint != self.fingerprint
        ):
            raise UserError(
                f'{path}: holds something else already: name another directory, or remove it'
            )
        return True

    def tokenizer_json(self) -> str:
        """Return a tokenizer.json, for programs that have that library but not this one."""
        return self.model.tokenizer_json()

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without special tokens."""
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Return the ids of each text, without special tokens, as read-only int32 arrays.

        A string is one text. Raises UserError for what `several` refuses.
        """
        return self.model.encode_batch(several(texts))

    def encode_words(self, words: Iterable[str]) -> list[np.ndarray]:
        """Return the ids of words that follow each other in a running text.

        As `encode_batch`, but byte-level BPE has other entries for a word behind a space.
        """
        prefix = self.model.word_prefix
        return self.model.encode_batch([f'{prefix}{word}' for word in several(words)])

    def encode_with_offsets(self, text: str) -> Encoding:
        """Return ids as `encode` gives them, and the stretch of `text` each was made from."""
        traced = np.array(list(self.model.trace(text)), np.int32).reshape(-1, 4)
        ids, starts, ends, begins = traced.T
        return Encoding(ids, starts, ends, begins > 0)

    def close(self) -> Tokenizer:
        """Return itself, with ids below `known` alone from now on: any other word is [UNK].

        For ids that another process will read.
        """
        self.model.close()
        return self

    def listed(self, ids: np.ndarray) -> np.ndarray | bool:
        """Tell for which ids a masked-LM head has an answer: bool, for all where it has for all."""
        return self.model.has_answer(ids)

    def characters(self, ids: np.ndarray) -> np.ndarray:
        """Return int32 [..., 16], the code points of words, of a tokenizer of whole words."""
        return self.model.characters(ids)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the entries of the vocabulary, with their `##` or SentencePiece word marks."""
        return [self.model.tokens[i] for i in ids]

    def spelled(self, ids: Iterable[int]) -> list[str]:
        """Return each entry as it is read: of byte-level BPE as text, with the space before a word.

        Those of other kinds as `tokens` has them.
        """
        return self.model.spelled(ids)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return pieces that follow each other as text: a space before each word, no marks."""
        return self.model.decode(ids)
