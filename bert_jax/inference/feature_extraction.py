"""Texts to hidden states, in memory and as numpy files: a folder of .npy, or one .npz.

Owns rows whose pieces know their words, their trip through the device, and the layout of the files.
The features are bert_jax/model/pooling.py's. Nothing is padded: the tokens of all texts follow each
other, and `offsets` says where each text begins. While they grow the files have a header of the
right size, whose count is written at the end.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.cli.common_flags import ALL_RECORDS, RecordFile
from bert_jax.configs.errors import UserError
from bert_jax.inference.engine import DeviceWeights, InferenceEngine
from bert_jax.inference.predict_file import FileResult, Records, write_resumably
from bert_jax.inference.predict_file import Part as FilePart
from bert_jax.input_pipeline.tasks.features import (
    make_empty_rows,
    say_cut,
    truncate_lengths,
    write_row,
)
from bert_jax.input_pipeline.text.record_files import (
    BadRecord,
    Reader,
    parse_columns,
    parse_shard,
    pass_over,
)
from bert_jax.input_pipeline.tokenizer.tokenizer import Encoding, Tokenizer
from bert_jax.model import pooling as features
from bert_jax.model.blocks.matmul import choose_inference_dtype
from bert_jax.model.pooling import Pool
from bert_jax.runs.finetuning.data_collator import Result
from bert_jax.runs.sources.source import Source, load_source
from bert_jax.runs.workdir import word_vectors
from bert_jax.train.loop import iterate_ahead

_CHUNK_TOKENS = 8192  # word pieces that go together: what bounds the memory


class Row(NamedTuple):
    """A text or pair as the model reads it: what each of its T pieces is.

    Attributes:
      input_ids, segment_ids: what the model reads.
      word_index: the index of the piece's word in its text (words are parted by white space, or
        given as a list); -1 for [CLS] and [SEP].
      starts, ends: the characters of the text that it was made from; 0 for [CLS] and [SEP].
      cut: how many word pieces more there were.
      fault: what is wrong with the record; it has no pieces then.
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    word_index: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    cut: int
    fault: str = ''


class Part(NamedTuple):
    """Records that follow each other in the input, with their features.

    Attributes:
      lines: the number of each one's line.
      rows: each as the model reads it.
      features: of each, [T, K, H] for T pieces and K layers, or pooled [K, H].
    """

    lines: list[int]
    rows: list[Row]
    features: list[np.ndarray]

    @property
    def cut(self) -> np.ndarray:
        """Count the texts that were too long, as `count_cut` of the tasks' features counts them."""
        left = np.array([row.cut for row in self.rows])
        kept = sum(int((row.word_index >= 0).sum()) for row in self.rows)
        return np.array([len(left), (left > 0).sum(), kept + left.sum(), left.sum()], np.int64)

    @property
    def bad(self) -> int:
        """Count the records that could not be read: their features are of no token, or NaN."""
        return sum(row.fault != '' for row in self.rows)


class FeatureOptions(NamedTuple):
    """Which features of a text there are.

    Attributes:
      layers: 0 is the embeddings, -1 the last block; None: the last four blocks.
      pool: 'none' for every token, or 'cls', 'mean' or 'max' for one vector a text and layer.
      max_seq_length: word pieces of the longest row; None: as many as the model has.
      compute_dtype: arithmetic of the layers: float32, bfloat16 or auto, as the processor is
        fast in.
      dtype: of the features, float32 or float16.
    """

    layers: Sequence[int] | None = None
    pool: Pool = 'none'
    max_seq_length: int | None = None
    compute_dtype: str = 'float32'
    dtype: str = 'float32'


