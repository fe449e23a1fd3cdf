"""Tokenizers: text to word-piece ids and back to places in the text, and their directories.

Owns the interface of the kinds of vocabularies and their table; each kind is one class in a file
beside this one, and nothing else may ask which kind a tokenizer has. Owns the directory that holds
a vocabulary with its casing, and the ids of special tokens. Knows nothing of special tokens around
a sequence, of corpora, or of how a vocabulary is trained (vocabulary.py).

Text is never searched for special tokens: `[MASK]` in a sentence is `[`, `mask`, `]`.
"""

from __future__ import annotations

import abc
import hashlib
import importlib
import itertools
import json
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple

import numpy as np
from etils import epath

from bert_jax.configs.errors import UserError, check_regular_files, reading
from bert_jax.configs.files.atomic import atomic_folder
from bert_jax.input_pipeline.tokenizer import foreign_directories, unigram_directories
from bert_jax.input_pipeline.tokenizer.directory import (
    SPECIAL_TOKENS,
    Kind,
    Stated,
    read_bert,
    require_special,
)
from bert_jax.input_pipeline.tokenizer.normalizer import (
    NOT_SPACE,
    Normalizer,
    split_passages,
    split_words,
)
from bert_jax.input_pipeline.tokenizer.tokenizer_json import WORD_MARK, Layout

_MEMO_WORDS = 1 << 20  # words remembered: about 200 MB when full
# Of a document, encoded at once: an array each takes more memory than their tokens
_SENTENCES = 1024
_MEMO_WORD_CHARS = 64  # longer ones (a Chinese sentence is one "word") hardly ever return
_WORD_RE = re.compile(rf'(?:\S|[{NOT_SPACE}])+')
# Module and class of each kind: a kind's libraries are imported where it is used.
_CLASSES: dict[Kind, tuple[str, str]] = {
    'wordpiece': ('wordpiece', 'WordPiece'),
    'sentencepiece': ('sentencepiece_model', 'SentencePiece'),
    'compiled': ('fast', 'Compiled'),
    'byte_bpe': ('byte_bpe', 'ByteBpe'),
    'words': ('wordpiece', 'Words'),
    'fast': ('fast', 'Fast'),
}


class _Memo(dict):
    """A bounded map of a word, or what else texts are cut into, to the bytes of its int32 ids."""

    def __init__(self, ids_of: Callable[[str], list[int]]):
        super().__init__()
        self._ids_of = ids_of

    def __missing__(self, word: str) -> bytes:
        value = array('i', self._ids_of(word)).tobytes()
        # frequent words come early: the first ones stay
        if len(self) < _MEMO_WORDS and len(word) <= _MEMO_WORD_CHARS:
            self[word] = value
        return value


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


