"""From raw text to a scored model: text, vocabulary, records, pre-training, fine-tuning, one table.

  bert-quickstart [--corpus='texts/*.txt' --language=vi] [--workdir=runs/quickstart]

Without --corpus the text is the documentation of the Python packages that bert_jax needs; with it
the text is yours, in any language. The fine-tuning task is to tell whole passages of it from mixed
ones. Each stage prints the command that stands for it, and is skipped where a run before made the
same from the same. The table, report.html and results.json are in the workdir.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.cli import app
from bert_jax.configs.errors import UserError
from bert_jax.reports.quickstart.stages import QuickstartOptions


@dataclass(frozen=True, kw_only=True)
class Quickstart(QuickstartOptions):
    """Go from raw text to a scored model."""

    after_interrupt: ClassVar[str] = 'the same command goes on from here'

    def __call__(self) -> None:
        """Make the stages in order, then print the table."""
        from absl import logging

        from bert_jax.configs.files.store import Store
        from bert_jax.input_pipeline.text.listing import refuse_inside
        from bert_jax.reports.quickstart.score_table import report
        from bert_jax.reports.quickstart.stages import Stages
        from bert_jax.runs.workdir.workdir import Workdir

        # What can be refused, before the first of many minutes.
        if '://' in self.workdir:
            raise UserError(f'--workdir={self.workdir}: the quickstart takes a local folder')
        made = ('text/train.txt', 'text/train.jsonl', 'records/manifest.json')
        refuse_inside('workdir', self.workdir, self.corpus, made)

        # One process at a time: two would write the same stages.
        with Workdir(self.workdir).lock():
            store = Store(self.workdir, logging.info)
            Stages(self, store).make_all()
            source = ', '.join(self.corpus) or 'the docstrings of what bert_jax needs'
            print(f'\n{report(store, source)}')


if __name__ == '__main__':
    app.run(Quickstart)
