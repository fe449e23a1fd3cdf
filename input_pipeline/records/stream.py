"""A stream of records: batches of what each row of each step holds.

A sampler (sampler.py) says which record that is. This file must not know what the batches are for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.records import fields, shards
from bert_jax.input_pipeline.records.blocks import BlockCache, Blocks
from bert_jax.input_pipeline.records.sampler import SAMPLERS, Growth

_READERS = 8  # blocks that are read at a time from far away, where each takes long to come
_AHEAD = 4  # groups of batches made ready before they are asked for, at least
# Small batches are made so many together: to make one costs as much as a hundred rows. No more, or
# the C library would give back the memory of each and the system would have to clear it again.
_TOKENS_AT_ONCE = 1 << 17
_STEPS_AT_ONCE = 32  # but no more steps than so many, or the first batch would be long in coming
_ENDLESS = 2**62  # steps: no run gets there
# global rows [N] -> block and offset of each [2, N]
_Indices = Callable[[np.ndarray], np.ndarray]
_Columns = dict[str, np.ndarray]


class RecordStream:
    """Batches of one split of a records directory.

    A batch is a dict of arrays: input_ids, input_mask, segment_ids [B, S] int32;
    masked_lm_positions, masked_lm_ids [B, P] int32 and masked_lm_weights [B, P] float32 (or
    word_starts [B, S] int32 where the train step draws the masks); next_sentence_labels [B]
    int32; example_weights [B] float32. Packed records (RecordSpec) have pack_ids and
    position_ids [B, S] int32 instead of input_mask, cls_positions and next_sentence_labels
    [B, K] int32 and next_sentence_weights [B, K] float32. B is batch_size, or where `rows` is
    given the rows of those ranges, one range after the other.

    Args:
      directory: the records directory.
      split: 'train' or 'eval'.
      batch_size: rows of a batch over all processes.
      seed: with the step, decides the order.
      rows: ranges [from, to) of each batch's rows that this process must supply; default all.
      order: in which order training batches hold the records: a name of sampler.py.
      growth: how many rows training steps read where that grows; default batch_size from the first
        on. What is left over is filled with copies whose example_weights are 0.

    Raises:
      UserError: no manifest, no records of that split, a shard missing or of another size;
        and while reading, a damaged record, or one that holds a number that no model can look up
        (an id beyond the vocabulary, a third segment), by file, record and byte.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        split: str,
        batch_size: int,
        seed: int,
        rows: tuple[tuple[int, int], ...] | None = None,
        order: Literal['spread', 'blocks'] = 'spread',
        growth: Growth | None = None,
    ):
        rows = rows or ((0, batch_size),)
        if not all(0 <= first < last <= batch_size for first, last in rows):
            raise ValueError(f'rows={rows} are not ranges within a batch of {batch_size}')

        self._directory, self._batch_size = epath.Path(directory), batch_size
        # A batch that does not grow is one that is full from the first step on.
        self._growth = growth or Growth(batch_size, 1, batch_size, 1)
        self._ranges = len(rows)
        self._rows = np.concatenate([np.arange(first, last) for first, last in rows])

        # What is there: everything is compared with the manifest before the first step, because a
        # missing shard would be met hours later.
        self.manifest = shards.Manifest.load(directory)
        self._spec, self._shards = self.manifest.spec_of(split), self.manifest.shards(split)
        if not self.manifest.records(split):
            raise UserError(f'{directory}: has no {split} records: make them with bert-preprocess')
        for fault in shards.check_files(directory, self._shards):
            raise UserError(
                f'{self._directory / fault.file}: {fault.what}: copy it again, or make the records'
                ' again'
            )

        # Which record comes when, and how many steps are decoded together.
        self._blocks = Blocks(directory, self._shards)
        self._sampler = SAMPLERS[order](self._blocks.sizes, seed)
        tokens = len(self._rows) * self._spec.seq_len
        self._at_once = min(_STEPS_AT_ONCE, max(1, _TOKENS_AT_ONCE // tokens))
        self._vocab_size = self.manifest.vocab_size
        self._decoding = threading.Lock()
        # What is near comes at once, and more threads would only wait for their turn in Python.
        self._readers = _READERS if '://' in self._directory.as_posix() else 1

    @property
    def records(self) -> int:
        """Count the records of the split: the rows of one epoch."""
        return self._sampler.records

    def batches(self, start_step: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """Yield the endless training batches, from a step on."""
        # Every record counts in training; the array says so of batches that are not full yet, and
        # is there so that both kinds of batch look alike.
        growth, steps = self._growth, range(start_step, _ENDLESS)
        batches = self._read(self._sampler.indices, steps, self._sampler.open_blocks, growth)
        for step, batch in enumerate(batches, start_step):
            yield {**batch, 'example_weights': growth.weights(step, self._rows)}

    @property
    def languages(self) -> tuple[str, ...]:
        """List the languages with files of their own, in the order of the files; else ('',)."""
        return tuple(dict.fromkeys(shard.language for shard in self._shards))

    def evaluation(
        self, max_batches: int = 0, language: str = ''
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield every record once in the order of the files.

        The last batch is filled with copies of the last record whose weights are all 0.

        Args:
          max_batches: at most so many batches, 0 for all.
          language: only the records of this one of `languages`.
        """
        # The files of a language follow each other, for it is in their names.
        first = records = 0
        for shard in self._shards:
            if language in ('', shard.language):
                records += shard.records
            elif not records:
                first += shard.records

        # No permutation here: global row r is record r of the files.
        ends = np.cumsum(self._blocks.sizes)

        def indices(rows: np.ndarray) -> np.ndarray:
            rows = first + np.minimum(rows, records - 1)
            blocks = np.searchsorted(ends, rows, side='right')
            return np.stack([blocks, rows - (ends - self._blocks.sizes)[blocks]])

        # What is beyond the last record is a copy: masked out by weight, once as an example and
        # once for its masked tokens, which are summed apart.
        full = Growth(self._batch_size, 1, self._batch_size, 1)
        count = -(-records // self._batch_size)
        if max_batches:
            count = min(count, max_batches)
        for step, batch in enumerate(self._read(indices, range(count), 1, full)):
            weights = (step * self._batch_size + self._rows < records).astype(np.float32)
            if 'masked_lm_weights' in batch:
                batch['masked_lm_weights'] = batch['masked_lm_weights'] * weights[:, None]
            yield {**batch, 'example_weights': weights}

    def read_by(self, first: int, stop: int) -> str:
        """Describe which records the training batches of steps `first` to `stop` (excluded) hold.

        Of a run's order all of them; in the files those of step `first`, as few ranges as hold
        them.
        """
        # The rows of the first step, by block: a range of records for each.
        before = self._growth.before
        rows = np.arange(before(first), before(first + 1))
        blocks, offsets = self._sampler.indices(rows)
        files = []
        for block in dict.fromkeys(blocks.tolist()):
            shard, number = self._blocks.blocks[block]
            read = offsets[blocks == block] + number * shards.BLOCK
            files.append(f'{shard.file} records {read.min()} to {read.max()}')

        # Four are enough to look at; the order itself names all the others.
        more = ''
        if len(files) > 4:
            more = f' and {len(files) - 4} blocks more'
        (epoch, row), last = divmod(int(rows[0]), self.records), before(stop) - 1
        return (
            f'rows {rows[0]} to {last} of the order of {self._directory} (epoch {epoch}, from its '
            f'row {row} on); the first of these steps read {", ".join(files[:4])}{more}'
        )

    # ---- reading

    def _read(
        self, indices: _Indices, steps: range, open_blocks: int, growth: Growth
    ) -> Iterator[_Columns]:
        """Yield the batches of those steps, made ahead in the background.

        `open_blocks`: how many blocks rows that follow each other come from.
        """
        # The C library gives freed memory back to the system, which clears it for the next batch,
        # until a large block was freed once: this one, of which no page is touched.
        np.empty(31 << 20, np.uint8)

        def indices_of(first: int) -> np.ndarray:
            """Return the indices of the rows of all steps that are made together with `first`."""
            # Global rows follow from the step, so a resumed run asks for the same ones.
            group = range(first, min(first + self._at_once, steps.stop))
            return indices(np.concatenate([growth.rows(step, self._rows) for step in group]))

        # Groups of steps are made at once, and cut into batches again.
        groups, size = range(steps.start, steps.stop, self._at_once), len(self._rows)
        for columns in self._make_groups(indices_of, groups, open_blocks):
            for first in range(0, len(columns['input_ids']), size):
                yield {name: column[first : first + size] for name, column in columns.items()}

    def _make_groups(
        self, indices_of: Callable[[int], np.ndarray], groups: range, open_blocks: int
    ) -> Iterator[_Columns]:
        """Yield the rows of each group, in their order."""
        # Room for the blocks that take turns, for those that a group touches beyond, since each
        # stretch of its rows may begin and end inside a block, and for as many that come next.
        rows = self._at_once * len(self._rows)
        stretches = self._at_once * self._ranges
        if len(self._rows) == self._batch_size:
            stretches = 1
        room = 2 * (open_blocks + rows // shards.BLOCK + stretches + 1)
        room = min(room, len(self._blocks.sizes))

        # As many rows ahead as the blocks that take turns have: the next ones are made meanwhile.
        ahead = max(_AHEAD, open_blocks * shards.BLOCK // rows)
        # No memory is taken until it is filled.
        empty = np.empty((room, shards.BLOCK), fields.make_kept_dtype(self._spec, self._vocab_size))
        cache = BlockCache(self._decode, self._blocks.sizes, empty, self._readers)
        for rows_of_group in cache.rows(map(indices_of, groups), ahead):
            yield fields.get_columns(self._spec, rows_of_group)

    def _decode(self, block: int, rows: np.ndarray) -> None:
        """Read a block and decode its records into `rows`.

        Raises:
          UserError: by file, record and byte, where a record is not in order.
        """
        text = self._blocks.read(block)

        # Reading takes turns with nothing. Decoding does: Python would let one thread do it at a
        # time anyway, and the threads would spend their time on who is next.
        with self._decoding:
            starts, ends = self._blocks.records(block, text)
            try:
                fields.keep_numpy(self._spec, self._vocab_size, text, starts, ends, rows)
            except fields.BadRecord as error:
                raise self._blocks.fault(block, error.row, error.reason) from None
