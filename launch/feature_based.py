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
from typing import Any, ClassVar, cast, get_args

from bert_jax.cli import app
from bert_jax.cli.common_flags import TrainingFlags
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option
from bert_jax.configs.overrides import Point
from bert_jax.configs.schema import FeatureSet, FinetuneConfig
from bert_jax.mesh import before_jax

# Fine-tuning is first, as the row that the others are compared with.
_ALL = ('finetune', *get_args(FeatureSet))


@dataclass(frozen=True, kw_only=True)
class CompareFeatures(TrainingFlags):
    """Compare fine-tuning with the feature-based approach on a tagging task.

    Attributes:
      task: conll2003, conll2003_sentences or a path ending in .json, of kind tagging.
      data_dir: the folder that holds the task's own files; not needed for a .json task beside its
        files.
      init_from: the encoder, any source that bert-finetune takes.
      workdir: folder of all runs, and of the features.
      approaches: rows of the table, in this order.
      seeds: each approach is run with each of them.
      settings: changes one setting of all runs, as in --set train_examples=3000.
      set_finetune: of fine-tuning alone, as in --set_finetune optimizer.peak_lr=3e-5.
      set_bilstm: of the BiLSTM alone, as in --set_bilstm lstm_width=256.
      profile: trace so many steps of each run, after its first ten, into its folder, under
        profile.
    """

    after_interrupt: ClassVar[str] = 'the same command goes on from here'

    task: str
    data_dir: str = ''
    init_from: str
    workdir: str
    approaches: tuple[str, ...] = option(_ALL, commas=True)
    seeds: tuple[str, ...] = option(('0',), commas=True)
    settings: tuple[str, ...] = option((), flag='set', settings=FinetuneConfig)
    set_finetune: tuple[str, ...] = ()
    set_bilstm: tuple[str, ...] = ()
    profile: int = option(0, bounds=(0, None))

    def __call__(self) -> None:
        """Run what is left to run; a signal ends it with 128 + its number, saved."""
        before_jax.set_up(self.deterministic)
        points = self.list_points()

        from bert_jax.runs.finetuning.finetune import finetune

        finished = finetune(
            self.task,
            self.data_dir,
            self.init_from,
            self.workdir,
            points,
            profile_steps=self.profile,
        )
        print(finished.text)

    def list_points(self) -> list[Point[Any]]:
        """Return a run for each row and seed; UserError where the lists of the flags are none."""
        for name in self.approaches:
            if name not in _ALL:
                raise UserError(f'--approaches: {name!r} is none of {", ".join(_ALL)}')
        if not self.approaches or len(set(self.approaches)) < len(self.approaches):
            raise UserError(
                f'--approaches={",".join(self.approaches)}: name one or more, each once'
            )
        seeds = [int(seed) for seed in self.seeds if seed.strip().isdecimal()]
        if not seeds or len(set(seeds)) < len(self.seeds):
            raise UserError(
                f'--seeds={",".join(self.seeds)}: write different numbers with commas between,'
                ' as in --seeds=0,1,2'
            )
        from bert_jax.configs import overrides
        from bert_jax.configs.presets import finetune
        from bert_jax.input_pipeline.tasks.load_task import load_task

        # Settings come from the row's own preset, then --set, then what is set for its kind alone.
        # In the order of --approaches: the seeds of a row one after the other share its programs.
        task = load_task(self.task, self.data_dir)
        common = [*self.tracked(), *self.settings]
        points: list[Point[Any]] = []
        for name in self.approaches:
            if name == 'finetune':
                recipe = finetune.choose_recipe(task.name, task.kind)
                config = finetune.apply_changes(recipe, common, set_finetune=self.set_finetune)
            else:
                of_features = finetune.choose_feature_recipe(task.name, cast(FeatureSet, name))
                config = overrides.apply(of_features, common, set_bilstm=self.set_bilstm)
            for seed in seeds:
                settings = {'approach': name, 'seed': seed}
                seeded = dataclasses.replace(config, seed=seed)
                points.append(Point(f'{name},seed={seed}', settings, seeded))
        return points


if __name__ == '__main__':
    app.run(CompareFeatures)
