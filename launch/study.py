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
from typing import TYPE_CHECKING, Any

from bert_jax.cli import app
from bert_jax.configs import schema
from bert_jax.configs.errors import UserError, did_you_mean
from bert_jax.configs.options import option, required


if TYPE_CHECKING:
    from bert_jax.configs.studies.study import Study


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which study, what it reads, and how much of it is run."""

    study: str = required(
        'one that is shipped (pretraining_tasks, model_size, masking, steps, feature_based,'
        ' relatives, small_language), or a Python file with get_studies() (it is run)'
    )
    scale: str = option('', "which of the file's studies; not needed where it has one")
    workdir: str = option('', 'folder of all that is made; several studies may share it')
    corpus: tuple[str, ...] = option(
        (), 'the text, as --input of bert-preprocess; NAME=GLOB where rows name their texts'
    )
    data_dir: tuple[str, ...] = option(
        (), "COLUMN=FOLDER or TASK=FOLDER: the folder that holds that task's own files"
    )
    tokenizer: str = option('', 'a tokenizer directory, in place of a vocabulary trained here')
    only: tuple[str, ...] = option((), 'names of rows: the others are left alone', commas=True)
    seeds: tuple[int, ...] = option((), 'seeds of pre-training, of those of the study', commas=True)
    table: bool = option(False, 'print the table of what is there, and end')
    dry_run: bool = option(False, 'print the steps that are left, and end; nothing is written')
    print_config: str = option(
        '', "print a row's pre-training settings as JSON that --config of other commands reads"
    )


def main(options: Options) -> int:
    """Make what is left to make, and return 1 where a row has failed."""
    from bert_jax.configs.studies.study import load
    from bert_jax.reports.studies import runner
    from bert_jax.reports.studies.table import write_table

    studies = load(options.study)
    scale = options.scale or next(iter(studies))
    if scale not in studies or (len(studies) > 1 and not options.scale):
        raise UserError(f'--scale={options.scale}: name one of {", ".join(studies)}')
    whole = studies[scale]
    if options.print_config:
        [row] = choose('print_config', [options.print_config], whole.rows)
        print(schema.dumps(whole.config(row, whole.seeds[0])), end='')
        return 0
    if not options.workdir and not options.dry_run:
        raise UserError('--workdir is required: a folder for all that is made')

    # The table is of the whole study; what is run, of the rows and seeds that are asked for.
    chosen = whole
    if options.only:
        chosen = dataclasses.replace(chosen, rows=choose('only', options.only, whole.rows))
    if options.seeds:
        chosen = dataclasses.replace(chosen, seeds=choose('seeds', options.seeds, whole.seeds))
    folder = Path(options.workdir)
    texts = name_texts(whole, options.corpus)
    folders = dict(each.partition('=')[::2] for each in options.data_dir)
    plan = runner.Plan(chosen, folder, runner.Inputs(texts, folders, options.tokenizer))
    if options.dry_run:
        left = [step.about for step in plan.steps.values() if not plan.store.done(step.name)]
        print(f'{whole.title}\n{len(left)} of {len(plan.steps)} steps are left:')
        print('\n'.join(f'  {about}' for about in left))
        return 0
    if (folder / 'study.json').exists():
        raise UserError(f'--workdir={folder} has a study of version 0.2.0: name another folder')
    done = True
    if not options.table:
        runner.note_inputs(plan)
        done = runner.run_steps(plan)
        print()
    name = Path(options.study).stem + (options.scale and f'-{options.scale}')
    whole_plan = runner.Plan(whole, folder, plan.inputs)
    print(write_table(whole_plan, folder / 'tables' / name))
    return 0 if done else 1


def name_texts(study: Study, corpus: Sequence[str]) -> dict[str, list[str]]:
    """Return the patterns of --corpus by the names of texts, which are those that rows ask for."""
    texts: dict[str, list[str]] = {}
    for given in corpus:
        name, equals, pattern = given.partition('=')
        if not equals or name not in [row.text for row in study.rows]:
            name, pattern = '', given
        texts.setdefault(name, []).append(pattern)
    return texts


def choose(flag: str, asked: Sequence[Any], offered: Sequence[Any]) -> tuple[Any, ...]:
    """Return those of a study's rows or seeds that a flag names; UserError where it has none."""
    named = {str(getattr(each, 'name', each)): each for each in offered}
    for name in map(str, asked):
        if name not in named:
            raise UserError(
                f'--{flag}={name}: the study has {", ".join(named)}{did_you_mean(name, named)}'
            )
    return tuple(each for name, each in named.items() if name in map(str, asked))


if __name__ == '__main__':
    app.run(main, Options)
