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
import shutil
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import numpy as np
from etils import epath

from configs.errors import UserError
from input_pipeline.wordpiece import Normalizer, WordPiece

SPECIAL_TOKENS = {'pad_token': '[PAD]', 'unk_token': '[UNK]', 'cls_token': '[CLS]', 'sep_token': '[SEP]', 'mask_token': '[MASK]'}
_MEMO_WORDS = 1 << 20  # words remembered: about 200 MB when full
_MEMO_WORD_CHARS = 64  # longer ones (a Chinese sentence is one "word") hardly ever return
# str.split() takes these control characters for spaces, but Google's cleaning deletes them first
_NOT_SPACE = '\x0b\x0c\x1c\x1d\x1e\x1f\x85'
_NOT_SPACE_RE = re.compile(f'[{_NOT_SPACE}]')
_WORD_RE = re.compile(rf'(?:\S|[{_NOT_SPACE}])+')


class Encoding(NamedTuple):
    """One text's pieces, as [N] arrays; text[starts[i]:ends[i]] is what piece i was made from."""

    ids: np.ndarray  # int32
    starts: np.ndarray  # int32, in characters of the original text
    ends: np.ndarray  # int32
    word_starts: np.ndarray  # bool, False for pieces that continue a word


class _Memo(dict):
    """Whitespace word -> the bytes of its ids as int32; bounded."""

    def __init__(self, ids_of: Callable[[str], list[int]]):
        super().__init__()
        self._ids_of = ids_of

    def __missing__(self, word: str) -> bytes:
        value = array('i', self._ids_of(word)).tobytes()
        if len(self) < _MEMO_WORDS and len(word) <= _MEMO_WORD_CHARS:  # frequent words come early: the first ones stay
            self[word] = value
        return value


class Tokenizer:
    """A vocabulary with its casing.

    Attributes: kind ('wordpiece' or 'sentencepiece'), vocab_size, pad_id, unk_id, cls_id, sep_id, mask_id,
    lower_case, strip_accents, fingerprint (sha256 of vocabulary and casing), starts_word (bool [V], False for
    a piece that continues a word).
    """

    def __init__(
        self,
        kind: Literal['wordpiece', 'sentencepiece'],
        vocabulary: bytes,
        normalizer: Normalizer,
        special_tokens: Sequence[str] = tuple(SPECIAL_TOKENS.values()),
        where: str = 'vocabulary',
    ):
        """`vocabulary`: the content of vocab.txt or of spm.model; `special_tokens` in the order of SPECIAL_TOKENS;
        `where` names the file in errors."""
        self.kind, self.normalizer, self.special_tokens = kind, normalizer, list(special_tokens)
        self.lower_case, self.strip_accents = normalizer.lower_case, normalizer.strip_accents
        if kind == 'wordpiece':
            self._tokens = parse_vocab(vocabulary, where)
            vocabulary = ('\n'.join(self._tokens) + '\n').encode()
            self.starts_word = np.array([not token.startswith('##') for token in self._tokens])
        else:
            from input_pipeline.spm import SentencePiece

            self._model = SentencePiece(vocabulary, normalizer, where)
            self._tokens = self._model.tokens
            self.starts_word = self._model.starts_word
        self._vocabulary, self.vocab_size = vocabulary, len(self._tokens)
        index = {token: i for i, token in enumerate(self._tokens)}
        missing = [token for token in special_tokens if token not in index]
        if missing:
            raise UserError(f'{where}: no {" ".join(missing)} among its {self.vocab_size} entries: not the vocabulary of a BERT')
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (index[token] for token in special_tokens)
        if kind == 'wordpiece':
            self._model = WordPiece(self._tokens, self.unk_id, normalizer)
        settings = json.dumps([kind, asdict(normalizer), self.special_tokens])
        self.fingerprint = hashlib.sha256(settings.encode() + b'\0' + vocabulary).hexdigest()
        self._memo = _Memo(self._model.ids)

    @classmethod
    def load(cls, directory: str | os.PathLike) -> Tokenizer:
        """Reads a tokenizer directory: ours, or one released by Google or Hugging Face.

        Casing is read from tokenizer_config.json, else from tokenizer.json, else from the vocabulary: one that has
        words with capitals is cased, one that has words without is not. Raises UserError where none of them tells.
        """
        path = epath.Path(directory)
        if not path.is_dir():
            raise UserError(f'{path}: no such tokenizer directory (it holds vocab.txt or spm.model)')
        config, fast = (_read_json(path / name) for name in ('tokenizer_config.json', 'tokenizer.json'))
        if (path / 'spm.model').exists():
            kind, file = 'sentencepiece', path / 'spm.model'
            vocabulary = file.read_bytes()
        elif (path / 'vocab.txt').exists():
            kind, file = 'wordpiece', path / 'vocab.txt'
            vocabulary = file.read_bytes()
        elif fast.get('model', {}).get('type') == 'WordPiece':  # the only file that newer Hugging Face versions write
            kind, file, ids = 'wordpiece', path / 'tokenizer.json', fast['model']['vocab']
            vocabulary = '\n'.join(sorted(ids, key=ids.get)).encode()
        else:
            raise UserError(f'{path}: neither vocab.txt nor spm.model in it: not a tokenizer directory')
        normalizer = _casing(config, fast, kind, vocabulary, file)
        return cls(kind, vocabulary, normalizer, [_special_token(config, name) for name in SPECIAL_TOKENS], str(file))

    def save(self, directory: str | os.PathLike) -> None:
        """Writes the tokenizer directory, whole or not at all, with its casing stated.

        A directory that already holds this very tokenizer is left as it is; one that holds anything else is refused.
        """
        path = epath.Path(directory)
        if path.is_dir() and any(path.iterdir()):
            if not (path / 'tokenizer_config.json').exists() or Tokenizer.load(path).fingerprint != self.fingerprint:
                raise UserError(f'{path}: holds something else already: name another directory, or remove it')
            return
        config = {
            'type': self.kind,
            'do_lower_case': self.lower_case,
            'strip_accents': self.strip_accents,
            'nfc': self.normalizer.nfc,
            'tokenizer_class': 'BertTokenizer' if self.kind == 'wordpiece' else 'PreTrainedTokenizerFast',
            'tokenize_chinese_chars': True,
            **dict(zip(SPECIAL_TOKENS, self.special_tokens, strict=True)),
        }
        files = {'tokenizer_config.json': (json.dumps(config, indent=2) + '\n').encode()}
        if self.kind == 'wordpiece':
            files['vocab.txt'] = self._vocabulary
        else:
            files |= {'spm.model': self._vocabulary, 'tokenizer.json': self._model.tokenizer_json().encode()}
        _write_directory(path, files)

    def tokenizer_json(self) -> str:
        """The content of a tokenizer.json, for programs that have the tokenizers library but not this one."""
        return self._model.tokenizer_json(*([self.special_tokens] if self.kind == 'wordpiece' else []))

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, without special tokens."""
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Ids of each text, without special tokens, as read-only int32 arrays."""
        look_up = self._memo.__getitem__
        return [np.frombuffer(b''.join(map(look_up, words(text))), np.int32) for text in texts]

    def encode_with_offsets(self, text: str) -> Encoding:
        """Ids as `encode` gives them, and for each the stretch of `text` that it was made from."""
        pieces = [
            (piece, match.start() + start, match.start() + end)
            for match in _WORD_RE.finditer(text)
            for piece, start, end in self._model.trace(match.group())
        ]
        ids, starts, ends = np.array(pieces, np.int32).reshape(-1, 3).T
        return Encoding(ids, starts, ends, self.starts_word[ids])

    def spell(self, entry: str) -> list[int]:
        """Ids that together spell an entry of another vocabulary (`##` continues a word); empty where none do. WordPiece alone."""
        found = [i for i, _ in self._model.pieces(entry.removeprefix('##'), entry.startswith('##'))]
        return [] if self.unk_id in found else found

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The entries of the vocabulary, with their `##` or SentencePiece word marks."""
        return [self._tokens[i] for i in ids]


def words(text: str) -> list[str]:
    """The whitespace words of `text`, as Google's cleaning and str.split together see them."""
    if not text.isprintable():  # a quick test that most text passes
        text = _NOT_SPACE_RE.sub('', text)
    return text.split()


