"""Features that take long to make (SQuAD's) kept on disk, named by all that decides them.

This file owns that name and the file, in which only real tokens are stored. It must not know what the arrays mean.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from input_pipeline.tasks.base import Example, Task

_VERSION = 1  # of what `Task.features` makes of the same input; to be raised with every change to it


def features_of(task: Task, examples: Sequence[Example], tokenizer: Any, max_seq_length: int, folder: str) -> dict[str, np.ndarray]:
    """`task.features`, read from `folder` where they have been made before; '' for no folder.

    Only tasks that say `slow_features` are kept. A damaged file is made again, with a warning.
    """
    if not folder or not task.slow_features or '://' in folder:
        return task.features(examples, tokenizer, max_seq_length)
    name = hashlib.sha256(repr((_VERSION, task, max_seq_length, tokenizer.fingerprint, list(examples))).encode()).hexdigest()[:24]
    path = os.path.join(folder, f'{name}.npz')
    if os.path.exists(path):
        try:
            return _read(path)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            logging.warning('%s is damaged (%s): the features are made again', path, error)
    features = task.features(examples, tokenizer, max_seq_length)
    os.makedirs(folder, exist_ok=True)
    partial = f'{path}.tmp{os.getpid()}.npz'
    np.savez(partial, **_packed(features))
    os.replace(partial, path)
    return features


def _packed(features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of every position as their values at real tokens and the one value at all others; rest as it is."""
    real = features['input_mask'] > 0
    packed: dict[str, np.ndarray] = {'mask/shape': np.array(real.shape), 'mask/lengths': real.sum(axis=-1)}
    for name, value in features.items():
        outside = value[~real] if value.shape == real.shape else np.empty(0)
        if name == 'input_mask':
            continue
        if value.shape == real.shape and (outside == outside[:1]).all():
            packed[f'tokens/{name}'], packed[f'fill/{name}'] = value[real], outside[:1]
        else:
            packed[f'whole/{name}'] = value
    return packed


def _read(path: str) -> dict[str, np.ndarray]:
    with open(path, 'rb') as file, np.load(file) as stored:
        shape = tuple(stored['mask/shape'])
        real = np.arange(shape[-1]) < stored['mask/lengths'][..., None]
        features = {'input_mask': real.astype(np.int32)}
        for key in stored.files:
            group, name = key.split('/')
            if group == 'whole':
                features[name] = stored[key]
            elif group == 'tokens':
                value = stored[key]
                features[name] = np.full(shape, stored[f'fill/{name}'][0] if stored[f'fill/{name}'].size else 0, value.dtype)
                features[name][real] = value
    return features
