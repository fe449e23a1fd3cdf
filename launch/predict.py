r"""Answers every record of a file with a trained model: text, TSV, CSV or JSON in, JSON lines out.

  bert-predict --workdir=runs/mrpc --input=pairs.tsv --output=answers.jsonl
  bert-predict --init_from=DIR --input=texts.txt --output=answers.jsonl

An answer is on the line of its record's place, with the number of its line in the input and its
id, if it has one. The same command again goes on where a killed one stopped. With --shard=I/N, N
processes take every N-th record each, and `paste -d '\n' OUTPUT.*` puts their files together in
order (docs/serving.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from bert_jax.cli import app
from bert_jax.cli.common_flags import RecordFile, TrainedModel
from bert_jax.configs.options import option


@dataclass(frozen=True, kw_only=True)
class Predict(TrainedModel, RecordFile):
    """Answer every record of a file with a trained model.

    Attributes:
      input: file of records, plain or compressed (gzip, bzip2, xz, zstd).
      output: file to write, a JSON object a line.
      max_seq_length: word pieces of the longest row; default: as fine-tuned, else as many as the
        model has.
      doc_stride: read a text that is longer than a row in windows that begin so many word pieces
        after each other, and answer by the mean of their scores; default: classifiers cut it.
      top: how many candidates an answer lists (n-best answers, words for a mask).
      compute_dtype: arithmetic of the layers; auto: bfloat16 products on a CPU that is faster
        with them, else float32.
    """

    after_interrupt: ClassVar[str] = 'the same command goes on from here'

    input: str
    output: str
    max_seq_length: int | None = option(None, bounds=(1, None))
    doc_stride: int | None = option(None, bounds=(1, None))
    top: int = option(5, bounds=(1, None))
    compute_dtype: Literal['auto', 'float32', 'bfloat16'] = 'auto'

    def __call__(self) -> None:
        """Answer the records of the input that a run before has not answered."""
        from bert_jax.inference.predict_file import Answering, predict_file

        how = Answering(self.max_seq_length, self.top, self.compute_dtype, self.doc_stride)
        result = predict_file(self.where, self.input, self.output, self.file, how)
        if not result.done_before:
            print(f'{self.output}: {result.counted("answers")}')


if __name__ == '__main__':
    app.run(Predict)
