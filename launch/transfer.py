r"""Fine-tunes on one or several languages and scores on all: a matrix, with word pieces in common.

  bert-finetune transfer --task=en=pos_en.json --task=de=pos_de.json --task=ko=pos_ko.json \
      --init_from=WORKDIR --workdir=DIR [--train=en --train=en+de] [--seeds=0,1,2]
  bert-finetune transfer --task=en=stsb --data_dir=en=glue/STS-B --task=ko=korsts.json ...

A language is a name for a task and its files: classification, pairs, spans, choices or tagging,
with the same labels in all. Without --train each language that has a train split is a row. The
table and transfer.json, transfer.md and transfer.png are in the workdir, the runs below it. What is
done is taken as it is, so the same command goes on after an interruption.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from bert_jax.cli import app
from bert_jax.cli.common_flags import TrackFlag
from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option, required
from bert_jax.mesh import before_jax


@dataclass(frozen=True, kw_only=True)
class Options(TrackFlag):
    """What is fine-tuned and scored, besides the configuration of the runs."""

    task: tuple[str, ...] = required(
        "LANGUAGE=TASK for each language: a task's name (mnli, stsb, ...) or a path ending in .json"
    )
    data_dir: tuple[str, ...] = option(
        (), "LANGUAGE=FOLDER: the folder that holds that language's files"
    )
    train: tuple[str, ...] = option(
        (),
        'a language to fine-tune on, or several with + between, once for each row; by default each'
        ' that has a train split',
    )
    split: str | None = option(
        None, 'the split to score; default: dev, or test where a language has no dev'
    )
    init_from: str = required(
        'the encoder to start from: a workdir of bert-pretrain, a Hugging Face directory or name,'
        ' or a Google checkpoint'
    )
    workdir: str = required('folder of the matrix and of all its runs')
    seeds: tuple[int, ...] = option((0,), 'a run of each row for each of them', commas=True)
    deterministic: bool = option(False, before_jax.DETERMINISTIC_HELP)


def main(options: Options) -> None:
    """Run what is left to run; a signal ends it with 128 + its number, saved."""
    before_jax.set_up(options.deterministic)
    from bert_jax.configs import sweep
    from bert_jax.configs.presets.finetune import changed, recipe
    from bert_jax.runs.crosslingual.languages import languages_of, rows_of

    # Tasks and settings first: most mistakes are in them, and to find them needs no jax.
    languages = languages_of(options.task, options.data_dir, options.split)
    rows = rows_of(options.train, languages)
    task, seeds = languages[rows[0][0]].task, ','.join(map(str, options.seeds))
    if not seeds or len(set(options.seeds)) < len(options.seeds):
        raise UserError(f'--seeds={seeds}: name one or more, each once')
    begin = app.config_named(schema.FinetuneConfig, recipe(task.name, task.kind))
    change = functools.partial(changed, changes=[*options.tracked(), *app.changes()])
    points = sweep.grid(begin, f'seed={seeds}', change)

    from bert_jax.runs.crosslingual.transfer import transfer

    print(transfer(languages, rows, options.init_from, options.workdir, points))


if __name__ == '__main__':
    app.run(main, Options, settings=schema.FinetuneConfig)
