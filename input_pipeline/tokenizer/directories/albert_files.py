"""A directory of ALBERT's tokenizer: a tokenizer.json of unigram pieces, or a SentencePiece model.

Owns how such a directory is known and read, and what in it cannot be obeyed, which is refused by
name. What any tokenizer directory has is settings.py's; what the rules are is spm.py's, and
compiled.py runs them.

As in transformers the class AlbertTokenizer has rules of its own, and of a tokenizer.json with it
the pieces alone count; under any other class, that file is the tokenizer.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer import settings
from bert_jax.input_pipeline.tokenizer.layout import steps
from bert_jax.input_pipeline.tokenizer.models.tokenizer_json import WORD_MARK, with_marks
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.settings import (
    JSON_CLASSES,
    Directory,
    Stated,
    read_json,
    require_special,
)
from bert_jax.input_pipeline.wire import fields

Pieces = tuple[list[tuple[str, float]], bytes]  # with their scores; and the table of characters
_UNIGRAM, BPE = 1, 2  # sentencepiece_model.proto: TrainerSpec.ModelType

CLASSES = ('AlbertTokenizer', *JSON_CLASSES)
# In the order of settings.SPECIAL_TOKENS.
SPECIAL_TOKENS = settings.SPECIAL_TOKENS | {'pad_token': '<pad>', 'unk_token': '<unk>'}
# SentencePiece's own file, as transformers and as Google's folders call it.
_FILES = ('spiece.model', '30k-clean.model')
# Settings of the class, some of older versions, and the values of them that are built here.
_FIXED: dict[str, tuple[Any, ...]] = {
    'remove_space': (True, None),
    'add_prefix_space': (True, None),
    'sp_model_kwargs': ({}, None),
    'do_lower_case': (True, False, None),
    'keep_accents': (False, True, None),
}


def is_directory(path: epath.Path) -> bool:
    """Tell whether the directory's files are of unigram pieces, and not our own spm.model."""
    if (path / 'spm.model').exists() or (path / 'vocab.txt').exists():
        return False
    if model := read_json(path / 'tokenizer.json').get('model'):
        return model.get('type') == 'Unigram'
    return any((path / name).exists() for name in _FILES)


def read(path: epath.Path) -> Stated:
    """Read what the directory says.

    Raises:
      UserError: it contradicts itself, is damaged, or asks for what cannot be done.
    """
    directory = Directory.read(path, SPECIAL_TOKENS)
    config, fast, special = directory.config, directory.fast, directory.special
    name = str(config.get('tokenizer_class') or CLASSES[0]).removesuffix('Fast')
    if name not in CLASSES:
        raise UserError(
            f'{directory.config_file}: tokenizer_class={name} is not built here: of unigram pieces'
            f' only {", ".join(CLASSES)} are'
        )
    directory.check_fixed(_FIXED)
    source = next(path / file for file in ('tokenizer.json', *_FILES) if (path / file).exists())
    pieces, charsmap = _pieces_of_json(fast) if fast else _pieces_of_model(source)
    entries = [piece for piece, _ in pieces]
    require_special(special, entries, str(source), 'an ALBERT')
    directory.require_rows('an ALBERT')

    # Accents are settled by one setting of the class, and by another one in what is saved here.
    is_class = name == CLASSES[0]
    keeps = config.get('keep_accents') is True
    strips = not keeps if is_class else config.get('strip_accents') is not False
    casing = Normalizer(config.get('do_lower_case') is not False, strips)
    ours = albert_json(pieces, charsmap, casing, special)
    return directory.compiled({} if is_class else fast, ours, entries, casing, source)


def _pieces_of_json(fast: Mapping[str, Any]) -> Pieces:
    """Return the pieces of a tokenizer.json with their scores, and its table of characters."""
    pieces = [(str(piece), float(score)) for piece, score in fast['model']['vocab']]
    tables = [
        base64.b64decode(step['precompiled_charsmap'])
        for step in steps(fast.get('normalizer'))
        if step.get('type') == 'Precompiled'
    ]
    return pieces, tables[0] if tables else b''


def _pieces_of_model(file: epath.Path) -> Pieces:
    """Return the pieces of ALBERT's SentencePiece model with scores, and its character table.

    A piece of digits and a comma is all but ruled out, as in the tokenizer.json files of released
    ALBERTs: Google's own code takes such a piece apart again (tokenization.py, encode_pieces).
    """
    try:
        pieces, charsmap = pieces_of(file.read_bytes())
    except (ValueError, struct.error) as error:
        raise UserError(f'{file}: not a SentencePiece model of unigram pieces ({error})') from error
    is_number = lambda piece: len(piece) > 1 and piece[-1] == ',' and piece[-2].isdigit()
    return [(piece, score - 100.0 * is_number(piece)) for piece, score in pieces], charsmap


def pieces_of(model: bytes) -> Pieces:
    """Return the pieces of a model with their scores, by id, and its table of characters.

    Raises:
      ValueError: it is no model of the unigram kind.
    """
    kind, charsmap = model_settings(model)
    pieces = []
    for _, piece in fields(model, 1):
        parts = {1: b'', 2: bytes(4)} | dict(fields(piece, 1, 2))
        pieces.append((parts[1].decode(), *struct.unpack('<f', parts[2])))
    if kind != _UNIGRAM or not pieces:
        raise ValueError('not a unigram model')
    return pieces, charsmap


def albert_json(
    pieces: Sequence[tuple[str, float]],
    charsmap: bytes,
    casing: Normalizer,
    special_tokens: Sequence[str],
) -> str:
    """Return a tokenizer.json by the rules of ALBERT (transformers' AlbertTokenizer).

    charsmap: the model's own table of characters, empty where it has none. Unlike SentencePiece the
    library does not compose by it what NFKD has taken apart (Hangul).
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    unknown = [piece for piece, _ in pieces].index(special_tokens[1])
    tokenizer = Tokenizer(models.Unigram(list(pieces), unk_id=unknown, byte_fallback=False))
    # Quotes as typewriters have them; accents apart from their letters, and away; then the case.
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace('``', '"'), normalizers.Replace("''", '"')]
        + [normalizers.NFKD(), normalizers.StripAccents()] * casing.strip_accents
        + [normalizers.Lowercase()] * casing.lower_case
        + ([normalizers.Precompiled(charsmap)] if charsmap else [])
    )
    marked = pre_tokenizers.Metaspace(WORD_MARK, prepend_scheme='always')
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marked])
    return with_marks(tokenizer, special_tokens)


def model_settings(model: bytes) -> tuple[int, bytes]:
    """Return trainer_spec.model_type and normalizer_spec.precompiled_charsmap of a model."""
    # Fields 2 and 3 of ModelProto; in them field 3 (the type) and field 2 (the table). No type
    # means unigram.
    kind, charsmap = _UNIGRAM, b''
    for number, spec in fields(model, 2, 3):
        for _, value in fields(spec, 3 if number == 2 else 2):
            kind, charsmap = (value[0], charsmap) if number == 2 else (kind, value)
    return kind, charsmap
