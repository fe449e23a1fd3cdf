"""Directories of other models' tokenizers: ALBERT's, RoBERTa's, and a tokenizer.json as it is.

Owns how each is known by its files and read, and what in it cannot be obeyed, which is refused by
name. What any tokenizer directory has is directory.py's. How text is encoded is
sentencepiece_model.py's, byte_bpe.py's and fast.py's.

As in transformers, the classes AlbertTokenizer and RobertaTokenizer have rules of their own, and of
a tokenizer.json with them the pieces alone count. Under any other class that file is the tokenizer,
with its rules, special tokens and rows, as ModernBERT's and mmBERT's.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.directory import (
    BERT_CLASSES,
    JSON_CLASSES,
    SPECIAL_TOKENS,
    Directory,
    Stated,
    read_entries,
    read_json,
    require_special,
)
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.tokenizer_json import (
    WORD_MARK,
    Layout,
    add_marks,
    iterate_steps,
    read_rows,
)
from bert_jax.input_pipeline.wire import fields

# ---- ALBERT: a tokenizer.json of unigram pieces, or a SentencePiece model

Pieces = tuple[list[tuple[str, float]], bytes]  # with their scores; and the table of characters
_UNIGRAM, BPE = 1, 2  # sentencepiece_model.proto: TrainerSpec.ModelType

_ALBERT_CLASSES = ('AlbertTokenizer', *JSON_CLASSES)
# In the order of SPECIAL_TOKENS.
ALBERT_TOKENS = SPECIAL_TOKENS | {'pad_token': '<pad>', 'unk_token': '<unk>'}
# SentencePiece's own file, as transformers and as Google's folders call it.
_ALBERT_FILES = ('spiece.model', '30k-clean.model')
# Settings of the class, some of older versions, and the values of them that are built here.
_ALBERT_SETTINGS: dict[str, tuple[Any, ...]] = {
    'remove_space': (True, None),
    'add_prefix_space': (True, None),
    'sp_model_kwargs': ({}, None),
    'do_lower_case': (True, False, None),
    'keep_accents': (False, True, None),
}


def is_albert(path: epath.Path) -> bool:
    """Tell whether the directory's files are of unigram pieces, and not our own spm.model."""
    if (path / 'spm.model').exists() or (path / 'vocab.txt').exists():
        return False
    model = read_json(path / 'tokenizer.json').get('model')
    if model:
        return model.get('type') == 'Unigram'
    return any((path / name).exists() for name in _ALBERT_FILES)


def read_albert(path: epath.Path) -> Stated:
    """Read what the directory says.

    Raises:
      UserError: it contradicts itself, is damaged, or asks for what cannot be done.
    """
    directory = Directory.read(path, ALBERT_TOKENS)
    config, fast, special = directory.config, directory.fast, directory.special
    name = str(config.get('tokenizer_class') or _ALBERT_CLASSES[0]).removesuffix('Fast')
    if name not in _ALBERT_CLASSES:
        raise UserError(
            f'{directory.config_file}: tokenizer_class={name} is not built here: of unigram pieces'
            f' only {", ".join(_ALBERT_CLASSES)} are'
        )
    directory.check_fixed(_ALBERT_SETTINGS)
    source = next(
        path / file for file in ('tokenizer.json', *_ALBERT_FILES) if (path / file).exists()
    )
    pieces, charsmap = read_json_pieces(fast) if fast else _read_model_pieces(source)
    entries = [piece for piece, _ in pieces]
    require_special(special, entries, str(source), 'an ALBERT')
    directory.require_rows('an ALBERT')

    # Accents are settled by one setting of the class, and by another one in what is saved here.
    is_class = name == _ALBERT_CLASSES[0]
    keeps = config.get('keep_accents') is True
    strips = config.get('strip_accents') is not False
    if is_class:
        strips = not keeps
    casing = Normalizer(config.get('do_lower_case') is not False, strips)
    ours = make_albert_json(pieces, charsmap, casing, special)
    return directory.compiled({} if is_class else fast, ours, entries, casing, source)


def read_json_pieces(fast: Mapping[str, Any]) -> Pieces:
    """Return the pieces of a tokenizer.json with their scores, and its table of characters."""
    pieces = [(str(piece), float(score)) for piece, score in fast['model']['vocab']]
    for step in iterate_steps(fast.get('normalizer')):
        if step.get('type') == 'Precompiled':
            return pieces, base64.b64decode(step['precompiled_charsmap'])
    return pieces, b''


