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
from typing import Literal

from bert_jax.cli import app
from bert_jax.cli.model_options import (
    SKIP_BAD_RECORDS,
    OnBadRecord,
    RecordFile,
    TrainedModel,
)
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option, required


@dataclass(frozen=True)
class TextFile(RecordFile):
    """Records of texts, each of which has its place in the arrays, a bad one too."""

    on_bad_record: OnBadRecord = option(
        'stop',
        'what to do with a malformed record; skip: no tokens for it, or NaN where pooled, and a'
        ' line in the log',
        switch=SKIP_BAD_RECORDS,
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    """What of which model is written for which texts."""

    model: TrainedModel
    input: str = required(
        'file of texts or pairs of texts, plain or compressed (gzip, bzip2, xz, zstd)'
    )
    output: str = required('F.npz, or a folder for .npy files')
    layers: tuple[int, ...] | None = option(
        None,
        '0 is the embeddings, I the I-th block, -1 the last block; default: the last four blocks,'
        ' or as many as there are',
        commas=True,
    )
    pool: Literal['none', 'cls', 'mean', 'max'] = option(
        'none', 'none: every token; else one vector a text and layer'
    )
    float16: bool = option(False, 'write float16, half the size')
    file: TextFile
    max_seq_length: int | None = option(
        None,
        'word pieces of the longest row, longer texts are cut; default: as many as the model has',
        bounds=(1, None),
    )
    compute_dtype: Literal['auto', 'float32', 'bfloat16'] = option(
        'auto',
        'arithmetic of the layers; auto: bfloat16 products on a CPU that is faster with them, else'
        ' float32',
    )


def main(options: Options) -> None:
    """Write the features of the texts that a run before has not done."""
    # What can be refused without jax comes first.
    if options.layers is not None and not options.layers:
        raise UserError('--layers=: write numbers with commas between, as in --layers=-1,-2')
    from bert_jax.inference.feature_files import extract_features

    result = extract_features(
        options.model.where,
        options.input,
        options.output,
        options.layers,
        options.pool,
        options.file,
        options.max_seq_length,
        options.compute_dtype,
        'float16' if options.float16 else 'float32',
    )
    if not result.done_before:
        print(f'{options.output}: {result.counted("texts")}')


if __name__ == '__main__':
    app.run(main, Options)
