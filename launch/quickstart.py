"""From raw text to a scored model: text, vocabulary, records, pre-training, fine-tuning, one table.

  bert-quickstart [--corpus='texts/*.txt' --language=vi] [--workdir=runs/quickstart]

Without --corpus the text is the documentation of the installed Python packages, and the fine-tuning
task is to tell which library a docstring comes from; with it the text is the user's, in any
language, and the task is to tell whole passages from mixed ones. Each stage runs the command
that a user would run, prints it, and is skipped where a run before made the same from the same. The
table, report.html and results.json are in the workdir.
"""

from __future__ import annotations

from collections.abc import Sequence

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.reports.quickstart.stages import Options

flags.define(Options)
flags.define(TextOptions, without=('segment', 'language'))


def main(argv: Sequence[str]) -> None:
    """Run the stages in order, then print the table."""
    del argv
    options = flags.read(Options)
    reading = flags.read(
        TextOptions, segment=True, language=options.language or TextOptions.language
    )
    from bert_jax.configs.files.store import Store
    from bert_jax.input_pipeline.text.listing import refuse_inside
    from bert_jax.reports.quickstart import corpus, report
    from bert_jax.reports.quickstart.commands import say
    from bert_jax.reports.quickstart.stages import make
    from bert_jax.runs.workdir.folder import lock

    # What can be refused, before the first of many minutes.
    options.sizes()
    if '://' in options.workdir:
        raise UserError(f'--workdir={options.workdir}: the quickstart takes a local folder')
    made = ('text/train.txt', 'text/documents.jsonl', 'records/manifest.json')
    refuse_inside('workdir', options.workdir, options.corpus or (), made)

    # One process at a time: two would write the same stages.
    with lock(options.workdir):
        store, limit = Store(options.workdir, say), int(options.corpus_mb * 1e6)
        source = (
            corpus.Corpus(options.corpus, reading, limit, options.language)
            if options.corpus
            else corpus.Docstrings()
        )
        make(options, source, store)
        print('\n' + report.write(store, source.title, source.question))


if __name__ == '__main__':
    app.run(main)
