"""Fine-tunes an encoder on a task and scores the dev split; with --sweep, a grid of runs in one
process.

  python -m launch.finetune --task=mrpc --data_dir=glue/MRPC --init_from=WORKDIR --workdir=DIR
  python -m launch.finetune ... --set epochs=4 --set optimizer.peak_lr=3e-5
  python -m launch.finetune ... --sweep="optimizer.peak_lr=2e-5,3e-5;seed=0,1,2"

Without --config the settings are the paper's for the task (configs/presets/finetune.py). Runs that
are done are taken as they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from absl import flags, logging

from bert_jax.mesh import determinism
from launch import app

_TASK = flags.DEFINE_string(
    'task', None, "a task's name (mrpc, squad_v1, ...) or a path ending in .json", required=True
)
_DATA_DIR = flags.DEFINE_string(
    'data_dir',
    '',
    "the folder that holds the task's own files; not needed for a .json task beside its files",
)
_INIT_FROM = flags.DEFINE_string(
    'init_from',
    None,
    'the encoder to start from: a workdir of launch.pretrain or launch.finetune, a Hugging Face'
    ' BERT directory or name, or a Google checkpoint (DIR or DIR/bert_model.ckpt)',
    required=True,
)
_PRINT_MAP = flags.DEFINE_bool(
    'print_map', False, 'print every name in --init_from and the array here that it holds'
)
_WORKDIR = flags.DEFINE_string(
    'workdir', None, 'folder of this run, or of all runs of a sweep', required=True
)
_RECIPE = flags.DEFINE_enum(
    'recipe',
    'paper',
    ['paper', 'readme', 'albert'],
    "whose settings for the task; the README is google-research/bert's",
)
_SWEEP = flags.DEFINE_string(
    'sweep',
    '',
    'settings and their values: "optimizer.peak_lr=2e-5,3e-5;seed=0,1,2", or "glue;seed=0,1,2"'
    ' (grids: glue, appendix, miniatures)',
)
_PROFILE = flags.DEFINE_integer(
    'profile',
    0,
    'trace so many steps of each run, after its first ten, into its folder, under profile',
    lower_bound=0,
)
_DETERMINISTIC = flags.DEFINE_bool('deterministic', False, determinism.HELP)
app.define_config_flags()


def main(argv: Sequence[str]) -> int:
    """Runs what is left to run; returns 0, or 128 + the signal that asked it to save and stop."""
    del argv
    if _DETERMINISTIC.value:
        determinism.demand()
    from configs import sweep
    from configs.presets.finetune import recipe
    from input_pipeline.tasks import load_task

    task = load_task(_TASK.value, _DATA_DIR.value)
    config = app.config_from_flags('finetune', recipe(task.name, task.kind, app.choice(_RECIPE)))
    points = sweep.grid(config, _SWEEP.value) if _SWEEP.value else []

    from launch.finetuning import finetuner, machine, results
    from launch.finetuning.approach import FineTuning
    from launch.finetuning.task_data import TaskData, task_identity
    from launch.workdir import source
    from launch.workdir.folder import lock

    with lock(_WORKDIR.value):
        encoder = source.load_source(_INIT_FROM.value, _PRINT_MAP.value)
        logging.info(
            '%s: encoder of %s, step %d; the %s head is fresh',
            task.name,
            encoder.where,
            encoder.step,
            task.head,
        )
        identity = task_identity(task, _TASK.value, _DATA_DIR.value)
        cache = os.path.join(_WORKDIR.value, 'features')
        ready = machine.ready(config.runtime, encoder.model)
        fine_tuner = finetuner.FineTuner(
            FineTuning(TaskData(task, encoder, identity, cache)), ready, _PROFILE.value
        )
        try:
            if points:
                runs = [(fine_tuner, point) for point in points]
                rows = results.run_sweep(runs, _WORKDIR.value)
                print(results.table(rows, task.metric))
            else:
                result, done_before = fine_tuner.run(config, _WORKDIR.value)
                print(results.describe(result, done_before))
        except machine.Stopped as stopped:
            logging.info(
                'signal %d: %s; the same command goes on from there',
                stopped.signal_number,
                stopped.said,
            )
            return 128 + stopped.signal_number
        logging.info('compilations: %s', dict(ready.compilations) or 'none')
    return 0


if __name__ == '__main__':
    app.run(main)
