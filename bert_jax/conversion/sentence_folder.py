"""Directories of sentence-transformers' SentenceTransformer: one vector of a text.

Owns the pooling, the cut and the length of vectors, in both spellings of its releases. They are
written as releases 2 to 4 have them, which 5 and 6 read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.conversion.module_folders import (
    IDENTITY,
    MODULES,
    SETTINGS,
    FolderKind,
    make_module_folder,
    read_max_length,
    read_modules,
    read_prompts,
    read_settings,
    write_json,
)
from bert_jax.conversion.trained_model import Model, Reading

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
        modules = read_modules(folder)
        kinds = [kind for kind, _ in modules]
        # In this order, and a cut where numbers are left out before vectors get length one.
        built = ('Transformer', 'Pooling', 'Dense', 'Normalize')
        optional = ('Dense', 'Normalize')
        if kinds != [kind for kind in built if kind in kinds or kind not in optional]:
            raise UserError(
                f'{folder / MODULES}: modules {", ".join(kinds) or "none"}: only Transformer,'
                ' Pooling and Normalize are built here, in that order'
            )
        if modules[0][1]:
            raise UserError(
                f'{folder / MODULES}: its Transformer is in {modules[0][1]}: only one that is in'
                ' the folder itself is read'
            )
        settings = read_settings(folder / SETTINGS)
        prompts = read_prompts(settings, folder / SETTINGS)
        remarks, name = reading.remarks, settings.get('default_prompt_name')
        if name:
            remarks += (f'the prompt {name!r} is not taken by itself here: name it',)
        width = reading.model.config.hidden_size
        sentence = SentenceConfig(
            _read_pooling(folder / modules[1][1] / 'config.json', prompts),
            'Normalize' in kinds,
            _read_cut(folder / modules[2][1], width) if 'Dense' in kinds else None,
            tuple(prompts.items()),
            read_max_length(folder, reading.model.config.max_position),
            settings.get('similarity_fn_name') or 'cosine',
        )
        model = reading.model._replace(sentence=sentence)
        return reading._replace(model=model, remarks=remarks)

    def write_modules(self, folder: epath.Path, model: Model) -> list[str]:
        """Write the pooling, and the cut where vectors lose numbers before they get length one."""
        sentence, width = model.sentence, model.config.hidden_size
        assert isinstance(sentence, SentenceConfig)
        dim, kinds = sentence.truncate_dim, ['Transformer', 'Pooling']
        pooling: dict[str, Any] = {'word_embedding_dimension': width}
        for name, (flag, _) in _POOLINGS.items():
            pooling[_FLAG + flag] = name == sentence.pooling
        pooling['include_prompt'] = True
        write_json(make_module_folder(folder, 1, 'Pooling') / 'config.json', pooling)
        # Theirs cuts after all modules, ours before vectors get length one: a product that keeps
        # the first numbers is the same to every release.
        if dim and dim < width:
            kinds.append('Dense')
            dense = {'in_features': width, 'out_features': dim, 'bias': False}
            path = make_module_folder(folder, 2, 'Dense')
            write_json(path / 'config.json', dense | {'activation_function': IDENTITY})
            kernel = {'linear.weight': np.eye(dim, width, dtype=np.float32)}
            weights = safetensors.numpy.save(kernel, {'format': 'pt'})
            atomic_write(path / 'model.safetensors', weights)
        if sentence.normalize:
            kinds.append('Normalize')
            make_module_folder(folder, len(kinds) - 1, 'Normalize')
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
    settings, file = read_settings(folder / 'config.json'), folder / 'model.safetensors'
    if settings.get('activation_function') == IDENTITY and file.exists():
        kernel = safetensors.numpy.load(file.read_bytes()).get('linear.weight', np.zeros((1, 1)))
        rows = len(kernel)
        if not settings.get('bias') and np.array_equal(kernel, np.eye(rows, width)):
            return rows
    raise UserError(f'{folder}: a dense layer on the vector is not built here')
