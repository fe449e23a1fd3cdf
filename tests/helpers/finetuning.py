"""Fine-tuning in this process, for tests of what an encoder is tuned from."""

from __future__ import annotations

import pathlib

from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import recipe
from bert_jax.input_pipeline.tasks import load_task
from bert_jax.runs.finetuning import finetuner, machine
from bert_jax.runs.finetuning.approach import FineTuning
from bert_jax.runs.finetuning.task_data import TaskData, task_identity
from bert_jax.runs.sources import source


def finetune(
    init_from: pathlib.Path, task_file: pathlib.Path, workdir: pathlib.Path, *changes: str
) -> dict:
    """The result of one run, in `workdir`, of the paper's recipe with these changes."""
    config, encoder = apply(recipe('mood'), changes), source.load_source(str(init_from))
    task = load_task(str(task_file))
    data = TaskData(task, encoder, task_identity(task, str(task_file), ''))
    ready = machine.ready(config.runtime, encoder.model)
    return finetuner.FineTuner(FineTuning(data), ready).run(config, str(workdir))[0]
