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

from bert_jax.cli import app
from bert_jax.cli.common_flags import TrackFlag
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import check_intervals, option, required
from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.relatives.words import recipe
from bert_jax.configs.schema import PretrainConfig
from bert_jax.mesh import before_jax, determinism


@dataclass(frozen=True, kw_only=True)
class Options(TrackFlag):
    """Whose words are trained on, and how they are misspelt."""

    tokenizer: str = required('tokenizer directory of bert-train-vocab --model=words')
    workdir: str = required('folder of this run: configuration, checkpoints, metrics')
    forms: int = option(
        2, 'forms of a word in a batch: itself, and others with typos', within='[2, 16]'
    )
    typos: float = option(
        0.25, "most typos of a form, as a share of the word's characters; one at least",
        within='(0, 1]',
    )  # fmt: skip
    kinds: tuple[str, ...] | None = option(
        None,
        'of insertion, deletion, swap, keyboard, homoglyph and leet; default: all of them',
        commas=True,
    )
    eval_words: float = option(
        0.01, 'share of the words that is held out, to measure on', within='[0, 0.5]'
    )
    deterministic: bool = option(False, determinism.HELP)
    profile: int = option(
        0, 'trace so many steps, after the first ten, into WORKDIR/profile', bounds=(0, None)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_intervals(self)


def main(options: Options) -> int:
    """Trains to the last step; returns 0, or 128 + the signal that asked it to save and stop."""
    before_jax.set_up(options.deterministic)
    config = apply(app.config_named(PretrainConfig, recipe()), [*options.tracked(), *app.changes()])

    # What can be refused, before jax is imported.
    from bert_jax.input_pipeline.text.typos import KINDS
    from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

    kinds = tuple(KINDS) if options.kinds is None else options.kinds
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UserError(f'--kinds: {unknown[0]!r} is none of {", ".join(KINDS)}')
    tokenizer = Tokenizer.load(options.tokenizer)

    from bert_jax.runs.pretraining import words

    forms = words.Forms(options.forms, options.typos, kinds)
    result = words.train(
        config, tokenizer, options.eval_words, forms, options.workdir, options.profile
    )
    return result.exit_code()


if __name__ == '__main__':
    app.run(main, Options, settings=PretrainConfig)