def _read_model_pieces(file: epath.Path) -> Pieces:
    """Return the pieces of ALBERT's SentencePiece model with scores, and its character table.

    A piece of digits and a comma is all but ruled out, as in the tokenizer.json files of released
    ALBERTs: Google's own code takes such a piece apart again (tokenization.py, encode_pieces).
    """
    try:
        pieces, charsmap = read_pieces(file.read_bytes())
    except (ValueError, struct.error) as error:
        raise UserError(f'{file}: not a SentencePiece model of unigram pieces ({error})') from error
    for i, (piece, score) in enumerate(pieces):
        if len(piece) > 1 and piece[-1] == ',' and piece[-2].isdigit():
            pieces[i] = (piece, score - 100.0)
    return pieces, charsmap


def read_pieces(model: bytes) -> Pieces:
    """Return the pieces of a model with their scores, by id, and its table of characters.

    Raises:
      ValueError: it is no model of the unigram kind.
    """
    kind, charsmap = read_model_settings(model)
    pieces = []
    for _, piece in fields(model, 1):
        parts = {1: b'', 2: bytes(4)} | dict(fields(piece, 1, 2))
        pieces.append((parts[1].decode(), *struct.unpack('<f', parts[2])))
    if kind != _UNIGRAM or not pieces:
        raise ValueError('not a unigram model')
    return pieces, charsmap


def make_albert_json(
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
    rules: list[normalizers.Normalizer]
    rules = [normalizers.Replace('``', '"'), normalizers.Replace("''", '"')]
    if casing.strip_accents:
        rules += [normalizers.NFKD(), normalizers.StripAccents()]
    if casing.lower_case:
        rules.append(normalizers.Lowercase())
    if charsmap:
        rules.append(normalizers.Precompiled(charsmap))
    tokenizer.normalizer = normalizers.Sequence(rules)
    marked = pre_tokenizers.Metaspace(WORD_MARK, prepend_scheme='always')
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marked])
    return add_marks(tokenizer, special_tokens)


def read_model_settings(model: bytes) -> tuple[int, bytes]:
    """Return trainer_spec.model_type and normalizer_spec.precompiled_charsmap of a model."""
    # Fields 2 and 3 of ModelProto; in them field 3 (the type) and field 2 (the table). No type
    # means unigram.
    kind, charsmap = _UNIGRAM, b''
    for _, spec in fields(model, 2):
        for _, value in fields(spec, 3):
            kind = value[0]
    for _, spec in fields(model, 3):
        for _, value in fields(spec, 2):
            charsmap = value
    return kind, charsmap


# ---- RoBERTa: byte-level BPE in vocab.json and merges.txt, or in a tokenizer.json of both

# In the order of SPECIAL_TOKENS.
ROBERTA_TOKENS = {
    'pad_token': '<pad>',
    'unk_token': '<unk>',
    'cls_token': '<s>',
    'sep_token': '</s>',
    'mask_token': '<mask>',
}
# Those that a vocabulary begins with; the mask token ends it (fairseq's dictionary).
ROBERTA_FIRST_TOKENS = ('<s>', '<pad>', '</s>', '<unk>')
# Classes of transformers that read such a directory, with or without Fast.
_ROBERTA_CLASSES = ('RobertaTokenizer', *JSON_CLASSES)
# Of the library's model: settings that would give other ids, and what they are in RoBERTa.
_ROBERTA_MODEL = {
    'dropout': (None, 0.0),
    'continuing_subword_prefix': (None, ''),
    'end_of_word_suffix': (None, ''),
    'byte_fallback': (False,),
    'ignore_merges': (False,),
}