def cut_at(pieces: Sequence[str], ids: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
    """Return the ids of each piece of a text: of those entries that begin in it.

    `starts`: where in the text each entry begins.
    """
    borders = np.cumsum([len(piece) for piece in pieces[:-1]])
    return np.split(ids, np.searchsorted(np.maximum.accumulate(starts), borders))


def _read_directory(path: epath.Path) -> Stated:
    """Read a tokenizer directory as what its files show it to be."""
    name = unigram_directories.find_class(path)
    if name:
        return unigram_directories.read_unigram(path, name)
    if foreign_directories.is_fast(path):
        return foreign_directories.read_fast(path)
    if foreign_directories.is_roberta(path):
        return foreign_directories.read_roberta(path)
    if foreign_directories.is_albert(path):
        return foreign_directories.read_albert(path)
    return read_bert(path)


class Tokenizer(abc.ABC):
    """A vocabulary of one kind, with its casing.

    Attributes:
      kind: its name in tokenizer_config.json: wordpiece, sentencepiece, byte_bpe, words; compiled,
        which is WordPiece by foreign rules, or ALBERT's pieces; fast, which is any tokenizer.json.
      file: the file of the vocabulary; '' where tokenizer.json holds it.
      has_json: whether the tokenizers library can have its rules.
      layout: how rows are made of texts.
      holds_space: whether entries have white space in them, so that what a sentence becomes depends
        on what is before it.
      refusal: why a vocabulary of this kind takes no new words; '' where it does.
      marked_kind: the kind that it becomes with markers; None where it takes none.
      vocabulary: the content of its file, of which the fingerprint is made.
      entries: by id.
      starts_word: bool [V], False for a piece that continues a word.
      vocab_size: how many entries a masked-LM head chooses from.
      unused: how many rows without an entry a word table has behind them in other programs.
      known: ids below it mean the same in every process: vocab_size, but for whole words.
      special_ids: pad_id, unk_id, cls_id, sep_id and mask_id, which are attributes too.
      special_tokens: their texts in the same order.
      normalizer: the casing; lower_case and strip_accents are its.
      fingerprint: sha256 of vocabulary and casing.
    """

    kind: ClassVar[Kind]
    file = ''
    has_json = True
    layout = Layout()
    holds_space = False
    unused = 0
    refusal: str
    marked_kind: ClassVar[Kind | None] = None

    vocabulary: bytes
    entries: list[str]
    starts_word: np.ndarray
    vocab_size: int

    def __init__(
        self, vocabulary: bytes, normalizer: Normalizer, special_tokens: Sequence[str], name: str
    ):
        """Make a tokenizer of its parts, which are those of `of_kind`."""
        self.vocabulary, self.special_tokens = vocabulary, list(special_tokens)
        self.normalizer = normalizer
        self.lower_case, self.strip_accents = normalizer.lower_case, normalizer.strip_accents
        self._memo = _Memo(self.ids)
        self._read(vocabulary, name)
        self.known = len(self.entries)

        # A vocabulary without a special token is no BERT's.
        entries = self.entries[: self.vocab_size]
        require_special(special_tokens, entries, name)
        index = {token: i for i, token in enumerate(entries)}
        self.special_ids = tuple(index[token] for token in special_tokens)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids

        # The fingerprint: all that decides which ids a text gets.
        rules = asdict(normalizer)
        if rules['ideographs']:
            # as ever: records that are there already keep the fingerprint of their tokenizer
            del rules['ideographs']
        parts = json.dumps([self.kind, rules, self.special_tokens])
        self.fingerprint = hashlib.sha256(parts.encode() + b'\0' + self.vocabulary).hexdigest()

    @staticmethod
    def of_kind(
        kind: Kind,
        vocabulary: bytes,
        normalizer: Normalizer,
        special_tokens: Sequence[str] = tuple(SPECIAL_TOKENS.values()),
        name: str = 'vocabulary',
    ) -> Tokenizer:
        """Make a tokenizer of its parts.

        Args:
          kind: what sort of vocabulary it is.
          vocabulary: the content of vocab.txt, spm.model or words.txt, of tokenizer.json for
            `compiled` and `fast`, or for `byte_bpe` what format_byte_bpe makes.
          normalizer: the casing.
          special_tokens: in the order of SPECIAL_TOKENS.
          name: what errors call the file.

        Raises:
          UserError: the content is not of this kind, or lacks a special token.
        """
        module, class_name = _CLASSES[kind]
        kinds = importlib.import_module(f'bert_jax.input_pipeline.tokenizer.{module}')
        return getattr(kinds, class_name)(vocabulary, normalizer, special_tokens, name)

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
                    ', spiece.model, vocab.json or tokenizer.json): make one with'
                    ' bert-train-vocab, or correct the path'
                )
            check_regular_files(path)
            # Whatever is missing or of another type in the files, they are not such a directory's.
            try:
                stated = _read_directory(path)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise UserError(
                    f'{path}: its files are not those of a tokenizer ({error!r}): copy them again'
                ) from error
            return cls.of_kind(*stated)

    def save(self, directory: str | os.PathLike) -> None:
        """Write the tokenizer directory, whole or not at all, with its casing stated.

        A directory that already holds this very tokenizer is left as it is; one that holds anything
        else is refused.
        """
        path = epath.Path(directory)
        if self.is_saved(path):
            return
        files = self.files()
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

    @abc.abstractmethod
    def _read(self, vocabulary: bytes, name: str) -> None:
        """Set `entries`, `starts_word` and `vocab_size`."""

    @abc.abstractmethod
    def ids(self, word: str) -> list[int]:
        """Return the ids of one of the words of `split`."""

    @abc.abstractmethod
    def tokenizer_json(self) -> str:
        """Return a tokenizer.json with which the tokenizers library gives the same ids."""

    def split(self, text: str) -> list[str]:
        """Return what a text is cut into before each part is encoded by itself."""
        return split_words(text)

    def __repr__(self) -> str:
        """Return the kind, and how many entries there are."""
        return f'{type(self).__name__}({self.vocab_size:,} entries)'

    def pieces(self, text: str) -> list[str]:
        """Return the pieces that a text is cut into, without special tokens."""
        return self.tokens(self.encode(text))

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without special tokens."""
        return self._encode([text])[0].tolist()

    def encode_batch(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Return the ids of each text, without special tokens, as read-only int32 arrays.

        A string is one text. Raises UserError for what `several` refuses.
        """
        return self._encode(several(texts))

    def encode_document(
        self, sentences: Sequence[str], spaces: Sequence[str], lined: bool = False
    ) -> Iterator[list[np.ndarray]]:
        """Yield the ids of sentences that follow each other in a document, in batches.

        Args:
          sentences: without white space at their ends.
          spaces: the white space before each.
          lined: each was a line of a file by itself.
        """
        for first in range(0, len(sentences), _SENTENCES):
            yield self._encode(sentences[first : first + _SENTENCES])

    def _encode_passages(
        self, sentences: Sequence[str], spaces: Sequence[str], parted: bool = True
    ) -> Iterator[list[np.ndarray]]:
        """Yield the ids of sentences in batches, encoded as `split_passages` cuts their text."""
        stretches = split_passages(sentences, spaces, parted)
        count = _SENTENCES if parted else 1
        while True:
            batch = list(itertools.islice(stretches, count))
            if not batch:
                return
            # Sentences that are a stretch by themselves are encoded together.
            alone = [pieces[0] for pieces in batch if len(pieces) == 1]
            ids_of = dict(zip(alone, self._encode(alone), strict=True))
            ids: list[np.ndarray] = []
            for pieces in batch:
                if len(pieces) == 1:
                    ids.append(ids_of[pieces[0]])
                else:
                    ids += self._encode_passage(pieces)
            yield ids

    def _encode_passage(self, pieces: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each piece of a text that is encoded as one."""
        encoding = self.encode_with_offsets(''.join(pieces))
        return cut_at(pieces, encoding.ids, encoding.starts)

    def encode_words(self, words: Iterable[str]) -> list[np.ndarray]:
        """Return the ids of words that follow each other in a running text.

        As `encode_batch`, but byte-level BPE has other entries for a word behind a space.
        """
        return self.for_words.encode_batch(words)

    @property
    def for_words(self) -> Tokenizer:
        """The same with a space before each text, where that changes ids, as words in one have."""
        return self

    @property
    def behind_mask(self) -> Tokenizer:
        """The same for the part of a text that is behind a mask."""
        return self

    def _encode(self, texts: Iterable[str]) -> list[np.ndarray]:
        # The hot path: a word is worked out once and then is a look-up of bytes, joined without
        # making an int of any id.
        look_up = self._memo.__getitem__
        return [np.frombuffer(b''.join(map(look_up, self.split(text))), np.int32) for text in texts]

    def encode_with_offsets(self, text: str) -> Encoding:
        """Return ids as `encode` gives them, and the stretch of `text` each was made from."""
        traced = np.array(list(self.trace(text)), np.int32).reshape(-1, 4)
        ids, starts, ends, begins = traced.T
        return Encoding(ids, starts, ends, begins > 0)

    def trace_word(self, word: str) -> Iterable[tuple[int, int, int]]:
        """Return (id, start, end) of each piece of a whitespace word, made of word[start:end]."""
        raise NotImplementedError

    def trace(self, text: str) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (id, start, end, whether a word begins there) of each piece of a text."""
        # Word by word again, but with places in the text; rare enough to do without a memo.
        for match in _WORD_RE.finditer(text):
            for piece, start, end in self.trace_word(match.group()):
                yield piece, match.start() + start, match.start() + end, self.begins_word(piece)

    def begins_word(self, piece: int) -> bool:
        """Tell whether an entry begins a word."""
        # Of whole words those that came up by themselves have no entry there; they begin one too.
        return bool(self.starts_word.take(piece, mode='clip'))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return pieces that follow each other as text: a space before each word, no marks."""
        text = ''
        for i in list(ids):
            if self.starts_word[i]:
                text += ' '
            text += self.entries[i].removeprefix('##').removeprefix(WORD_MARK)
        return text

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the entries of the vocabulary, with their `##` or SentencePiece word marks."""
        return [self.entries[i] for i in ids]

    def spelled(self, ids: Iterable[int]) -> list[str]:
        """Return each entry as it is read: of byte-level BPE as text, with the space before a word.

        Those of other kinds as `tokens` has them.
        """
        return self.tokens(ids)

    def spell(self, entry: str) -> list[int]:
        """Return ids that together spell an entry of another vocabulary; empty where none do."""
        return []

    def covered(self, characters: Iterable[str]) -> set[str]:
        """Return those of some characters that the entries can spell."""
        spelled: set[str] = set()
        for entry in self.entries[len(SPECIAL_TOKENS) :]:
            spelled.update(entry.removeprefix('##'))
        return spelled.intersection(characters)

    def close(self) -> Tokenizer:
        """Return itself, with ids below `known` alone from now on: any other word is [UNK].

        For ids that another process will read.
        """
        return self

    def listed(self, ids: np.ndarray) -> np.ndarray | bool:
        """Tell for which ids a masked-LM head has an answer: bool, for all where it has for all."""
        return True

    def characters(self, ids: np.ndarray) -> np.ndarray:
        """Return int32 [..., 16], the code points of words, of a tokenizer of whole words."""
        raise NotImplementedError(f'{self.kind} has pieces, not words')

    @property
    def transformers_class(self) -> str:
        """Name the class of transformers that has the same rules."""
        return 'PreTrainedTokenizerFast'

    def files(self) -> dict[str, bytes]:
        """Return {file: content} of a directory: our layout, with Hugging Face's keys."""
        config = {
            'type': self.kind,
            'do_lower_case': self.normalizer.lower_case,
            'strip_accents': self.normalizer.strip_accents,
            'nfc': self.normalizer.nfc,
            'tokenizer_class': self.transformers_class,
            'tokenize_chinese_chars': self.normalizer.ideographs,
            **dict(zip(SPECIAL_TOKENS, self.special_tokens)),
        }
        files = {'tokenizer_config.json': (json.dumps(config, indent=2) + '\n').encode()}
        if self.has_json and self.transformers_class != 'BertTokenizer':
            files['tokenizer.json'] = self.tokenizer_json().encode()
        if self.file:
            files[self.file] = self.vocabulary
        return files
