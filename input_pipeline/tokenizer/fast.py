"""A tokenizer.json that the tokenizers library runs: fast tokenizers, as transformers calls them.

Owns the one place that encodes through that library: WordPiece by other rules than BERT's own, the
unigram pieces of ALBERT (`Compiled`, with our rows), and any tokenizer.json with its own rows, as
ModernBERT's and mmBERT's (`Fast`). Added tokens are found in the text before anything is split; the
special tokens that rows are made of are not searched for, as everywhere here. Slower than the rules
of wordpiece.py, whose memo of words needs words to be parted by white space. Which directories are
of which kind is directory.py's and foreign_directories.py's.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, processors

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.directory import SPECIAL_TOKENS
from bert_jax.input_pipeline.tokenizer.normalizer import replace_halves
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer, cut_at
from bert_jax.input_pipeline.tokenizer.tokenizer_json import (
    UNUSED,
    WORD_MARK,
    iterate_steps,
    read_rows,
)

# Steps that part a text at white space, which goes, before all others; and normalizers that see no
# further than from one white space to the next.
_DROPPING = ('BertPreTokenizer', 'WhitespaceSplit', 'Whitespace')
_NEAR = ('NFC', 'NFD', 'NFKC', 'NFKD', 'Lowercase', 'StripAccents')


def parts_at_space(added: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether no added token goes on into white space behind a word."""
    return not any(token['rstrip'] or re.search(r'\S\s', token['content']) for token in added)


def add_special(engine: tokenizers.Tokenizer, tokens: Iterable[str], mask: str) -> None:
    """Add special tokens, the mask last; it takes the space that the word in its place has."""
    special = [AddedToken(token, special=True, normalized=False) for token in tokens]
    mask_token = AddedToken(mask, special=True, normalized=False, lstrip=True)
    engine.add_special_tokens([*special, mask_token])


def add_modernbert_rows(engine: tokenizers.Tokenizer, unused: int = 0) -> bytes:
    """Return the tokenizer.json of an engine, with ModernBERT's special tokens and rows added.

    Rows are [CLS] A [SEP] B [SEP], all of one segment. `unused`: how many [unused] tokens come
    behind the special ones.
    """
    pad, unk, cls, sep, mask = SPECIAL_TOKENS.values()
    add_special(engine, (unk, cls, sep, pad), mask)
    engine.add_special_tokens([f'[unused{i}]' for i in range(unused)])
    engine.post_processor = processors.TemplateProcessing(
        single=f'{cls} $A {sep}',
        pair=f'{cls} $A {sep} $B:0 {sep}',
        special_tokens=[(token, engine.token_to_id(token)) for token in (cls, sep)],
    )
    return json.dumps(json.loads(engine.to_str()), ensure_ascii=False, sort_keys=True).encode()


