"""Folds what tuning has added into BERT's own weights: a workdir that needs no encoder.

  bert-export merge --workdir=DIR --output=DIR
  bert-export merge --workdir=DIR --output=DIR --average=STEP,STEP,STEP

The second makes a workdir of the mean of a run's checkpoints, of pre-training or fine-tuning.

Of tuning.method=lora, ia3, bitfit and spafit; the answers are the same but for rounding. AdaMix's
experts become one adapter, their mean, which still needs its encoder. Adapters cannot be folded:
they are layers of their own. An adapter of Hugging Face's peft is folded by
`bert-export --init_from=DIR --output=DIR`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from bert_jax.cli import app
from bert_jax.configs.options import option, required


@dataclass(frozen=True)
class Options:
    """What is folded, and where to."""

    workdir: str = required(
        'folder of a tuned run of bert-finetune, whose newest checkpoint is taken'
    )
    output: str = required('workdir to write; it must be new or empty')
    average: tuple[int, ...] = option(
        (),
        'steps whose checkpoints are averaged, in place of folding; --workdir is of any run that'
        ' was not tuned',
        commas=True,
    )


def main(options: Options) -> None:
    """Write the workdir and print what it is."""
    app.check_output('output', options.output)

    from bert_jax.runs.sources.merged import average, merge
    from bert_jax.runs.sources.source import read_source
    from bert_jax.runs.workdir.resumable import note_inputs, was_made

    def made_from() -> dict[str, Any]:
        steps = [f'checkpoints/{step}' for step in options.average] or ['']
        names = [os.path.join(options.workdir, step) for step in steps]
        return {'average': options.average, 'model': [read_source(n).fingerprint() for n in names]}

    if was_made(options.output, made_from):
        return
    if options.average:
        message = average(options.workdir, options.output, options.average)
    else:
        message = merge(options.workdir, options.output)
    note_inputs(options.output, made_from())
    print(message)


if __name__ == '__main__':
    app.run(main, Options)
