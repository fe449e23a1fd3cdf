"""A tokenizer.json that is the tokenizer as it is: its rules, its special tokens, its rows.

Owns which directories are of that kind: those whose file has other rules or rows than BERT's,
RoBERTa's or ALBERT's, as ModernBERT's and mmBERT's have. Reads from the file what a row is. How
text is encoded is fast.py's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.directories import albert_files, byte_bpe_files
from bert_jax.input_pipeline.tokenizer.layout import Layout, rows_of
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.settings import (
    BERT_CLASSES,
    SPECIAL_TOKENS,
    Directory,
    Stated,
    read_json,
)

# Classes of transformers that build their own rules, whatever the tokenizer.json says, and the
# model that they build them for.
_OWN_RULES = {
    **dict.fromkeys(BERT_CLASSES, 'WordPiece'),
    'RobertaTokenizer': 'BPE',
    'AlbertTokenizer': 'Unigram',
}


def is_directory(path: epath.Path) -> bool:
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
        return bool(byte_bpe_files.foreign(directory.with_defaults(byte_bpe_files.SPECIAL_TOKENS)))
    classes = {'WordPiece': (name,), 'Unigram': albert_files.CLASSES}.get(str(model), ())
    if name not in (*classes, 'None'):
        return True
    cls, sep, layout = rows_of(directory.fast, path / 'tokenizer.json')
    return [cls, sep, layout] != [*directory.special[2:4], Layout()]


def read(path: epath.Path) -> Stated:
    """Read what the directory says.

    Raises:
      UserError: the file makes rows of another kind than can be made here, or lacks a token.
    """
    directory = Directory.read(path, SPECIAL_TOKENS)
    fast, file = directory.fast, directory.json_file
    cls, sep, _ = rows_of(fast, file)
    entries = pieces_of(fast).union(token['content'] for token in fast['added_tokens'])
    added = directory.config.get('added_tokens_decoder') or {}
    elsewhere = [*read_json(path / 'added_tokens.json'), *(t['content'] for t in added.values())]
    # As named beside the file; else by the names that are usual.
    stated = read_json(path / 'special_tokens_map.json') | directory.config
    names = ('pad_token', 'unk_token', 'mask_token')
    pad, unk, mask = (_token(stated, name, entries) for name in names)

    # transformers would add such tokens when it opens the folder.
    if lacking := [token for token in elsewhere if token not in entries]:
        raise UserError(
            f'{file}: lacks the added token {lacking[0]!r}, which a file beside it names: open the'
            ' folder with transformers and save it again'
        )

    # Bytes need no unknown token.
    special = [pad, unk or pad, cls, sep, mask]
    if missing := [n for n, token in zip(SPECIAL_TOKENS, special) if token not in entries]:
        raise UserError(
            f'{file}: no {missing[0]} in it that tokenizer_config.json beside it names: add one'
            ' with transformers (tokenizer.add_special_tokens)'
        )

    # What cuts or fills rows is not wanted. Sorted, so that the same rules have the same
    # fingerprint.
    content = json.dumps(
        fast | {'truncation': None, 'padding': None}, ensure_ascii=False, sort_keys=True
    )
    vocabulary = content.encode('utf-8', 'surrogatepass')
    return Stated('fast', vocabulary, Normalizer(False, False), special, str(file))


def pieces_of(fast: Mapping[str, Any]) -> set[str]:
    """Return the entries of a tokenizer.json's model: {entry: id}, or pairs with scores."""
    vocab = fast.get('model', {}).get('vocab', {})
    return set(vocab if isinstance(vocab, dict) else (piece for piece, _ in vocab))


def _token(stated: Mapping[str, Any], name: str, entries: set[str]) -> str:
    """Return a special token as it is named, or by a usual name; '' where there is none."""
    token = stated.get(name)
    if token is not None:  # a text, or an object with `content`
        return str(token['content'] if isinstance(token, dict) else token)
    short = name.removesuffix('_token')
    return next((t for t in (f'[{short.upper()}]', f'<{short}>') if t in entries), '')
