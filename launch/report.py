"""Show runs and sweeps on one HTML page.

It has their curves over each other and beside what guessing scores, filled masks, confusion, spread
over seeds, the settings that differ, and the commands that make them again.

  bert-report --workdir=runs/mini
  bert-report --workdir=runs/mini --workdir=runs/mrpc --output=both.html
  bert-report --output=all.html runs/mini runs/mrpc

A folder is that of a run or of a sweep, of any kind, done or still going on. The page is one file
that loads nothing, so it can be sent by mail and opened without a network.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from bert_jax.cli import app
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option


@dataclass(frozen=True)
class Report:
    """Show runs and sweeps on one HTML page.

    Attributes:
      workdir: folder of a run or a sweep; what stands beside the flags is taken as one too.
      folders: folders of runs or sweeps.
      output: the page; default: report.html in the first folder.
      samples: how many masked words of its held-out text each pre-training run fills in, before
        and after training; 0: none, and no model is loaded.
    """

    workdir: tuple[str, ...] = ()
    folders: tuple[str, ...] = option((), words='[DIR ...]')
    output: str | None = None
    samples: int = option(6, bounds=(0, 1000))

    def __call__(self) -> None:
        """Write the page, and say where it is."""
        folders = [*self.workdir, *self.folders]
        if not folders:
            raise UserError('--workdir is required: the folder of a run or a sweep, or several')

        from bert_jax.reports.page.page import write_report
        from bert_jax.reports.page.runs import open_all

        # Both ends before the work between them: a folder that is none, a page that cannot be
        # written.
        open_all(folders)
        output = self.output or os.path.join(folders[0], 'report.html')
        app.check_output_file('output', output)
        print(f'wrote {write_report(folders, output, self.samples)}')


if __name__ == '__main__':
    app.run(Report)
