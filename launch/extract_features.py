r"""Writes a model's hidden states for every text of a file, as numpy arrays (paper section 5.3).

  bert-extract-features --init_from=DIR --input=texts.txt --output=features.npz \
      --layers=-1,-2,-3,-4
  bert-extract-features --workdir=DIR --input=pairs.tsv --output=vectors \
      --pool=mean --float16

An --output that ends in .npz is one file; any other is a folder of .npy files, which np.load(...,
mmap_mode='r') opens without reading them. Their arrays are in docs/features.md. Memory does not
grow with the input, and the same command again goes on where a killed one stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from bert_jax.cli import app
from bert_jax.cli.common_flags import (
    SKIP_BAD_RECORDS,
    OnBadRecord,
    RecordFile,
    TrainedModel,
)
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option


@dataclass(frozen=True)
class TextFile(RecordFile):
    """Records of texts, each of which has its place in the arrays, a bad one too.

    Attributes:
      on_bad_record: what to do with a malformed record; skip: no tokens for it, or NaN where
        pooled, and a line in the log.
    """

    on_bad_record: OnBadRecord = option('stop', switch=SKIP_BAD_RECORDS)


@dataclass(frozen=True, kw_only=True)
class ExtractFeatures(TrainedModel, TextFile):
    """Write a model's hidden states for every text of a file.

    Attributes:
      input: file of texts or pairs of texts, plain or compressed (gzip, bzip2, xz, zstd).
      output: F.npz, or a folder for .npy files.
      layers: 0 is the embeddings, I the I-th block, -1 the last block; default: the last four
        blocks, or as many as there are.
      pool: none: every token; else one vector a text and layer.
      float16: write float16, half the size.
      max_seq_length: word pieces of the longest row, longer texts are cut; default: as many as
        the model has.
      compute_dtype: arithmetic of the layers; auto: bfloat16 products on a CPU that is faster
        with them, else float32.
    """

    after_interrupt: ClassVar[str] = 'the same command goes on from here'

    input: str
    output: str
    layers: tuple[int, ...] | None = option(None, commas=True)
    pool: Literal['none', 'cls', 'mean', 'max'] = 'none'
    float16: bool = False
    max_seq_length: int | None = option(None, bounds=(1, None))
    compute_dtype: Literal['auto', 'float32', 'bfloat16'] = 'auto'

    def __call__(self) -> None:
        """Write the features of the texts that a run before has not done."""
        # What can be refused without jax comes first.
        if self.layers is not None and not self.layers:
            raise UserError('--layers=: write numbers with commas between, as in --layers=-1,-2')
        from bert_jax.inference.feature_extraction import FeatureOptions, extract_features

        options = FeatureOptions(
            self.layers,
            self.pool,
            self.max_seq_length,
            self.compute_dtype,
            'float16' if self.float16 else 'float32',
        )
        result = extract_features(self.where, self.input, self.output, options, self.file)
        if not result.done_before:
            print(f'{self.output}: {result.counted("texts")}')


if __name__ == '__main__':
    app.run(ExtractFeatures)
