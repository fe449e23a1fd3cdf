"""Fine-tuning in this process, for tests of what an encoder is tuned from."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import signal

from bert_jax.configs import schema
from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import choose_recipe
from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.runs.finetuning import finetuner, machine
from bert_jax.runs.finetuning.approach import Approach
from bert_jax.runs.finetuning.task_data import TaskData, task_identity
from bert_jax.runs.sources import source
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import metrics_accumulator


def finetune(
    init_from: pathlib.Path, task_file: pathlib.Path, workdir: pathlib.Path, *changes: str
) -> dict:
    """The result of one run, in `workdir`, of the paper's recipe with these changes."""
    config = apply(choose_recipe('mood'), changes)
    return tuner_of(task_file, str(init_from), config.runtime).run(config, str(workdir))[0]


def tuner_of(task_file, encoder, runtime=None) -> finetuner.FineTuner:
    """What fine-tunes an encoder, a source or the name of one, on a task."""
    task = load_task(str(task_file))
    there = source.load_source(encoder) if isinstance(encoder, str) else encoder
    data = TaskData(task, there, task_identity(task, str(task_file), ''))
    ready = machine.prepare_machine(runtime or choose_recipe('mood').runtime, there.model)
    return finetuner.FineTuner(Approach(data, ready), ready)


def trained_on(folder, copy, mesh):
    """A copy of a workdir, as if it had been trained on a mesh of other devices."""
    shutil.copytree(folder, copy)
    config = Workdir(copy).config()
    runtime = dataclasses.replace(config.runtime, **mesh)
    (copy / 'config.json').write_text(schema.dumps(dataclasses.replace(config, runtime=runtime)))
    return str(copy)


def stopping_after(step, patch, number=signal.SIGTERM):
    """A signal to stop arrives after so many steps of the next run."""
    after = metrics_accumulator.Profile.after

    def stopping(self, done, metrics):
        after(self, done, metrics)
        if done == step:
            signal.raise_signal(number)

    patch.setattr(metrics_accumulator.Profile, 'after', stopping)