class Extractor:
    """Runs records through the encoder of a model.

    Attributes:
      source: the model.
      layers, pool, max_seq_length, compute_dtype, dtype: as of `FeatureOptions`, none of them open.
    """

    def __init__(self, source: Source, options: FeatureOptions):
        """Put the encoder on the device."""
        layers, self.pool, length, compute_dtype, self.dtype = options
        self.source, self.compute_dtype = source, choose_inference_dtype(compute_dtype)
        self.layers = list(layers or list_last_blocks(source.model.num_layers))
        max_seq_length = length or source.model.max_position
        # [CLS], [SEP] and a piece between them.
        if not 3 <= max_seq_length <= source.model.max_position:
            raise UserError(
                f'--max_seq_length={max_seq_length}: this model reads 3 to'
                f' {source.model.max_position} word pieces'
            )
        self.max_seq_length = max_seq_length
        self._tokenizer = source.tokenizer
        self._pooled = self.pool != 'none'

        # Compiled by length of row, as they come up.
        dtypes = jnp.dtype(self.compute_dtype), jnp.dtype(self.dtype)
        self._engine = InferenceEngine(
            features.make_features(source.model, self.layers, self.pool, *dtypes),
            source.params['encoder'],
            max_seq_length,
            word_vectors.inputs(source.model, source.tokenizer),
            DeviceWeights(self.compute_dtype),
        )

    def __call__(self, records: Records, path: str, skip_bad: bool = False) -> Iterator[Part]:
        """Yield the records' features, a part at a time.

        The next part is made ready while the device works.

        Args:
          records: (line, record with 'text' and perhaps 'text_b').
          path: what messages call the input.
          skip_bad: warn of a bad record in place of raising UserError.
        """
        # One chunk ahead: the device works on it while the one before is fetched and written.
        chunks = self._chunks(records, path, skip_bad)
        started = ((lines, rows, self._start(rows)) for lines, rows in chunks)
        for part in iterate_ahead(started):
            yield self._finish(*part)

    def _chunks(
        self, records: Records, path: str, skip_bad: bool
    ) -> Iterator[tuple[list[int], list[Row]]]:
        # By tokens and not by records: texts differ in length, and tokens are what takes memory.
        lines: list[int] = []
        rows: list[Row] = []
        tokens = 0
        for line, record in records:
            # A bad record keeps its place as an empty row, so that row N is still record N.
            if isinstance(record, BadRecord):
                pass_over(f'{path}:{line}: {record.reason}', skip_bad)
                none = np.empty(0, np.int32)
                rows.append(Row(none, none, none, none, none, 0, record.reason))
            else:
                text, text_b = record['text'], record.get('text_b')
                traced = not self._pooled
                rows.append(make_row(text, text_b, self._tokenizer, self.max_seq_length, traced))
            lines.append(line)

            # An empty row counts too, else a file of faults would never be written.
            tokens += max(len(rows[-1].input_ids), 1)
            if tokens >= _CHUNK_TOKENS:
                yield lines, rows
                lines, rows, tokens = [], [], 0
        if rows:
            yield lines, rows

    def _start(self, rows: list[Row]) -> Iterable[Result]:
        # To the longest length; the engine cuts each row to the shortest that holds it.
        batch = make_empty_rows(len(rows), self.max_seq_length, self._tokenizer.pad_id)
        for number, row in enumerate(rows):
            length = len(row.input_ids)
            batch['input_ids'][number, :length] = row.input_ids
            batch['segment_ids'][number, :length] = row.segment_ids
            batch['input_mask'][number, :length] = 1
        return self._engine(batch)

    def _finish(self, lines: list[int], rows: list[Row], results: Iterable[Result]) -> Part:
        # Batches come by length; each value is put back at its row's place.
        by_row: list[np.ndarray] = [np.empty(0)] * len(rows)
        for numbers, outputs in results:
            values = jax.device_get(outputs['features'])
            # what fills the batch up comes after
            for number, value in zip(numbers, values, strict=False):
                # Only the tokens that are there; of a bad record, where pooled, NaN says so.
                if not self._pooled:
                    value = value[: len(rows[number].input_ids)]
                elif rows[number].fault:
                    value = np.full_like(value, np.nan)
                by_row[number] = value
        return Part(lines, rows, by_row)


