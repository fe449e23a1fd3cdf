"""Trains the network that makes a vector of a word's characters (RETVec).

A word and its forms with typos are to be alike.

  bert-train-vocab --model=words --input=GLOB --output=TOKENIZER --nolower_case
  bert-pretrain retvec --tokenizer=TOKENIZER --workdir=DIR [--set phases.0.steps=20000]
  bert-pretrain --config=retvec_tiny --init_from=DIR --data=RECORDS --workdir=DIR2

The words are those of the tokenizer, of whatever script; some are held out by a hash of their
spelling. Resumes by itself when the workdir holds a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bert_jax.cli import app
from bert_jax.cli.common_flags import TrainingFlags
from bert_jax.configs import load
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import check_intervals, option
from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.eelbert_retvec import make_word_run
from bert_jax.configs.schema import PretrainConfig
from bert_jax.mesh import before_jax

if TYPE_CHECKING:
    from bert_jax.runs.pretraining.train import PretrainResult


@dataclass(frozen=True, kw_only=True)
class TrainRetvec(TrainingFlags):
    """Train the network that makes a vector of a word's characters (RETVec).

    Attributes:
      config: a preset's name, a Python file with get_config() (it is run), or a saved config.json.
      settings: changes one setting, as in --set optimizer.peak_lr=2e-5.
      tokenizer: tokenizer directory of bert-train-vocab --model=words.
      workdir: folder of this run: configuration, checkpoints, metrics.
      forms: forms of a word in a batch: itself, and others with typos.
      typos: most typos of a form, as a share of the word's characters; one at least.
      kinds: of insertion, deletion, swap, keyboard, homoglyph and leet; default: all of them.
      eval_words: share of the words that is held out, to measure on.
      profile: trace so many steps, after the first ten, into WORKDIR/profile.
    """

    after_interrupt: ClassVar[str] = 'the same command goes on from here'

    tokenizer: str
    workdir: str
    forms: int = option(2, within='[2, 16]')
    typos: float = option(0.25, within='(0, 1]')
    kinds: tuple[str, ...] | None = option(None, commas=True)
    eval_words: float = option(0.01, within='[0, 0.5]')
    config: str | None = None
    settings: tuple[str, ...] = option((), flag='set', settings=PretrainConfig)
    profile: int = option(0, bounds=(0, None))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_intervals(self)

    def __call__(self) -> PretrainResult:
        """Train to the last step."""
        before_jax.set_up(self.deterministic)
        begin, _ = load.load_config(self.config, PretrainConfig, make_word_run())
        config = apply(begin, [*self.tracked(), *self.settings])

        # What can be refused, before jax is imported.
        from bert_jax.input_pipeline.text.typos import KINDS
        from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

        kinds = tuple(KINDS) if self.kinds is None else self.kinds
        for kind in kinds:
            if kind not in KINDS:
                raise UserError(f'--kinds: {kind!r} is none of {", ".join(KINDS)}')
        tokenizer = Tokenizer.load(self.tokenizer)

        from bert_jax.runs.pretraining import retvec_training

        forms = retvec_training.Forms(self.forms, self.typos, kinds)
        return retvec_training.train(
            config, tokenizer, self.eval_words, forms, self.workdir, self.profile
        )


if __name__ == '__main__':
    app.run(TrainRetvec)
