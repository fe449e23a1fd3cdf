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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bert_jax.cli import app
from bert_jax.configs.options import required


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Fold what tuning has added into the weights of an encoder.

    Attributes:
      workdir: folder of a tuned run of bert-finetune, whose newest checkpoint is taken.
      output: workdir to write; it must be new or empty.
    """

    after_interrupt: ClassVar[str] = 'nothing was written; the same command begins anew'

    workdir: str
    output: str

    def __call__(self) -> None:
        """Write the workdir and print what it is."""
        from bert_jax.runs.sources.merged import merge

        _make(self.output, [self.workdir], (), lambda: merge(self.workdir, self.output))


@dataclass(frozen=True, kw_only=True)
class Average:
    """Write the mean of a run's checkpoints.

    Attributes:
      workdir: folder of any run that was not tuned.
      output: workdir to write; it must be new or empty.
      average: steps whose checkpoints are averaged, in place of folding.
    """

    workdir: str
    output: str
    average: tuple[int, ...] = required(commas=True)

    def __call__(self) -> None:
        """Write the workdir and print what it is."""
        from bert_jax.runs.sources.merged import average

        names = [os.path.join(self.workdir, f'checkpoints/{step}') for step in self.average]
        _make(
            self.output,
            names,
            self.average,
            lambda: average(self.workdir, self.output, self.average),
        )


def _make(
    output: str, sources: Sequence[str], steps: Sequence[int], write: Callable[[], str]
) -> None:
    """Write a workdir once, note the weights that it was made from, and print what it is."""
    app.check_output('output', output)
    from etils import epath

    from bert_jax.configs.files.store import note_inputs, was_made
    from bert_jax.runs.sources.source import read_source

    folder = epath.Path(output)

    def made_from() -> dict[str, Any]:
        prints = [read_source(name).fingerprint() for name in sources]
        return {'average': steps, 'model': prints}

    if was_made(folder, made_from):
        print(f'{output}: this is done already')
        return
    message = write()
    note_inputs(folder, made_from())
    print(message)


if __name__ == '__main__':
    app.run(Merge, Average)