def make_row(
    text: str | list[str],
    text_b: str | list[str] | None,
    tokenizer: Tokenizer,
    max_seq_length: int,
    traced: bool = True,
) -> Row:
    """Make the row [CLS] text [SEP], or [CLS] text [SEP] text_b [SEP].

    It is cut from the end of the longer text, and has as many [SEP] between as the tokenizer's
    layout has. A text may be a list of words. What is not `traced` has zeros for the words and
    characters of its pieces.
    """
    # Cut as in fine-tuning, so that features are those of the rows a model was trained on.
    sides, special = [_encode_side(text, tokenizer, traced)], 2
    if text_b is not None:
        sides.append(_encode_side(text_b, tokenizer, traced))
        special += tokenizer.layout.separators
    lengths = [len(encoding.ids) for encoding, _ in sides]
    kept = truncate_lengths(lengths[0], sum(lengths[1:]), max_seq_length - special)

    # [CLS] and [SEP] are of no word and no characters.
    inputs = make_empty_rows(1, special + sum(kept), tokenizer.pad_id)
    ids = (encoding.ids[:count] for (encoding, _), count in zip(sides, kept))
    begin = write_row(inputs, 0, tokenizer, *ids)
    starts, ends = np.zeros((2, special + sum(kept)), np.int32)
    row = Row(
        inputs['input_ids'][0],
        inputs['segment_ids'][0],
        np.full_like(inputs['input_ids'][0], -1),
        starts,
        ends,
        sum(lengths) - sum(kept),
    )
    for first, (encoding, words), count in zip((1, begin), sides, kept):
        at = slice(first, first + count)
        row.word_index[at], row.starts[at] = words[:count], encoding.starts[:count]
        row.ends[at] = encoding.ends[:count]
    return row


def _encode_side(
    text: str | list[str], tokenizer: Tokenizer, traced: bool
) -> tuple[Encoding, np.ndarray]:
    """Return a text's pieces, and int [T] the index of each one's word in it."""
    if not isinstance(text, str):  # words as a tagger reads them
        tokenizer = tokenizer.for_words
    if not traced:  # the tokenizer's memo of words makes this much faster
        (ids,) = tokenizer.encode_batch([text if isinstance(text, str) else ' '.join(text)])
        nowhere = np.zeros(len(ids), np.int32)
        return Encoding(ids, nowhere, nowhere, nowhere > 0), nowhere

    # Where each word begins, as a character of the text; a list is joined by single spaces.
    if isinstance(text, str):
        begins = np.array([match.start() for match in re.finditer(r'\S+', text)], np.int64)
    else:
        begins = np.cumsum([0, *(len(word) + 1 for word in text)])[:-1]
        text = ' '.join(text)

    # A piece belongs to the last word that begins at or before it.
    encoding = tokenizer.encode_with_offsets(text)
    return encoding, np.searchsorted(begins, encoding.starts, side='right') - 1


def list_last_blocks(count: int) -> range:
    """Return the last four of `count` blocks, or as many as there are, the last one first."""
    return range(-1, -min(4, count) - 1, -1)


_TOKEN_COLUMNS = ('input_ids', 'segment_ids', 'word_index', 'starts', 'ends')


def extract_features(
    init_from: str,
    input: str,
    output: str,
    options: FeatureOptions,
    file: RecordFile = ALL_RECORDS,
) -> FileResult:
    """Write the hidden states of every text of a file; go on where a killed call stopped.

    Args:
      init_from: the model, any source that `load_source` takes.
      input: the file of texts, or pairs of texts.
      output: F.npz, or a folder for .npy files.
      options: which features.
      file: how the records are read, and which of them. A bad record that is skipped has no
        tokens, or NaN where pooled.
    """
    # The input before the model: a mistyped column should not wait for weights.
    shard, columns = parse_shard(file.shard), parse_columns(file.columns)
    reader = Reader(input, ('text',), ('text_b',), columns, file.format, file.header, file.skips)
    _ = reader.size

    # A pooler that the source lacks is made fresh; no layer that is written reads it.
    extractor = Extractor(load_source(init_from), options)
    files = FeatureFiles(extractor, input, file.skips)
    result = write_resumably(files, output, reader, shard)
    say_cut(input, files.cut, f'max_seq_length={extractor.max_seq_length} allows')
    return result


