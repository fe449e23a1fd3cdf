"""Writes a model's hidden states for every text of a file, as numpy arrays (paper section 5.3: the
feature-based approach).

  python -m launch.extract_features --init_from=DIR --input=texts.txt --output=features.npz \\
      --layers=-1,-2,-3,-4
  python -m launch.extract_features --workdir=DIR --input=pairs.tsv --output=vectors \\
      --pool=mean --float16

An --output that ends in .npz is one file; any other is a folder of .npy files, which np.load(...,
mmap_mode='r') opens without reading them. Their arrays are in docs/serving.md. Memory does not grow
with the input, and the same command again goes on where a killed one stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags, logging

from configs.errors import UserError
from launch import app

_WORKDIR = flags.DEFINE_string(
    'workdir',
    None,
    'folder of a run of launch.pretrain or launch.finetune; its newest checkpoint is taken',
)
_INIT_FROM = flags.DEFINE_string(
    'init_from', None, 'in place of --workdir: any other source that launch.finetune takes'
)
_INPUT = flags.DEFINE_string(
    'input',
    None,
    'file of texts or pairs of texts, plain or compressed (gzip, bzip2, xz, zstd)',
    required=True,
    allow_overwrite=False,
)
_OUTPUT = flags.DEFINE_string('output', None, 'F.npz, or a folder for .npy files', required=True)
_LAYERS = flags.DEFINE_list(
    'layers', ['-1', '-2', '-3', '-4'], '0 is the embeddings, I the I-th block, -1 the last block'
)
_POOL = flags.DEFINE_enum(
    'pool',
    'none',
    ['none', 'cls', 'mean', 'max'],
    'none: every token; else one vector a text and layer',
)
_FLOAT16 = flags.DEFINE_bool('float16', False, 'write float16, half the size')
_FORMAT = flags.DEFINE_enum(
    'format',
    '',
    ['', 'text', 'tsv', 'csv', 'jsonl'],
    'of the input; default: by its name. text is a text a line',
)
_COLUMNS = flags.DEFINE_string(
    'columns',
    '',
    'where the columns are called otherwise: "text=sentence,text_b=question", or places from 0',
)
_HEADER = flags.DEFINE_bool(
    'header', True, 'whether the first line of TSV or CSV names the columns'
)
_SKIP_BAD = flags.DEFINE_bool(
    'skip_bad_records',
    False,
    'in place of stopping at a malformed record: no tokens for it, or NaN where pooled, and a line'
    ' in the log',
)
_SHARD = flags.DEFINE_string('shard', '0/1', 'I/N: take every N-th record from the I-th on')
_LENGTH = flags.DEFINE_integer(
    'max_seq_length',
    None,
    'word pieces of the longest row, longer texts are cut; default: as many as the model has',
)
_DTYPE = flags.DEFINE_enum(
    'compute_dtype', 'float32', ['float32', 'bfloat16'], 'arithmetic of the layers'
)


def main(argv: Sequence[str]) -> None:
    """Writes the features of the texts that a run before has not done."""
    del argv
    if (_WORKDIR.value is None) == (_INIT_FROM.value is None):
        raise UserError('name either --workdir or --init_from')
    try:
        layers = [int(layer) for layer in _LAYERS.value]
    except ValueError:
        layers = []
    if not layers:
        raise UserError(
            f'--layers={",".join(_LAYERS.value)}: write numbers with commas between, as in'
            ' --layers=-1,-2'
        )

    from input_pipeline.progress import Progress
    from input_pipeline.text.record_files import Reader, parse_columns, parse_shard
    from launch.inference.extractor import Extractor
    from launch.inference.feature_files import FeatureFiles
    from launch.workdir.resumable import growing, was_finished
    from launch.workdir.source import load_source

    shard = parse_shard(_SHARD.value)
    reader = Reader(
        _INPUT.value,
        ('text',),
        ('text_b',),
        parse_columns(_COLUMNS.value),
        _FORMAT.value,
        _HEADER.value,
    )
    size = reader.size
    source = load_source(_WORKDIR.value or app.given(_INIT_FROM))
    pool = app.choice(_POOL)
    dtype = 'float16' if _FLOAT16.value else 'float32'
    extractor = Extractor(
        source, layers, pool, _LENGTH.value or source.model.max_position, _DTYPE.value, dtype
    )
    identity = {
        'input': reader.identity(),
        'model': source.fingerprint(),
        'shard': list(shard),
        'settings': [layers, pool, dtype, extractor.max_seq_length, _DTYPE.value],
    }
    if was_finished(_OUTPUT.value, identity):
        logging.info('%s is done already', _OUTPUT.value)
        return
    files = FeatureFiles(source, layers, pool, dtype)
    progress, cut = Progress('extract', size, 'kB of input', 1e3), 0
    with growing(_OUTPUT.value, identity, files.names) as output:
        records = reader.part(shard, output.records)
        for part in extractor(records, _INPUT.value, _SKIP_BAD.value):
            content = files.contents(part, first=output.records == 0)
            output.append(len(part.lines), content, part.bad)
            cut += part.cut
            progress.update(reader.position)
        about = {'source': source.where, 'step': source.step, 'layers': layers, 'pool': pool}
        output.finish(about, lambda: files.move(output.folder, _OUTPUT.value))
    progress.done()
    if cut:
        logging.warning(
            '%d texts were longer than %d word pieces and are cut', cut, extractor.max_seq_length
        )
    print(f'{_OUTPUT.value}: {output.records} texts{output.of_them_bad()}')


if __name__ == '__main__':
    app.run(main)
