"""Byte-level BPE as GPT-2 and RoBERTa have it: a vocabulary of byte strings that spells any text.

Owns how a text becomes entries, where in the text each comes from, and the vocabulary's form for
Hugging Face; the merging is the tokenizers library's. How a directory is read is
byte_bpe_files.py's.

An entry is written in letters that stand for bytes (openai/gpt-2 encoder.py:9-28), a space as `Ġ`.
No entry crosses from text into white space behind it: a text is cut there, and what a stretch gives
is remembered by the tokenizer, as words are of other vocabularies. No text is unknown.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.directories.byte_bpe_files import SPECIAL_TOKENS

# What Unicode calls white space, and so do the library's rules; str.isspace() has four more.
_SPACES = '\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000'
# Halves of a character, which a JSON file may hold and no byte string can.
_HALVES_RE = re.compile('[\ud800-\udfff]')
_STRETCH_RE = re.compile(f'[{_SPACES}]*[^{_SPACES}]+|[{_SPACES}]+')


def stretches(text: str) -> list[str]:
    """A text cut before each run of white space; joined again they are the text."""
    return _STRETCH_RE.findall(_whole(text))


def _whole(text: str) -> str:
    """The text with U+FFFD for halves of characters."""
    return text if text.isascii() else _HALVES_RE.sub('\ufffd', text)


def words_of(stretch: str) -> list[str]:
    """What merges stay within: runs of letters, of digits or of signs, with a space before them."""
    return [stretch[start:end] for _, (start, end) in _SPLITTER.pre_tokenize_str(stretch)]


def spelled_in_bytes(word: str) -> str:
    """The letters that stand for the bytes of one of `words_of`."""
    return ''.join(letters for letters, _ in _BYTES.pre_tokenize_str(word))


_SPLITTER = pre_tokenizers.ByteLevel(add_prefix_space=False)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


class ByteBpe:
    """A vocabulary in the hands of the library.

    Attributes: tokens (list), starts_word (bool [V], whether an entry begins with white space, as
    words in running text do), stretches_alone (whether stretches of a text may be encoded apart:
    not where added tokens are searched for in it), add_prefix_space.
    """

    def __init__(self, vocabulary: bytes, special_tokens: Sequence[str], where: str):
        """`vocabulary`: as byte_bpe_files.content gives it; `where` names the files in errors."""
        parts = json.loads(vocabulary)
        self._entries, self._merges = parts['entries'], parts['merges']
        self._added, self.add_prefix_space = parts['added_tokens'], parts['add_prefix_space']
        self.stretches_alone = not self._added

        # Special tokens are not searched for in text, and none are put around it.
        try:
            self._engine = self._made(self.add_prefix_space)
            self._stretch_engine = self._made(add_prefix_space=False)
        except Exception as error:  # the library has no kind of its own
            raise UserError(f'{where}: the tokenizers library cannot read it ({error})') from error

        # Added tokens stand behind the vocabulary's, and begin a word as special ones do.
        ids = self._engine.get_vocab(with_added_tokens=True)
        self.tokens = sorted(ids, key=ids.__getitem__)
        self._whole = {*special_tokens, *(token['content'] for token in self._added)}
        self.starts_word = np.array(
            [token in self._whole or self.decode([token])[:1].isspace() for token in self.tokens]
        )

    def _made(self, add_prefix_space: bool) -> Tokenizer:
        # The post-processor trims a piece's place by the space before it, and adds nothing.
        ids = {token: i for i, token in enumerate(self._entries)}
        engine = Tokenizer(models.BPE(ids, [(left, right) for left, right in self._merges]))
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
        engine.post_processor = processors.ByteLevel(
            add_prefix_space=add_prefix_space, trim_offsets=True
        )
        flags = ('single_word', 'lstrip', 'rstrip', 'normalized', 'special')
        for token in self._added:
            engine.add_tokens([AddedToken(token['content'], **{f: token[f] for f in flags})])
        return engine

    def ids(self, stretch: str) -> list[int]:
        """Ids of one of `stretches`."""
        return self._stretch_engine.encode(stretch, add_special_tokens=False).ids

    def stretches(self, text: str) -> list[str]:
        """`stretches`, with the space before the text where the vocabulary wants one."""
        if self.add_prefix_space and text and text[0] != ' ':
            text = f' {text}'
        return stretches(text)

    def encode_batch(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Ids of each text, int32."""
        encodings = self._engine.encode_batch(list(map(_whole, texts)), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def trace(self, text: str) -> list[tuple[int, int, int, bool]]:
        """(id, start, end, whether a word begins there) of each piece of a text.

        The place that it was made from has no space; a word (`words_of`) begins with its first
        piece that is more than the space before it.
        """
        encoding = self._engine.encode(_whole(text), add_special_tokens=False)
        begun: set[int | None] = set()
        pieces = []
        for piece, word, (start, end) in zip(
            encoding.ids, encoding.word_ids, encoding.offsets, strict=True
        ):
            begins = end > start and word not in begun
            begun |= {word} if begins else set()
            pieces.append((piece, start, end, begins))
        return pieces

    def decode(self, tokens: Sequence[str]) -> str:
        """The text of entries side by side; U+FFFD where they are a part of a character."""
        # Added tokens are written as they are, not in letters for bytes.
        parts = itertools.groupby(tokens, key=self._whole.__contains__)
        spell = decoders.ByteLevel().decode
        return ''.join(''.join(part) if whole else spell(list(part)) for whole, part in parts)

    def files(self, special_tokens: Sequence[str]) -> dict[str, bytes]:
        """{file: content} of a directory that RobertaTokenizer reads too.

        `special_tokens`: as for `tokenizer_json`.
        """
        names = dict(zip(SPECIAL_TOKENS, special_tokens, strict=True))
        config = {
            'type': 'byte_bpe',
            'tokenizer_class': 'RobertaTokenizer',
            'add_prefix_space': self.add_prefix_space,
            **names,
            'bos_token': names['cls_token'],
            'eos_token': names['sep_token'],
        }
        ids = {token: i for i, token in enumerate(self._entries)}
        merges = ['#version: 0.2', *(' '.join(pair) for pair in self._merges)]
        return {
            'tokenizer_config.json': (json.dumps(config, indent=2) + '\n').encode(),
            'tokenizer.json': self.tokenizer_json(special_tokens).encode(),
            'vocab.json': (json.dumps(ids, ensure_ascii=False) + '\n').encode(),
            'merges.txt': ('\n'.join(merges) + '\n').encode(),
        }

    def tokenizer_json(self, special_tokens: Sequence[str]) -> str:
        """The content of a tokenizer.json with which the library gives the same ids, and RoBERTa's
        rows of <s> A </s></s> B </s>.

        `special_tokens` in the order of SPECIAL_TOKENS.
        """
        engine = self._made(self.add_prefix_space)
        pad, unk, cls, sep, mask = special_tokens
        engine.decoder = decoders.ByteLevel()

        # The mask takes the space before it, which the word in its place begins with.
        engine.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in (cls, pad, sep, unk)]
            + [AddedToken(mask, special=True, normalized=False, lstrip=True)]
        )
        engine.post_processor = processors.RobertaProcessing(
            (sep, self.tokens.index(sep)),
            (cls, self.tokens.index(cls)),
            trim_offsets=True,
            add_prefix_space=self.add_prefix_space,
        )
        return engine.to_str()
