"""Beside fine-tuning, the feature-based approach on a tagging task: the encoder stays as it is
(paper section 5.3, Table 7).

  bert-feature-based --task=conll2003 --data_dir=conll2003 --init_from=ENCODER \\
      --workdir=DIR [--seeds=0,1,2]
  bert-feature-based ... --approaches=last,concat_last4 --set train_examples=3000 \\
      --set_bilstm lstm_width=256

What the frozen encoder says of every word is computed once and kept in DIR/features; a fresh
two-layer BiLSTM reads one or several layers of it. Prints one table of the dev scores, mean over
seeds. Runs that are done are taken as they are.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import dataclass

from absl import logging

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option, required
from bert_jax.configs.schema import FeatureSet
from bert_jax.mesh import before_jax, determinism

# Fine-tuning stands first, as the row that the others are compared with.
_ALL = ('finetune', *typing.get_args(FeatureSet))


@dataclass(frozen=True, kw_only=True)
class Options:
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
    deterministic: bool = option(False, determinism.HELP)
    profile: int = option(
        0,
        'trace so many steps of each run, after its first ten, into its folder, under profile',
        bounds=(0, None),
    )


flags.define(Options)


def main(argv: Sequence[str]) -> int:
    """Runs what is left to run; returns 0, or 128 + the signal that asked it to save and stop."""
    del argv
    options = flags.read(Options)
    before_jax.set_up(options.deterministic)

    # The lists of the command line, before anything is read.
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
    from bert_jax.configs.sweep import Point
    from bert_jax.input_pipeline.tasks import load_task

    # One point for each row and seed. Settings come from the row's own preset, then --set, then
    # what is set for its kind alone.
    task = load_task(options.task, options.data_dir)
    points: dict[str, list[Point[typing.Any]]] = {}
    approaches = typing.cast(tuple[typing.Any, ...], options.approaches)  # each of them in _ALL
    for approach in approaches:
        if approach == 'finetune':
            config = finetune.changed(
                finetune.recipe(task.name, task.kind),
                options.set,
                set_finetune=options.set_finetune,
            )
        else:
            config = overrides.apply(
                finetune.feature_based(task.name, approach),
                options.set,
                set_bilstm=options.set_bilstm,
            )
        points[approach] = [
            Point(
                f'{approach},seed={seed}',
                {'approach': approach, 'seed': seed},
                dataclasses.replace(config, seed=seed),
            )
            for seed in seeds
        ]

    from bert_jax.runs.finetuning import finetuner, machine, results
    from bert_jax.runs.finetuning.approach import FineTuning
    from bert_jax.runs.finetuning.feature_based import FeatureBased
    from bert_jax.runs.finetuning.sweep import run_sweep
    from bert_jax.runs.finetuning.task_data import TaskData, task_identity
    from bert_jax.runs.sources import source
    from bert_jax.runs.workdir import running
    from bert_jax.runs.workdir.workdir import Workdir

    # One encoder, one task and one mesh for all runs; two runners, for the rows are of two kinds.
    with Workdir(options.workdir).lock():
        encoder = source.load_source(options.init_from)
        identity = task_identity(task, options.task, options.data_dir)
        data = TaskData(task, encoder, identity, str(Workdir(options.workdir).features))
        ready = machine.ready(points[approaches[0]][0].config.runtime, encoder.model)
        fine_tuning = finetuner.FineTuner(FineTuning(data), ready, options.profile)
        on_features = finetuner.FineTuner(FeatureBased(data, ready), ready, options.profile)

        # In the order of --approaches: the seeds of a row one after the other share its programs.
        runs = [
            (fine_tuning if approach == 'finetune' else on_features, point)
            for approach in approaches
            for point in points[approach]
        ]

        # A signal is no error: the run has saved, and its exit code is that of the signal.
        try:
            rows = run_sweep(runs, options.workdir)
        except machine.Stopped as stopped:
            return running.exit_code(stopped.signal_number, stopped.said)
        print(results.table(rows, task.metric))
        logging.info('compilations: %s', dict(ready.compilations) or 'none')
    return 0


if __name__ == '__main__':
    app.run(main)
