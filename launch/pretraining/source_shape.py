"""The model of a run that goes on from trained weights: the source's shape, the run's own recipe.

Owns which settings of `model` are the source's and which the configuration's. Must not know
weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from absl import logging

from configs import schema
from configs.overrides import apply
from input_pipeline.records.shards import Manifest
from launch.workdir import source
from launch.workdir.workdir import Workdir


def with_shape_of(
    init_from: str,
    config: schema.PretrainConfig,
    changes: Iterable[str],
    data: Sequence[str],
    workdir: str | None,
) -> schema.PretrainConfig:
    """`config` with the model of `init_from`, its vocabulary being that of the records in `data`.

    Dropouts and initializer_range stay the configuration's. `changes` are those of --set, which has
    the last word: a shape that it names and the source does not have is refused when the weights
    are read. A run with a checkpoint in `workdir` keeps the model that it has.

    UserError where `init_from` names no model that can be read.
    """
    # A checkpoint is further than the source, which may be gone by now.
    if workdir and (run := Workdir(workdir)).newest_step():
        shape = run.model_config()
    else:
        shape = source.shape_of(init_from)
        if data:
            shape = dataclasses.replace(shape, vocab_size=Manifest.load(data[0]).vocab_size)

    free = {name: getattr(config.model, name) for name in source.FREE}
    model = dataclasses.replace(shape, **free)
    given, taken = schema.to_dict(config.model), schema.to_dict(model)
    differ = [f'{name}={value}' for name, value in taken.items() if value != given[name]]
    if differ:
        logging.info('model: %s of %s', ', '.join(differ), init_from)
    return apply(
        dataclasses.replace(config, model=model),
        [change for change in changes if change.lstrip().startswith('model.')],
    )
