"""Tokenizer directories: text to word-piece ids and back to places in the text.

Owns the files that hold a vocabulary and its casing, and fast encoding. Knows nothing of special
tokens around a sequence, of corpora, or of how a vocabulary is trained (vocabulary.py); the rules
that make pieces of a word are wordpiece.py's and spm.py's.

Text is never searched for special tokens: `[MASK]` in a sentence is `[`, `mask`, `]`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from etils import epath

from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.files.atomic import atomic_folder
from bert_jax.input_pipeline.tokenizer import settings as tokenizer_settings
from bert_jax.input_pipeline.tokenizer.directories import albert_files, byte_bpe_files
from bert_jax.input_pipeline.tokenizer.settings import SPECIAL_TOKENS, Kind, parse_vocab
from bert_jax.input_pipeline.tokenizer.wordpiece import NOT_SPACE, Normalizer, WordPiece

if TYPE_CHECKING:
    from bert_jax.input_pipeline.tokenizer.byte_bpe import ByteBpe
    from bert_jax.input_pipeline.tokenizer.compiled import Compiled
    from bert_jax.input_pipeline.tokenizer.spm import SentencePiece
    from bert_jax.input_pipeline.tokenizer.words import Words

_MEMO_WORDS = 1 << 20  # words remembered: about 200 MB when full
_MEMO_WORD_CHARS = 64  # longer ones (a Chinese sentence is one "word") hardly ever return
_NOT_SPACE_RE = re.compile(f'[{NOT_SPACE}]')
_WORD_RE = re.compile(rf'(?:\S|[{NOT_SPACE}])+')


class Encoding(NamedTuple):
    """One text's pieces, as [N] arrays; text[starts[i]:ends[i]] is what piece i was made from."""

    ids: np.ndarray  # int32
    starts: np.ndarray  # int32, in characters of the original text
    ends: np.ndarray  # int32
    word_starts: np.ndarray  # bool, False for pieces that continue a word


class Layout(NamedTuple):
    """How a row is made of one text or two: cls A sep, cls A sep B sep.

    separators: how many stand between A and B; second_segment: that of B and the one behind it;
    mask_takes_space: whether the mask token stands for a word with the space before it.
    """

    separators: int = 1
    second_segment: int = 1
    mask_takes_space: bool = False


BERT_LAYOUT = Layout()
ROBERTA_LAYOUT = Layout(separators=2, second_segment=0, mask_takes_space=True)


def listed(texts: Any) -> Any:
    """A list of what an array or a column of a table holds; anything else as it is."""
    return texts.tolist() if hasattr(texts, 'tolist') else texts


