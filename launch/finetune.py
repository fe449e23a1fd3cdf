"""Fine-tunes an encoder on a task and scores the dev split; with --sweep, a grid of runs.

  bert-finetune --task=mrpc --data_dir=glue/MRPC --init_from=WORKDIR --workdir=DIR
  bert-finetune --task=train.tsv --dev=dev.tsv --init_from=WORKDIR --workdir=DIR
  bert-finetune ... --steps=500 --batch_size=16 --learning_rate=3e-5
  bert-finetune ... --epochs=4 --set optimizer.layer_decay=0.9
  bert-finetune ... --sweep="optimizer.peak_lr=2e-5,3e-5;seed=0,1,2"

Without --config the settings are the paper's for the task (configs/presets/finetune.py), and with
tuning.method the rates are that method's. Runs that are done are taken as they are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from absl import logging

from bert_jax.cli import app
from bert_jax.cli.common_flags import FinetuneFlags
from bert_jax.configs import load, schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.model.model_config import RecipeName
from bert_jax.configs.options import option
from bert_jax.configs.schema import FinetuneConfig
from bert_jax.mesh import before_jax
from bert_jax.runs.functions import Path, Settings, list_settings, make_function

if TYPE_CHECKING:
    from bert_jax.configs.overrides import Point
    from bert_jax.input_pipeline.tasks.found import FoundTask
    from bert_jax.runs.finetuning.finetune import FinetuneResult


class Recipe(NamedTuple):
    """The settings of a task, and how those of a run are made of them.

    Attributes:
      config: the settings before they are changed.
      change: returns the settings of a run for such settings.
    """

    config: FinetuneConfig
    change: Callable[[FinetuneConfig], FinetuneConfig]


@dataclass(frozen=True)
class Finetune(FinetuneFlags):
    """Fine-tune an encoder on a task and score the dev split, as bert-finetune does.

    What is done is taken as it is, and what was stopped goes on. In the main thread SIGTERM and
    SIGINT ask it to save and stop, which the result says.

    Attributes:
      task: a task's name (mrpc, squad_v1, ...), a path ending in .json, or a table to train on:
        .tsv, .csv, .jsonl, .parquet, or hf:NAME:SPLIT of the Hub, whose columns are found.
      dev: of a table: the dev split, which is scored; default: a tenth of the rows, drawn.
      kind: of a table: classification, pair, regression, ...; default: as the labels look.
      columns: of a table: which is what, where it is not found: "text=review,label=stars", or
        places; in Python also {'text': 'review'}.
      header: of a table: whether the first line names the columns; default: as it looks.
      data_dir: the folder that holds the task's own files; not needed for a .json task beside its
        files.
      init_from: the encoder to start from: a workdir of bert-pretrain or bert-finetune, a Hugging
        Face BERT directory or name, or a Google checkpoint (DIR or DIR/bert_model.ckpt).
      workdir: folder of this run, or of all runs of a sweep.
      config: a preset's name, a Python file with get_config() (it is run), or a saved config.json;
        in Python also the settings themselves. Default: the recipe of the task.
      settings: changes one setting, as in --set optimizer.peak_lr=2e-5; in Python all of them, as
        {'optimizer.layer_decay': 0.9}.
      recipe: whose settings for the task (readme: those of google's own code).
      sweep: settings and their values: "optimizer.peak_lr=2e-5,3e-5;seed=0,1,2", or
        "glue;seed=0,1,2" (grids: glue, appendix, miniatures, methods).
      print_map: print every name in --init_from and the array here that it holds.
      profile: trace so many steps of each run, after its first ten, into its folder, under profile.

    Raises:
      UserError: task, settings, source or folder do not fit, in one line.
    """

    after_interrupt: ClassVar[str] = 'the same command goes on from here'

    task: Path
    init_from: Path
    workdir: Path
    _: KW_ONLY
    dev: Path = ''
    kind: str = ''
    columns: str | Mapping[str, str | int] = ''
    header: bool | None = None
    data_dir: Path = ''
    config: str | FinetuneConfig | None = None
    settings: Settings = option((), flag='set', settings=FinetuneConfig)
    recipe: RecipeName = 'paper'
    sweep: str = ''
    print_map: bool = False
    profile: int = option(0, bounds=(0, None))

    def __call__(self) -> FinetuneResult:
        """Run what is left to run."""
        before_jax.set_up(self.deterministic)
        # The task and the settings first: most mistakes are in them, and to find them needs no jax.
        task = self.load_task()
        recipe = self.make_recipe(task)
        config = recipe.change(recipe.config)
        runs = _list_points(recipe, config, self.sweep) or config

        from bert_jax.runs.finetuning import finetune as running
        from bert_jax.runs.finetuning.machine import Stopped

        workdir = str(self.workdir)
        try:
            return running.finetune(
                task,
                str(self.data_dir),
                str(self.init_from),
                workdir,
                runs,
                self.print_map,
                self.profile,
            )
        except Stopped as stopped:
            return running.FinetuneResult(workdir, signal=stopped.signal)

    def load_task(self) -> str | FoundTask:
        """Return the task's name or file, or what is found in its table.

        Raises:
          UserError: options of a table are given for another task, or --data_dir for a table.
        """
        from bert_jax.input_pipeline.tasks import found

        task, dev = str(self.task), str(self.dev)
        if found.is_table(task):
            if self.data_dir:
                raise UserError('--data_dir goes with the name of a task: name a table by its path')
            return found.find(task, dev, self.kind, self.columns, self.header)
        for name in ('dev', 'kind', 'columns', 'header'):
            if getattr(self, name) not in (None, '', {}):
                raise UserError(f'--{name} is for a table, and --task={task} is none')
        return task

    def make_recipe(self, task: str | FoundTask, is_printed: bool = False) -> Recipe:
        """Return the settings of a run on a task.

        Args:
          task: as `load_task` returns it.
          is_printed: whether no run will begin: nothing is downloaded, nor need the encoder be
            there.
        """
        from bert_jax.configs.presets.finetune import apply_changes, choose_recipe
        from bert_jax.input_pipeline.tasks.load_task import load_task

        loaded = load_task(task, str(self.data_dir)) if isinstance(task, str) else task.task
        of_task = choose_recipe(loaded.name, loaded.kind, self.recipe)
        config, _ = load.load_config(self.config, FinetuneConfig, of_task)
        # A method of tuning brings its recipe; over that go the settings, and over them a sweep.
        named = list_settings(self.settings)
        changes = [*self.settings_of_flags(config, named), *named]
        change = functools.partial(apply_changes, changes=changes)
        if not self.config and change(config).max_seq_length == config.max_seq_length:
            config = _fit_length(config, str(self.init_from), is_printed)
        return Recipe(config, change)


@dataclass(frozen=True)
class PrintConfig(Finetune):
    """Print the settings of a run that does not begin.

    Attributes:
      print_config: print every setting as it would be run but for --sweep, as JSON that --config
        reads, and end.
    """

    _: KW_ONLY
    print_config: bool

    def __call__(self) -> None:  # type: ignore[override]
        """Print them."""
        recipe = self.make_recipe(self.load_task(), is_printed=True)
        print(schema.dumps(recipe.change(recipe.config)), end='')


def _list_points(recipe: Recipe, config: FinetuneConfig, sweep: str) -> list[Point[Any]]:
    """Return the runs of a sweep; none where `sweep` is empty. Log what methods of tuning bring."""
    from bert_jax.configs.overrides import make_grid
    from bert_jax.configs.presets.finetune import METHODS

    points = make_grid(recipe.config, sweep, recipe.change) if sweep else []
    methods = {point.config.tuning.method for point in points} or {config.tuning.method}
    for method in sorted(methods & METHODS.keys() - {recipe.config.tuning.method}):
        logging.info(
            f'tuning.method={method} brings the settings of {METHODS[method].source}, before --set'
            f' and --sweep: {", ".join(METHODS[method].settings)}'
        )
    return points


def _fit_length(recipe: FinetuneConfig, init_from: str, is_printed: bool) -> FinetuneConfig:
    """Return a recipe with rows no longer than the encoder reads, and log where that is shorter."""
    from etils import epath

    from bert_jax.runs.sources import source

    # What is only printed downloads nothing, and needs no source that is there.
    if is_printed and not epath.Path(init_from).exists():
        return recipe
    limit = source.read_shape(init_from).max_position
    if recipe.max_seq_length <= limit:
        return recipe
    logging.info(
        f'{init_from} reads {limit} positions: max_seq_length={limit}, in place of the'
        f" recipe's {recipe.max_seq_length}"
    )
    return dataclasses.replace(recipe, max_seq_length=limit)


finetune = make_function(Finetune)

if __name__ == '__main__':
    app.run(Finetune, PrintConfig)
