"""Directories of XLM-R's, CamemBERT's and DeBERTa's tokenizers: unigram pieces of SentencePiece.

Owns the entries and rules that transformers' classes of those names make of the pieces: of a
SentencePiece model, or of a tokenizer.json, of whose rules they read the table of characters alone.
Under any other class that file is the tokenizer (foreign_directories.py). Read here they are a
tokenizer.json as it is (fast.py).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.directory import (
    SPECIAL_TOKENS,
    Directory,
    Stated,
    read_json,
    require_special,
)
from bert_jax.input_pipeline.tokenizer.foreign_directories import (
    ROBERTA_FIRST_TOKENS,
    ROBERTA_TOKENS,
    Pieces,
    read_json_pieces,
    read_pieces,
)
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.tokenizer_json import WORD_MARK, add_marks
from bert_jax.input_pipeline.wire import fields

_CONTROL, _USER_DEFINED = 3, 4  # sentencepiece_model.proto: ModelProto.SentencePiece.Type


class _Class(NamedTuple):
    """What a class makes of the pieces.

    Attributes:
      model_type: the models that have it where no file names a class.
      file: SentencePiece's own file.
      tokens: its special tokens where none are named, in the order of SPECIAL_TOKENS.
      first: entries with scores that come before the pieces.
      skipped: how many of a model's pieces those stand for.
      is_roberta: whether words are parted by white space and rows are RoBERTa's; else white space
        is made one, and rows are BERT's.
      settings: those that would change ids, and the values of them that are built.
    """

    model_type: str
    file: str
    tokens: Mapping[str, str]
    first: tuple[tuple[str, float], ...] = ()
    skipped: int = 0
    is_roberta: bool = True
    settings: Mapping[str, tuple[Any, ...]] = {'add_prefix_space': (True, None)}


_BPE_FILE = 'sentencepiece.bpe.model'  # so called, though its pieces are of the unigram kind
# convert_slow_tokenizer.py, and tokenization_*.py of each, in transformers 5.23.
_CLASSES = {
    'XLMRobertaTokenizer': _Class(
        'xlm-roberta',
        _BPE_FILE,
        ROBERTA_TOKENS,
        tuple((token, 0.0) for token in ROBERTA_FIRST_TOKENS),
        3,
    ),
    'CamembertTokenizer': _Class(
        'camembert',
        _BPE_FILE,
        ROBERTA_TOKENS,
        (
            ('<s>NOTUSED', 0.0),
            ('<pad>', 0.0),
            ('</s>NOTUSED', 0.0),
            ('<unk>', 0.0),
            ('<unk>NOTUSED', -100.0),
        ),
        1,
    ),
    'DebertaV2Tokenizer': _Class(
        'deberta-v2',
        'spm.model',
        SPECIAL_TOKENS,
        is_roberta=False,
        settings={
            'add_prefix_space': (True, None),
            'do_lower_case': (False, None),
            'split_by_punct': (False, None),
        },
    ),
}


def find_class(path: epath.Path) -> str | None:
    """Return the class of these that reads a directory's tokenizer, if any does.

    Raises:
      UserError: the file of SentencePiece is there, and no class that reads it.
    """
    config, model = read_json(path / 'tokenizer_config.json'), read_json(path / 'config.json')
    has_json = (path / 'tokenizer.json').exists()
    if 'type' in config:  # our own directory
        return None

    # As transformers looks for it.
    name = config.get('tokenizer_class') or model.get('tokenizer_class')
    for known, row in _CLASSES.items():
        if name is None and model.get('model_type') == row.model_type:
            name = known
    name = str(name).removesuffix('Fast')
    if name in _CLASSES:
        kind = (read_json(path / 'tokenizer.json').get('model') or {}).get('type')
        if kind == 'Unigram' or (not has_json and (path / _CLASSES[name].file).exists()):
            return name
    elif (path / _BPE_FILE).exists() and not has_json:
        raise UserError(
            f'{path / _BPE_FILE}: tokenizer_class={name} does not read it here, and ids depend on'
            ' it: name XLMRobertaTokenizer or CamembertTokenizer in tokenizer_config.json beside it'
        )
    return None


def read_unigram(path: epath.Path, name: str) -> Stated:
    """Read what a directory says whose class is `name`.

    Raises:
      UserError: it is damaged, lacks a special token, or asks for what cannot be done.
    """
    row = _CLASSES[name]
    directory = Directory.read(path, row.tokens)
    directory.check_fixed(row.settings)
    special, file = directory.special, directory.json_file
    if directory.fast:
        pieces, charsmap = read_json_pieces(directory.fast)
    else:
        file = path / row.file
        pieces, charsmap, added = _read_model(file, row)
        directory = directory._replace(fast={'added_tokens': added})
    entries = [piece for piece, _ in pieces]

    # A model has none: it comes behind the pieces, as fairseq's and DeBERTa's own code add it.
    if special[4] not in entries:
        pieces.append((special[4], 0.0))
        entries.append(special[4])
    require_special(special, entries, str(file), f'a {name}')
    ours = _make_json((pieces, charsmap), special, row.is_roberta)
    return directory.compiled({}, ours, entries, Normalizer(False, False), file)._replace(
        kind='fast'
    )


def _read_model(file: epath.Path, row: _Class) -> tuple[Any, bytes, list[dict[str, Any]]]:
    """Return entries with scores, the table of characters, and pieces that are added tokens.

    Those are the pieces of signs that its trainer was told to keep whole.
    """
    model = file.read_bytes()
    try:
        pieces, charsmap = read_pieces(model)
        kinds = [dict(fields(piece, 3)).get(3, b'\x01')[0] for _, piece in fields(model, 1)]
    except (ValueError, struct.error) as error:
        raise UserError(f'{file}: not a SentencePiece model of unigram pieces ({error})') from error
    shift = len(row.first) - row.skipped
    added = []
    for i in range(row.skipped, len(pieces)):
        if kinds[i] in (_CONTROL, _USER_DEFINED):
            flags = {'normalized': False, 'special': kinds[i] == _CONTROL}
            added.append({'id': i + shift, 'content': pieces[i][0], **flags})
    return [*row.first, *pieces[row.skipped :]], charsmap, added


def _make_json(model: Pieces, special: list[str], is_roberta: bool) -> str:
    """Return a tokenizer.json by the rules of the classes."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces, charsmap = model
    unknown = [piece for piece, _ in pieces].index(special[1])
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    metaspace = pre_tokenizers.Metaspace(WORD_MARK, prepend_scheme='always')
    if not is_roberta:
        # Their class reads no table of characters.
        one_space = normalizers.Replace(Regex(r'\s{2,}|[\n\r\t]'), ' ')
        at_end = normalizers.Strip(left=False, right=True)
        tokenizer.normalizer = normalizers.Sequence([one_space, normalizers.NFC(), at_end])
        tokenizer.pre_tokenizer = metaspace
        return add_marks(tokenizer, special)

    if charsmap:
        tokenizer.normalizer = normalizers.Precompiled(charsmap)
    parts = [pre_tokenizers.WhitespaceSplit(), metaspace]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    add_marks(tokenizer, special)
    cls, sep = special[2:4]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f'{cls} $A {sep}',
        pair=f'{cls} $A {sep} {sep} $B {sep}',
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return tokenizer.to_str()
