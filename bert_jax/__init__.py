"""BERT in JAX: from raw text to a trained, scored and exported model.

The public names are imported when they are first used, so that `import bert_jax` loads neither jax
nor TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax.configs.options import register_part
    from bert_jax.inference import Bert, Predictor
    from bert_jax.launch.evaluate import evaluate
    from bert_jax.launch.finetune import finetune
    from bert_jax.launch.preprocess import preprocess
    from bert_jax.launch.pretrain import pretrain
    from bert_jax.launch.train_vocab import train_vocab
    from bert_jax.model.heads import EncoderModel, Pretraining
    from bert_jax.runs.workdir.run_context import RunContext, own_run
    from bert_jax.train.loop import train_steps
    from bert_jax.train.losses.objective import Objective, cross_entropy

__all__ = [
    'Bert',
    'EncoderModel',
    'Objective',
    'Predictor',
    'Pretraining',
    'RunContext',
    'cross_entropy',
    'evaluate',
    'finetune',
    'own_run',
    'preprocess',
    'pretrain',
    'register_part',
    'train_steps',
    'train_vocab',
]
_MODULES = {
    'Bert': 'inference',
    'Predictor': 'inference',
    'EncoderModel': 'model.heads',
    'Pretraining': 'model.heads',
    'train_vocab': 'launch.train_vocab',
    'preprocess': 'launch.preprocess',
    'pretrain': 'launch.pretrain',
    'finetune': 'launch.finetune',
    'evaluate': 'launch.evaluate',
    'register_part': 'configs.options',
    'RunContext': 'runs.workdir.run_context',
    'own_run': 'runs.workdir.run_context',
    'train_steps': 'train.loop',
    'Objective': 'train.losses.objective',
    'cross_entropy': 'train.losses.objective',
}


def __getattr__(name: str) -> Any:
    if name == '__version__':
        from importlib import metadata

        try:
            return metadata.version('bert_jax')
        except metadata.PackageNotFoundError:
            return 'of a checkout that is not installed'
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_MODULES[name]}'), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, '__version__'])
