"""Turns text into sharded TFRecords for pre-training, with a manifest.

  bert-preprocess --input='text/*.txt' --tokenizer=vocab --output=records --seq_len=128

Text is one sentence a line with blank lines between documents; with --segment, paragraphs;
also jsonl, WikiExtractor output (all plain or compressed), parquet and prepared tfds datasets.
The same command again goes on with an interrupted job, or finds it done. The same seed gives
the same bytes for any number of workers and on Apache Beam (docs/preprocessing.md):

  bert-preprocess --engine=beam ... -- --runner=DataflowRunner --region=...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.preprocess.options import PreprocessOptions

# --help has the mixture next to the inputs that it is about; the manifest has it after the others.
_OF_INPUTS = ('input', 'language_exponent', 'language_repeats')
flags.define(PreprocessOptions, only=_OF_INPUTS)
flags.define(PreprocessOptions, without=_OF_INPUTS)


def main(argv: Sequence[str]) -> None:
    """Run the job, or say that it is done; what follows `--` goes to Beam."""
    # absl leaves what follows -- among the arguments; anything else there is a slip.
    pipeline_options = sys.argv[sys.argv.index('--') + 1 :] if '--' in sys.argv else []
    if argv[1:] != pipeline_options:
        raise UserError(
            f'unexpected argument {argv[1]!r}: a flag is written --name=value; only what follows --'
            ' goes to Beam (see --help)'
        )

    options = flags.read(PreprocessOptions, beam_arguments=tuple(pipeline_options))

    # Imported only now, since --help must be quick.
    from bert_jax.input_pipeline.preprocess.job import preprocess

    preprocess(options)


if __name__ == '__main__':
    app.run(main, arguments='[-- PIPELINE OPTIONS]')
