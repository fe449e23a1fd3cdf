"""Records on disk: TFRecord files, and the manifest that says what is in them.

A TFRecord file that is cut between two frames (tfrecord.py) reads as merely shorter, and no reader
names the file that is damaged; so the manifest keeps the size, the count and a checksum of every
shard, and each fault found here names file, record and byte. This file must not know in which order
records are read (sampler.py does), nor how they were made.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import google_crc32c
import numpy as np
from etils import epath

from bert_jax.configs.errors import UserError, check_regular_files
from bert_jax.configs.files import typed_json
from bert_jax.configs.files.atomic import atomic_file
from bert_jax.configs.files.json_object import parse
from bert_jax.input_pipeline.records import fields
from bert_jax.input_pipeline.records.fields import RecordSpec
from bert_jax.input_pipeline.records.tfrecord import (
    DAMAGED,
    CorruptRecord,
    find_failed_checksums,
    frame_bounds,
    frame_records,
    iterate_payloads,
)

SCHEMA_VERSION = 1  # of the manifest; another one is refused
BLOCK = 256  # records between two entries of a shard's index: what the stream reads at once
MANIFEST = 'manifest.json'


@dataclass(frozen=True)
class ShardInfo:
    """One shard: its file name, split, records, bytes, and crc32c of all its bytes.

    `index` is the byte offset of every 256th record.
    """

    file: str
    split: str
    records: int
    bytes: int
    crc32c: int
    index: tuple[int, ...]

    @property
    def language(self) -> str:
        """Return the language in its name, which held-out records may have, or ''."""
        named = re.fullmatch(r'eval-(.+)-\d{5}-of-\d{5}\.tfrecord', self.file)
        return named[1] if named else ''

    def check(self) -> None:
        """Raise ValueError where the numbers contradict each other."""
        # An entry for each block, the first at byte 0, and none without bytes: the stream seeks by
        # them.
        borders = np.array([-1, *self.index, self.bytes], np.int64)
        if len(self.index) != -(-self.records // BLOCK) or borders[1] or min(np.diff(borders)) <= 0:
            raise ValueError(
                f'the index of {self.file} does not fit its {self.records} records and {self.bytes}'
                ' bytes'
            )

        # A manifest from elsewhere must not point out of its own folder.
        if '/' in self.file:
            raise ValueError(f'{self.file} is no name of a file beside it')

    def block(self, number: int) -> tuple[int, int]:
        """Return the first byte, and the byte after the last, of a block of 256 records."""
        # The last block ends with the file.
        end = self.index[number + 1] if number + 1 < len(self.index) else self.bytes
        return self.index[number], end

    def block_records(self, number: int) -> int:
        """Count the records of a block: 256, or what is left for the last one."""
        return min(BLOCK, self.records - number * BLOCK)


@dataclass(frozen=True)
class Fault:
    """Something wrong with a shard.

    `record` counts from 0 in its file, and `byte` is where that record begins; both are None for
    the file as such.
    """

    file: str
    what: str
    record: int | None = None
    byte: int | None = None

    def __str__(self) -> str:
        record = '' if self.record is None else f' record {self.record} at byte {self.byte}:'
        return f'{self.file}:{record} {self.what}'


# ---- writing


def write_shard(path: epath.PathLike, records: Iterable[bytes]) -> ShardInfo:
    """Write one TFRecord file, whole or not at all.

    Args:
      path: SPLIT-00000-of-00008.tfrecord, or SPLIT-LANGUAGE-...; the split is read off the name.
      records: serialised, in their order.
    """
    # The split is the name up to the first dash.
    name = epath.Path(path).name
    with atomic_file(epath.Path(path)) as file:
        return described(name, name.split('-')[0], _cut_blocks(records), file.write)


def _cut_blocks(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    block: list[bytes] = []
    for record in records:
        block.append(record)
        if len(block) == BLOCK:
            yield block
            block = []
    if block:
        yield block


def described(
    file: str, split: str, blocks: Iterable[list[bytes]], write: Callable[[bytes], Any]
) -> ShardInfo:
    """Return what a manifest says of a file of these blocks of records.

    Each block's frames are joined, and given to `write` before the next block is asked for.
    """
    # Where a block begins is an entry of the index, by which the stream seeks.
    index: list[int] = []
    count = size = crc = 0
    for block in blocks:
        text = frame_records(block)
        write(text)
        index.append(size)
        size += len(text)
        count += len(block)
        crc = google_crc32c.extend(crc, text)
    return ShardInfo(file, split, count, size, crc, tuple(index))


# ---- the manifest


@dataclass(frozen=True)
class Manifest:
    """What a records directory holds and how it was made; trainers read it and never ask again.

    `options` are all options of the job that made it. `statistics` is free-form, but for
    statistics['records'][SPLIT], which holds the sums of `fields.count` over the split:
    `verify` compares them with what it reads.
    """

    seq_len: int
    max_predictions: int
    masking: Literal['static', 'dynamic']
    objective: str
    vocab_size: int
    tokenizer_fingerprint: str
    seed: int | None  # None: another program made the records, and did not say
    # as they were given to the job, and how they came out
    options: dict[str, Any]
    statistics: dict[str, Any]
    # one a shard, in any order
    files: tuple[ShardInfo, ...]
    max_packs: int = 1  # examples that a training record may hold
    known_words: int = 0  # of a tokenizer of whole words: how many its file has

    @property
    def spec(self) -> RecordSpec:
        """Return the schema of the training records."""
        return self.spec_of('train')

    def spec_of(self, split: str) -> RecordSpec:
        """Return the schema of a split's records.

        Held-out records are masked once, statically, and not packed, whatever the training records
        are.
        """
        # Scores of runs with other masks or packs are compared on the same held-out examples.
        spec = RecordSpec(self.seq_len, self.max_predictions, 'static', 1, self.known_words)
        if split != 'train':
            return spec
        return dataclasses.replace(spec, masking=self.masking, max_packs=self.max_packs)

    def shards(self, split: str) -> tuple[ShardInfo, ...]:
        """Return the shards of a split, in order of their names."""
        return tuple(sorted((s for s in self.files if s.split == split), key=lambda s: s.file))

    def records(self, split: str) -> int:
        """Count the records of a split."""
        return sum(s.records for s in self.shards(split))

    def save(self, directory: epath.PathLike) -> None:
        """Write manifest.json, one line a shard.

        It is the last thing a job does, so a directory with it is complete.
        """
        # First all but the shards, which get a line each, so that a person can read it.
        data = {'schema_version': SCHEMA_VERSION, **vars(self)}
        shards = [dataclasses.asdict(shard) for shard in data.pop('files')]
        # Named where it says something, so that manifests of word pieces stay what they were.
        if not self.known_words:
            del data['known_words']

        # As it will be read: tuples become lists on the way.
        data['crc32c'] = _checksum(json.loads(json.dumps({**data, 'shards': shards})))

        # The closing brace is cut off and comes back behind the shards.
        lines = ',\n'.join('  ' + json.dumps(shard) for shard in shards)
        text = json.dumps(data, indent=1)[:-2] + f',\n "shards": [\n{lines}\n ]\n}}\n'
        with atomic_file(epath.Path(directory) / MANIFEST) as file:
            file.write(text.encode())

    @classmethod
    def load(cls, directory: epath.PathLike) -> Manifest:
        """Read what `save` wrote.

        Raises:
          UserError: there is no such file, it is another one, or a pipe stands for a shard.
        """
        path = epath.Path(directory) / MANIFEST
        check_regular_files(directory)

        # Four ways to be no manifest, each with its own cure.
        try:
            return cls._made(parse(path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(
                f'{directory}: no {MANIFEST} in it, so it is no finished records directory: make'
                ' one with bert-preprocess'
            ) from None
        except OSError as error:
            raise UserError(
                f'{path}: cannot be read ({error.strerror}): see to its permissions, or copy it'
                ' again'
            ) from None
        except (ValueError, OverflowError) as error:
            raise UserError(
                f'{path}: broken ({error}): make the records again with bert-preprocess'
            ) from None

    @classmethod
    def _made(cls, data: Any) -> Manifest:
        """Make a manifest of what `save` wrote, parsed; ValueError for anything else."""
        # In the order in which later checks rest on earlier ones: version, checksum, types,
        # intervals, shards.
        version = data.pop('schema_version', None) if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f'schema version {version}, and this program reads {SCHEMA_VERSION}')
        if data.pop('crc32c', None) != _checksum(data | {'schema_version': version}):
            raise ValueError('its crc32c does not match what it says')

        # The file says "shards", for people; the rest has the names of our fields.
        data['files'] = data.pop('shards', None)
        manifest = typed_json.make(cls, data)
        typed_json.make(dict[str, dict[str, Any]], manifest.statistics.get('records', {}))

        # Right types may still be numbers that no record has.
        for name in ('seq_len', 'max_predictions', 'vocab_size', 'max_packs', 'known_words'):
            least = 0 if name in ('max_predictions', 'known_words') else 1
            value = getattr(manifest, name)
            if value < least:
                raise ValueError(f'{name} is {value}')
        for shard in manifest.files:
            shard.check()
        return manifest


def _checksum(data: dict[str, Any]) -> int:
    """Return the crc32c of what a manifest says, however it is laid out."""
    # Sorted, so that layout and order of keys are free.
    return google_crc32c.value(json.dumps(data, sort_keys=True).encode())


def check_files(directory: epath.PathLike, shards: tuple[ShardInfo, ...]) -> list[Fault]:
    """Find shards that are missing or have another size than the manifest says.

    Cheap enough for the start of a run.
    """
    # Sizes alone: a size is a question to the file system, a checksum would read all of the corpus.
    faults = []
    for shard in shards:
        try:
            size = (epath.Path(directory) / shard.file).stat().length
        except FileNotFoundError:
            faults.append(Fault(shard.file, 'missing'))
        except OSError as error:
            faults.append(unreadable(shard, error))
        else:
            if size != shard.bytes:
                what = f'{size} bytes long, and the manifest says {shard.bytes}'
                faults.append(Fault(shard.file, what))
    return faults


def unreadable(shard: ShardInfo, error: OSError) -> Fault:
    """Return the fault of a shard that the system cannot read."""
    return Fault(shard.file, f'cannot be read ({error.strerror})')


# ---- reading all of it back


@dataclass(frozen=True)
class Verification:
    """What `verify` saw.

    Attributes:
      faults: what is wrong, in the order of shards and records.
      counts: for each split the sums of `fields.count` over its sound records.
    """

    faults: list[Fault]
    counts: dict[str, dict[str, Any]]


def verify(
    directory: epath.PathLike, progress: Callable[[int], None] = lambda size: None
) -> Verification:
    """Read every record of a directory back and compare it with all that the manifest promises.

    Args:
      directory: the records directory.
      progress: called after each shard with the bytes that shards take so far.

    Raises:
      UserError: there is no manifest to compare with.
    """
    # Shard after shard, in the order of names, so that two runs print the same list.
    manifest = Manifest.load(directory)
    faults: list[Fault] = []
    counts: dict[str, dict[str, Any]] = {}
    size = 0
    for shard in sorted(manifest.files, key=lambda s: s.file):
        sums = counts.setdefault(shard.split, {})

        # One shard that cannot be read does not hide what is wrong with the others.
        path, spec = epath.Path(directory) / shard.file, manifest.spec_of(shard.split)
        try:
            for fault in _verify_shard(path, shard, spec, manifest.vocab_size, sums):
                faults.append(fault)
        except OSError as error:
            faults.append(unreadable(shard, error))
        size += shard.bytes
        progress(size)

    # Sums are compared only where every record is sound; else they would only repeat the faults.
    if not faults:
        for split, promised in manifest.statistics.get('records', {}).items():
            for name, value in promised.items():
                counted = counts.get(split, {}).get(name)
                if counted != value:
                    what = f'{split} {name} is {value}, and the shards have {counted}'
                    faults.append(Fault(MANIFEST, what))
    return Verification(faults, counts)


def _verify_shard(
    path: epath.Path, shard: ShardInfo, spec: RecordSpec, vocab_size: int, sums: dict[str, Any]
) -> Iterator[Fault]:
    """Yield the faults of one shard, in the order of its records.

    One damaged record does not hide the others. The counts of sound ones are added to `sums`.
    """
    if not path.exists():
        yield from check_files(path.parent, (shard,))
        return

    # Block by block. The file's own checksum is compared last, for it says something new only where
    # all records are well.
    faults = crc = seen = 0
    with path.open('rb') as file:
        for number in range(len(shard.index)):
            start, end = shard.block(number)
            file.seek(start)
            text = file.read(end - start)
            crc = google_crc32c.extend(crc, text)
            bounds, wrong = _verify_block(text, spec, vocab_size, sums)
            whole = len(bounds) - 1

            # Too few records, all sound: the file was cut between two.
            if not any(row >= whole for row, _ in wrong) and whole < shard.block_records(number):
                reason = (
                    f'the file ends here, and the manifest says {shard.bytes} bytes and'
                    f' {shard.records} records'
                )
                wrong.append((whole, reason))

            # Rows of the block become records of the file.
            faults += len(wrong)
            for row, reason in sorted(wrong):
                yield Fault(shard.file, reason, number * BLOCK + row, start + bounds[row])
            seen += whole

            # Nothing can follow where the file itself has ended.
            if len(text) < end - start:
                return

        # The file as such: longer than it should be, or sound and yet not the one that was written.
        if file.read(1):
            what = f'goes on after its {shard.records} records'
            yield Fault(shard.file, what, shard.records, shard.bytes)
        elif not faults and (crc != shard.crc32c or seen != shard.records):
            what = (
                f'every record reads, but its crc32c is {crc} and the manifest says {shard.crc32c}:'
                ' it is another file'
            )
            yield Fault(shard.file, what)


def _verify_block(
    text: bytes, spec: RecordSpec, vocab_size: int, sums: dict[str, Any]
) -> tuple[list[int], list[tuple[int, str]]]:
    """Return the bounds of a block's frames, and (row, reason) of what is wrong with them.

    The counts of the sound ones are added to `sums`.
    """
    # The frames, up to one whose length cannot be trusted: the second walk stops before that one,
    # so it cannot fail.
    wrong: list[tuple[int, str]] = []
    try:
        bounds = frame_bounds(text)
    except CorruptRecord as error:
        bounds = frame_bounds(text[: error.byte])
        wrong.append((error.record, error.reason))

    # The checksums of their payloads.
    damaged = find_failed_checksums(text, bounds)
    wrong += [(row, DAMAGED) for row in damaged]

    # What the sound ones hold. Records that cannot be decoded leave one after the other; the rest
    # is decoded again.
    payloads = list(iterate_payloads(text, bounds))
    sound = sorted(set(range(len(payloads))) - set(damaged))
    while sound:
        try:
            columns = fields.decode_numpy(spec, [payloads[row] for row in sound])
            break
        except fields.BadRecord as error:
            wrong.append((sound.pop(error.row), error.reason))
    if not sound:
        return bounds, wrong

    # Then records that say what cannot be; only the others are counted.
    unlawful = dict(fields.check(spec, columns, vocab_size))
    wrong += [(sound[row], reason) for row, reason in unlawful.items()]
    keep = [row for row in range(len(sound)) if row not in unlawful]
    kept = {name: column[keep] for name, column in columns.items()}
    fields.add_counts(sums, fields.count(spec, kept))
    return bounds, wrong
