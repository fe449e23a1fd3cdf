"""Folds what tuning has added into BERT's own weights: a workdir that needs no encoder.

  bert-merge --workdir=DIR --output=DIR

Of tuning.method=lora, ia3, bitfit and spafit; the answers are the same but for rounding. AdaMix's
experts become one adapter, their mean, which still needs its encoder. Adapters cannot be folded:
they are layers of their own. An adapter of Hugging Face's peft is folded by
`bert-export --init_from=DIR --output=DIR`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bert_jax.cli import app, flags
from bert_jax.configs.options import required


@dataclass(frozen=True)
class Options:
    """What is folded, and where to."""

    workdir: str = required(
        'folder of a tuned run of bert-finetune; its newest checkpoint is taken'
    )
    output: str = required('workdir to write; it must be new or empty')


flags.define(Options)


def main(argv: Sequence[str]) -> None:
    """Write the workdir and print what it is."""
    del argv
    options = flags.read(Options)
    app.check_output('output', options.output)

    from bert_jax.runs.sources.merged import merge

    print(merge(options.workdir, options.output))


if __name__ == '__main__':
    app.run(main)
