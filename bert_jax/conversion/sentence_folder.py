"""Directories of sentence-transformers' SentenceTransformer: one vector of a text.

Owns the pooling, the cut and the length of vectors, in both spellings of its releases. They are
written as releases 2 to 4 have them, which 5 and 6 read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.conversion.module_folders import (
    SETTINGS,
    FolderKind,
    find_modules,
    read_dense,
    read_max_length,
    read_prompts,
    read_settings,
    with_vectors,
    write_dense,
    write_module,
)
from bert_jax.conversion.trained_model import Model, Reading

_KINDS = ('Transformer', 'Pooling', 'Dense', 'Normalize')
# Ours -> theirs: as the releases up to 5.2 call it, each a flag, and as later ones do.
_POOLINGS = {
    'cls': ('cls_token', 'cls'),
    'mean': ('mean_tokens', 'mean'),
    'max': ('max_tokens', 'max'),
    'mean_sqrt_len': ('mean_sqrt_len_tokens', 'mean_sqrt_len_tokens'),
    'weighted_mean': ('weightedmean_tokens', 'weightedmean'),
    'last': ('lasttoken', 'lasttoken'),
}
_FLAG = 'pooling_mode_'


class SentenceFolder(FolderKind):
    """One vector of a text: a Transformer, its pooling, a cut and a norm."""

    model_type = 'SentenceTransformer'
    vectors = SentenceConfig

    def add(self, folder: epath.Path, reading: Reading) -> Reading:
        """Return what was read of a directory's weights as a sentence encoder.

        Raises:
          UserError: a module, a pooling or a setting has no counterpart here.
        """
        # A cut where numbers are left out before vectors get length one.
        paths = find_modules(folder, _KINDS, ('Dense', 'Normalize'))
        settings = read_settings(folder / SETTINGS)
        prompts = read_prompts(settings, folder / SETTINGS)
        width = reading.model.config.hidden_size
        sentence = SentenceConfig(
            _read_pooling(paths['Pooling'] / 'config.json', prompts),
            'Normalize' in paths,
            _read_cut(paths['Dense'], width) if 'Dense' in paths else None,
            tuple(prompts.items()),
            read_max_length(folder, reading.model.config.max_position),
            settings.get('similarity_fn_name') or 'cosine',
        )
        return with_vectors(reading, sentence, settings)

    def write_modules(self, folder: epath.Path, model: Model) -> list[str]:
        """Write the pooling, and the cut where vectors lose numbers before they get length one."""
        sentence, width = model.sentence, model.config.hidden_size
        assert isinstance(sentence, SentenceConfig)
        dim, kinds = sentence.truncate_dim, ['Transformer', 'Pooling']
        pooling: dict[str, Any] = {'word_embedding_dimension': width}
        for name, (flag, _) in _POOLINGS.items():
            pooling[_FLAG + flag] = name == sentence.pooling
        pooling['include_prompt'] = True
        write_module(folder, 1, 'Pooling', pooling)
        # Theirs cuts after all modules, ours before vectors get length one: a product that keeps
        # the first numbers is the same to every release.
        if dim and dim < width:
            write_dense(folder, len(kinds), np.eye(dim, width, dtype=np.float32), {})
            kinds.append('Dense')
        if sentence.normalize:
            write_module(folder, len(kinds), 'Normalize', {})
            kinds.append('Normalize')
        return kinds


def _read_pooling(file: epath.Path, prompts: Mapping[str, str]) -> Any:
    """Return the one pooling that a file names, in either spelling."""
    settings = read_settings(file)
    mode = settings.get('pooling_mode')
    modes = [mode] if isinstance(mode, str) else list(mode or ())
    for key, is_on in settings.items():
        if key.startswith(_FLAG) and is_on is True:
            modes.append(key.removeprefix(_FLAG))
    ours = {theirs: name for name, both in _POOLINGS.items() for theirs in both}
    if len(modes) != 1 or modes[0] not in ours:
        raise UserError(
            f'{file}: pooling {" and ".join(map(str, modes)) or "of no kind"}: one of'
            f' {", ".join(_POOLINGS)} is built here'
        )
    if settings.get('include_prompt') is False and any(prompts.values()):
        raise UserError(
            f'{file}: include_prompt=false: prompts are pooled here as all of a text is'
        )
    return ours[modes[0]]


def _read_cut(folder: epath.Path, width: int) -> int:
    """Return how many first numbers a dense module keeps; UserError where it does anything else."""
    kernel_DH = read_dense(folder, width)
    if not np.array_equal(kernel_DH, np.eye(len(kernel_DH), width)):
        raise UserError(f'{folder}: a dense layer on the vector is not built here')
    return len(kernel_DH)
