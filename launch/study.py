r"""Run a study: rows that change a few settings of one recipe, judged on the same tasks.

  bert-study --study=pretraining_tasks --scale=cpu --dry_run
  bert-study --study=pretraining_tasks --scale=cpu --corpus=TEXT --workdir=DIR \
      --data_dir=mrpc=glue/MRPC --data_dir=sst2=glue/SST-2 ...
  bert-study --study=mine.py --corpus=TEXT --workdir=DIR [--only=ROW,...] [--seeds=0,1]
  bert-study --study=pretraining_tasks --scale=cpu --workdir=DIR --table

The same command goes on with a study that was stopped, however that came. Several processes, also
on machines that share DIR, divide its steps among them. What two rows or two studies in one DIR
have in common is made once. A row that fails is marked, and the others go on. Tables, the plot and
every command's output are in DIR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bert_jax.cli import app, flags
from bert_jax.configs import schema
from bert_jax.configs.errors import UserError, did_you_mean
from bert_jax.configs.options import option, required
from bert_jax.mesh import before_jax

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
    dry_run: bool = option(
        False, 'print what would run, how many runs, and what they would take; nothing is written'
    )
    tflops: float | None = option(
        None,
        '--dry_run: the rate to expect, in 10^12 model FLOP a second (the log of a run'
        ' has it as model_tflops); default: measured',
        bounds=(1e-6, None),
    )
    print_config: str = option(
        '', "print a row's pre-training settings as JSON that --config of other commands reads"
    )


def main(options: Options) -> int:
    """Make what is left to make, and return 1 where a row has failed."""
    before_jax.set_up()  # for the steps that --dry_run times, as bert-pretrain's

    # What would be passed over without a word.
    if options.table and (strange := flags.present('only', 'seeds', 'dry_run')):
        raise UserError(f'--table has all that is there: leave {strange[0]} out')
    if options.tflops and not options.dry_run:
        raise UserError('--tflops is for --dry_run: leave it out, or add that')

    # The study first: it is checked as a whole before any of it is looked for on the disk.
    study = chosen(options)
    if options.print_config:
        rows = {row.name: row for row in study.rows}
        if options.print_config not in rows:
            raise unknown('print_config', options.print_config, list(rows))
        row = rows[options.print_config]
        print(schema.dumps(study.config(row, study.seeds[0])), end='')
        return 0
    if not options.workdir and not options.dry_run:
        raise UserError('--workdir is required: a folder for all that is made')

    from bert_jax.reports.studies import estimate, inputs, steps, table
    from bert_jax.reports.studies.plan import Plan

    folder, file = steps.Folder(options.workdir or '.'), table.named(options.study)
    tables = table.folder_of(options.workdir, options.study, options.scale)
    if options.workdir:
        table.check_own(tables, file)
    if options.table:
        plan = Plan(study, inputs.remembered(folder.path, study), folder)
        print(table.write(plan, tables, file))
        return 0
    read = inputs.given(
        study, options.corpus, options.data_dir, options.tokenizer, needed=not options.dry_run
    )
    plan = Plan(study, read, folder)
    todo = plan.chosen(options.only, options.seeds)
    if options.dry_run:
        print(estimate.outlook(plan, todo, options.tflops))
        return 0

    # What would be in the way, before anything is written.
    estimate.check_disk(folder.path, estimate.work(plan, todo).bytes)
    inputs.remember(folder.path, study, read)
    steps.make(folder, todo)
    print('\n' + table.write(plan, tables, file))
    return int(any(folder.failure(step.name) for step in todo))


def chosen(options: Options) -> Study:
    """Return the study that --study and --scale name; the rows and seeds asked for are its own."""
    from bert_jax.configs.studies.study import load

    studies = load(options.study)
    scale = options.scale or (next(iter(studies)) if len(studies) == 1 else '')
    if scale not in studies:
        raise UserError(
            f'--scale={scale}: {options.study} is there as {", ".join(studies)}: name one'
            if scale
            else f'--scale is required: {options.study} is there as {", ".join(studies)}'
        )
    study = studies[scale]
    for row in options.only:
        if row not in (names := [each.name for each in study.rows]):
            raise unknown('only', row, names)
    for seed in options.seeds:
        if seed not in study.seeds:
            raise unknown('seeds', str(seed), list(map(str, study.seeds)))
    return study


def unknown(flag: str, name: str, names: Sequence[str]) -> UserError:
    """Return the refusal of what a study does not have."""
    return UserError(
        f'--{flag}={name}: the study has {", ".join(names)}{did_you_mean(name, names)}'
    )


if __name__ == '__main__':
    app.run(main, Options)
