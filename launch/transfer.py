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
from typing import ClassVar

from bert_jax.cli import app
from bert_jax.cli.common_flags import TrainingFlags
from bert_jax.configs import load, schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option
from bert_jax.mesh import before_jax


@dataclass(frozen=True, kw_only=True)
class Transfer(TrainingFlags):
    """Fine-tune on one or several languages and score on all.

    Attributes:
      config: a preset's name, a Python file with get_config() (it is run), or a saved config.json.
      settings: changes one setting, as in --set optimizer.peak_lr=2e-5.
      task: LANGUAGE=TASK for each language: a task's name (mnli, stsb, ...) or a path ending in
        .json.
      data_dir: LANGUAGE=FOLDER: the folder that holds that language's files.
      train: a language to fine-tune on, or several with + between, once for each row; by default
        each that has a train split.
      split: the split to score; default: dev, or test where a language has no dev.
      init_from: the encoder to start from: a workdir of bert-pretrain, a Hugging Face directory
        or name, or a Google checkpoint.
      workdir: folder of the matrix and of all its runs.
      seeds: a run of each row for each of them.
    """

    after_interrupt: ClassVar[str] = 'the same command goes on from here'

    task: tuple[str, ...]
    data_dir: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    split: str | None = None
    init_from: str
    workdir: str
    seeds: tuple[int, ...] = option((0,), commas=True)
    config: str | None = None
    settings: tuple[str, ...] = option((), flag='set', settings=schema.FinetuneConfig)

    def __call__(self) -> None:
        """Run what is left to run; a signal ends it with 128 + its number, saved."""
        before_jax.set_up(self.deterministic)
        from bert_jax.configs.overrides import make_grid
        from bert_jax.configs.presets.finetune import apply_changes, choose_recipe
        from bert_jax.runs.crosslingual.languages import list_rows, load_languages

        # Tasks and settings first: most mistakes are in them, and to find them needs no jax.
        languages = load_languages(self.task, self.data_dir, self.split)
        rows = list_rows(self.train, languages)
        task, seeds = languages[rows[0][0]].task, ','.join(map(str, self.seeds))
        if not seeds or len(set(self.seeds)) < len(self.seeds):
            raise UserError(f'--seeds={seeds}: name one or more, each once')
        of_task = choose_recipe(task.name, task.kind)
        begin, _ = load.load_config(self.config, schema.FinetuneConfig, of_task)
        change = functools.partial(apply_changes, changes=[*self.tracked(), *self.settings])
        points = make_grid(begin, f'seed={seeds}', change)

        from bert_jax.runs.crosslingual.transfer import transfer

        print(transfer(languages, rows, self.init_from, self.workdir, points))


if __name__ == '__main__':
    app.run(Transfer)