def several(texts: Any) -> Any:
    """What to go through, text by text: a string is one text, an array is a list.

    UserError for what Python would go through without a word, though no texts come of it.
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


class _Memo(dict):
    """A word, or what else texts are cut into -> the bytes of its ids as int32; bounded."""

    def __init__(self, ids_of: Callable[[str], list[int]]):
        super().__init__()
        self._ids_of = ids_of

    def __missing__(self, word: str) -> bytes:
        value = array('i', self._ids_of(word)).tobytes()
        # frequent words come early: the first ones stay
        if len(self) < _MEMO_WORDS and len(word) <= _MEMO_WORD_CHARS:
            self[word] = value
        return value


class Tokenizer:
    """A vocabulary with its casing.

    Attributes: kind ('wordpiece', 'sentencepiece', 'byte_bpe', 'words', or 'compiled', which is
    WordPiece by foreign rules, or ALBERT's pieces), layout (how rows are made of texts),
    vocab_size, known (ids below mean the same in every process: vocab_size, but for 'words'),
    pad_id, unk_id, cls_id, sep_id, mask_id, special_ids (these five), lower_case, strip_accents,
    fingerprint (sha256 of vocabulary and casing), starts_word (bool [V], False for a piece that
    continues a word), vocabulary (bytes, as __init__ takes it).
    """

    def __init__(
        self,
        kind: Kind,
        vocabulary: bytes,
        normalizer: Normalizer,
        special_tokens: Sequence[str] = tuple(SPECIAL_TOKENS.values()),
        where: str = 'vocabulary',
    ):
        """`vocabulary`: the content of vocab.txt, spm.model or words.txt, of tokenizer.json for
        `compiled`, or for `byte_bpe` what byte_bpe_files.content makes.

        `special_tokens` in the order of SPECIAL_TOKENS; `where` names the file in errors.
        """
        self.kind, self.normalizer, self.special_tokens = kind, normalizer, list(special_tokens)
        self.lower_case, self.strip_accents = normalizer.lower_case, normalizer.strip_accents

        self.layout = ROBERTA_LAYOUT if kind == 'byte_bpe' else BERT_LAYOUT

        # The vocabulary by its kind: its entries, and which of them begin a word.
        self._model: WordPiece | SentencePiece | Compiled | Words  # of all kinds but byte_bpe
        ids_of: Callable[[str], list[int]] | None = None  # foreign rules look at whole texts
        self._cut: Callable[[str], list[str]] = words
        self._byte_bpe: ByteBpe | None = None
        if kind == 'wordpiece':
            self._tokens = parse_vocab(vocabulary, where)
            vocabulary = ('\n'.join(self._tokens) + '\n').encode()
            self.starts_word = np.array([not token.startswith('##') for token in self._tokens])
        elif kind == 'compiled':
            from bert_jax.input_pipeline.tokenizer.compiled import Compiled

            compiled = Compiled(vocabulary, special_tokens, where)
            self._model, self._encode_texts = compiled, compiled.encode_batch
            self._tokens = compiled.tokens
            self.starts_word = compiled.starts_word
        elif kind == 'byte_bpe':
            from bert_jax.input_pipeline.tokenizer.byte_bpe import ByteBpe

            merged = ByteBpe(vocabulary, special_tokens, where)
            self._byte_bpe, self._encode_texts = merged, merged.encode_batch
            if merged.stretches_alone:
                ids_of, self._cut = merged.ids, merged.stretches
            self._tokens = merged.tokens
            self.starts_word = merged.starts_word
        elif kind == 'words':
            from bert_jax.input_pipeline.tokenizer.words import Words

            whole = Words(vocabulary, special_tokens[1], normalizer, where)
            self._model, ids_of = whole, whole.ids
            self._tokens, self.starts_word = whole.tokens, whole.starts_word
        else:
            from bert_jax.input_pipeline.tokenizer.spm import SentencePiece

            pieces = SentencePiece(vocabulary, normalizer, where)
            self._model, ids_of = pieces, pieces.ids
            self._tokens = pieces.tokens
            self.starts_word = pieces.starts_word

        # Where each special token stands; a vocabulary without one is no BERT's.
        self.vocabulary, self.known = vocabulary, len(self._tokens)
        self.vocab_size = whole.listed if kind == 'words' else self.known
        index = {token: i for i, token in enumerate(self._tokens[: self.vocab_size])}
        missing = [token for token in special_tokens if token not in index]
        if missing:
            raise UserError(
                f'{where}: no {" ".join(missing)} among its {self.vocab_size} entries: not the'
                ' vocabulary of a BERT'
            )
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            index[token] for token in special_tokens
        )
        self.special_ids = (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)

        # Only now, because the rules of WordPiece need the id of [UNK].
        if kind == 'wordpiece':
            greedy = WordPiece(self._tokens, self.unk_id, normalizer)
            self._model, ids_of = greedy, greedy.ids

        # The fingerprint: all that decides which ids a text gets.
        rules = asdict(normalizer)
        if rules['ideographs']:
            # as ever: records that are there already keep the fingerprint of their tokenizer
            del rules['ideographs']
        settings = json.dumps([kind, rules, self.special_tokens])
        self.fingerprint = hashlib.sha256(settings.encode() + b'\0' + vocabulary).hexdigest()
        self._memo = None if ids_of is None else _Memo(ids_of)

    @classmethod
    def load(cls, directory: str | os.PathLike) -> Tokenizer:
        """Reads a tokenizer directory: ours, or one released by Google or Hugging Face.

        Casing is read from tokenizer_config.json, else from tokenizer.json, else from the
        vocabulary: one that has words with capitals is cased, one that has words without is not.
        Raises UserError where none of them tells.
        """
        # Settings know all kinds of directories; what they state are the arguments of this class.
        with reading(os.fspath(directory)):
            path = epath.Path(directory)
            if not path.is_dir():
                raise UserError(
                    f'{path}: no such tokenizer directory (it holds vocab.txt, spm.model, words.txt'
                    ', spiece.model or vocab.json)'
                )
            if byte_bpe_files.is_directory(path):
                stated = byte_bpe_files.read(path)
            elif albert_files.is_directory(path):
                stated = albert_files.read(path)
            else:
                stated = tokenizer_settings.read(path)
        return cls(*stated)

    def save(self, directory: str | os.PathLike) -> None:
        """Writes the tokenizer directory, whole or not at all, with its casing stated.

        A directory that already holds this very tokenizer is left as it is; one that holds anything
        else is refused.
        """
        path = epath.Path(directory)
        if self.is_saved(path):
            return

        # A directory appears with all of its files.
        model = self._byte_bpe
        files = model.files(self.special_tokens) if model else self._files()
        with atomic_folder(path) as folder:
            for name, content in files.items():
                (folder / name).write_bytes(content)

    def is_saved(self, directory: str | os.PathLike) -> bool:
        """Says whether a directory holds this very tokenizer; False where it is empty or not there.

        UserError where it holds anything else.
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

    def _files(self) -> dict[str, bytes]:
        """{file: content} of what `save` writes: our layout, with Hugging Face's keys."""
        plain = self.kind == 'wordpiece' and not self.normalizer.nfc
        file = {'wordpiece': 'vocab.txt', 'words': 'words.txt'}.get(self.kind, 'spm.model')
        config = {
            'type': self.kind,
            'do_lower_case': self.lower_case,
            'strip_accents': self.strip_accents,
            'nfc': self.normalizer.nfc,
            # BertTokenizer knows no composing, and passes over the rules of a tokenizer.json
            'tokenizer_class': 'BertTokenizer' if plain else 'PreTrainedTokenizerFast',
            'tokenize_chinese_chars': self.normalizer.ideographs,
            **dict(zip(SPECIAL_TOKENS, self.special_tokens, strict=True)),
        }
        files = {'tokenizer_config.json': (json.dumps(config, indent=2) + '\n').encode()}
        if not plain and self.kind != 'words':
            files['tokenizer.json'] = self.tokenizer_json().encode()
        if self.kind != 'compiled':
            files[file] = self.vocabulary
        return files

    def tokenizer_json(self) -> str:
        """The content of a tokenizer.json, for programs that have that library but not this one."""
        return (self._byte_bpe or self._model).tokenizer_json(self.special_tokens)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, without special tokens."""
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Ids of each text, without special tokens, as read-only int32 arrays.

        A string is one text. UserError for what `several` refuses.
        """
        texts = several(texts)
        if self._memo is None:
            return self._encode_texts(texts)

        # The hot path: a word is worked out once and then is a look-up of bytes, joined without
        # making an int of any id.
        look_up = self._memo.__getitem__
        return [np.frombuffer(b''.join(map(look_up, self._cut(text))), np.int32) for text in texts]

    def encode_words(self, words: Iterable[str]) -> list[np.ndarray]:
        """Ids of words that stand in running text by themselves, one after the other.

        As `encode_batch`, but byte-level BPE has other entries for a word behind a space.
        """
        words = several(words)
        return self.encode_batch([f' {word}' for word in words] if self._byte_bpe else words)

    def encode_with_offsets(self, text: str) -> Encoding:
        """Ids as `encode` gives them, and for each the stretch of `text` that it was made from."""
        if self._byte_bpe:
            traced = np.array(self._byte_bpe.trace(text), np.int32).reshape(-1, 4)
            ids, starts, ends, begins = traced.T
            return Encoding(ids, starts, ends, begins > 0)
        if self._memo is None:
            pieces = self._model.trace(text)
        else:
            # Word by word again, but with places in the text; rare enough to do without a memo.
            pieces = [
                (piece, match.start() + start, match.start() + end)
                for match in _WORD_RE.finditer(text)
                for piece, start, end in self._model.trace(match.group())
            ]
        ids, starts, ends = np.array(pieces, np.int32).reshape(-1, 3).T
        # Of whole words those that came up by themselves have no entry there; they begin one too.
        return Encoding(ids, starts, ends, self.starts_word.take(ids, mode='clip'))

    def close(self) -> Tokenizer:
        """Itself, with ids below `known` alone from now on: what other words there are is [UNK].

        For ids that another process will read.
        """
        if self.kind == 'words':
            cast('Words', self._model).close()
        return self

    def listed(self, ids: np.ndarray) -> np.ndarray | bool:
        """Whether a masked-LM head has an answer for them: bool, for all where there is one value.

        Of whole words the list alone; [UNK] is no word there, as it stands for what has characters.
        """
        return (ids < self.vocab_size) & (ids != self.unk_id) if self.kind == 'words' else True

    def characters(self, ids: np.ndarray) -> np.ndarray:
        """int32 [..., 16]: the code points of words, of a tokenizer of the kind 'words'."""
        return cast('Words', self._model).characters(ids)

    def spell(self, entry: str) -> list[int]:
        """Ids that together spell an entry of another vocabulary; empty where none do.

        `##` continues a word. WordPiece alone.
        """
        assert self.kind == 'wordpiece', 'only WordPiece vocabularies are extended'
        assert isinstance(self._model, WordPiece)
        ids = [i for i, _ in self._model.pieces(entry.removeprefix('##'), entry.startswith('##'))]
        return [] if self.unk_id in ids else ids

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The entries of the vocabulary, with their `##` or SentencePiece word marks."""
        return [self._tokens[i] for i in ids]

    def spelled(self, ids: Iterable[int]) -> list[str]:
        """Each entry as it is read: of byte-level BPE as text, with the space before a word.

        Those of other kinds as `tokens` has them.
        """
        tokens, model = self.tokens(ids), self._byte_bpe
        return [model.decode([token]) for token in tokens] if model else tokens

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Pieces that stand side by side as text: a space before each word, no marks."""
        tokens = self.tokens(ids)
        if self._byte_bpe:
            return self._byte_bpe.decode(tokens)
        return ''.join(
            (' ' if self.starts_word[i] else '') + token.removeprefix('##').removeprefix('▁')
            for i, token in zip(list(ids), tokens, strict=True)
        )


def words(text: str) -> list[str]:
    """The whitespace words of `text`, as Google's cleaning and str.split together see them."""
    if not text.isprintable():  # a quick test that most text passes
        text = _NOT_SPACE_RE.sub('', text)
    return text.split()
