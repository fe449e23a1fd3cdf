"""Byte-level BPE as GPT-2 and RoBERTa have it: a vocabulary of byte strings that spells any text.

Owns how a text becomes entries, where in the text each comes from, and the vocabulary's form for
Hugging Face; the merging is the tokenizers library's. How a directory is read is
foreign_directories.py's.

An entry is written in letters that stand for bytes (openai/gpt-2 encoder.py:9-28), a space as `Ġ`.
No entry crosses from text into white space behind it: a text is cut there, and what a stretch gives
is remembered by the tokenizer, as words are of other vocabularies. No text is unknown.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from bert_jax.input_pipeline.tokenizer.directory import FLAGS
from bert_jax.input_pipeline.tokenizer.fast import (
    LibraryModel,
    add_modernbert_rows,
    add_special,
    library,
    parts_at_space,
)
from bert_jax.input_pipeline.tokenizer.foreign_directories import ROBERTA_TOKENS, format_byte_bpe
from bert_jax.input_pipeline.tokenizer.normalizer import SPACES, replace_halves
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer as Base
from bert_jax.input_pipeline.tokenizer.tokenizer_json import Layout

_STRETCH_RE = re.compile(f'[{SPACES}]*[^{SPACES}]+|[{SPACES}]+')
_SPLITTER = pre_tokenizers.ByteLevel(add_prefix_space=False)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def cut_stretches(text: str) -> list[str]:
    """Return a text cut before each run of white space; joined again they are the text."""
    return _STRETCH_RE.findall(replace_halves(text))


def cut_words(stretch: str) -> list[str]:
    """Return what merges stay within: letters, digits or signs, with the space before them."""
    return [stretch[start:end] for _, (start, end) in _SPLITTER.pre_tokenize_str(stretch)]


def spell_in_bytes(word: str) -> str:
    """Return the letters that stand for the bytes of one of `cut_words`."""
    return ''.join(letters for letters, _ in _BYTES.pre_tokenize_str(word))


def make_composed_json(
    entries: Sequence[str], merges: Iterable[Sequence[str]], add_prefix_space: bool
) -> bytes:
    """Return a tokenizer.json by ModernBERT's rules: composed text, special tokens behind."""
    engine = _make_engine(entries, merges, add_prefix_space)
    engine.normalizer = normalizers.NFC()
    return add_modernbert_rows(engine)


