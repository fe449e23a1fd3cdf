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
import sys
from dataclasses import dataclass

from bert_jax.cli import app
from bert_jax.cli.common_flags import FinetuneFlags
from bert_jax.configs import schema
from bert_jax.configs.model.families import RecipeName
from bert_jax.configs.options import option, required
from bert_jax.mesh import before_jax


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is fine-tuned on what, besides the run's configuration."""

    task: str = required(
        "a task's name (mrpc, squad_v1, ...), a path ending in .json, or a table to train on: .tsv,"
        ' .csv, .jsonl, .parquet, or hf:NAME:SPLIT of the Hub, whose columns are found'
    )
    dev: str = option(
        '', 'of a table: the dev split, which is scored; default: a tenth of the rows, drawn'
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
    common: FinetuneFlags = dataclasses.field(default_factory=FinetuneFlags)
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
    deterministic: bool = option(False, before_jax.DETERMINISTIC_HELP)
    profile: int = option(
        0,
        'trace so many steps of each run, after its first ten, into its folder, under profile',
        bounds=(0, None),
    )


def main(options: Options) -> int:
    """Run what is left to run; return 0, or 128 + the signal that asked it to save and stop."""
    before_jax.set_up(options.deterministic)
    from bert_jax.runs.calls import finetuning

    if options.print_config:
        table = (options.dev, options.kind, options.columns, options.header)
        which = finetuning.TaskOptions(options.task, *table, options.data_dir)
        asked = finetuning.Asked(
            app.config_name(), options.recipe, options.common, app.changes(), options.init_from
        )
        made = finetuning.configured(asked, which.load(), options.data_dir, only_printed=True)
        print(schema.dumps(made.change(made.begin)), end='')
        return 0
    asked_for = vars(options) | vars(options.common)
    for of_command in ('common', 'print_config', 'deterministic'):
        del asked_for[of_command]
    finished = finetuning.finetune(**asked_for, config=app.config_name(), settings=app.changes())
    # Beside the result, which programs read.
    if finished.report:
        print(finished.report, file=sys.stderr)
    if finished.text:
        print(finished.text, flush=True)
    return finished.exit_code()


if __name__ == '__main__':
    app.run(main, Options, settings=schema.FinetuneConfig)
