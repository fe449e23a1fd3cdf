"""A tokenizer.json that the tokenizers library runs.

Its rules are WordPiece by other rules than BERT's own, or the unigram pieces of ALBERT. Owns the
one place that encodes through that library: other normalizers, pre-tokenizers and prefixes, and
added tokens, which are found in the text before anything is split. Slower than the rules of
wordpiece.py, whose memo of words needs words to be parted by white space. The five special tokens
are not searched for, as everywhere here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.layout import steps
from bert_jax.input_pipeline.tokenizer.models.tokenizer_json import WORD_MARK
from bert_jax.input_pipeline.tokenizer.normalizer import whole
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer, cut_at

# Steps that part a text at white space, which goes, before all others; and normalizers that see no
# further than from one white space to the next.
_DROPPING = ('BertPreTokenizer', 'WhitespaceSplit', 'Whitespace')
_NEAR = ('NFC', 'NFD', 'NFKC', 'NFKD', 'Lowercase', 'StripAccents')


def parts_at_space(added: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether no added token goes on into white space behind a word."""
    return not any(token['rstrip'] or re.search(r'\S\s', token['content']) for token in added)


_GAPS = 1000  # ids without an entry that a vocabulary may have, besides as many as its entries


class LibraryModel(Tokenizer):
    """A vocabulary that the library encodes with, a text as a whole."""

    _engine: tokenizers.Tokenizer
    _parted: bool  # the parts that a text has between white space can be encoded one by one

    def _use(self, engine: tokenizers.Tokenizer) -> None:
        """Encode with `engine`; `entries` are its, added ones behind the vocabulary's."""
        self._engine = engine
        ids = engine.get_vocab(with_added_tokens=True)
        if max(ids.values(), default=0) > 2 * len(ids) + _GAPS:
            raise UserError(
                f'its {len(ids)} entries have ids up to {max(ids.values())}: ids are missing'
            )
        self.entries = [''] * (1 + max(ids.values()))  # '' for ids that nothing has
        for entry, i in ids.items():
            self.entries[i] = entry
        self.vocab_size = len(self.entries)

    def _obey(self, rules: dict[str, Any], name: str) -> None:
        """Encode by the rules of a tokenizer.json, of which the copy that encodes makes no rows."""
        # Of all special tokens the library shall pass over those of rows alone: only they are
        # special in that copy. To take them out would give the others new ids.
        tokens, model, pieces = rules['added_tokens'], rules['model'], list[str]()
        for token in tokens:
            token['special'] = token['content'] in self.special_tokens
        added = {token['content'] for token in tokens}.union(self.special_tokens)
        rules |= {'post_processor': None, 'truncation': None, 'padding': None}
        if model.get('type') == 'Unigram':
            # Else `<pad>` in a text would be that piece: there is a new line before it, as no text
            # has it.
            pieces = [piece for piece, _ in model['vocab']]
            inside = {*pieces}.intersection(self.special_tokens)
            rules['added_tokens'] = [t for t in tokens if t['content'] not in inside]
            model['vocab'] = [['\n' * (p in inside) + p, score] for p, score in model['vocab']]
        with library(name):
            self._use(tokenizers.Tokenizer.from_str(json.dumps(rules)))
        self._engine.encode_special_tokens = True
        self.entries[: len(pieces)] = pieces

        # How an entry shows that it begins a word; added and special ones always do.
        space = decoders.ByteLevel().decode
        self._in_bytes = any(s.get('type') == 'ByteLevel' for s in steps(rules['pre_tokenizer']))
        inner = model.get('continuing_subword_prefix') or '##' * (model.get('type') == 'WordPiece')

        def begins(entry: str) -> bool:
            if entry in added:
                return True
            if self._in_bytes:
                return space([entry])[:1].isspace()
            return not entry.startswith(inner) if inner else entry.startswith(WORD_MARK)

        self.starts_word = np.array(list(map(begins, self.entries)))

        # Whether white space is in entries, and whether a text may be cut before it.
        first = next(steps(rules['pre_tokenizer']), {})
        self.holds_space = first.get('type') not in _DROPPING
        alone = first.get('type') == 'ByteLevel' and first.get('use_regex', True)
        near = all(step['type'] in _NEAR for step in steps(rules.get('normalizer')))
        self._parted = parts_at_space(tokens) and (
            not self.holds_space or (alone and near and not first.get('add_prefix_space', True))
        )

    def encode_document(
        self, sentences: Sequence[str], spaces: Sequence[str], lined: bool = False
    ) -> Iterator[list[np.ndarray]]:
        """Yield the ids of sentences in batches, as the library gives them for the whole text."""
        return self._encode_passages(sentences, spaces, self._parted)

    def _encode_passage(self, pieces: Sequence[str]) -> list[np.ndarray]:
        with library('a text', 'encode'):
            encoding = self._engine.encode(whole(''.join(pieces)), add_special_tokens=False)
        starts = np.array(encoding.offsets, np.int64).reshape(-1, 2)[:, 0]
        return cut_at(pieces, np.array(encoding.ids, np.int32), starts)

    @functools.cached_property
    def for_words(self) -> Tokenizer:
        """The same with a space before each text, where that changes what it is cut into."""
        if _cut(self._engine, 'a') == _cut(self._engine, ' a'):
            return self
        vocabulary = json.dumps(_spaced(json.loads(self.vocabulary)), ensure_ascii=False)
        content = vocabulary.encode('utf-8', 'surrogatepass')
        return type(self)(content, self.normalizer, self.special_tokens, self.kind)

    def tokenizer_json(self) -> str:
        """Return the file's content."""
        return self.vocabulary.decode()

    def ids(self, word: str) -> list[int]:
        """Return the ids of a text."""
        with library('a text', 'encode'):
            return self._engine.encode(whole(word), add_special_tokens=False).ids

    def _encode(self, texts: Iterable[str]) -> list[np.ndarray]:
        return self._run_on(self._engine, texts)

    def _run_on(self, engine: tokenizers.Tokenizer, texts: Iterable[str]) -> list[np.ndarray]:
        with library('a text', 'encode'):
            encodings = engine.encode_batch(list(map(whole, texts)), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def trace(self, text: str) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (id, start, end, whether a word begins there) of each piece of a text."""
        with library('a text', 'encode'):
            encoding = self._engine.encode(whole(text), add_special_tokens=False)
        for piece, span in zip(encoding.ids, encoding.offsets):
            yield (piece, *span, self.begins_word(piece))


@contextlib.contextmanager
def library(name: str, does: str = 'read') -> Iterator[None]:
    """Raise UserError where the tokenizers library, whose errors have no kind, refuses something.

    A pattern that runs for too long ends in a panic there, which is no Exception.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != 'PanicException':
            raise
        reason = str(error).strip() or repr(error)
        raise UserError(
            f'{name}: the tokenizers library cannot {does} it ({reason[:300]})'
        ) from error


def _cut(engine: tokenizers.Tokenizer, text: str) -> list[str]:
    """Return what a text is cut into before the model has it."""
    if engine.normalizer is not None:
        text = engine.normalizer.normalize_str(text)
    if engine.pre_tokenizer is None:
        return [text]
    return [part for part, _ in engine.pre_tokenizer.pre_tokenize_str(text)]


def _spaced(rules: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer.json that puts a space before each text, or word of a list."""
    # What trims a piece's place must not take that space for one of the text.
    for step in steps(rules['post_processor']):
        if 'add_prefix_space' in step:
            step['add_prefix_space'] = True

    # transformers' add_prefix_space; behind another step it would part what that has cut.
    first = next(steps(rules['pre_tokenizer']), {})
    if first.get('type') == 'ByteLevel':
        first['add_prefix_space'] = True
        return rules
    # Added tokens are looked for as they are: as normalised texts they would begin with that space.
    for token in rules['added_tokens']:
        token['normalized'] = False
    before = [{'type': 'Strip', 'strip_left': True, 'strip_right': False}]
    before += [{'type': 'Prepend', 'prepend': ' '}, *steps(rules['normalizer'])]
    return rules | {'normalizer': {'type': 'Sequence', 'normalizers': before}}


class Compiled(LibraryModel):
    """A tokenizer.json by its own rules."""

    kind = 'compiled'
    refusal = "this tokenizer.json has markers already, or other rules than BERT's own"
    marked_kind = 'compiled'

    def _read(self, vocabulary: bytes, name: str) -> None:
        self._obey(json.loads(vocabulary), name)
