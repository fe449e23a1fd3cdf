"""A directory of byte-level BPE: vocab.json and merges.txt, or a tokenizer.json that holds both.

Owns how such a directory is known and read, ours or Hugging Face's, what in it cannot be obeyed,
which is refused by name, and what a vocabulary is in one piece, whatever files it came from. What
any tokenizer directory has is settings.py's; how text is encoded is byte_bpe.py's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.settings import (
    JSON_CLASSES,
    Directory,
    Stated,
    entries_of,
    read_json,
)

# In the order of settings.SPECIAL_TOKENS.
SPECIAL_TOKENS = {
    'pad_token': '<pad>',
    'unk_token': '<unk>',
    'cls_token': '<s>',
    'sep_token': '</s>',
    'mask_token': '<mask>',
}
# Those that a vocabulary begins with; the mask token ends it (fairseq's dictionary).
FIRST_TOKENS = ('<s>', '<pad>', '</s>', '<unk>')
# Classes of transformers that read such a directory, with or without Fast.
_CLASSES = ('RobertaTokenizer', *JSON_CLASSES)
# Of the library's model: settings that would give other ids, and what they are in RoBERTa.
_MODEL = {
    'dropout': (None, 0.0),
    'continuing_subword_prefix': (None, ''),
    'end_of_word_suffix': (None, ''),
    'byte_fallback': (False,),
    'ignore_merges': (False,),
}


def content(
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


def is_directory(path: epath.Path) -> bool:
    """Tell whether the directory's files are of byte-level BPE, be they whole or not."""
    # Others have a model of theirs, though a tokenizer.json with it may say BPE.
    if (path / 'spm.model').exists() or (path / 'vocab.txt').exists():
        return False
    model = read_json(path / 'tokenizer.json').get('model') or {}
    listed = (path / name for name in ('vocab.json', 'merges.txt'))
    return model.get('type') == 'BPE' or any(file.exists() for file in listed)


def read(path: epath.Path) -> Stated:
    """Read what the directory says.

    Raises:
      UserError: a file is missing, they contradict each other, or ask for what cannot be done.
    """
    directory = Directory.read(path, SPECIAL_TOKENS)
    config, fast = directory.config, directory.fast
    name = config.get('tokenizer_class')
    if name is not None and str(name).removesuffix('Fast') not in _CLASSES:
        raise UserError(
            f'{directory.config_file}: tokenizer_class={name}, but the files beside it are'
            f' of byte-level BPE, as RoBERTa has it: only {", ".join(_CLASSES)} read them here'
        )
    if config.get('do_lower_case'):
        raise UserError(
            f'{directory.config_file}: do_lower_case is not built for byte-level BPE: only false is'
        )

    # Entries and merges, from one file or from two.
    if fast:
        file, (entries, merges) = directory.json_file, _of_one_file(directory)
    else:
        file, (entries, merges) = path / 'vocab.json', _of_two_files(path)
    if wrong := [merge for merge in merges if not isinstance(merge, list) or len(merge) != 2]:
        source = file if fast else path / 'merges.txt'
        raise UserError(f'{source}: {wrong[0]!r} is no merge of two entries')
    added = directory.added_tokens(entries)
    vocabulary = content(entries, merges, _prefix_space(directory), added)
    return Stated('byte_bpe', vocabulary, Normalizer(False, False), directory.special, str(file))


def _of_two_files(path: epath.Path) -> tuple[list[str], list[list[str]]]:
    """Return the entries by id of vocab.json, and the merges of merges.txt."""
    for file, other in (('vocab.json', 'merges.txt'), ('merges.txt', 'vocab.json')):
        if not (path / file).exists():
            raise UserError(
                f'{path}: no {file} beside {other}: byte-level BPE needs both, copy it too'
            )
    entries = entries_of(read_json(path / 'vocab.json'), path / 'vocab.json')

    # The first line may be a remark on the version; `#` alone begins a merge as any other sign.
    try:
        lines = (path / 'merges.txt').read_text(encoding='utf-8').split('\n')
    except UnicodeDecodeError as error:
        raise UserError(f'{path / "merges.txt"}: not UTF-8 at byte {error.start}') from error
    lines = lines[lines[0].startswith('#version') :]
    return entries, [line.rstrip('\r').split(' ') for line in lines if line.strip()]


def foreign(directory: Directory) -> list[str]:
    """Return the parts of a tokenizer.json that are not RoBERTa's: of the rules, or of rows."""
    parts = ('model', 'pre_tokenizer', 'post_processor', 'normalizer')
    model, pre, post, normalizer = map(directory.part, parts)
    differing = {
        **{f'{n} {model.get(n)!r}': model.get(n, ok[0]) not in ok for n, ok in _MODEL.items()},
        f'model {model.get("type")}': model.get('type') != 'BPE',
        f'normalizer {normalizer.get("type")}': bool(normalizer),
        f'pre_tokenizer {pre.get("type")}': (
            pre.get('type') != 'ByteLevel' or not pre.get('use_regex', True)
        ),
    }
    # The layout of rows is ours to make.
    our_rows = post.get('type') == 'RobertaProcessing' and (
        [post['cls'][0], post['sep'][0]] == directory.special[2:4]
    )
    rows = [] if our_rows or not post else [f'rows by {post.get("type")}']
    return [part for part, differs in differing.items() if differs] or rows


def _of_one_file(directory: Directory) -> tuple[list[str], list[Any]]:
    """Return entries by id and merges of a tokenizer.json, whose rules must be RoBERTa's."""
    fast, file, listed = directory.fast, directory.json_file, directory.path / 'vocab.json'
    if parts := foreign(directory):
        raise UserError(
            f'{file}: {", ".join(parts)} is not as in the byte-level BPE of RoBERTa, with rows'
            ' of <s> A </s></s> B </s>: to have the file obeyed as it is, let it have a'
            ' post_processor, and name the tokenizer_class PreTrainedTokenizerFast beside it'
        )

    # vocab.json with it, if it is there, says the same.
    entries = entries_of(fast['model'].get('vocab'), file)
    if listed.exists() and entries_of(read_json(listed), listed) != entries:
        raise UserError(
            f'{file}: its entries are not those of vocab.json beside it: remove the wrong file'
        )
    merges = fast['model'].get('merges') or []
    return entries, [merge.split(' ') if isinstance(merge, str) else merge for merge in merges]


def _prefix_space(directory: Directory) -> bool:
    """Tell whether a text is encoded as with a space before it; false where nothing is said."""
    stated = directory.part('pre_tokenizer').get('add_prefix_space')
    configured = directory.config.get('add_prefix_space')
    for value, file in ((configured, directory.config_file), (stated, directory.json_file)):
        if not isinstance(value, bool | None):
            raise UserError(f'{file}: add_prefix_space={value!r}: must be true or false')
    # As transformers: what is said to the class rules over the file that it loads.
    return bool(stated if configured is None else configured)
