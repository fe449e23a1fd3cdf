"""Writes a model's hidden states for every text of a file, as numpy arrays (paper section 5.3: the
feature-based approach).

  bert-extract-features --init_from=DIR --input=texts.txt --output=features.npz \\
      --layers=-1,-2,-3,-4
  bert-extract-features --workdir=DIR --input=pairs.tsv --output=vectors \\
      --pool=mean --float16

An --output that ends in .npz is one file; any other is a folder of .npy files, which np.load(...,
mmap_mode='r') opens without reading them. Their arrays are in docs/serving.md. Memory does not grow
with the input, and the same command again goes on where a killed one stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from absl import logging

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option, required
from bert_jax.inference.options import RecordFile, TrainedModel


@dataclass(frozen=True)
class TextFile(RecordFile):
    """Records of texts, each of which has its place in the arrays, a bad one too."""

    skip_bad_records: bool = option(
        False,
        'in place of stopping at a malformed record: no tokens for it, or NaN where pooled, and a'
        ' line in the log',
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
    compute_dtype: Literal['float32', 'bfloat16'] = option('float32', 'arithmetic of the layers')


flags.define(Options)


def main(argv: Sequence[str]) -> None:
    """Writes the features of the texts that a run before has not done."""
    del argv
    options = flags.read(Options)

    # What can be refused without jax comes first.
    pool = options.pool
    if options.layers is not None and not options.layers:
        raise UserError('--layers=: write numbers with commas between, as in --layers=-1,-2')

    import numpy as np

    from bert_jax.inference.extractor import Extractor, last_blocks
    from bert_jax.inference.feature_files import FeatureFiles
    from bert_jax.input_pipeline.progress import Progress
    from bert_jax.input_pipeline.tasks.features import say_cut
    from bert_jax.input_pipeline.text.record_files import Reader, parse_columns, parse_shard
    from bert_jax.runs.sources.source import load_source
    from bert_jax.runs.workdir.resumable import growing, was_finished

    # The input before the model: a mistyped column should not wait for weights.
    shard = parse_shard(options.file.shard)
    reader = Reader(
        options.input,
        ('text',),
        ('text_b',),
        parse_columns(options.file.columns),
        options.file.format,
        options.file.header,
    )

    # A pooler that the source lacks is made fresh; no layer that is written reads it.
    size = reader.size
    source = load_source(options.model.where)
    layers = list(options.layers or last_blocks(source.model.num_layers))
    dtype = 'float16' if options.float16 else 'float32'
    extractor = Extractor(
        source,
        layers,
        pool,
        options.max_seq_length or source.model.max_position,
        options.compute_dtype,
        dtype,
    )

    # All that decides the output. The same again is done already; another is refused.
    identity = {
        'input': reader.identity(),
        'model': source.fingerprint(),
        'shard': list(shard),
        'settings': [layers, pool, dtype, extractor.max_seq_length, options.compute_dtype],
    }
    if was_finished(options.output, identity):
        logging.info('%s is done already', options.output)
        return

    # Part by part: memory holds one part, and a killed run goes on after the last one noted.
    files = FeatureFiles(source, layers, pool, dtype)
    cut = np.zeros(4, np.int64)
    with (
        Progress('extract', size, 'kB of input', 1e3) as progress,
        growing(options.output, identity, files.names) as output,
    ):
        # Records that are in the files already are passed over.
        records = reader.part(shard, output.records)
        for part in extractor(records, options.input, options.file.skip_bad_records):
            content = files.contents(part, first=output.records == 0)
            output.append(len(part.lines), content, part.bad)
            cut += part.cut
            progress.update(reader.position)

        # Described first, then moved to its name: an output that is there is whole.
        about = {'source': source.where, 'step': source.step, 'layers': layers, 'pool': pool}
        output.finish(about, lambda: files.move(output.folder, options.output))
    say_cut(options.input, cut, f'max_seq_length={extractor.max_seq_length} allows')
    print(f'{options.output}: {output.records} texts{output.of_them_bad()}')


if __name__ == '__main__':
    app.run(main)
