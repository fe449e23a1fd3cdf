"""Fine-tunes an encoder on a task and scores the dev split; with --sweep, a grid of runs.

  bert-finetune --task=mrpc --data_dir=glue/MRPC --init_from=WORKDIR --workdir=DIR
  bert-finetune --task=train.tsv --dev=dev.tsv --init_from=WORKDIR --workdir=DIR
  bert-finetune ... --steps=500 --batch_size=16 --learning_rate=3e-5
  bert-finetune ... --set epochs=4 --set optimizer.layer_decay=0.9
  bert-finetune ... --sweep="optimizer.peak_lr=2e-5,3e-5;seed=0,1,2"

Without --config the settings are the paper's for the task (configs/presets/finetune.py), and with
tuning.method the rates are that method's. Runs that are done are taken as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from absl import logging

from bert_jax.cli import app, flags
from bert_jax.cli.common_flags import CommonFlags
from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.model.families import RecipeName
from bert_jax.configs.options import option, required
from bert_jax.mesh import before_jax, determinism


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is fine-tuned on what, besides the run's configuration."""

    task: str = required(
        "a task's name (mrpc, squad_v1, ...), a path ending in .json, or a table to train on: .tsv,"
        ' .csv, .jsonl, .parquet, or hf:NAME:SPLIT of the Hub, whose columns are found'
    )
    dev: str = option(
        '', 'of a table: the one that is scored; default: a tenth of the rows is held out'
    )
    kind: str = option(
        '', 'of a table: classification, pair, regression, ...; default: as the labels look'
    )
    columns: str = option(
        '', 'of a table: which is what, where it is not found: "text=review,label=stars", or places'
    )
    header: bool | None = option(
        None, 'of a table: whether the first line names the columns; default: as it looks'
    )
    data_dir: str = option(
        '',
        "the folder that holds the task's own files; not needed for a .json task beside its files",
    )
    init_from: str = required(
        'the encoder to start from: a workdir of bert-pretrain or bert-finetune, a Hugging Face'
        ' BERT directory or name, or a Google checkpoint (DIR or DIR/bert_model.ckpt)'
    )
    print_map: bool = option(
        False, 'print every name in --init_from and the array here that it holds'
    )
    workdir: str = required('folder of this run, or of all runs of a sweep')
    common: CommonFlags = dataclasses.field(default_factory=CommonFlags)
    recipe: RecipeName = option(
        'paper', "whose settings for the task (readme: those of google's own code)"
    )
    sweep: str = option(
        '',
        'settings and their values: "optimizer.peak_lr=2e-5,3e-5;seed=0,1,2", or "glue;seed=0,1,2"'
        ' (grids: glue, appendix, miniatures, methods)',
    )
    print_config: bool = option(
        False,
        'print every setting as it would be run but for --sweep, as JSON that --config reads, and'
        ' end',
    )
    deterministic: bool = option(False, determinism.HELP)
    profile: int = option(
        0,
        'trace so many steps of each run, after its first ten, into its folder, under profile',
        bounds=(0, None),
    )


flags.define(Options)

app.define_config_flags()


def main(argv: Sequence[str]) -> None:
    """Run what is left to run; a signal ends it with 128 + its number, saved."""
    del argv
    options = flags.read(Options)

    before_jax.set_up(options.deterministic)
    from bert_jax.configs import sweep
    from bert_jax.configs.presets.finetune import METHODS, changed, recipe
    from bert_jax.input_pipeline.tasks import load_task
    from bert_jax.input_pipeline.tasks.files import found

    # The task and the settings first: most mistakes are in them, and to find them needs no jax.
    given: str | found.FoundTask = options.task
    if found.is_table(options.task):
        if options.data_dir:
            raise UserError('--data_dir goes with the name of a task: name a table by its path')
        given = found.find(options.task, options.dev, options.kind, options.columns, options.header)
        task = given.task
    else:
        if strange := flags.present('dev', 'kind', 'columns', 'header'):
            raise UserError(f'{strange[0]} is for a table, and --task={options.task} is none')
        task = load_task(options.task, options.data_dir)
    begin = app.config_named(schema.FinetuneConfig, recipe(task.name, task.kind, options.recipe))
    # A method of tuning brings its recipe; over that goes --set, and over --set a sweep.
    common = options.common.settings(begin, app.changes())
    change = functools.partial(changed, changes=[*common, *app.changes()])
    config = change(begin)
    if not flags.present('config') and config.max_seq_length == begin.max_seq_length:
        begin = _fitting(begin, options.init_from, options.print_config)
        config = change(begin)
    if options.print_config:
        print(schema.dumps(config), end='')
        return
    points = sweep.grid(begin, options.sweep, change) if options.sweep else []
    methods = {point.config.tuning.method for point in points} or {config.tuning.method}
    for method in sorted(methods & METHODS.keys() - {begin.tuning.method}):
        logging.info(
            'tuning.method=%s brings the settings of %s, before --set and --sweep: %s',
            method, METHODS[method].source, ', '.join(METHODS[method].settings),
        )  # fmt: skip

    from bert_jax.runs.finetuning.finetune import finetune

    finished = finetune(
        given,
        options.data_dir,
        options.init_from,
        options.workdir,
        points or config,
        options.print_map,
        options.profile,
    )
    # Beside the result, which programs read.
    if finished.report:
        print(finished.report, file=sys.stderr)
    print(finished.text)


def _fitting(
    recipe: schema.FinetuneConfig, init_from: str, only_printed: bool
) -> schema.FinetuneConfig:
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
        "%s reads %d positions: max_seq_length=%d, in place of the recipe's %d",
        *(init_from, limit, limit, recipe.max_seq_length),
    )
    return dataclasses.replace(recipe, max_seq_length=limit)


if __name__ == '__main__':
    app.run(main, settings=schema.FinetuneConfig)
