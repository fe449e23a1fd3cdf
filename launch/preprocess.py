"""Turns text into sharded TFRecords for pre-training, with a manifest.

  bert-preprocess --input='text/*.txt' --tokenizer=vocab --output=records --seq_len=128

Text is one sentence a line with blank lines between documents; with --segment, paragraphs;
also jsonl, WikiExtractor output (all plain or compressed), parquet and prepared tfds datasets.
The same command again goes on with an interrupted job, or finds it done. The same seed gives
the same bytes for any number of workers and on Apache Beam (docs/preprocessing.md):

  bert-preprocess --engine=beam ... -- --runner=DataflowRunner --region=...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bert_jax.cli import app
from bert_jax.configs.options import select_options
from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
from bert_jax.runs.functions import make_function

if TYPE_CHECKING:
    from bert_jax.input_pipeline.records.shards import Manifest


@dataclass(frozen=True, kw_only=True)
class Preprocess(PreprocessOptions):
    """Turn text into records for pre-training, as bert-preprocess does.

    The options are those of `PreprocessOptions` and `TextOptions`.

    Raises:
      UserError: options, text or tokenizer do not fit, in one line.
    """

    after_interrupt: ClassVar[str] = 'the same command goes on from here'

    def __call__(self) -> Manifest:
        """Run the job, or find it done; return the manifest of the records."""
        # Imported only now, since --help must be quick.
        from bert_jax.input_pipeline.preprocess.job import preprocess

        # By its own class, which the workers of any engine can import.
        return preprocess(select_options(self, PreprocessOptions))


preprocess = make_function(Preprocess)

if __name__ == '__main__':
    app.run(Preprocess)
