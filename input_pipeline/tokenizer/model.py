"""What every kind of vocabulary offers: text to ids, and the files that hold it.

Owns the interface of the kinds and their table. Each kind is one class in a file of its own, and
nothing else may ask which kind a tokenizer has. Knows no special tokens around a sequence.
"""

from __future__ import annotations

import abc
import importlib
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from bert_jax.input_pipeline.tokenizer.normalizer import NOT_SPACE, Normalizer

SPECIAL_TOKENS = {
    'pad_token': '[PAD]',
    'unk_token': '[UNK]',
    'cls_token': '[CLS]',
    'sep_token': '[SEP]',
    'mask_token': '[MASK]',
}
# wordpiece, with or without its own rules (compiled); sentencepiece; byte_bpe, which RoBERTa has;
# words, which RETVec has
Kind = Literal['wordpiece', 'sentencepiece', 'compiled', 'byte_bpe', 'words']

WORD_MARK = '\u2581'  # begins the pieces of SentencePiece that begin a word
_MEMO_WORDS = 1 << 20  # words remembered: about 200 MB when full
_MEMO_WORD_CHARS = 64  # longer ones (a Chinese sentence is one "word") hardly ever return
_NOT_SPACE_RE = re.compile(f'[{NOT_SPACE}]')
_WORD_RE = re.compile(rf'(?:\S|[{NOT_SPACE}])+')


class Layout(NamedTuple):
    """How a row is made of one text or two: cls A sep, cls A sep B sep.

    Attributes:
      separators: how many of them stand between A and B.
      second_segment: the segment of B and of the separator behind it.
      mask_takes_space: whether the mask token replaces a word with the space before it.
    """

    separators: int = 1
    second_segment: int = 1
    mask_takes_space: bool = False


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


class TokenizerModel(abc.ABC):
    """A vocabulary of one kind.

    Attributes:
      kind: its name in tokenizer_config.json.
      file: the file of the vocabulary; '' where tokenizer.json holds it.
      has_json: whether the tokenizers library can have its rules.
      layout: how rows are made of texts.
      word_prefix: what comes before a word that is inside a running text.
      refusal: why a vocabulary of this kind takes no new words; '' where it does.
      marked_kind: the kind that it becomes with markers; None where it takes none.
      vocabulary: the content of its file, of which the fingerprint is made.
      tokens: the entries by id.
      starts_word: bool [V], False for a piece that continues a word.
      vocab_size: how many entries have an answer of a masked-LM head.
    """

    kind: ClassVar[Kind]
    file: ClassVar[str] = ''
    has_json: ClassVar[bool] = True
    layout: ClassVar[Layout] = Layout()
    word_prefix: ClassVar[str] = ''
    refusal: ClassVar[str]
    marked_kind: ClassVar[Kind | None] = None

    vocabulary: bytes
    tokens: list[str]
    starts_word: np.ndarray
    vocab_size: int

    def __init__(
        self, vocabulary: bytes, special_tokens: Sequence[str], normalizer: Normalizer, name: str
    ):
        """Read a vocabulary.

        Args:
          vocabulary: the content of its file.
          special_tokens: in the order of SPECIAL_TOKENS.
          normalizer: its casing.
          name: what errors call the file.

        Raises:
          UserError: the content is not of this kind.
        """
        self.vocabulary, self.special_tokens = vocabulary, list(special_tokens)
        self.normalizer = normalizer
        self._memo = _Memo(self.ids)
        self._read(vocabulary, name)

    @abc.abstractmethod
    def _read(self, vocabulary: bytes, name: str) -> None:
        """Set `tokens`, `starts_word` and `vocab_size`."""

    @abc.abstractmethod
    def ids(self, word: str) -> list[int]:
        """Return the ids of one of the words of `split`."""

    @abc.abstractmethod
    def tokenizer_json(self) -> str:
        """Return a tokenizer.json with which the tokenizers library gives the same ids."""

    def split(self, text: str) -> list[str]:
        """Return what a text is cut into before each part is encoded by itself."""
        return words(text)

    def encode_batch(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Return the ids of each text, int32."""
        # The hot path: a word is worked out once and then is a look-up of bytes, joined without
        # making an int of any id.
        look_up = self._memo.__getitem__
        return [np.frombuffer(b''.join(map(look_up, self.split(text))), np.int32) for text in texts]

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
        return ''.join(
            (' ' if self.starts_word[i] else '')
            + self.tokens[i].removeprefix('##').removeprefix(WORD_MARK)
            for i in list(ids)
        )

    def spelled(self, ids: Iterable[int]) -> list[str]:
        """Return each entry as it is read."""
        return [self.tokens[i] for i in ids]

    def spell(self, entry: str) -> list[int]:
        """Return ids that together spell an entry of another vocabulary; empty where none do."""
        return []

    def covered(self, characters: Iterable[str]) -> set[str]:
        """Return those of some characters that the entries can spell."""
        spelled = {c for e in self.tokens[len(SPECIAL_TOKENS) :] for c in e.removeprefix('##')}
        return spelled.intersection(characters)

    def close(self) -> None:  # noqa: B027  # most kinds have nothing to close
        """Give no id from now on that another process does not know."""

    def has_answer(self, ids: np.ndarray) -> np.ndarray | bool:
        """Tell whether a masked-LM head has an answer for ids: bool for each, or one for all."""
        return True

    def characters(self, ids: np.ndarray) -> np.ndarray:
        """Return int32 [..., 16], the code points of words; for whole words alone."""
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
            **dict(zip(SPECIAL_TOKENS, self.special_tokens, strict=True)),
        }
        files = {'tokenizer_config.json': (json.dumps(config, indent=2) + '\n').encode()}
        if self.has_json and self.transformers_class != 'BertTokenizer':
            files['tokenizer.json'] = self.tokenizer_json().encode()
        return files | ({self.file: self.vocabulary} if self.file else {})


def words(text: str) -> list[str]:
    """Return the whitespace words of a text, as Google's cleaning and str.split see them."""
    if not text.isprintable():  # a quick test that most text passes
        text = _NOT_SPACE_RE.sub('', text)
    return text.split()


# Module and class of each kind: a kind's libraries are imported where it is used.
_CLASSES: dict[Kind, tuple[str, str]] = {
    'wordpiece': ('models.wordpiece', 'WordPiece'),
    'sentencepiece': ('models.spm', 'SentencePiece'),
    'compiled': ('models.compiled', 'Compiled'),
    'byte_bpe': ('models.byte_bpe', 'ByteBpe'),
    'words': ('words', 'Words'),
}


def model_class(kind: Kind) -> type[TokenizerModel]:
    """Return the class of a kind of vocabularies."""
    module, name = _CLASSES[kind]
    return getattr(importlib.import_module(f'bert_jax.input_pipeline.tokenizer.{module}'), name)
