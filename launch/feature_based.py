"""Beside fine-tuning, the feature-based approach on a tagging task: the encoder stays as it is
(paper section 5.3, Table 7).

  python -m launch.feature_based --task=conll2003 --data_dir=conll2003 --init_from=ENCODER \\
      --workdir=DIR [--seeds=0,1,2]
  python -m launch.feature_based ... --approaches=last,concat_last4 --set train_examples=3000 \\
      --set_bilstm lstm_width=256

What the frozen encoder says of every word is computed once and kept in DIR/features; a fresh
two-layer BiLSTM reads one or several layers of it. Prints one table of the dev scores, mean over
seeds. Runs that are done are taken as they are.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Sequence

from absl import flags, logging

from bert_jax.mesh import determinism
from configs.errors import UserError
from configs.schema import FeatureSet
from launch import app

_ALL = ('finetune', *typing.get_args(FeatureSet))
_TASK = flags.DEFINE_string(
    'task',
    None,
    'conll2003, conll2003_sentences or a path ending in .json, of kind tagging',
    required=True,
)
_DATA_DIR = flags.DEFINE_string(
    'data_dir',
    '',
    "the folder that holds the task's own files; not needed for a .json task beside its files",
)
_INIT_FROM = flags.DEFINE_string(
    'init_from', None, 'the encoder, any source that launch.finetune takes', required=True
)
_WORKDIR = flags.DEFINE_string(
    'workdir', None, 'folder of all runs, and of the features', required=True
)
_APPROACHES = flags.DEFINE_list('approaches', list(_ALL), 'rows of the table, in this order')
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'each approach is run with each of them')
_SET = flags.DEFINE_multi_string(
    'set', [], 'changes one setting of all runs, as in --set train_examples=3000'
)
_SET_FINETUNE = flags.DEFINE_multi_string(
    'set_finetune', [], 'of fine-tuning alone, as in --set_finetune optimizer.peak_lr=3e-5'
)
_SET_BILSTM = flags.DEFINE_multi_string(
    'set_bilstm', [], 'of the BiLSTM alone, as in --set_bilstm lstm_width=256'
)
_DETERMINISTIC = flags.DEFINE_bool('deterministic', False, determinism.HELP)


def main(argv: Sequence[str]) -> int:
    """Runs what is left to run; returns 0, or 128 + the signal that asked it to save and stop."""
    del argv
    if _DETERMINISTIC.value:
        determinism.demand()
    if unknown := [name for name in _APPROACHES.value if name not in _ALL]:
        raise UserError(f'--approaches: {unknown[0]!r} is none of {", ".join(_ALL)}')
    if not _APPROACHES.value or len(set(_APPROACHES.value)) < len(_APPROACHES.value):
        raise UserError(f'--approaches={",".join(_APPROACHES.value)}: name one or more, each once')
    seeds = [int(seed) for seed in _SEEDS.value if seed.strip().isdecimal()]
    if not seeds or len(set(seeds)) < len(_SEEDS.value):
        raise UserError(
            f'--seeds={",".join(_SEEDS.value)}: write different numbers with commas between, as in'
            ' --seeds=0,1,2'
        )
    from configs import overrides
    from configs.presets import finetune
    from configs.sweep import Point
    from input_pipeline.tasks import load_task

    task = load_task(_TASK.value, _DATA_DIR.value)
    points: dict[str, list[Point[typing.Any]]] = {}
    approaches: list[typing.Any] = _APPROACHES.value  # absl's words, each of them in _ALL
    for approach in approaches:
        if approach == 'finetune':
            config = overrides.apply(
                finetune.recipe(task.name, task.kind), [*_SET.value, *_SET_FINETUNE.value]
            )
        else:
            config = overrides.apply(
                finetune.feature_based(task.name, approach), [*_SET.value, *_SET_BILSTM.value]
            )
        points[approach] = [
            Point(
                f'{approach},seed={seed}',
                {'approach': approach, 'seed': seed},
                dataclasses.replace(config, seed=seed),
            )
            for seed in seeds
        ]

    from launch.finetuning import finetuner, machine, results
    from launch.finetuning.approach import FineTuning
    from launch.finetuning.feature_based import FeatureBased
    from launch.finetuning.task_data import TaskData, task_identity
    from launch.workdir import source
    from launch.workdir.folder import lock

    with lock(_WORKDIR.value):
        encoder = source.load_source(_INIT_FROM.value)
        identity = task_identity(task, _TASK.value, _DATA_DIR.value)
        data = TaskData(task, encoder, identity, os.path.join(_WORKDIR.value, 'features'))
        ready = machine.ready(points[approaches[0]][0].config.runtime, encoder.model)
        whole = finetuner.FineTuner(FineTuning(data), ready)
        frozen = finetuner.FineTuner(FeatureBased(data, ready), ready)
        runs = [
            (whole if approach == 'finetune' else frozen, point)
            for approach in approaches
            for point in points[approach]
        ]
        try:
            rows = results.run_sweep(runs, _WORKDIR.value)
        except machine.Stopped as stopped:
            logging.info(
                'signal %d: %s; the same command goes on from there',
                stopped.signal_number,
                stopped.said,
            )
            return 128 + stopped.signal_number
        print(results.table(rows, task.metric))
        logging.info('compilations: %s', dict(ready.compilations) or 'none')
    return 0


if __name__ == '__main__':
    app.run(main)
