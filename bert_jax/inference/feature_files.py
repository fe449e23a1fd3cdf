"""Features as numpy files: a folder of .npy, or one .npz.

Owns the arrays and their layout. Nothing is padded: the tokens of all texts follow each other, and
`offsets` says where each text begins. While they grow the files have a header of the right size,
whose count is written at the end.
"""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bert_jax.cli.model_options import ALL_RECORDS, RecordFile
from bert_jax.inference.extractor import Extractor, Part, Records, last_blocks
from bert_jax.inference.predict_file import FileResult, write_resumably
from bert_jax.input_pipeline.tasks.features import say_cut
from bert_jax.input_pipeline.text.record_files import Reader, parse_columns, parse_shard
from bert_jax.model.blocks.matmul import inference_dtype
from bert_jax.model.pooling import Pool
from bert_jax.runs.sources.source import Source, load_source

_TOKEN_COLUMNS = ('input_ids', 'segment_ids', 'word_index', 'starts', 'ends')


def extract_features(
    init_from: str,
    input: str,
    output: str,
    layers: Sequence[int] | None = None,
    pool: Pool = 'none',
    file: RecordFile = ALL_RECORDS,
    max_seq_length: int | None = None,
    compute_dtype: str = 'auto',
    dtype: str = 'float32',
) -> FileResult:
    """Write the hidden states of every text of a file; go on where a killed call stopped.

    Args:
      init_from: the model, any source that `load_source` takes.
      input: the file of texts, or pairs of texts.
      output: F.npz, or a folder for .npy files.
      layers: 0 is the embeddings, -1 the last block; None: the last four blocks.
      pool: 'none' for every token, or 'cls', 'mean' or 'max' for one vector a text and layer.
      file: how the records are read, and which of them. A bad record that is skipped has no
        tokens, or NaN where pooled.
      max_seq_length: word pieces of the longest row; None: as many as the model has.
      compute_dtype: arithmetic of the layers: float32, bfloat16 or auto, as the processor is
        fast in.
      dtype: of the states in the files, float32 or float16.
    """
    # The input before the model: a mistyped column should not wait for weights.
    shard, columns = parse_shard(file.shard), parse_columns(file.columns)
    reader = Reader(input, ('text',), ('text_b',), columns, file.format, file.header, file.skips)
    _ = reader.size

    # A pooler that the source lacks is made fresh; no layer that is written reads it.
    source = load_source(init_from)
    layers = list(layers or last_blocks(source.model.num_layers))
    length = max_seq_length or source.model.max_position
    compute_dtype = inference_dtype(compute_dtype)
    extractor = Extractor(source, layers, pool, length, compute_dtype, dtype)
    files, cut = FeatureFiles(source, layers, pool, dtype), np.zeros(4, np.int64)

    def parts(records: Records, done: int) -> Iterator[tuple[int, dict[str, bytes], int]]:
        # Part by part: memory holds one part.
        for part in extractor(records, input, file.skips):
            np.add(cut, part.cut, out=cut)
            yield len(part.lines), files.contents(part, first=done == 0), part.bad
            done += len(part.lines)

    result = write_resumably(
        'extract',
        output,
        reader,
        shard,
        source,
        [layers, pool, dtype, length, compute_dtype],
        files.names,
        parts,
        {'layers': layers, 'pool': pool},
        lambda folder: files.move(folder, output),
    )
    say_cut(input, cut, f'max_seq_length={length} allows')
    return result


