"""Fine-tunes an encoder on a task and scores the dev split; with --sweep, a grid of runs.

  bert-finetune --task=mrpc --data_dir=glue/MRPC --init_from=WORKDIR --workdir=DIR
  bert-finetune ... --set epochs=4 --set optimizer.peak_lr=3e-5
  bert-finetune ... --sweep="optimizer.peak_lr=2e-5,3e-5;seed=0,1,2"

Without --config the settings are the paper's for the task (configs/presets/finetune.py), and with
tuning.method the rates are that method's. Runs that are done are taken as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from absl import logging

from bert_jax.cli import app, flags
from bert_jax.configs import schema
from bert_jax.configs.model.families import RecipeName
from bert_jax.configs.options import option, required
from bert_jax.mesh import before_jax, determinism


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is fine-tuned on what, besides the run's configuration."""

    task: str = required("a task's name (mrpc, squad_v1, ...) or a path ending in .json")
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

    # The task and the settings first: most mistakes are in them, and to find them needs no jax.
    task = load_task(options.task, options.data_dir)
    begin = app.config_named(schema.FinetuneConfig, recipe(task.name, task.kind, options.recipe))
    # A method of tuning brings its recipe; over that goes --set, and over --set a sweep.
    change = functools.partial(changed, changes=app.changes())
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
        options.task,
        options.data_dir,
        options.init_from,
        options.workdir,
        points or config,
        options.print_map,
        options.profile,
    )
    print(finished.text)


if __name__ == '__main__':
    app.run(main, settings=schema.FinetuneConfig)