def make_modernbert_json(content: str) -> bytes:
    """Return the tokenizer.json of a WordPiece, unigram or BPE vocabulary in ModernBERT's layout.

    The special tokens go behind the entries, and [unused] rows up to a multiple of 64 behind them.
    What follows a mask without a space is no word of its own.

    content: a tokenizer.json with the special tokens of BERT.
    """
    rules = json.loads(content)
    model, special = rules['model'], [*SPECIAL_TOKENS.values()]
    behind = [special[i] for i in (1, 2, 3, 0, 4)]
    if model['type'] == 'Unigram':
        pieces = [piece for piece in model['vocab'] if piece[0] not in special]
        model['vocab'] = pieces + [[token, 0.0] for token in behind]
        model['unk_id'] = len(pieces)
    else:
        entries = [entry for entry in model['vocab'] if entry not in special]
        entries.sort(key=model['vocab'].__getitem__)
        model['vocab'] = {entry: i for i, entry in enumerate([*entries, *behind])}

    # A mask parts the text, and each part is normalised by itself: the space before one must stay,
    # and only the first may be given one.
    for step in iterate_steps(rules['normalizer']):
        if step['type'] == 'Strip':
            step['strip_left'] = False
    for part in (rules['pre_tokenizer'], rules['decoder']):
        if part['type'] == 'Metaspace':
            part['prepend_scheme'] = 'first'
    rules |= {'added_tokens': [], 'post_processor': None}
    engine = tokenizers.Tokenizer.from_str(json.dumps(rules))
    return add_modernbert_rows(engine, -engine.get_vocab_size() % 64)


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
        tokens, model = rules['added_tokens'], rules['model']
        unused = _find_unused(rules)
        pieces: list[str] = []
        for token in tokens:
            row_token = token['content'] in self.special_tokens
            token['special'] = row_token or token['id'] in unused
        added = {token['content'] for token in tokens}.union(self.special_tokens)
        rules |= {'post_processor': None, 'truncation': None, 'padding': None}
        if model.get('type') == 'Unigram':
            # Else `<pad>` in a text would be that piece: there is a new line before it, as no text
            # has it.
            pieces = [piece for piece, _ in model['vocab']]
            inside = {*pieces}.intersection(self.special_tokens)
            rules['added_tokens'] = [t for t in tokens if t['content'] not in inside]
            for entry in model['vocab']:
                if entry[0] in inside:
                    entry[0] = f'\n{entry[0]}'
        with library(name):
            self._use(tokenizers.Tokenizer.from_str(json.dumps(rules)))
        self._engine.encode_special_tokens = True
        self.entries[: len(pieces)] = pieces

        # How an entry shows that it begins a word; added and special ones always do.
        space = decoders.ByteLevel().decode
        cutting = list(iterate_steps(rules['pre_tokenizer']))
        in_bytes = any(step.get('type') == 'ByteLevel' for step in cutting)
        inner = model.get('continuing_subword_prefix')
        if not inner and model.get('type') == 'WordPiece':
            inner = '##'
        starts_word: list[bool] = []
        for entry in self.entries:
            if entry in added:
                starts_word.append(True)
            elif in_bytes:
                starts_word.append(space([entry])[:1].isspace())
            elif inner:
                starts_word.append(not entry.startswith(inner))
            else:
                starts_word.append(entry.startswith(WORD_MARK))
        self.unused = len(unused)
        self.vocab_size -= self.unused
        self.entries = self.entries[: self.vocab_size]
        self.starts_word = np.array(starts_word[: self.vocab_size])

        # Whether white space is in entries, and whether a text may be cut before it.
        first = cutting[0] if cutting else {}
        self.holds_space = first.get('type') not in _DROPPING
        alone = first.get('type') == 'ByteLevel' and first.get('use_regex', True)
        near = all(step['type'] in _NEAR for step in iterate_steps(rules.get('normalizer')))
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
            encoding = self._engine.encode(
                replace_halves(''.join(pieces)), add_special_tokens=False
            )
        starts = np.array(encoding.offsets, np.int64).reshape(-1, 2)[:, 0]
        return cut_at(pieces, np.array(encoding.ids, np.int32), starts)

    @functools.cached_property
    def for_words(self) -> Tokenizer:
        """The same with a space before each text, where that changes what it is cut into."""
        if _pre_tokenize(self._engine, 'a') == _pre_tokenize(self._engine, ' a'):
            return self
        vocabulary = json.dumps(_add_space(json.loads(self.vocabulary)), ensure_ascii=False)
        content = vocabulary.encode('utf-8', 'surrogatepass')
        return type(self)(content, self.normalizer, self.special_tokens, self.kind)

    @functools.cached_property
    def behind_mask(self) -> Tokenizer:
        """The same without the space before each text, where the file has it before the first."""
        rules = json.loads(self.vocabulary)
        first = next(iterate_steps(rules.get('pre_tokenizer')), {})
        if first.get('prepend_scheme') != 'first':
            return self
        first['prepend_scheme'] = 'never'
        content = json.dumps(rules, ensure_ascii=False).encode('utf-8', 'surrogatepass')
        return type(self)(content, self.normalizer, self.special_tokens, self.kind)

    def tokenizer_json(self) -> str:
        """Return the file's content."""
        return self.vocabulary.decode()

    def ids(self, word: str) -> list[int]:
        """Return the ids of a text."""
        with library('a text', 'encode'):
            return self._engine.encode(replace_halves(word), add_special_tokens=False).ids

    def _encode(self, texts: Iterable[str]) -> list[np.ndarray]:
        whole = list(map(replace_halves, texts))
        with library('a text', 'encode'):
            encodings = self._engine.encode_batch(whole, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def trace(self, text: str) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (id, start, end, whether a word begins there) of each piece of a text."""
        with library('a text', 'encode'):
            encoding = self._engine.encode(replace_halves(text), add_special_tokens=False)
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


def _find_unused(rules: Mapping[str, Any]) -> set[int]:
    """Return the ids of the special [unused] tokens at the end, which are never predicted.

    Those of released models are no special tokens: they are found in text.
    """
    added, vocab = rules['added_tokens'], rules['model'].get('vocab', {})
    last = max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1
    last = max([last, *(token['id'] for token in added)])
    unused: set[int] = set()
    for token in sorted(added, key=operator.itemgetter('id'), reverse=True):
        is_last = token['id'] == last - len(unused)
        if not (is_last and token['special'] and UNUSED.fullmatch(token['content'])):
            break
        unused.add(token['id'])
    return unused


def _pre_tokenize(engine: tokenizers.Tokenizer, text: str) -> list[str]:
    """Return what a text is cut into before the model has it."""
    if engine.normalizer is not None:
        text = engine.normalizer.normalize_str(text)
    if engine.pre_tokenizer is None:
        return [text]
    return [part for part, _ in engine.pre_tokenizer.pre_tokenize_str(text)]


def _add_space(rules: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer.json that puts a space before each text, or word of a list."""
    # What trims a piece's place must not take that space for one of the text.
    for step in iterate_steps(rules['post_processor']):
        if 'add_prefix_space' in step:
            step['add_prefix_space'] = True

    # transformers' add_prefix_space; behind another step it would part what that has cut.
    first = next(iterate_steps(rules['pre_tokenizer']), {})
    if first.get('type') == 'ByteLevel':
        first['add_prefix_space'] = True
        return rules
    # Added tokens are looked for as they are: as normalised texts they would begin with that space.
    for token in rules['added_tokens']:
        token['normalized'] = False
    before = [{'type': 'Strip', 'strip_left': True, 'strip_right': False}]
    before += [{'type': 'Prepend', 'prepend': ' '}, *iterate_steps(rules['normalizer'])]
    return rules | {'normalizer': {'type': 'Sequence', 'normalizers': before}}


class Compiled(LibraryModel):
    """A tokenizer.json by its own rules."""

    kind = 'compiled'
    refusal = "this tokenizer.json has markers already, or other rules than BERT's own"
    marked_kind = 'compiled'

    def _read(self, vocabulary: bytes, name: str) -> None:
        self._obey(json.loads(vocabulary), name)


class Fast(LibraryModel):
    """A tokenizer.json by its own rules, rows included."""

    kind = 'fast'
    refusal = 'this tokenizer.json is taken as it is'
    marked_kind = 'fast'

    def _read(self, vocabulary: bytes, name: str) -> None:
        rules = json.loads(vocabulary)
        spaced = [t['content'] for t in rules['added_tokens'] if t['lstrip']]
        layout = read_rows(rules, name)[2]
        self.layout = layout._replace(mask_takes_space=self.special_tokens[4] in spaced)
        self._obey(rules, name)

    def trace(self, text: str) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (id, start, end, whether a word begins there) of each piece of a text.

        The place has no space at its ends. A word begins behind a space, and where the library
        parts words.
        """
        text = replace_halves(text)
        with library('a text', 'encode'):
            encoding = self._engine.encode(text, add_special_tokens=False)
        begun: set[int | None] = set()
        reached = 0
        for piece, word, (start, end) in zip(encoding.ids, encoding.word_ids, encoding.offsets):
            while start < end and text[start].isspace():
                start += 1
            while start < end and text[end - 1].isspace():
                end -= 1
            parted = word not in begun or start == 0 or text[start - 1].isspace()
            begins = end > start >= reached and parted  # a character may have several pieces
            if end > start:
                begun.add(word)
                reached = end
            yield piece, start, end, begins

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of pieces that follow each other."""
        return self._engine.decode(list(ids), skip_special_tokens=False)

    def spelled(self, ids: Iterable[int]) -> list[str]:
        """Return each entry as text, as the library decodes it."""
        return [self.decode([i]) for i in ids]

    def covered(self, characters: Iterable[str]) -> set[str]:
        """Return those of some characters that the entries can spell."""
        return {char for char in characters if self.unk_id not in self.ids(char)}

    def files(self) -> dict[str, bytes]:
        """Return {file: content}: the tokenizer.json, and a tokenizer_config.json of its tokens."""
        stated = json.loads(super().files()['tokenizer_config.json'])
        # Rows without segments have no token types: a model of theirs takes none.
        segments = ['token_type_ids'] * bool(self.layout.second_segment)
        kept = ('type', 'tokenizer_class', *(name for name in stated if name.endswith('_token')))
        config = {name: stated[name] for name in kept}
        config['model_input_names'] = ['input_ids', *segments, 'attention_mask']
        return {
            'tokenizer_config.json': (json.dumps(config, indent=2) + '\n').encode(),
            'tokenizer.json': self.vocabulary,
        }
