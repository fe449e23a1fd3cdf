"""Records of google-research/bert, read whole and checked, so that a manifest can vouch for them.

Its create_pretraining_data.py writes the features of our static masking (fields.py) and nothing
that says what they are. This file owns what such records have to hold, by which they are told from
those of another vocabulary; it must not know where the files come from, nor what becomes of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.configs.errors import UserError, reading
from bert_jax.input_pipeline.records import example_proto, fields
from bert_jax.input_pipeline.records.fields import RecordSpec
from bert_jax.input_pipeline.records.shards import BLOCK, ShardInfo, described
from bert_jax.input_pipeline.records.tfrecord import CorruptRecord, read_records


@dataclass(frozen=True)
class Vocabulary:
    """The size of a vocabulary, and the ids of its special tokens."""

    size: int
    cls: int
    sep: int
    mask: int


@dataclass
class Reader:
    """Reads files of records that all have to be of one shape, which the first record settles.

    Attributes:
      vocabulary: of the tokenizer that they are said to be made with.
      pairs: whether every record has to have a second segment.
      spec: their shape, None before the first record.
      counts: of each split, the sums of `fields.count` over its records so far.
      shows_mask: how many predicted positions show [MASK].
      first: the ids of the first record, without padding.
      size: bytes of all files so far.
    """

    vocabulary: Vocabulary
    pairs: bool
    spec: RecordSpec | None = None
    counts: dict[str, dict[str, Any]] = field(default_factory=dict)
    shows_mask: int = 0
    first: list[int] = field(default_factory=list)
    size: int = 0

    def read(self, path: Path, split: str, progress: Callable[[int], None]) -> ShardInfo:
        """Read a file of this split, and return what a manifest says of it.

        Args:
          path: the file.
          split: its split.
          progress: called with `size`, block by block.

        Raises:
          UserError: for the first record that is damaged, or is not what it should be.
        """
        with reading(path), path.open('rb') as file:

            def blocks() -> Iterator[list[bytes]]:
                frames = read_records(file)
                for number in itertools.count():
                    if not (block := list(itertools.islice(frames, BLOCK))):
                        return
                    self._take(path, split, number * BLOCK, block)
                    yield [payload for _, payload in block]

            def taken(text: bytes) -> None:
                self.size += len(text)
                progress(self.size)

            try:
                shard = described(path.name, split, blocks(), taken)
            except CorruptRecord as error:
                hint = (
                    'no TFRecord file, or a compressed one' if error.byte == 0 else 'copy it again'
                )
                raise UserError(f'{path}: {error} ({hint})') from None
        if not shard.records:
            raise UserError(f'{path}: no records in it: leave it out')
        return shard

    def _take(
        self, path: Path, split: str, before: int, block: Sequence[tuple[int, bytes]]
    ) -> None:
        """Check and count the records of a block, which follow `before` others."""

        def refuse(row: int, reason: str) -> UserError:
            return UserError(f'{path}: record {before + row} at byte {block[row][0]}: {reason}')

        # The very first record says what all have to be.
        payloads = [payload for _, payload in block]
        if self.spec is None:
            try:
                self.spec = _spec_of(payloads[0])
            except ValueError as error:
                raise refuse(0, str(error)) from None
        try:
            columns = fields.decode_numpy(self.spec, payloads)
        except fields.BadRecord as error:
            each = ' in the first record: adopt each length into a folder of its own'
            mixed = each if ' values, not ' in error.reason else ''
            raise refuse(error.row, f'{error.reason}{mixed}') from None

        # First what no model could look up; how a record is laid out means something only then.
        if wrong := fields.check(self.spec, columns, self.vocabulary.size) or wrong_layout(
            columns, self.vocabulary, self.pairs
        ):
            raise refuse(*wrong[0])

        if not self.first:
            self.first = columns['input_ids'][0][columns['input_mask'][0] > 0].tolist()
        shown = np.take_along_axis(columns['input_ids'], columns['masked_lm_positions'], axis=1)
        predicted = columns['masked_lm_weights'] > 0
        self.shows_mask += int(np.count_nonzero(predicted & (shown == self.vocabulary.mask)))
        fields.add_counts(self.counts.setdefault(split, {}), fields.count(self.spec, columns))


def _spec_of(payload: bytes) -> RecordSpec:
    """Return the shape of a record; ValueError for one that lacks its features."""
    lengths = example_proto.lengths(payload)
    if 'input_word_ids' in lengths:
        raise ValueError(
            'has input_word_ids, as --use_v2_feature_names writes them: make them without it'
        )
    for name in ('input_ids', 'masked_lm_positions'):
        if not lengths.get(name):
            has = ', '.join(sorted(lengths)) or 'nothing'
            raise ValueError(
                f'no {name} in it (it has {has}): not made by create_pretraining_data.py'
            )
    return RecordSpec(lengths['input_ids'], lengths['masked_lm_positions'], 'static')


def wrong_layout(
    columns: dict[str, np.ndarray], vocabulary: Vocabulary, pairs: bool
) -> list[tuple[int, str]]:
    """Find rows that create_pretraining_data.py lays out otherwise: (row, its first reason)."""
    ids, segments = columns['input_ids'], columns['segment_ids']
    used, predicted = columns['input_mask'] > 0, columns['masked_lm_weights'] > 0
    reasons: dict[int, str] = {}

    def report(wrong: np.ndarray | np.bool, reason: Callable[[int], str]) -> None:
        for row in np.flatnonzero(wrong).tolist():
            reasons.setdefault(row, reason(row))

    # The special tokens, which are never masked, though a masked position may show any id: with
    # another vocabulary these ids mean other words.
    rows, last = np.arange(len(ids)), used.sum(axis=1) - 1
    other = 'made with another vocabulary than --tokenizer?'
    ends = ids[rows, last]
    report(
        ids[:, 0] != vocabulary.cls,
        lambda row: f'begins with id {ids[row, 0]} and not with [CLS], {vocabulary.cls}: {other}',
    )
    report(
        ends != vocabulary.sep,
        lambda row: f'ends with id {ends[row]} and not with [SEP], {vocabulary.sep}: {other}',
    )

    # Segments: 0 up to a [SEP], and 1 behind it up to the padding.
    second = (segments == 1) & used
    begin = np.where(second.any(axis=1), second.argmax(axis=1), last + 1)
    in_order = second == (used & (np.arange(ids.shape[1]) >= begin[:, None]))
    border = ids[rows, begin - 1] == vocabulary.sep
    report(
        ~in_order.all(axis=1) | ~border | (begin == 0),
        lambda row: 'segment_ids are not 0 up to a [SEP] and 1 behind it',
    )
    if pairs:
        report(
            begin > last, lambda row: 'no second segment: --objective=full_sentences has no pairs'
        )
    report((~used & ((ids != 0) | (segments != 0))).any(axis=1), lambda row: 'the padding is not 0')

    # Predictions: the used slots first, at ascending positions, of words alone.
    positions = np.where(predicted, columns['masked_lm_positions'], ids.shape[1])
    report(
        (~predicted[:, :-1] & predicted[:, 1:]).any(axis=1)
        | ((np.diff(positions, axis=1) <= 0) & predicted[:, 1:]).any(axis=1),
        lambda row: 'masked_lm_positions do not ascend, the empty ones last',
    )
    special = np.isin(columns['masked_lm_ids'], (vocabulary.cls, vocabulary.sep))
    report((special & predicted).any(axis=1), lambda row: f'a [CLS] or [SEP] is predicted: {other}')
    return sorted(reasons.items())