def _make_engine(
    entries: Sequence[str], merges: Iterable[Sequence[str]], add_prefix_space: bool
) -> Tokenizer:
    """Return the library's tokenizer of a vocabulary, which adds no special tokens."""
    ids = {entry: i for i, entry in enumerate(entries)}
    engine = Tokenizer(models.BPE(ids, [(left, right) for left, right in merges]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    engine.decoder = decoders.ByteLevel()
    return engine


class ByteBpe(LibraryModel):
    """A vocabulary of byte strings; `starts_word` tells which begin with white space."""

    kind = 'byte_bpe'
    layout = Layout(separators=2, second_segment=0, mask_takes_space=True)
    refusal = 'byte-level BPE merges pairs in the order of its training'
    marked_kind = 'byte_bpe'
    holds_space = True

    def _read(self, vocabulary: bytes, name: str) -> None:
        parts = json.loads(vocabulary)
        self._listed, self._merges = parts['entries'], parts['merges']
        self._added, self._prefix_space = parts['added_tokens'], parts['add_prefix_space']

        # Special tokens are not searched for in text, and none are put around it.
        with library(name):
            self._use(self._make_library_tokenizer(self._prefix_space))
            self._stretch_engine = self._make_library_tokenizer(add_prefix_space=False)
        self._parted = not self._prefix_space and parts_at_space(self._added)

        # Added tokens begin a word as special ones do.
        self._whole = {*self.special_tokens, *(token['content'] for token in self._added)}
        self.starts_word = np.array(
            [t in self._whole or self._spell([t])[:1].isspace() for t in self.entries]
        )

    def _make_library_tokenizer(self, add_prefix_space: bool) -> Tokenizer:
        # The post-processor trims a piece's place by the space before it, and adds nothing.
        engine = _make_engine(self._listed, self._merges, add_prefix_space)
        engine.post_processor = processors.ByteLevel(
            add_prefix_space=add_prefix_space, trim_offsets=True
        )
        for token in self._added:
            engine.add_tokens([AddedToken(token['content'], **{f: token[f] for f in FLAGS})])
        return engine

    def ids(self, word: str) -> list[int]:
        """Return the ids of one of `cut_stretches`."""
        return self._stretch_engine.encode(word, add_special_tokens=False).ids

    def split(self, text: str) -> list[str]:
        """Return `cut_stretches`, with the space before the text where the vocabulary wants one."""
        if self._prefix_space and text and text[0] != ' ':
            text = f' {text}'
        return cut_stretches(text)

    def _encode(self, texts: Iterable[str]) -> list[np.ndarray]:
        # Added tokens are searched for in the whole text; without any, stretches are remembered.
        if self._added:
            return super()._encode(texts)
        return Base._encode(self, texts)

    def encode_document(
        self, sentences: Sequence[str], spaces: Sequence[str], lined: bool = False
    ) -> Iterator[list[np.ndarray]]:
        """Yield the ids of sentences in batches; lines of a file are texts of their own.

        So RoBERTa's own program reads files.
        """
        if lined:
            return Base.encode_document(self, sentences, spaces)
        if not self._prefix_space or self._added:
            return super().encode_document(sentences, spaces)

        # The space is before the text as a whole, not before each part of it.
        inside = copy.copy(self)
        inside._prefix_space, inside._parted = False, True
        inside._engine = self._stretch_engine
        return inside.encode_document([f' {sentences[0]}', *sentences[1:]], spaces)

    @functools.cached_property
    def for_words(self) -> Base:
        """The same with a space before each text."""
        if self._prefix_space:
            return self
        content = format_byte_bpe(self._listed, self._merges, True, self._added)
        return type(self)(content, self.normalizer, self.special_tokens, self.kind)

    def trace(self, text: str) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (id, start, end, whether a word begins there) of each piece of a text.

        The place that it was made from has no space; a word (`cut_words`) begins with its first
        piece that is more than the space before it.
        """
        encoding = self._engine.encode(replace_halves(text), add_special_tokens=False)
        begun: set[int | None] = set()
        for piece, word, (start, end) in zip(encoding.ids, encoding.word_ids, encoding.offsets):
            begins = end > start and word not in begun
            if begins:
                begun.add(word)
            yield piece, start, end, begins

    def _spell(self, tokens: Sequence[str]) -> str:
        """Return the text of entries; U+FFFD where they are a part of a character."""
        # Added tokens are written as they are, not in letters for bytes.
        spell = decoders.ByteLevel().decode
        text = ''
        for is_whole, part in itertools.groupby(tokens, key=self._whole.__contains__):
            entries = list(part)
            text += ''.join(entries) if is_whole else spell(entries)
        return text

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of pieces that follow each other."""
        return self._spell([self.entries[i] for i in ids])

    def spelled(self, ids: Iterable[int]) -> list[str]:
        """Return each entry as text, with the space before a word."""
        return [self._spell([self.entries[i]]) for i in ids]

    def covered(self, characters: Iterable[str]) -> set[str]:
        """Return all of the characters: each has bytes."""
        return set(characters)

    def files(self) -> dict[str, bytes]:
        """Return {file: content} of a directory that RobertaTokenizer reads too."""
        names = dict(zip(ROBERTA_TOKENS, self.special_tokens))
        config = {
            'type': self.kind,
            'tokenizer_class': 'RobertaTokenizer',
            'add_prefix_space': self._prefix_space,
            **names,
            'bos_token': names['cls_token'],
            'eos_token': names['sep_token'],
        }
        ids = {token: i for i, token in enumerate(self._listed)}
        merges = ['#version: 0.2', *(' '.join(pair) for pair in self._merges)]
        return {
            'tokenizer_config.json': (json.dumps(config, indent=2) + '\n').encode(),
            'tokenizer.json': self.tokenizer_json().encode(),
            'vocab.json': (json.dumps(ids, ensure_ascii=False) + '\n').encode(),
            'merges.txt': ('\n'.join(merges) + '\n').encode(),
        }

    def tokenizer_json(self) -> str:
        """Return a tokenizer.json with the same ids, and RoBERTa's rows <s> A </s></s> B </s>."""
        engine = self._make_library_tokenizer(self._prefix_space)
        pad, unk, cls, sep, mask = self.special_tokens
        add_special(engine, (cls, pad, sep, unk), mask)
        engine.post_processor = processors.RobertaProcessing(
            (sep, self.entries.index(sep)),
            (cls, self.entries.index(cls)),
            trim_offsets=True,
            add_prefix_space=self._prefix_space,
        )
        return engine.to_str()
