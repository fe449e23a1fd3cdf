"""From raw text to a scored model: text, vocabulary, records, pre-training, fine-tuning, one table.

  bert-quickstart [--corpus='texts/*.txt' --language=vi] [--workdir=runs/quickstart]

Without --corpus the text is the documentation of the Python packages that this one needs; with it
the text is the user's, in any language. The fine-tuning task is to tell whole passages of it from
mixed ones. Each stage prints the command that stands for it, and is skipped where a run before made
the same from the same. The table, report.html and results.json are in the workdir.
"""

from __future__ import annotations

from collections.abc import Sequence

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.mesh import before_jax
from bert_jax.reports.quickstart.stages import Options, Stages

flags.define(Options)
flags.define(TextOptions, without=('segment', 'language'))


def main(argv: Sequence[str]) -> None:
    """Run the stages in order, then print the table."""
    del argv
    options = flags.read(Options)
    before_jax.set_up()
    reading = flags.read(
        TextOptions, segment=True, language=options.language or TextOptions.language
    )
    from absl import logging

    from bert_jax.configs.files.store import Store
    from bert_jax.input_pipeline.text.inputs.listing import refuse_inside
    from bert_jax.reports.quickstart.score_table import report
    from bert_jax.runs.workdir.folder import lock

    # What can be refused, before the first of many minutes.
    if '://' in options.workdir:
        raise UserError(f'--workdir={options.workdir}: the quickstart takes a local folder')
    made = ('text/train.txt', 'lines/train.txt', 'task/train.jsonl', 'records/manifest.json')
    refuse_inside('workdir', options.workdir, options.corpus or (), made)

    # One process at a time: two would write the same stages.
    with lock(options.workdir):
        store = Store(options.workdir, logging.info)
        Stages(options, store).make_all(reading)
        source = ', '.join(options.corpus or ()) or 'the docstrings of what bert_jax needs'
        print(f'\n{report(store, source)}')


if __name__ == '__main__':
    app.run(main)
