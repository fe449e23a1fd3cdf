"""Folds what tuning has added into a model's own weights: a workdir that is like any other, and needs
no encoder beside it.

  python -m launch.merge --workdir=DIR --output=DIR

Of tuning.method=lora, ia3, bitfit and spafit; the answers are the same but for rounding. AdaMix's
experts become one adapter, their mean, which still needs its encoder. Adapters cannot be folded:
they are layers of their own. An adapter of Hugging Face's peft is folded by
`python -m launch.export --init_from=DIR --output=DIR`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from configs.errors import UserError
from configs.options import required
from launch import app, flags


@dataclass(frozen=True)
class Options:
    """What is folded, and where to."""

    workdir: str = required('folder of a tuned run of launch.finetune; its newest checkpoint is taken')
    output: str = required('workdir to write; it must be new or empty')


flags.define(Options)


def main(argv: Sequence[str]) -> None:
    """Writes the workdir and says what it is."""
    del argv
    options = flags.read(Options)
    app.check_output('output', options.output)
    print(merge(options.workdir, options.output))


def merge(folder: str, output: str) -> str:
    """Writes the workdir `output` with the folded weights of the one in `folder`, whole or not at
    all.

    -> what it is now, in words. UserError where there is nothing that can be folded.
    """
    import numpy as np

    from bert_jax.interchange.tuned import FOLDED, folded
    from bert_jax.train.checkpoint import Checkpoints, load_params
    from bert_jax.train.state import TrainState
    from configs.schema import FeatureConfig, FinetuneConfig
    from launch.workdir.folder import new_folder
    from launch.workdir.source import fold, read_source
    from launch.workdir.workdir import Workdir

    workdir = Workdir(folder)
    workdir.check(flag='workdir')
    config, model = workdir.config(), workdir.model_config()
    if not isinstance(config, FinetuneConfig) or isinstance(config, FeatureConfig):
        raise UserError(f'--workdir={folder} has no tuning to fold: name a run of launch.finetune')
    tuning = config.tuning
    if tuning.method == 'full' or (tuning.method == 'adamix' and tuning.option('experts') == 1):
        raise UserError(
            f'--workdir={folder}: tuning.method={tuning.method} leaves nothing to fold: use it as it'
            ' is'
        )
    if tuning.method not in (*FOLDED, 'adamix'):
        raise UserError(
            f'--workdir={folder}: adapters ({tuning.method}) are layers of their own and fit into no'
            " weights of BERT's: use it as it is, or bert-export --format=stablehlo"
        )

    # AdaMix stays a tuned run, which holds what was trained alone; the others become whole models.
    params: dict[str, Any]
    if tuning.method == 'adamix':
        params, step = load_params(workdir)
        params, shape = folded(params, model)
        said = f'one adapter, the mean of {tuning.option("experts")}'
    else:
        source = fold(read_source(folder))
        params, shape, step = source.params, source.model, source.step
        said = 'plain weights'
    own = dataclasses.replace(tuning, experts=1) if tuning.method == 'adamix' else shape.tuning

    # Settings, data and tokenizer are the run's, so that every command knows its task.
    with new_folder(output) as written:
        merged = Workdir(written)
        merged_from = {'merged_from': os.path.abspath(folder)}
        merged.create_or_resume(
            dataclasses.replace(config, tuning=own), workdir.data() | merged_from
        )
        workdir.tokenizer().save(merged.tokenizer_folder)
        with Checkpoints(written) as checkpoints:
            state = TrainState(params, {}, np.int32(step), np.int32(0))
            checkpoints.save(state, {'kind': 'finetune'})
    return f'{output}: {tuning.method} folded into {said}'


if __name__ == '__main__':
    app.run(main)
