"""Every setting of training that cannot be has one line that says how to mend it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import EmbeddingConfig
from bert_jax.configs.model.tuning_config import DistillationConfig, TuningConfig
from bert_jax.configs.schema import (
    FinetuneConfig,
    ModelConfig,
    OptimizerConfig,
    Phase,
    PretrainConfig,
    RuntimeConfig,
)
from bert_jax.input_pipeline.tasks.classification import class_weights
from bert_jax.mesh import construction, sharding
from bert_jax.train.losses.distillation import choose_method
from bert_jax.train.optimizer import compute_layer_rates
from tests.helpers.tiny import tiny_config


def grow(accumulation: int, start: int) -> None:
    phase = Phase(16, 20_000, 96, batch_warmup_from=start, batch_warmup_steps=5)
    PretrainConfig(phases=(phase,), runtime=RuntimeConfig(accumulation=accumulation))


def freeze_in_pretraining() -> None:
    PretrainConfig(model=ModelConfig(num_layers=2), optimizer=OptimizerConfig(freeze_layers=5))


def freeze(layers: int) -> None:
    compute_layer_rates(
        OptimizerConfig(freeze_layers=layers), {'layers': {'bias': np.ones((4, 2))}}
    )


def tune(**options: Any) -> None:
    tiny_config(num_layers=3).tuned(TuningConfig(**options))


def finetune_lora(**changes: Any) -> None:
    FinetuneConfig(tuning=TuningConfig(method='lora'), **changes)


def freeze_beside_lora() -> None:
    default = FinetuneConfig().optimizer
    finetune_lora(optimizer=dataclasses.replace(default, freeze_layers=1))


def embed(batch_size: int = 8, accumulation: int = 1, **settings: Any) -> None:
    config = EmbeddingConfig(**settings)
    config.check_width(16)
    config.check_batch(batch_size, accumulation, is_whole=False)


def distil(teacher: dict[str, Any], **settings: Any) -> None:
    method = choose_method(DistillationConfig(teacher='there', **settings))
    method.check(tiny_config(), dataclasses.replace(tiny_config(), **teacher))


def weigh(setting: str) -> None:
    class_weights(setting, ('a', 'b=c', 'd'), ())


def place_on_three() -> None:
    construction.make_mesh(RuntimeConfig(data_parallel=3))


def divide_twelve() -> None:
    mesh = construction.make_mesh(RuntimeConfig())
    assert sharding.list_local_rows(mesh, 32) == ((0, 32),) and len(jax.devices()) == 8
    sharding.check_divides(mesh, 12, 1, 'phases.0.batch_size')


@pytest.mark.parametrize(
    ('act', 'options', 'message'),
    [
        (grow, (4, 10), 'batch_warmup_from=10: must be a divisor of batch_size=96, and less'),
        (grow, (3, 24), 'no multiple of a micro-batch.* = 32: set runtime.accumulation to 4 or a'),
        (
            OptimizerConfig,
            {'algorithm': 'lamb_albert', 'decay': 'fully_decoupled'},
            'decay=.*: must be decoupled: in',
        ),
        (freeze, (5,), 'optimizer.freeze_layers=5: the model has 4 layers'),
        (freeze_in_pretraining, (), 'optimizer.freeze_layers=5 is more than model.num_layers=2'),
        (freeze_beside_lora, (), 'freeze_layers are for tuning.method=full, not lora'),
        (finetune_lora, {'init': 'random'}, 'init=.random.: must be source'),
        (tune, {'method': 'bitfit', 'rank': 4}, 'rank=4: must be left alone with method=bitfit'),
        (tune, {'method': 'lora', 'matrices': 'query,queries'}, 'must be different ones of query'),
        (tune, {'method': 'lora', 'rank': 17}, 'tuning.rank=17: more than the 16 columns'),
        (
            tune,
            {'method': 'spafit', 'frozen_layers': 2, 'bias_layers': 1},
            'leave nothing of 3 blocks',
        ),
        (embed, {'loss': 'mse'}, 'loss=mse copies vectors of a teacher: name it, with embedding.t'),
        (embed, {'matryoshka': '16,0'}, 'matryoshka=.*: must be numbers from 1'),
        (embed, {'truncate_dim': 17}, 'truncate_dim=17 is beyond the 16 numbers that the encoder'),
        (embed, {'chunk_size': 3}, 'embedding.chunk_size=3 does not divide a batch of 8'),
        (embed, {'loss': 'simcse', 'batch_size': 1}, 'batch_size=1: embedding.loss=simcse compare'),
        (embed, {'accumulation': 2}, 'accumulation=2 cuts .* set embedding.chunk_size'),
        (
            embed,
            {'loss': 'cosent', 'accumulation': 2},
            'accumulation=2 cuts the batch that embedding.loss=cosent compares',
        ),
        (distil, {'teacher': {'hidden_size': 32}}, 'states of two widths have no cosine'),
        (
            distil,
            {'teacher': {}, 'method': 'minilm'},
            'relation_heads=12 does not divide the hidden size of the',
        ),
        (
            distil,
            {'teacher': {}, 'method': 'minilm', 'relation_heads': 2, 'teacher_block': 2},
            'teacher_block=2: the teacher has blocks 0 to 1',
        ),
        (weigh, ('x=1',), 'class_weights=x=1: write balanced, or LABEL=NUMBER .* a, b=c, d'),
        (weigh, ('a=0',), 'a weight must be above 0'),
        (weigh, ('a=much',), "'much' is not a number"),
        (place_on_three, (), 'data_parallel=3 x fsdp=1 x model_parallel=1 = 3, but there are 8'),
        (divide_twelve, (), 'phases.0.batch_size=12 does not divide over 8 devices'),
    ],
    ids=lambda value: getattr(value, '__name__', None),
)
def test_what_cannot_be_is_refused(
    act: Callable[..., None], options: tuple | dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        if isinstance(options, dict):
            act(**options)
        else:
            act(*options)


def test_what_does_not_compare_may_be_cut():
    embed(loss='cosine', accumulation=2)
