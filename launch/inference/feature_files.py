"""Features as numpy files: a folder of .npy, or one .npz.

Owns the arrays and their layout. Nothing is padded: the tokens of all texts stand one after the
other, and `offsets` says where each text begins. While they grow the files have a header of the
right size, whose count is written at the end.
"""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_jax.model.hidden_states import Pool
from launch.inference.extractor import Part, Row
from launch.workdir.source import Source

_TOKEN_COLUMNS = ('input_ids', 'segment_ids', 'word_index', 'starts', 'ends')


class FeatureFiles:
    """The files of one run of launch.extract_features.

    Attributes:
      names: the files that grow with every part.
    """

    def __init__(self, source: Source, layers: Sequence[int], pool: Pool, dtype: str):
        """See launch.extract_features' flags for the arguments."""
        self._layers, self._tokenizer = np.array(layers, np.int32), source.tokenizer
        self._pooled = pool != 'none'
        widest = max(map(len, source.tokenizer.tokens(range(source.tokenizer.vocab_size))))
        width = (len(layers), source.model.hidden_size)
        # file -> type and shape of a record (lines, and what is pooled) or of a token
        self._columns: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            'lines': (np.dtype(np.int64), ()),
            'features': (np.dtype(dtype), width),
        }
        if not self._pooled:
            self._columns |= {
                'lengths': (np.dtype(np.int64), ()),
                'tokens': (np.dtype(f'<U{widest}'), ()),
            }
            self._columns |= dict.fromkeys(_TOKEN_COLUMNS, (np.dtype(np.int32), ()))
        self.names = [f'{name}.npy' for name in self._columns]

    def contents(self, part: Part, first: bool) -> dict[str, bytes]:
        """{file: the bytes by which it grows with a part}; the `first` part brings the headers."""
        found = {
            'lines': np.array(part.lines),
            'features': (np.stack if self._pooled else np.concatenate)(part.features),
        }
        if not self._pooled:
            found |= {
                name: np.concatenate([getattr(row, name) for row in part.rows])
                for name in Row._fields
                if name in _TOKEN_COLUMNS
            }
            found['lengths'] = np.array([len(row.input_ids) for row in part.rows])
            found['tokens'] = np.array(self._tokenizer.tokens(found['input_ids']))
        return {
            f'{name}.npy': (
                (self._header(name, 0) if first else b'')
                + np.ascontiguousarray(value, self._columns[name][0]).tobytes()
            )
            for name, value in found.items()
        }

    def _header(self, name: str, count: int) -> bytes:
        """The beginning of the .npy file of a column of `count` entries.

        Its size does not depend on the count, for which numpy leaves room.
        """
        dtype, shape = self._columns[name]
        file = io.BytesIO()
        head = {
            'descr': np.lib.format.dtype_to_descr(dtype),
            'fortran_order': False,
            'shape': (count, *shape),
        }
        np.lib.format.write_array_header_1_0(file, head)
        return file.getvalue()

    def move(self, folder: Path, output: str) -> None:
        """Completes the files that grew in `folder` and puts them at `output`, all or none."""
        arrays = folder / 'arrays'
        shutil.rmtree(arrays, ignore_errors=True)
        arrays.mkdir()
        for name, (dtype, shape) in self._columns.items():
            grown, begin = folder / f'{name}.npy', len(self._header(name, 0))
            count = (grown.stat().st_size - begin) // (
                dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            )
            with grown.open('r+b') as file:
                file.write(self._header(name, count))
            if name == 'lengths':
                np.save(
                    arrays / 'offsets.npy',
                    np.concatenate(
                        [np.zeros(1, np.int64), np.cumsum(np.load(grown, allow_pickle=False))]
                    ),
                )
            else:
                os.link(grown, arrays / grown.name)
        np.save(arrays / 'layers.npy', self._layers)
        if not output.endswith('.npz'):
            arrays.rename(output)
            return
        with zipfile.ZipFile(
            folder / 'output.npz', 'w', zipfile.ZIP_STORED, allowZip64=True
        ) as archive:
            for array in sorted(arrays.iterdir()):
                archive.write(array, array.name)
        os.replace(folder / 'output.npz', output)
