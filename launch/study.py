r"""Runs a study: rows that change a few settings of one recipe, judged on the same tasks.

  bert-study --study=pretraining_tasks --scale=cpu --dry_run
  bert-study --study=pretraining_tasks --scale=cpu --corpus=TEXT --workdir=DIR \
      --data_dir=mrpc=glue/MRPC --data_dir=sst2=glue/SST-2 ...
  bert-study --study=mine.py --corpus=TEXT --workdir=DIR [--only=ROW,...] [--seeds=0,1]
  bert-study --study=pretraining_tasks --scale=cpu --workdir=DIR --table

The same command goes on with a study that was stopped, however that came. Several processes, also
on machines that share DIR, divide its steps among them. What two rows or two studies in one DIR
have in common is made once. A row that fails is marked, and the others go on. The table and what
each step has printed are in DIR.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bert_jax.cli import app
from bert_jax.configs import schema
from bert_jax.configs.errors import UserError, suggest
from bert_jax.configs.options import option


@dataclass(frozen=True, kw_only=True)
class RunStudy:
    """Run a study, or tell of it.

    Attributes:
      study: one that is shipped (pretraining_tasks, model_size, masking, steps, feature_based,
        relatives, small_language), or a Python file with get_studies() (it is run).
      scale: which of the file's studies; not needed where it has one.
      workdir: folder of all that is made; several studies may share it.
      corpus: the text, as --input of bert-preprocess; NAME=GLOB where rows name their texts.
      data_dir: COLUMN=FOLDER or TASK=FOLDER: the folder that holds that task's own files.
      tokenizer: a tokenizer directory, in place of a vocabulary trained here.
      only: names of rows: the others are left alone.
      seeds: seeds of pre-training, of those of the study.
      table: print the table of what is there, and end.
      dry_run: print the steps that are left, and end; nothing is written.
      print_config: print a row's pre-training settings as JSON that --config of other commands
        reads.
    """

    after_interrupt: ClassVar[str] = 'the same command goes on from here'

    study: str
    scale: str = ''
    workdir: str = ''
    corpus: tuple[str, ...] = ()
    data_dir: tuple[str, ...] = ()
    tokenizer: str = ''
    only: tuple[str, ...] = option((), commas=True)
    seeds: tuple[int, ...] = option((), commas=True)
    table: bool = False
    dry_run: bool = False
    print_config: str = ''

    def __call__(self) -> int:
        """Make what is left to make, and return 1 where a row has failed."""
        from bert_jax.configs.studies.load_study import load_study
        from bert_jax.reports.studies import runner
        from bert_jax.reports.studies.table import write_table

        # The study first: it is checked as a whole before any of it is looked for on the disk.
        studies = load_study(self.study)
        scale = self.scale or next(iter(studies))
        if scale not in studies or (len(studies) > 1 and not self.scale):
            raise UserError(f'--scale={self.scale}: name one of {", ".join(studies)}')
        study = studies[scale]
        if self.print_config:
            [row] = choose('print_config', [self.print_config], study.rows)
            print(schema.dumps(study.config(row, study.seeds[0])), end='')
            return 0
        if self.table and (self.only or self.seeds):
            raise UserError('--table has all that is there: leave --only and --seeds out')
        rows = choose('only', self.only, study.rows)
        seeds = choose('seeds', self.seeds, study.seeds)
        folder = Path(self.workdir)
        if not self.workdir and not self.dry_run:
            raise UserError('--workdir is required: a folder for all that is made')
        if (folder / 'study.json').exists():
            raise UserError(f'--workdir={folder} has a study of version 0.2.0: name another')

        # What is run is of the rows and seeds that are asked for; the table, of the whole study.
        folders = dict(each.partition('=')[::2] for each in self.data_dir)
        inputs = runner.Inputs(runner.name_texts(study, self.corpus), folders, self.tokenizer)
        plan = runner.Plan(dataclasses.replace(study, rows=rows, seeds=seeds), folder, inputs)
        if self.dry_run:
            left = [step for step in plan.steps.values() if not plan.store.done(step.name)]
            print(f'{study.title}\n{len(left)} of {len(plan.steps)} steps are left:')
            print(''.join(f'  {step.title}\n' for step in left), end='')
            return 0
        done = True
        if self.table and not (folder / runner.NOTE).exists():
            raise UserError(f'--workdir={folder}: no study was run there')
        if not self.table:
            runner.note_inputs(plan)
            done = runner.run_steps(plan)
            print()
        name = f'{Path(self.study).stem}-{self.scale}'.rstrip('-')
        print(write_table(runner.Plan(study, folder, inputs), folder / 'tables' / name))
        return 0 if done else 1


def choose(flag: str, asked: Sequence[Any], offered: Sequence[Any]) -> tuple[Any, ...]:
    """Return those of a study's rows or seeds that a flag names, or all where it names none."""
    by_name = {str(getattr(each, 'name', each)): each for each in offered}
    for name in map(str, asked):
        if name not in by_name:
            offers = f'{", ".join(by_name)}{suggest(name, by_name)}'
            raise UserError(f'--{flag}={name}: the study has {offers}')
    return tuple(by_name[str(name)] for name in asked or by_name)


if __name__ == '__main__':
    app.run(RunStudy)
