"""Texts to hidden states: rows whose pieces know their words, and their trip through the device.

Owns that trip. The features are bert_jax/features.py's; the files that hold them are feature_files.py's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import features
from configs.errors import UserError
from input_pipeline.tasks.rows import truncated_lengths
from input_pipeline.text_records import BadRecord
from input_pipeline.tokenizer import Encoding, Tokenizer
from launch.buckets import Batches, Buckets
from launch.source import Source

_CHUNK_TOKENS = 8192  # word pieces that go together: what bounds the memory


class Row(NamedTuple):
    """A text or pair as the model reads it: what each of its T pieces is.

    word_index: the place of the piece's word in its text (words are parted by white space, or given as a list); -1 for [CLS] and [SEP].
    starts, ends: the characters of the text that it was made from; 0 for [CLS] and [SEP].
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    word_index: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    cut: bool


class Part(NamedTuple):
    """Some records in a row: their line numbers, rows, and features [T, K, H] of each (pooled: [K, H]); how many were cut."""

    lines: list[int]
    rows: list[Row]
    features: list[np.ndarray]

    @property
    def cut(self) -> int:
        """How many texts were too long."""
        return sum(row.cut for row in self.rows)


class Extractor:
    """Runs records through the encoder of a model. Attributes: max_seq_length."""

    def __init__(self, source: Source, layers: Sequence[int], pool: features.Pool, max_seq_length: int, compute_dtype: str, dtype: str):
        """See launch.extract_features' flags for the arguments."""
        if not 3 <= max_seq_length <= source.model.max_position:
            raise UserError(f'--max_seq_length={max_seq_length}: this model reads 3 to {source.model.max_position} word pieces')
        self.max_seq_length, self._tokenizer, self._pooled = max_seq_length, source.tokenizer, pool != 'none'
        function = features.make_features(source.model, layers, pool, jnp.dtype(compute_dtype), jnp.dtype(dtype))
        self._buckets = Buckets(function, source.params['encoder'], max_seq_length)

    def __call__(self, records: Iterator[tuple[int, dict[str, Any] | BadRecord]], where: str) -> Iterator[Part]:
        """The records' features, a part at a time; the next one is made ready while the device works. UserError for a bad record."""
        before: tuple[list[int], list[Row], Batches] | None = None
        for lines, rows in self._chunks(records, where):
            started = lines, rows, self._start(rows)
            if before:
                yield self._finish(*before)
            before = started
        if before:
            yield self._finish(*before)

    def _chunks(self, records: Iterator[tuple[int, dict[str, Any] | BadRecord]], where: str) -> Iterator[tuple[list[int], list[Row]]]:
        lines: list[int] = []
        rows: list[Row] = []
        tokens = 0
        for line, record in records:
            if isinstance(record, BadRecord):
                raise UserError(f'{where}:{line}: {record.reason}')
            rows.append(row_of(record['text'], record.get('text_b'), self._tokenizer, self.max_seq_length))
            lines.append(line)
            tokens += len(rows[-1].input_ids)
            if tokens >= _CHUNK_TOKENS:
                yield lines, rows
                lines, rows, tokens = [], [], 0
        if rows:
            yield lines, rows

    def _start(self, rows: list[Row]) -> Batches:
        batch = {name: np.zeros((len(rows), self.max_seq_length), np.int32) for name in ('input_ids', 'input_mask', 'segment_ids')}
        batch['input_ids'].fill(self._tokenizer.pad_id)
        for number, row in enumerate(rows):
            length = len(row.input_ids)
            batch['input_ids'][number, :length] = row.input_ids
            batch['segment_ids'][number, :length] = row.segment_ids
            batch['input_mask'][number, :length] = 1
        return self._buckets(batch)

    def _finish(self, lines: list[int], rows: list[Row], batches: Batches) -> Part:
        found: list[np.ndarray] = [np.empty(0)] * len(rows)
        for places, outputs in batches:
            values = jax.device_get(outputs['features'])
            for place, value in zip(places, values, strict=False):  # what fills the batch up comes after
                found[place] = value if self._pooled else value[: len(rows[place].input_ids)]
        return Part(lines, rows, found)


def row_of(text: str | list[str], text_b: str | list[str] | None, tokenizer: Tokenizer, max_seq_length: int) -> Row:
    """[CLS] text [SEP], or [CLS] text [SEP] text_b [SEP], cut from the end of the longer; a text may be a list of words."""
    sides = [_pieces(side, tokenizer) for side in (text, text_b) if side is not None]
    lengths = [len(encoding.ids) for encoding, _ in sides]
    kept = truncated_lengths(lengths[0], lengths[1] if len(sides) > 1 else 0, max_seq_length - 1 - len(sides))
    columns: list[list[np.ndarray]] = [[] for _ in range(5)]

    def add(*values: np.ndarray) -> None:
        for column, value in zip(columns, values, strict=True):
            column.append(np.atleast_1d(np.asarray(value, np.int32)))

    add(tokenizer.cls_id, 0, -1, 0, 0)
    for segment, ((encoding, words), length) in enumerate(zip(sides, kept, strict=False)):
        add(encoding.ids[:length], np.full(length, segment), words[:length], encoding.starts[:length], encoding.ends[:length])
        add(tokenizer.sep_id, segment, -1, 0, 0)
    return Row(*(np.concatenate(column) for column in columns), cut=sum(kept) < sum(lengths))


def _pieces(text: str | list[str], tokenizer: Tokenizer) -> tuple[Encoding, np.ndarray]:
    """A text's pieces, and the place of each one's word."""
    if isinstance(text, str):
        begins = np.array([match.start() for match in re.finditer(r'\S+', text)], np.int64)
    else:
        begins = np.cumsum([0, *(len(word) + 1 for word in text)])[:-1]
        text = ' '.join(text)
    encoding = tokenizer.encode_with_offsets(text)
    return encoding, np.searchsorted(begins, encoding.starts, side='right') - 1