class FeatureFiles:
    """The files of one output.

    Attributes:
      source: the model.
      settings: what decides the files besides the model and the input.
      names: the files that grow with every part.
      facts: what else OUTPUT.json says.
      cut: how many texts were too long, as `Part.cut`.
    """

    what = 'extract'

    def __init__(self, extractor: Extractor, input: str, skips: bool):
        """Lay out the files; skips: whether a bad record of `input` keeps an empty place."""
        self.source = source = extractor.source
        self._extractor, self._input, self._skips = extractor, input, skips
        layers, pool, dtype = extractor.layers, extractor.pool, extractor.dtype
        arithmetic = extractor.compute_dtype
        self.settings = [layers, pool, dtype, extractor.max_seq_length, arithmetic]
        self.facts = {'layers': layers, 'pool': pool}
        self.cut = np.zeros(4, np.int64)

        # Strings in numpy have one width: that of the longest piece there is.
        self._tokenizer, self._pooled = source.tokenizer, pool != 'none'
        widest = max(
            len(entry) for entry in self._tokenizer.tokens(range(self._tokenizer.vocab_size))
        )
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

    def make_parts(self, records: Records, done: int) -> Iterator[FilePart]:
        """Yield what the files grow by, part by part: memory holds one."""
        for part in self._extractor(records, self._input, self._skips):
            self.cut += part.cut
            yield len(part.lines), self.contents(part, first=done == 0), part.bad
            done += len(part.lines)

    def contents(self, part: Part, first: bool) -> dict[str, bytes]:
        """Return {file: the bytes by which it grows with a part}; the `first` has the headers."""
        # Pooled vectors are stacked, one a text; token vectors follow each other over all texts.
        arrays = {'lines': np.array(part.lines)}
        if self._pooled:
            arrays['features'] = np.stack(part.features)
        else:
            arrays['features'] = np.concatenate(part.features)
            for name in _TOKEN_COLUMNS:
                arrays[name] = np.concatenate([getattr(row, name) for row in part.rows])
            arrays['lengths'] = np.array([len(row.input_ids) for row in part.rows])
            arrays['tokens'] = np.array(self._tokenizer.tokens(arrays['input_ids']))

        # Only the first part begins with a header; its count is put right at the end.
        contents = {}
        for name, value in arrays.items():
            content = np.ascontiguousarray(value, self._columns[name][0]).tobytes()
            contents[f'{name}.npy'] = self._make_header(name, 0) + content if first else content
        return contents

    def _make_header(self, name: str, count: int) -> bytes:
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
            grown, begin = folder / f'{name}.npy', len(self._make_header(name, 0))
            entry_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            count = (grown.stat().st_size - begin) // entry_bytes

            # The header at the front, over the one whose count was 0: both have the same size.
            with grown.open('r+b') as file:
                file.write(self._make_header(name, count))

            # Lengths grow record by record; readers want their sums, where each text begins.
            if name == 'lengths':
                ends = np.cumsum(np.load(grown, allow_pickle=False))
                np.save(arrays / 'offsets.npy', np.concatenate([np.zeros(1, np.int64), ends]))
            else:
                # A link and no copy: the files are large, and stay until all is in place.
                os.link(grown, arrays / grown.name)
        np.save(arrays / 'layers.npy', np.array(self._extractor.layers, np.int32))

        # A folder: one rename, all or nothing.
        if not output.endswith('.npz'):
            arrays.rename(output)
            return

        # A .npz is a zip of .npy files, stored and not compressed: floats hardly shrink.
        with zipfile.ZipFile(folder / 'output.npz', 'w') as archive:
            for array in sorted(arrays.iterdir()):
                archive.write(array, array.name)
        os.replace(folder / 'output.npz', output)
