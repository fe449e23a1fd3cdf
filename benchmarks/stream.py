"""How fast the stream gives batches, and TensorFlow's own reader of the same files, in turn.

  python -m benchmarks.stream RECORDS [--batch_size=256] [--seconds=2] [--warm_up=8] [--rounds=7]
      [--json=FILE]

The reader is the least that a TensorFlow program does:
TFRecordDataset(files).batch(B).map(parse_example), which has one order only and cannot seek. Prints
examples a second of each, on the clock and for a second of processor time, as medians over the
rounds; the ratio is the median of the rounds' ratios, and the range is theirs.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from benchmarks import processes
from bert_jax.cli import app

_BATCH_SIZE = flags.DEFINE_integer('batch_size', 256, 'records a batch')
_SECONDS = flags.DEFINE_float('seconds', 2, 'how long each reader runs in a round')
_WARM_UP = flags.DEFINE_float('warm_up', 8, 'how long each reader runs before the first round')
_ROUNDS = flags.DEFINE_integer('rounds', 7, 'rounds of all readers, one after the other')
_JSON = flags.DEFINE_string('json', None, 'file to write the figures to')


def main(argv: Sequence[str]) -> None:
    """Measure all readers in turn, print medians and ratios, and write the JSON."""
    from benchmarks import machine
    from bert_jax.configs.errors import UserError
    from bert_jax.input_pipeline.records.stream import RecordStream

    if len(argv) != 2:
        raise UserError('name one records directory: python -m benchmarks.stream RECORDS')
    directory = argv[1]

    # All read the same files with the same batch size; `bare` has no order, no seek, no resume.
    streams = {
        decoder: RecordStream(directory, 'train', _BATCH_SIZE.value, 0, decoder)
        for decoder in ('tfdata', 'numpy')
    }
    readers = {'bare': bare(directory, streams['tfdata'], _BATCH_SIZE.value)}
    readers |= {name: stream.batches() for name, stream in streams.items()}
    # Not counted: files come into memory, tf.data starts its threads, and what is kept of the
    # records gets its memory from the system.
    for batches in readers.values():
        rate(batches, _WARM_UP.value, _BATCH_SIZE.value)

    # Each takes its turn in every round, so that a slow minute of the machine hits all of them.
    rounds = [
        {
            name: rate(batches, _SECONDS.value, _BATCH_SIZE.value)
            for name, batches in readers.items()
        }
        for _ in range(_ROUNDS.value)
    ]
    # Ratios are taken within a round, for the same reason.
    report = {
        name: summary([r[name] for r in rounds], [r['bare'] for r in rounds]) for name in readers
    }
    for name, figures in report.items():
        print(
            f'{name:6} {figures["a_second"]:>8,.0f} examples/s, {figures["a_cpu_second"]:>8,.0f} a'
            f' CPU-second; beside the bare reader {figures["ratio"]:.2f}'
            f' ({figures["ratios"][0]:.2f} to {figures["ratios"][-1]:.2f}), for a CPU-second'
            f' {figures["cpu_ratio"]:.2f}'
        )
    report |= {'batch_size': _BATCH_SIZE.value, 'seq_len': streams['numpy'].manifest.seq_len}
    report['machine'] = machine.describe('numpy', 'tensorflow', 'tensorflow-cpu')
    if _JSON.value:
        with open(_JSON.value, 'w') as file:
            json.dump(report, file, indent=1)


def bare(directory: str, stream: Any, batch_size: int) -> Iterator[dict[str, Any]]:
    """Open TensorFlow's reader over the stream's training files, again and again."""
    from bert_jax.input_pipeline.records import tf_data

    # The same features as ours, by the manifest; no shuffling, no options, one thread for parsing.
    tf = tf_data.tensorflow()
    spec = stream.manifest.spec_of('train')
    types = {'int': tf.int64, 'float': tf.float32}
    features = {f.name: tf.io.FixedLenFeature([f.length], types[f.kind]) for f in spec.features}
    files = [f'{directory}/{shard.file}' for shard in stream.manifest.shards('train')]
    dataset = (
        tf.data.TFRecordDataset(files)
        .repeat()
        .batch(batch_size)
        .map(lambda texts: tf.io.parse_example(texts, features))
    )
    return dataset.as_numpy_iterator()


def rate(batches: Iterator[dict[str, Any]], seconds: float, batch_size: int) -> tuple[float, float]:
    """Return the examples a second, on the clock and of processor time."""
    # next in a loop, until the time is over; what has been read ahead by then is not counted.
    examples, clock, cpu = 0, time.perf_counter(), _cpu_seconds()
    while time.perf_counter() - clock < seconds:
        next(batches)
        examples += batch_size
    return examples / (time.perf_counter() - clock), examples / (_cpu_seconds() - cpu)


def _cpu_seconds() -> float:
    """Return the time of this process and of those that it has started, if that is known."""
    return processes.cpu_seconds(os.getpid()) or time.process_time()


def summary(rates: list[tuple[float, float]], bare: list[tuple[float, float]]) -> dict[str, Any]:
    """Return medians of the rates, and of their ratios to those of the same round's bare reader."""
    ratios = sorted(a / b for (a, _), (b, _) in zip(rates, bare))
    return {
        'a_second': statistics.median(r for r, _ in rates),
        'a_cpu_second': statistics.median(r for _, r in rates),
        'ratio': statistics.median(ratios),
        'ratios': ratios,
        'cpu_ratio': statistics.median(a / b for (_, a), (_, b) in zip(rates, bare)),
    }


if __name__ == '__main__':
    app.run(main, arguments='RECORDS')
