"""Fine-tuning as one call: an encoder, a task and settings in, scored runs in a folder out.

Owns what the runs of one call share: the encoder, the task's data, the machine, the folder's lock.
Which approach a run takes follows from its configuration. How a run goes is finetuner.py's.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_jax.configs.overrides import Point
from bert_jax.configs.schema import FeatureConfig, FinetuneConfig
from bert_jax.input_pipeline.tasks.base import Task
from bert_jax.input_pipeline.tasks.embedding import EmbeddingTask
from bert_jax.input_pipeline.tasks.found import FoundTask
from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.input_pipeline.text.tables import Table
from bert_jax.runs.finetuning import evaluation, sweep
from bert_jax.runs.finetuning.approach import Approach
from bert_jax.runs.finetuning.feature_based import FeatureBased
from bert_jax.runs.finetuning.finetuner import FineTuner
from bert_jax.runs.finetuning.machine import Machine, prepare_machine
from bert_jax.runs.finetuning.task_data import TaskData, keep_task, task_identity
from bert_jax.runs.sources import source
from bert_jax.runs.workdir import notes
from bert_jax.runs.workdir.results import RunResult, numbers
from bert_jax.runs.workdir.workdir import Workdir

# What is done with a model, by its head: the command, with places for the folder and the flags for
# its columns, and what that does.
_USES = {
    **dict.fromkeys(
        EmbeddingTask.kinds,
        ('bert-nearest --workdir={} --input=FILE', 'asks for texts, finds those near'),
    ),
    '': (
        'bert-predict --workdir={} --input=FILE --output=answers.jsonl{}',
        'answers texts of your own',
    ),
}
_READ = ('text', 'text_b', 'choices', 'question', 'context')  # roles of records without an answer


@dataclasses.dataclass(frozen=True, repr=False)
class FinetuneResult(RunResult):
    """What the runs of one call came to.

    Attributes:
      runs: what eval/SPLIT.json of each says; of a sweep also its 'name' and 'settings'.
      text: the same in words: a line, or the table of a sweep.
      report: of one run the scores of each class, as text; '' where there are no classes.
      head: the name of the head that was trained.
      columns: the flags by which `bert-predict` reads tables like those of the task.
    """

    runs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    text: str = ''
    report: str = ''
    head: str = ''
    columns: str = ''

    @property
    def scores(self) -> dict[str, float]:
        """Return the scores of the run, of a sweep those of the best one."""
        if not self.runs:
            return {}
        return numbers(sweep.find_best(self.runs)['metrics'])

    @property
    def folder(self) -> Workdir:
        """Return the folder of the run, of a sweep that of the best one."""
        if self.runs and 'name' in self.runs[0]:
            return Workdir(os.path.join(self.workdir, 'runs', sweep.find_best(self.runs)['name']))
        return Workdir(self.workdir)

    def show(self) -> int:
        """Print the scores, and return the exit code of the command."""
        # The report is beside the result, which programs read.
        if self.report:
            print(self.report, file=sys.stderr)
        if self.text:
            print(self.text, flush=True)
        return self.exit_code()

    def verdict(self) -> str | None:
        """Say how the score compares with guessing; None where there is none."""
        best = sweep.find_best(self.runs)
        if not best['metrics']:
            return None
        return notes.verdict(best, notes.guesses(self.folder))

    def uses(self, folder: str) -> dict[str, str]:
        """Return commands for the model in `folder`, a word of the shell, and what they do."""
        command, does = _USES.get(self.head, _USES[''])
        export = f'bert-export --init_from={folder} --output=DIR'
        return {command.format(folder, self.columns): does, export: 'takes it to other programs'}


def finetune(
    task: str | FoundTask,
    data_dir: str,
    init_from: str,
    workdir: str,
    runs: FinetuneConfig | Sequence[Point[Any]],
    print_map: bool = False,
    profile_steps: int = 0,
) -> FinetuneResult:
    """Fine-tune an encoder on a task and score the dev split, or take what is done already.

    Args:
      task: a task's name, a path that ends in .json, or what was found of a table.
      data_dir: the folder of the task's files; '' for a .json task whose files are where it is.
      init_from: the encoder, any source that `source.read_source` takes.
      workdir: the folder of the run, or of all runs of a sweep.
      runs: the settings of one run, or the points of a sweep. Those with a FeatureConfig train a
        BiLSTM on the frozen encoder (feature_based.py).
      print_map: whether every name in `init_from` is printed with the array that it is here.
      profile_steps: how many steps of each run are traced into its folder.

    Raises:
      Stopped: after a signal, with the state saved.
      UserError: there can be no such run.
    """
    loaded = task.task if isinstance(task, FoundTask) else load_task(task, data_dir)
    points = [Point('', {}, runs)] if isinstance(runs, FinetuneConfig) else runs
    folder = Workdir(workdir)
    with folder.lock():
        if isinstance(task, FoundTask):
            task = keep_task(task, folder)
        # Two approaches side by side take any encoder that both can read as it is.
        encoder = source.load_source(init_from, print_map)
        if not any(isinstance(point.config, FeatureConfig) for point in points):
            encoder = source.make_plain(encoder)
        logging.info(
            f'{loaded.name}: encoder of {encoder.where}, step {encoder.step}; the {loaded.head}'
            ' head is fresh'
        )

        # Shared by all runs: the task's features, the mesh, compiled programs.
        identity = task_identity(loaded, task, data_dir)
        data = TaskData(loaded, encoder, identity, str(folder.features))
        machine = prepare_machine(points[0].config.runtime, encoder.model)
        pairs = _choose_tuners(points, data, machine, profile_steps)

        # One run into the folder itself, or a grid into its runs/.
        if isinstance(runs, FinetuneConfig):
            result, done_before = pairs[0][0].run(runs, workdir)
            of_classes = evaluation.write_report(loaded, data.split, data.scored, folder)
            text = sweep.describe(result, done_before)
            finished = FinetuneResult(workdir, [result], text, of_classes)
        else:
            rows = sweep.run_sweep(pairs, workdir)
            text = sweep.format_table(rows, loaded.metric)
            finished = FinetuneResult(workdir, rows, text)
        logging.info(f'compilations: {dict(machine.compilations) or "none"}')
    return dataclasses.replace(finished, head=loaded.head, columns=_write_columns(loaded))


def _choose_tuners(
    points: Sequence[Point[Any]], data: TaskData, machine: Machine, profile_steps: int
) -> list[tuple[FineTuner, Point[Any]]]:
    """Return the points, each with what carries it out; runs of one approach share that."""
    tuners: dict[type[Approach], FineTuner] = {}
    pairs = []
    for point in points:
        approach = FeatureBased if isinstance(point.config, FeatureConfig) else Approach
        if approach not in tuners:
            tuners[approach] = FineTuner(approach(data, machine), machine, profile_steps)
        pairs.append((tuners[approach], point))
    return pairs


def _write_columns(task: Task) -> str:
    """Return ' --columns=...' where texts are not in the columns that are read without it."""
    tables = next(iter(getattr(task, 'files', {}).values()), ())
    if not tables or not isinstance(tables[0], Table):
        return ''
    table, parts = tables[0], []
    for role in _READ:
        column = table.columns.get(role, role)
        if column != role:
            parts.append(f'{role}={column}')
    if not parts or any(',' in part for part in parts):
        return ''
    flag = ' ' + shlex.quote(f'--columns={",".join(parts)}')
    if not table.header:
        flag += ' --header=false'
    return flag
