"""Records to batches: which record stands in which row of which step, and reading it.

An epoch is a seeded permutation of the blocks of 256 records that the manifest's index
names, and of the records inside each block; epochs follow each other without a gap, so a
batch may hold the end of one and the start of the next. Which record is row r of step s
is arithmetic in (seed, s * batch_size + r): to resume is to seek, and any number of
processes that ask for any ranges of rows see one and the same order. Two decoders carry
out that one plan with equal results: tf.data, and numpy where TensorFlow is absent. This
file must not know what the batches are for.
"""

from __future__ import annotations

import atexit
import collections
import functools
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
from etils import epath

from configs.errors import UserError, require_extra
from input_pipeline.randomness import digest64, mix
from input_pipeline.records import fields, frames, shards

_AHEAD = 4  # groups of batches made ready before they are asked for
# small batches are decoded so many together: a decode costs as much as a hundred rows
_ROWS_AT_ONCE = 1024
_STEPS_AT_ONCE = 32  # but no more steps than so many, or the first batch would be long in coming
_ENDLESS = 2**62  # steps: no run gets there
# steps [K] -> block and place of each of their rows
_Locate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Order:
    """The order of an endless row of epochs over blocks of the given sizes [K]."""

    def __init__(self, sizes: np.ndarray, seed: int):
        self._sizes, self._seed = sizes, seed
        self.records = int(sizes.sum())

        # Two, because a batch may end one epoch and begin the next.
        self._epoch = functools.lru_cache(2)(self._make_epoch)

    def _make_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray, int]:
        """(permuted blocks [K], first row of each [K], the name of the epoch's randomness)."""
        # Sorting by mixed numbers is a permutation that needs no state: any process can make that
        # of any epoch. Stable, so that ties fall alike everywhere.
        name = digest64('records', self._seed, epoch)
        order = np.argsort(mix(np.arange(len(self._sizes)), name), kind='stable')
        sizes = self._sizes[order]
        return order, np.cumsum(sizes) - sizes, name

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The block of each global row [N], and its place in that block.

        Row 0 is the first of the first epoch.
        """
        # Row -> epoch -> turn (which block of the permuted ones) -> place in that block's own
        # permutation.
        blocks, places = np.empty_like(rows), np.empty_like(rows)
        epochs = rows // self.records
        for epoch in np.unique(epochs).tolist():
            order, starts, name = self._epoch(epoch)
            here = epochs == epoch
            rest = rows[here] - epoch * self.records
            turn = np.searchsorted(starts, rest, side='right') - 1

            # Until here in order within the block; now permuted inside, once for each block that is
            # touched.
            place, block = rest - starts[turn], order[turn]
            for each in np.unique(block).tolist():
                inner = np.argsort(
                    mix(np.arange(self._sizes[each]), mix(each, name)), kind='stable'
                )
                place[block == each] = inner[place[block == each]]
            blocks[here], places[here] = block, place
        return blocks, places


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
      decoder: 'tfdata', 'numpy', or 'auto' for tf.data where TensorFlow is installed.
      rows: ranges [from, to) of each batch's rows that this process must supply; default all.

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
        decoder: Literal['auto', 'tfdata', 'numpy'] = 'auto',
        rows: tuple[tuple[int, int], ...] | None = None,
    ):
        rows = ((0, batch_size),) if rows is None else rows
        if not all(0 <= first < last <= batch_size for first, last in rows):
            raise ValueError(f'rows={rows} are not ranges within a batch of {batch_size}')

        # The decoder is settled now, not at the first batch, so that the error comes before any
        # work.
        if decoder == 'tfdata':
            require_extra(
                'runtime.decoder=tfdata',
                'tensorflow',
                'tensorflow',
                ', or take the decoder auto, which then reads with numpy',
            )
        installed = importlib.util.find_spec('tensorflow') is not None
        self._tensorflow = installed and decoder != 'numpy'
        self._directory, self._batch_size = epath.Path(directory), batch_size
        self._rows = np.concatenate([np.arange(first, last) for first, last in rows])

        # What is there: everything is compared with the manifest before the first step, because a
        # missing shard would be met hours later.
        self.manifest = shards.Manifest.load(directory)
        self._spec, self._shards = self.manifest.spec_of(split), self.manifest.shards(split)
        if not self.manifest.records(split):
            raise UserError(
                f'{directory}: has no {split} records: make them with launch.preprocess'
            )
        for fault in shards.check_files(directory, self._shards):
            raise UserError(
                f'{self._directory / fault.file}: {fault.what}: copy it again, or make the records'
                ' again'
            )

        # All blocks of the split numbered through, over shards: block -> its shard, and its number
        # there. Each has 256 records but the last one of a shard, which has what is left.
        self._shard_of = np.repeat(
            np.arange(len(self._shards)), [len(s.index) for s in self._shards]
        )
        self._number_of = np.concatenate([np.arange(len(s.index)) for s in self._shards])
        last = np.append(np.diff(self._shard_of) > 0, True)
        shard_records = np.array([s.records for s in self._shards])
        to_end = shard_records[self._shard_of] - self._number_of * shards.BLOCK
        self._sizes = np.where(last, to_end, shards.BLOCK)

        # Which record comes when, and how much is decoded and kept at once. The cache holds
        # twice the blocks that a batch touches: its rows follow each other in the order and so fill
        # whole blocks, but each range may begin and end inside one.
        self._order = Order(self._sizes, seed)
        self._at_once = min(_STEPS_AT_ONCE, max(1, _ROWS_AT_ONCE // len(self._rows)))
        self._cache: collections.OrderedDict[int, tuple[bytes, list[int]]] = (
            collections.OrderedDict()
        )
        self._cache_size = 2 * (len(self._rows) // shards.BLOCK + len(rows) + 1)
        self._lock = threading.Lock()  # of the cache: tf.data asks from two threads

    @property
    def records(self) -> int:
        """Records of the split: the rows of one epoch."""
        return self._order.records

    def batches(self, start_step: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """The endless training batches, from a step on."""

        # Rows of the endless order: step * batch_size + row, so a resumed run asks for the same
        # ones.
        def locate(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return self._order.locate((steps[:, None] * self._batch_size + self._rows).ravel())

        # Every record counts in training; the array is there so that both kinds of batch look
        # alike.
        weights = np.ones(len(self._rows), np.float32)
        for batch in self._decode(locate, range(start_step, _ENDLESS)):
            yield {**batch, 'example_weights': weights}

    def evaluation(self, max_batches: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """Every record once in the order of the files, in at most `max_batches` batches (0: all).

        The last batch is filled with copies of the last record whose weights are all 0.
        """
        # No permutation here: global row r is record r of the files.
        starts = np.cumsum(self._sizes) - self._sizes

        def locate(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            rows = (steps[:, None] * self._batch_size + self._rows).ravel()
            rows = np.minimum(rows, self.records - 1)
            blocks = np.searchsorted(starts, rows, side='right') - 1
            return blocks, rows - starts[blocks]

        # What is beyond the last record is a copy: masked out by weight, once as an example and
        # once for its masked tokens, which are summed apart.
        count = -(-self.records // self._batch_size)
        count = min(count, max_batches) if max_batches else count
        for step, batch in enumerate(self._decode(locate, range(count))):
            weights = (step * self._batch_size + self._rows < self.records).astype(np.float32)
            if 'masked_lm_weights' in batch:
                batch = {
                    **batch,
                    'masked_lm_weights': batch['masked_lm_weights'] * weights[:, None],
                }
            yield {**batch, 'example_weights': weights}

    def read_by(self, first: int, stop: int) -> str:
        """Which records the training batches of steps `first` to `stop` (excluded) hold, in words.

        Of a run's order all of them; in the files those of step `first`, as few ranges as hold
        them.
        """
        # The rows of the first step, by block: a range of records for each.
        rows = np.arange(first * self._batch_size, (first + 1) * self._batch_size)
        blocks, places = self._order.locate(rows)
        files = []
        for block in dict.fromkeys(blocks.tolist()):
            here = places[blocks == block] + self._number_of[block] * shards.BLOCK
            name = self._shards[self._shard_of[block]].file
            files.append(f'{name} records {here.min()} to {here.max()}')

        # Four are enough to look at; the order itself names all the others.
        more = f' and {len(files) - 4} blocks more' if len(files) > 4 else ''
        (epoch, place), last = divmod(int(rows[0]), self.records), stop * self._batch_size - 1
        return (
            f'rows {rows[0]} to {last} of the order of {self._directory} (epoch {epoch}, from its '
            f'row {place} on); the first of these steps read {", ".join(files[:4])}{more}'
        )

    # ---- reading

    def _decode(self, locate: _Locate, steps: range) -> Iterator[dict[str, np.ndarray]]:
        """The decoded batches of those steps, some of them made ahead in the background."""
        # Steps are decoded in groups; each group is cut into its batches again.
        groups = range(steps.start, steps.stop, self._at_once)
        located = functools.partial(self._locate_group, locate, steps.stop)
        size = len(self._rows)
        decode = self._tensorflow_groups if self._tensorflow else self._numpy_groups
        for columns in decode(located, groups):
            for first in range(0, len(columns['input_ids']), size):
                yield {name: column[first : first + size] for name, column in columns.items()}

    def _locate_group(
        self, locate: _Locate, stop: int, first: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Blocks and places of the rows of the steps that are decoded together with `first`."""
        return locate(np.arange(first, min(first + self._at_once, stop)))

    def _numpy_groups(self, located: Callable, groups: range) -> Iterator[dict[str, np.ndarray]]:
        # No shutdown: a dropped pool ends its thread, and at the exit of the interpreter there is
        # nothing left to shut it down with.
        pool = ThreadPoolExecutor(1, thread_name_prefix='records')

        # One thread reads and decodes while the step before is computed; the queue's bound is what
        # keeps it from running through the whole corpus.
        ahead: collections.deque = collections.deque()
        for first in groups:
            ahead.append(pool.submit(self._numpy_rows, *located(first)))
            if len(ahead) > _AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def _numpy_rows(self, blocks: np.ndarray, places: np.ndarray) -> dict[str, np.ndarray]:
        # A row of the decoder is a row of this group: it is told as file, record and byte.
        try:
            columns = fields.decode_numpy(self._spec, self._payloads(blocks, places))
        except fields.BadRecord as error:
            raise self._fault_of(
                int(blocks[error.row]), int(places[error.row]), error.reason
            ) from None
        self._check(columns, lambda: (blocks, places))
        return columns

    def _check(self, columns: dict[str, np.ndarray], located: Callable) -> None:
        """Refuses columns with a number out of range, which jax would take for another one.

        `located()` gives the blocks and places of the rows.
        """
        # The quick test of all first; which record it is, is found out only where there is one.
        vocab_size = self.manifest.vocab_size
        if not fields.in_range(self._spec, columns, vocab_size):
            blocks, places = located()
            row, reason = fields.check(self._spec, columns, vocab_size)[0]
            raise self._fault_of(int(blocks[row]), int(places[row]), reason)

    def _tensorflow_groups(
        self, located: Callable, groups: range
    ) -> Iterator[dict[str, np.ndarray]]:
        tf = _tensorflow()

        # Raised below: TensorFlow would print the traceback, and raise an error of its own kind.
        failed: dict[int, Exception] = {}

        def load(first: np.int64) -> np.ndarray:
            # called in TensorFlow's threads
            try:
                return np.array(self._payloads(*located(int(first))), object)
            except Exception as error:
                failed[int(first)] = error
                return np.array([], object)

        def decode(first: Any) -> dict[str, Any]:
            # Shapes are lost on the way through Python, and parse_example wants to know the rank.
            payloads = tf.ensure_shape(
                tf.numpy_function(load, [first], tf.string, stateful=False), [None]
            )
            return fields.decode_tensorflow(self._spec, payloads)

        # In the order of the steps whatever thread is first, or a resumed run would see other
        # batches.
        dataset = tf.data.Dataset.range(groups.start, groups.stop, groups.step)
        dataset = dataset.map(decode, num_parallel_calls=2, deterministic=True).prefetch(_AHEAD)

        # The iterator's threads call `load`. One that does so when the interpreter ends hangs or
        # crashes it, so the iterator goes before, even where an exception still holds this frame.
        alive = [dataset.as_numpy_iterator()]
        atexit.register(alive.clear)
        try:
            for first in groups:
                try:
                    columns = next(alive[0])
                except tf.errors.OpError:
                    if first not in failed:
                        self._numpy_rows(*located(first))  # names the record that was refused
                        raise
                if first in failed:
                    raise failed[first]
                self._check(columns, functools.partial(located, first))
                yield columns
        finally:
            alive.clear()
            atexit.unregister(alive.clear)

    def _payloads(self, blocks: np.ndarray, places: np.ndarray) -> list[bytes]:
        """The serialised records at those places."""
        # Block by block, because a block is read as a whole; each record goes to its own row.
        payloads = np.empty(len(blocks), object)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            text, bounds = self._block(block)
            try:
                payloads[here] = frames.take_payloads(text, bounds, places[here].tolist())
            except frames.BadFrame as error:
                raise self._fault(block, error.record, error.byte, error.reason) from None
        return payloads.tolist()

    def _block(self, block: int) -> tuple[bytes, list[int]]:
        """The text of a block and where its frames begin.

        One read, and kept for the batches that share it.
        """
        # The least recently used block leaves first, so one that is asked for moves to the end.
        with self._lock:
            if block in self._cache:
                self._cache.move_to_end(block)
                return self._cache[block]

        # Read outside of the lock, so that two threads read two blocks at a time.
        shard, number = self._shards[self._shard_of[block]], int(self._number_of[block])
        start, end = shard.block(number)
        try:
            with (self._directory / shard.file).open('rb') as file:
                file.seek(start)
                text = file.read(end - start)
            bounds = frames.frame_bounds(text)
        except FileNotFoundError:
            raise UserError(
                f'{self._directory / shard.file}: gone since the start of the run: put it back and'
                ' resume'
            ) from None
        except OSError as error:
            fault = shards.unreadable(shard, error)
            raise UserError(f'{self._directory / str(fault)}: see to it and resume') from error
        except frames.BadFrame as error:
            raise self._fault(block, error.record, error.byte, error.reason) from None

        # All frames are sound, but there are too few: the file was cut between two of them.
        if len(bounds) - 1 != self._sizes[block]:
            raise self._fault(block, len(bounds) - 1, len(text), 'the file ends here')

        # Two threads may have read the same block; then it is stored twice, equally.
        with self._lock:
            self._cache[block] = text, bounds
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return text, bounds

    def _fault_of(self, block: int, place: int, reason: str) -> UserError:
        """What to say of a whole record that holds what it should not."""
        return self._fault(block, place, self._block(block)[1][place], reason)

    def _fault(self, block: int, record: int, byte: int, reason: str) -> UserError:
        """What to say of a record, given by its place and byte in its block."""
        shard, number = self._shards[self._shard_of[block]], int(self._number_of[block])

        # Counted from the start of the file, as verify_data does.
        fault = shards.Fault(
            shard.file, number * shards.BLOCK + record, shard.block(number)[0] + byte, reason
        )
        return UserError(
            f'{self._directory / str(fault)}: python -m launch.verify_data {self._directory} lists'
            ' every fault'
        )


@functools.cache
def _tensorflow() -> Any:
    """TensorFlow, kept off the accelerators: they belong to jax."""
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    # nothing is computed with it here, and it announces itself at every start
    os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
    import tensorflow as tf

    for kind in ('GPU', 'TPU'):
        tf.config.set_visible_devices([], kind)
    return tf