class FeatureFiles:
    """The files of one output.

    Attributes:
      names: the files that grow with every part.
    """

    def __init__(self, source: Source, layers: Sequence[int], pool: Pool, dtype: str):
        """Lay out the files; the arguments are those of `extract_features`."""
        # Strings in numpy have one width: that of the longest piece there is.
        self._layers, self._tokenizer = np.array(layers, np.int32), source.tokenizer
        self._pooled = pool != 'none'
        widest = max(map(len, source.tokenizer.tokens(range(source.tokenizer.vocab_size))))
        width = (len(layers), source.model.hidden_size)
        # file -> type and shape of a record (lines, and what is pooled) or of a token
        self._columns: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            'lines': (np.dtype(np.int64), ()),
            'features': (np.dtype(dtype), width),
        }

        # Where pooled, a text has one vector, and nothing is said of its tokens.
        if not self._pooled:
            types = {'lengths': 'i8', 'tokens': f'<U{widest}'} | dict.fromkeys(_TOKEN_COLUMNS, 'i4')
            self._columns |= {name: (np.dtype(code), ()) for name, code in types.items()}
        self.names = [f'{name}.npy' for name in self._columns]

    def contents(self, part: Part, first: bool) -> dict[str, bytes]:
        """Return {file: the bytes by which it grows with a part}; the `first` has the headers."""
        # Pooled vectors are stacked, one a text; token vectors follow each other over all texts.
        arrays = {
            'lines': np.array(part.lines),
            'features': (np.stack if self._pooled else np.concatenate)(part.features),
        }
        if not self._pooled:
            arrays |= {
                name: np.concatenate([getattr(row, name) for row in part.rows])
                for name in _TOKEN_COLUMNS
            }
            arrays['lengths'] = np.array([len(row.input_ids) for row in part.rows])
            arrays['tokens'] = np.array(self._tokenizer.tokens(arrays['input_ids']))

        # Only the first part begins with a header; its count is put right at the end.
        return {
            f'{name}.npy': (
                (self._header(name, 0) if first else b'')
                + np.ascontiguousarray(value, self._columns[name][0]).tobytes()
            )
            for name, value in arrays.items()
        }

    def _header(self, name: str, count: int) -> bytes:
        """Return the beginning of the .npy file of a column of `count` entries.

        Its size does not depend on the count, for which numpy leaves room.
        """
        # Written by numpy itself, so that np.load reads it; version 1.0 leaves room for the count.
        dtype, shape = self._columns[name]
        file = io.BytesIO()
        head = {'descr': np.lib.format.dtype_to_descr(dtype), 'fortran_order': False}
        np.lib.format.write_array_header_1_0(file, head | {'shape': (count, *shape)})
        return file.getvalue()

    def move(self, folder: Path, output: str) -> None:
        """Complete the files that grew in `folder` and put them at `output`, all or none."""
        # Made again each time: an earlier process may have been killed in the middle of this.
        arrays = folder / 'arrays'
        shutil.rmtree(arrays, ignore_errors=True)
        arrays.mkdir()

        # The count follows from the file's size, so nothing has to be remembered while it grows.
        for name, (dtype, shape) in self._columns.items():
            grown, begin = folder / f'{name}.npy', len(self._header(name, 0))
            entry_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            count = (grown.stat().st_size - begin) // entry_bytes

            # The header at the front, over the one whose count was 0: both have the same size.
            with grown.open('r+b') as file:
                file.write(self._header(name, count))

            # Lengths grow record by record; readers want their sums, where each text begins.
            if name == 'lengths':
                ends = np.cumsum(np.load(grown, allow_pickle=False))
                np.save(arrays / 'offsets.npy', np.concatenate([np.zeros(1, np.int64), ends]))
            else:
                # A link and no copy: the files are large, and stay until all is in place.
                os.link(grown, arrays / grown.name)
        np.save(arrays / 'layers.npy', self._layers)

        # A folder: one rename, all or nothing.
        if not output.endswith('.npz'):
            arrays.rename(output)
            return

        # A .npz is a zip of .npy files, stored and not compressed: floats hardly shrink.
        with zipfile.ZipFile(folder / 'output.npz', 'w') as archive:
            for array in sorted(arrays.iterdir()):
                archive.write(array, array.name)
        os.replace(folder / 'output.npz', output)