def parse_vocab(content: bytes, where: str) -> list[str]:
    """The entries of a vocab.txt, one a line; line number = id (tokenization.py:121-133)."""
    try:
        lines = content.decode('utf-8').split('\n')  # not splitlines(): it also splits at U+2028 and the like
    except UnicodeDecodeError as error:
        raise UserError(f'{where}: not UTF-8 at byte {error.start}: not a vocabulary') from error
    if lines[-1] == '':
        lines.pop()
    return [line.strip() for line in lines]


def _read_json(path: epath.Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no such file."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f'{path}: not valid JSON ({error})') from error
    if not isinstance(data, dict):
        raise UserError(f'{path}: not a JSON object')
    return data


def _special_token(config: dict[str, Any], name: str) -> str:
    """A special token's spelling: Hugging Face writes it as a string or as an object with `content`."""
    token = config.get(name) or SPECIAL_TOKENS[name]
    return token['content'] if isinstance(token, dict) else token


def _casing(config: dict[str, Any], fast: dict[str, Any], kind: str, vocabulary: bytes, file: epath.Path) -> Normalizer:
    """The casing that a directory states, or that its vocabulary shows. Raises UserError where neither tells, or they disagree."""
    rules = fast.get('normalizer') or {}
    lower_case, strip_accents = config.get('do_lower_case'), config.get('strip_accents')
    if lower_case is None and rules.get('type') == 'BertNormalizer':
        lower_case, strip_accents = rules['lowercase'], rules['strip_accents']
    if kind == 'wordpiece':
        entries = [token for token in parse_vocab(vocabulary, str(file)) if not token.startswith('[')]
        capitals = sum(token != token.lower() for token in entries)
        if lower_case is None and any(token != token.upper() for token in entries):
            lower_case = not capitals
            accents = (unicodedata.category(c) == 'Mn' for token in entries for c in unicodedata.normalize('NFD', token))
            strip_accents = lower_case and not any(accents)  # else they would not be in a lower-cased vocabulary
        if lower_case and capitals > len(entries) // 20:
            raise UserError(
                f'{file}: {capitals} of {len(entries)} entries have capitals, but do_lower_case is true beside it: '
                'set it to false in tokenizer_config.json'
            )
    if lower_case is None:
        raise UserError(
            f'{file}: nothing says whether it is lower-cased: '
            'put {"do_lower_case": true} or {"do_lower_case": false} into tokenizer_config.json beside it'
        )
    return Normalizer(bool(lower_case), bool(lower_case if strip_accents is None else strip_accents), bool(config.get('nfc')))


def _write_directory(path: epath.Path, files: dict[str, bytes]) -> None:
    """Writes `files` into a new directory that appears under its name only when complete."""
    partial = path.parent / f'.{path.name}.partial-{os.getpid()}'
    partial.mkdir(parents=True, exist_ok=True)
    try:
        for name, content in files.items():
            with (partial / name).open('wb') as f:
                f.write(content)
                f.flush()
                if '://' not in str(path):
                    os.fsync(f.fileno())
        if path.is_dir():  # empty, as `save` found it
            path.rmdir()
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
