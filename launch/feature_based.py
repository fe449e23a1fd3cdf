r"""Compares fine-tuning with the feature-based approach on a tagging task (paper section 5.3).

  bert-finetune feature-based --task=conll2003 --data_dir=conll2003 --init_from=ENCODER \
      --workdir=DIR [--seeds=0,1,2]
  bert-finetune feature-based ... --approaches=last,concat_last4 --set train_examples=3000 \
      --set_bilstm lstm_width=256

The encoder stays as it is (Table 7). What it says of every word is computed once and kept in
DIR/features; a fresh two-layer BiLSTM reads one or several layers of it. Prints one table of the
dev scores, mean over seeds. Runs that are done are taken as they are.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast, get_args

from bert_jax.cli import app
from bert_jax.cli.common_flags import TrackFlag
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option, required
from bert_jax.configs.schema import FeatureSet
from bert_jax.configs.sweep import Point
from bert_jax.mesh import before_jax

# Fine-tuning is first, as the row that the others are compared with.
_ALL = ('finetune', *get_args(FeatureSet))


@dataclass(frozen=True, kw_only=True)
class Options(TrackFlag):
    """What is compared, on which task and from which encoder."""

    task: str = required(
        'conll2003, conll2003_sentences or a path ending in .json, of kind tagging'
    )
    data_dir: str = option(
        '',
        "the folder that holds the task's own files; not needed for a .json task beside its files",
    )
    init_from: str = required('the encoder, any source that bert-finetune takes')
    workdir: str = required('folder of all runs, and of the features')
    approaches: tuple[str, ...] = option(_ALL, 'rows of the table, in this order', commas=True)
    seeds: tuple[str, ...] = option(('0',), 'each approach is run with each of them', commas=True)
    set: tuple[str, ...] = option(
        (), 'changes one setting of all runs, as in --set train_examples=3000'
    )
    set_finetune: tuple[str, ...] = option(
        (), 'of fine-tuning alone, as in --set_finetune optimizer.peak_lr=3e-5'
    )
    set_bilstm: tuple[str, ...] = option(
        (), 'of the BiLSTM alone, as in --set_bilstm lstm_width=256'
    )
    deterministic: bool = option(False, before_jax.DETERMINISTIC_HELP)
    profile: int = option(
        0,
        'trace so many steps of each run, after its first ten, into its folder, under profile',
        bounds=(0, None),
    )


def main(options: Options) -> None:
    """Run what is left to run; a signal ends it with 128 + its number, saved."""
    before_jax.set_up(options.deterministic)
    points = points_of(options)

    from bert_jax.runs.finetuning.finetune import finetune

    finished = finetune(
        options.task,
        options.data_dir,
        options.init_from,
        options.workdir,
        points,
        profile_steps=options.profile,
    )
    print(finished.text)


def points_of(options: Options) -> list[Point[Any]]:
    """Return a run for each row and seed; UserError where the lists of the flags are none."""
    if unknown := [name for name in options.approaches if name not in _ALL]:
        raise UserError(f'--approaches: {unknown[0]!r} is none of {", ".join(_ALL)}')
    if not options.approaches or len(set(options.approaches)) < len(options.approaches):
        raise UserError(f'--approaches={",".join(options.approaches)}: name one or more, each once')
    seeds = [int(seed) for seed in options.seeds if seed.strip().isdecimal()]
    if not seeds or len(set(seeds)) < len(options.seeds):
        raise UserError(
            f'--seeds={",".join(options.seeds)}: write different numbers with commas between, as in'
            ' --seeds=0,1,2'
        )
    from bert_jax.configs import overrides
    from bert_jax.configs.presets import finetune
    from bert_jax.input_pipeline.tasks import load_task

    # Settings come from the row's own preset, then --set, then what is set for its kind alone.
    task = load_task(options.task, options.data_dir)
    common = [*options.tracked(), *options.set]
    configs: dict[str, Any] = {
        name: overrides.apply(
            finetune.feature_based(task.name, cast(FeatureSet, name)),
            common,
            set_bilstm=options.set_bilstm,
        )
        for name in options.approaches
        if name != 'finetune'
    }
    if 'finetune' in options.approaches:
        recipe = finetune.recipe(task.name, task.kind)
        configs['finetune'] = finetune.changed(recipe, common, set_finetune=options.set_finetune)

    # In the order of --approaches: the seeds of a row one after the other share its programs.
    return [
        Point(
            f'{name},seed={seed}',
            {'approach': name, 'seed': seed},
            dataclasses.replace(configs[name], seed=seed),
        )
        for name in options.approaches
        for seed in seeds
    ]


if __name__ == '__main__':
    app.run(main, Options)
