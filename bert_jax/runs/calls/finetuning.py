"""Fine-tuning as one call, from the names of a task and an encoder to a scored workdir."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging

from bert_jax.cli.common_flags import FinetuneFlags
from bert_jax.configs import load
from bert_jax.configs.errors import UserError
from bert_jax.configs.model.families import RecipeName
from bert_jax.configs.runtime import Tracker
from bert_jax.configs.schema import FinetuneConfig
from bert_jax.runs.calls import Path, Settings, called, changes_of

if TYPE_CHECKING:
    from bert_jax.configs.sweep import Point
    from bert_jax.input_pipeline.tasks.files.found import FoundTask
    from bert_jax.runs.finetuning.finetune import FinetuneResult


class TaskOptions(NamedTuple):
    """Which task: its name, a JSON file or a table, and how the table is read."""

    task: str
    dev: str = ''
    kind: str = ''
    columns: str | Mapping[str, str | int] = ''
    header: bool | None = None
    data_dir: str = ''

    def load(self) -> str | FoundTask:
        """Return the task as `finetune` takes it. UserError where arguments do not go together."""
        from bert_jax.input_pipeline.tasks.files import found

        of_table = {name: getattr(self, name) for name in ('dev', 'kind', 'columns', 'header')}
        if found.is_table(self.task):
            if self.data_dir:
                raise UserError('--data_dir goes with the name of a task: name a table by its path')
            return found.find(self.task, **of_table)
        if strange := [name for name, value in of_table.items() if value not in (None, '', {})]:
            raise UserError(f'--{strange[0]} is for a table, and --task={self.task} is none')
        return self.task


class Asked(NamedTuple):
    """What decides the settings of a run."""

    config: str | FinetuneConfig | None
    recipe: RecipeName
    common: FinetuneFlags
    settings: list[str]
    init_from: str


class Configured(NamedTuple):
    """The settings of a run, and how those of a sweep's points are made.

    Attributes:
      begin: the configuration before it is changed.
      change: makes the settings of a run of it.
    """

    begin: FinetuneConfig
    change: Callable[[FinetuneConfig], FinetuneConfig]


def finetune(
    task: Path,
    init_from: Path,
    workdir: Path,
    *,
    dev: Path = '',
    kind: str = '',
    columns: str | Mapping[str, str | int] = '',
    header: bool | None = None,
    data_dir: Path = '',
    config: str | FinetuneConfig | None = None,
    recipe: RecipeName = 'paper',
    steps: int | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    track: Tracker | None = None,
    settings: Settings = (),
    sweep: str = '',
    print_map: bool = False,
    profile: int = 0,
) -> FinetuneResult:
    """Fine-tune an encoder on a task and score the dev split, as bert-finetune does.

    What is done is taken as it is, and what was stopped goes on. In the main thread SIGTERM and
    SIGINT ask it to save and stop, which the result says.

    Args:
      task: a task's name, a path ending in .json, or a table to train on, as --task has it.
      init_from: the encoder: whatever `Bert.load` takes.
      workdir: folder of the run, or of all runs of a sweep.
      dev: of a table: the dev split, which is scored; '': a tenth of the rows, drawn.
      kind: of a table: classification, pair, ...; '': as the labels look.
      columns: of a table: which is what, as {'text': 'review'} or 'text=review'; '': as found.
      header: of a table: whether its first line names the columns; None: as it looks.
      data_dir: the folder that holds the files of a task that has a name.
      config: a preset's name, a Python file or a saved config.json, or the settings themselves;
        None: the recipe of the task.
      recipe: whose settings for the task.
      steps: optimizer steps; None, here and below: as the configuration says.
      epochs: passes over the training set, in place of steps.
      batch_size: examples a step.
      learning_rate: the peak of the learning rate.
      track: where metrics go besides the workdir.
      settings: other settings by their dotted names, as {'optimizer.layer_decay': 0.9}.
      sweep: settings and their values, as 'optimizer.peak_lr=2e-5,3e-5;seed=0,1,2'.
      print_map: whether every name in `init_from` is printed with the array that it is here.
      profile: how many steps of each run are traced into its folder.

    Raises:
      UserError: task, settings, source or folder do not fit, in one line.
    """
    which = TaskOptions(os.fspath(task), os.fspath(dev), kind, columns, header, os.fspath(data_dir))
    with called():
        common = FinetuneFlags(
            steps=steps, epochs=epochs, batch_size=batch_size,
            learning_rate=learning_rate, track=track,
        )  # fmt: skip
        asked = Asked(config, recipe, common, changes_of(settings), os.fspath(init_from))
        return _run(which, asked, os.fspath(workdir), sweep, print_map, profile)


def _run(
    which: TaskOptions, asked: Asked, workdir: str, sweep: str, print_map: bool, profile: int
) -> FinetuneResult:
    """Do what `finetune` was asked for."""
    # The task and the settings first: most mistakes are in them, and to find them needs no jax.
    given = which.load()
    made = configured(asked, given, which.data_dir)
    config = made.change(made.begin)
    runs = _points(made, config, sweep) or config

    from bert_jax.runs.finetuning import finetune as running
    from bert_jax.runs.finetuning.machine import Stopped

    try:
        return running.finetune(
            given, which.data_dir, asked.init_from, workdir, runs, print_map, profile
        )
    except Stopped as stopped:
        return running.FinetuneResult(workdir, signal=stopped.signal)


def configured(
    asked: Asked, given: str | FoundTask, data_dir: str, only_printed: bool = False
) -> Configured:
    """Return the settings of a run on a task.

    Args:
      asked: what decides them.
      given: the task.
      data_dir: the folder of its files.
      only_printed: whether no run will begin: nothing is downloaded, nor need the encoder be there.
    """
    from bert_jax.configs.presets.finetune import changed, recipe
    from bert_jax.input_pipeline.tasks import load_task

    task = load_task(given, data_dir) if isinstance(given, str) else given.task
    of_task = recipe(task.name, task.kind, asked.recipe)
    begin, _ = load.named(asked.config, FinetuneConfig, of_task)
    # A method of tuning brings its recipe; over that go the settings, and over them a sweep.
    settings = [*asked.common.settings(begin, asked.settings), *asked.settings]
    change = functools.partial(changed, changes=settings)
    if not asked.config and change(begin).max_seq_length == begin.max_seq_length:
        begin = _fitting(begin, asked.init_from, only_printed)
    return Configured(begin, change)


def _points(made: Configured, config: FinetuneConfig, sweep: str) -> list[Point[Any]]:
    """Return the runs of a sweep; none where `sweep` is empty. Log what methods of tuning bring."""
    from bert_jax.configs.presets.finetune import METHODS
    from bert_jax.configs.sweep import grid

    points = grid(made.begin, sweep, made.change) if sweep else []
    methods = {point.config.tuning.method for point in points} or {config.tuning.method}
    for method in sorted(methods & METHODS.keys() - {made.begin.tuning.method}):
        logging.info(
            f'tuning.method={method} brings the settings of {METHODS[method].source}, before --set'
            f' and --sweep: {", ".join(METHODS[method].settings)}'
        )
    return points


def _fitting(recipe: FinetuneConfig, init_from: str, only_printed: bool) -> FinetuneConfig:
    """Return a recipe with rows no longer than the encoder reads, and log where that is shorter."""
    from etils import epath

    from bert_jax.runs.sources import source

    # What is only printed downloads nothing, and needs no source that is there.
    if only_printed and not epath.Path(init_from).exists():
        return recipe
    limit = source.shape_of(init_from).max_position
    if recipe.max_seq_length <= limit:
        return recipe
    logging.info(
        f'{init_from} reads {limit} positions: max_seq_length={limit}, in place of the'
        f" recipe's {recipe.max_seq_length}"
    )
    return dataclasses.replace(recipe, max_seq_length=limit)