def format_byte_bpe(
    entries: Sequence[str],
    merges: Iterable[Sequence[str]],
    add_prefix_space: bool,
    added: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """Return a vocabulary in one piece, the same bytes whatever files it came from.

    Args:
      entries: by id.
      merges: pairs of entries, the first merged first.
      add_prefix_space: whether a text is encoded as if a space stood before it.
      added: tokens besides the vocabulary's, as a tokenizer.json has them, without the special
        ones.
    """
    parts = {
        'entries': entries,
        'merges': list(merges),
        'add_prefix_space': add_prefix_space,
        'added_tokens': added,
    }
    return json.dumps(parts, ensure_ascii=False, sort_keys=True).encode()


def is_roberta(path: epath.Path) -> bool:
    """Tell whether the directory's files are of byte-level BPE, be they whole or not."""
    # Others have a model of theirs, though a tokenizer.json with it may say BPE.
    if (path / 'spm.model').exists() or (path / 'vocab.txt').exists():
        return False
    model = read_json(path / 'tokenizer.json').get('model') or {}
    listed = (path / name for name in ('vocab.json', 'merges.txt'))
    return model.get('type') == 'BPE' or any(file.exists() for file in listed)


def read_roberta(path: epath.Path) -> Stated:
    """Read what the directory says.

    Raises:
      UserError: a file is missing, they contradict each other, or ask for what cannot be done.
    """
    directory = Directory.read(path, ROBERTA_TOKENS)
    config, fast = directory.config, directory.fast
    name = config.get('tokenizer_class')
    if name is not None and str(name).removesuffix('Fast') not in _ROBERTA_CLASSES:
        raise UserError(
            f'{directory.config_file}: tokenizer_class={name}, but the files beside it are of'
            f' byte-level BPE, as RoBERTa has it: only {", ".join(_ROBERTA_CLASSES)} read them'
            ' here'
        )
    if config.get('do_lower_case'):
        raise UserError(
            f'{directory.config_file}: do_lower_case is not built for byte-level BPE: only false is'
        )

    # Entries and merges, from one file or from two.
    if fast:
        file, (entries, merges) = directory.json_file, _read_one_file(directory)
    else:
        file, (entries, merges) = path / 'vocab.json', _read_two_files(path)
    for merge in merges:
        if not isinstance(merge, list) or len(merge) != 2:
            source = file if fast else path / 'merges.txt'
            raise UserError(f'{source}: {merge!r} is no merge of two entries')
    added = directory.added_tokens(entries)
    vocabulary = format_byte_bpe(entries, merges, _read_prefix_space(directory), added)
    return Stated('byte_bpe', vocabulary, Normalizer(False, False), directory.special, str(file))


def _read_two_files(path: epath.Path) -> tuple[list[str], list[list[str]]]:
    """Return the entries by id of vocab.json, and the merges of merges.txt."""
    for file, other in (('vocab.json', 'merges.txt'), ('merges.txt', 'vocab.json')):
        if not (path / file).exists():
            raise UserError(
                f'{path}: no {file} beside {other}: byte-level BPE needs both, copy it too'
            )
    entries = read_entries(read_json(path / 'vocab.json'), path / 'vocab.json')

    # The first line may be a remark on the version; `#` alone begins a merge as any other sign.
    try:
        lines = (path / 'merges.txt').read_text(encoding='utf-8').split('\n')
    except UnicodeDecodeError as error:
        raise UserError(f'{path / "merges.txt"}: not UTF-8 at byte {error.start}') from error
    lines = lines[lines[0].startswith('#version') :]
    return entries, [line.rstrip('\r').split(' ') for line in lines if line.strip()]


def find_foreign_rules(directory: Directory) -> list[str]:
    """Return the parts of a tokenizer.json that are not RoBERTa's: of the rules, or of rows."""
    model, normalizer = directory.part('model'), directory.part('normalizer')
    pre, post = directory.part('pre_tokenizer'), directory.part('post_processor')
    foreign: list[str] = []
    for name, allowed in _ROBERTA_MODEL.items():
        if model.get(name, allowed[0]) not in allowed:
            foreign.append(f'{name} {model.get(name)!r}')
    if model.get('type') != 'BPE':
        foreign.append(f'model {model.get("type")}')
    if normalizer:
        foreign.append(f'normalizer {normalizer.get("type")}')
    if pre.get('type') != 'ByteLevel' or not pre.get('use_regex', True):
        foreign.append(f'pre_tokenizer {pre.get("type")}')
    if foreign or not post:
        return foreign

    # The layout of rows is ours to make.
    is_ours = post.get('type') == 'RobertaProcessing'
    if is_ours and [post['cls'][0], post['sep'][0]] == directory.special[2:4]:
        return []
    return [f'rows by {post.get("type")}']


def _read_one_file(directory: Directory) -> tuple[list[str], list[Any]]:
    """Return entries by id and merges of a tokenizer.json, whose rules must be RoBERTa's."""
    fast, file, listed = directory.fast, directory.json_file, directory.path / 'vocab.json'
    parts = find_foreign_rules(directory)
    if parts:
        raise UserError(
            f'{file}: {", ".join(parts)} is not as in the byte-level BPE of RoBERTa, with rows'
            ' of <s> A </s></s> B </s>: to have the file obeyed as it is, let it have a'
            ' post_processor, and name the tokenizer_class PreTrainedTokenizerFast beside it'
        )

    # vocab.json with it, if it is there, says the same.
    entries = read_entries(fast['model'].get('vocab'), file)
    if listed.exists() and read_entries(read_json(listed), listed) != entries:
        raise UserError(
            f'{file}: its entries are not those of vocab.json beside it: remove the wrong file'
        )
    merges: list[Any] = []
    for merge in fast['model'].get('merges') or []:
        merges.append(merge.split(' ') if isinstance(merge, str) else merge)
    return entries, merges


def _read_prefix_space(directory: Directory) -> bool:
    """Tell whether a text is encoded as with a space before it; false where nothing is said."""
    stated = directory.part('pre_tokenizer').get('add_prefix_space')
    configured = directory.config.get('add_prefix_space')
    for value, file in ((configured, directory.config_file), (stated, directory.json_file)):
        if not isinstance(value, bool | None):
            raise UserError(f'{file}: add_prefix_space={value!r}: must be true or false')
    # As transformers: what is said to the class rules over the file that it loads.
    return bool(stated if configured is None else configured)


# ---- a tokenizer.json as it is

# Classes of transformers that build their own rules, whatever the tokenizer.json says, and the
# model that they build them for.
_OWN_RULES = {
    **dict.fromkeys(BERT_CLASSES, 'WordPiece'),
    'RobertaTokenizer': 'BPE',
    'AlbertTokenizer': 'Unigram',
}


def is_fast(path: epath.Path) -> bool:
    """Tell whether the directory's tokenizer.json is to be taken as it is."""
    if (path / 'spm.model').exists() or not (path / 'tokenizer.json').exists():
        return False
    directory = Directory.read(path, SPECIAL_TOKENS)
    if 'type' in directory.config:  # our own word
        return directory.config['type'] == 'fast'
    name = str(directory.config.get('tokenizer_class')).removesuffix('Fast')
    model = directory.part('model').get('type')
    if _OWN_RULES.get(name) == model or not directory.fast.get('post_processor'):
        return False

    # Rules that other kinds know are theirs; what they know is rows as much as words.
    if model == 'BPE':
        return bool(find_foreign_rules(directory.with_defaults(ROBERTA_TOKENS)))
    classes = {'WordPiece': (name,), 'Unigram': _ALBERT_CLASSES}.get(str(model), ())
    if name not in (*classes, 'None'):
        return True
    cls, sep, layout = read_rows(directory.fast, path / 'tokenizer.json')
    return [cls, sep, layout] != [*directory.special[2:4], Layout()]


def read_fast(path: epath.Path) -> Stated:
    """Read what the directory says.

    Raises:
      UserError: the file makes rows of another kind than can be made here, or lacks a token.
    """
    directory = Directory.read(path, SPECIAL_TOKENS)
    fast, file = directory.fast, directory.json_file
    cls, sep, _ = read_rows(fast, file)
    entries = get_pieces(fast).union(token['content'] for token in fast['added_tokens'])
    added = directory.config.get('added_tokens_decoder') or {}
    elsewhere = [*read_json(path / 'added_tokens.json'), *(t['content'] for t in added.values())]
    # As named beside the file; else by the names that are usual.
    stated = read_json(path / 'special_tokens_map.json') | directory.config
    names = ('pad_token', 'unk_token', 'mask_token')
    pad, unk, mask = (_find_token(stated, name, entries) for name in names)

    # transformers would add such tokens when it opens the folder.
    for token in elsewhere:
        if token not in entries:
            raise UserError(
                f'{file}: lacks the added token {token!r}, which a file beside it names: open the'
                ' folder with transformers and save it again'
            )

    # Bytes need no unknown token.
    special = [pad, unk or pad, cls, sep, mask]
    for name, token in zip(SPECIAL_TOKENS, special):
        if token not in entries:
            raise UserError(
                f'{file}: no {name} in it that tokenizer_config.json beside it names: add one'
                ' with transformers (tokenizer.add_special_tokens)'
            )

    # What cuts or fills rows is not wanted. Sorted, so that the same rules have the same
    # fingerprint.
    content = json.dumps(
        fast | {'truncation': None, 'padding': None}, ensure_ascii=False, sort_keys=True
    )
    vocabulary = content.encode('utf-8', 'surrogatepass')
    return Stated('fast', vocabulary, Normalizer(False, False), special, str(file))


def get_pieces(fast: Mapping[str, Any]) -> set[str]:
    """Return the entries of a tokenizer.json's model: {entry: id}, or pairs with scores."""
    vocab = fast.get('model', {}).get('vocab', {})
    return set(vocab if isinstance(vocab, dict) else (piece for piece, _ in vocab))


def _find_token(stated: Mapping[str, Any], name: str, entries: set[str]) -> str:
    """Return a special token as it is named, or by a usual name; '' where there is none."""
    token = stated.get(name)
    if token is not None:  # a text, or an object with `content`
        return str(token['content'] if isinstance(token, dict) else token)
    short = name.removesuffix('_token')
    for usual in (f'[{short.upper()}]', f'<{short}>'):
        if usual in entries:
            return usual
    return ''
