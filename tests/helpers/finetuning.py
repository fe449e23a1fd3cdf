"""Fine-tuning in this process, for tests of what an encoder is tuned from."""

from __future__ import annotations

import pathlib

from configs.overrides import apply
from configs.presets.finetune import recipe
from input_pipeline.tasks import load_task
from launch.finetuning import finetuner, machine
from launch.finetuning.approach import FineTuning
from launch.finetuning.task_data import TaskData, task_identity
from launch.sources import source


def finetune(
    init_from: pathlib.Path, task_file: pathlib.Path, workdir: pathlib.Path, *changes: str
) -> dict:
    """The result of one run, in `workdir`, of the paper's recipe with these changes."""
    config, encoder = apply(recipe('mood'), changes), source.load_source(str(init_from))
    task = load_task(str(task_file))
    data = TaskData(task, encoder, task_identity(task, str(task_file), ''))
    ready = machine.ready(config.runtime, encoder.model)
    return finetuner.FineTuner(FineTuning(data), ready).run(config, str(workdir))[0]
