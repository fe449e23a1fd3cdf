"""Measure how fast the offline job is, what memory it takes, and the original's job beside it.

  python -m benchmarks.preprocess --input=sentences.txt --tokenizer=VOCAB
      [--seq_len=128,512] [--workers=1,2] [--reference=DIR] [--rounds=3] [--json=FILE]
      [-- further flags of bert-preprocess]

Runs `bert-preprocess` as a user would and counts the processor time of all its processes, from
their start to their end, and the resident memory of the largest. With
--reference=DIR, a clone of google-research/bert, both programs make examples of the same text, one
sentence a line, in turn, each in one process; the original runs under tensorflow.compat.v1. Two
ratios are printed: of all processor time of both, and of that without the start and the imports of
both.
"""

from __future__ import annotations

import itertools
import json
import math
import pathlib
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import flags

from benchmarks import machine, processes
from bert_jax.configs.errors import UserError

_INPUT = flags.DEFINE_string('input', None, 'a text file', required=True)
_TOKENIZER = flags.DEFINE_string('tokenizer', None, 'tokenizer directory', required=True)
_SEQ_LEN = flags.DEFINE_list('seq_len', ['128'], 'lengths to measure')
_WORKERS = flags.DEFINE_list('workers', ['1'], 'numbers of processes to measure')
_DUPE_FACTOR = flags.DEFINE_integer('dupe_factor', 10, 'passes over the text')
_ROUNDS = flags.DEFINE_integer('rounds', 1, 'runs of everything; printed is the median')
_REFERENCE = flags.DEFINE_string(
    'reference', None, 'a clone of google-research/bert to compare with, best on 10 MB of text'
)
_TMPDIR = flags.DEFINE_string('tmpdir', None, 'folder for the records; default: the system')
_JSON = flags.DEFINE_string('json', None, 'file to write the figures to')

# As a module of its own name the original finds TensorFlow 1's names; what its import costs is
# printed, to be left out.
_UNDER_V1 = """
import os, runpy, sys, time
import tensorflow.compat.v1 as tf
sys.modules['tensorflow'] = tf
print('imports:', time.process_time(), flush=True)
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def main(argv: Sequence[str]) -> None:
    """Measure, print, and write the JSON."""
    from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

    # What may be wrong is found before an hour of measuring.
    tokenizer = Tokenizer.load(_TOKENIZER.value)
    program = pathlib.Path(_REFERENCE.value or '', 'create_pretraining_data.py')
    if _REFERENCE.value and not program.exists():
        raise UserError(
            f'--reference={_REFERENCE.value}: no create_pretraining_data.py in it: name a clone of'
            ' google-research/bert'
        )
    report: dict[str, Any] = {'machine': machine.describe('numpy', 'google-crc32c')}
    report['text_bytes'] = pathlib.Path(_INPUT.value).stat().st_size
    with tempfile.TemporaryDirectory(dir=_TMPDIR.value) as name:
        folder = pathlib.Path(name)
        report['jobs'] = [
            measure_job(folder / 'records', int(seq_len), int(workers), argv[1:])
            for seq_len, workers in itertools.product(_SEQ_LEN.value, _WORKERS.value)
        ]
        if _REFERENCE.value:
            report['reference'] = [
                compare(program, tokenizer, folder, int(seq_len)) for seq_len in _SEQ_LEN.value
            ]
    if _JSON.value:
        pathlib.Path(_JSON.value).write_text(json.dumps(report, indent=1) + '\n')


def run_job(
    output: pathlib.Path, seq_len: int, workers: int, further: Sequence[str] = ()
) -> tuple[processes.Cost, int]:
    """Run the job once, as a user runs it; return its cost and examples."""
    from bert_jax.input_pipeline.records.shards import Manifest

    cost = processes.run(
        [
            *(sys.executable, '-m', 'bert_jax.launch.preprocess', f'--input={_INPUT.value}'),
            *(f'--tokenizer={_TOKENIZER.value}', f'--output={output}', f'--workers={workers}'),
            *(f'--seq_len={seq_len}', f'--dupe_factor={_DUPE_FACTOR.value}', *further),
        ]
    )
    manifest = Manifest.load(output)
    shutil.rmtree(output)
    return cost, sum(shard.records for shard in manifest.files)


def measure_job(
    output: pathlib.Path, seq_len: int, workers: int, further: Sequence[str]
) -> dict[str, Any]:
    """Run the job in each round and print the medians; return all figures for the JSON."""
    results = [run_job(output, seq_len, workers, further) for _ in range(_ROUNDS.value)]
    costs = [cost for cost, _ in results]
    seconds = statistics.median(cost.seconds for cost in costs)
    cpu = statistics.median(cost.cpu_seconds for cost in costs)
    peak = statistics.median(cost.peak_bytes for cost in costs)
    examples, megabytes = results[0][1], pathlib.Path(_INPUT.value).stat().st_size / 1e6
    print(
        f'S={seq_len} workers={workers}: {examples:,} examples of {megabytes:.1f} MB in'
        f' {seconds:.1f} s, {cpu:.1f} CPU-seconds: {examples / cpu:,.0f} examples a CPU-second,'
        f' {megabytes / cpu:.2f} MB of text a CPU-second; peak memory {peak / 2**20:,.0f} MiB of'
        ' the largest process',
        flush=True,
    )
    return {
        'seq_len': seq_len,
        'workers': workers,
        'examples': examples,
        'seconds': [cost.seconds for cost in costs],
        'cpu_seconds': [cost.cpu_seconds for cost in costs],
        'peak_bytes': [cost.peak_bytes for cost in costs],
        'examples_a_cpu_second': examples / cpu,
    }


def compare(
    program: pathlib.Path, tokenizer: Any, folder: pathlib.Path, seq_len: int
) -> dict[str, Any]:
    """Run the original and the job in turn; print and return ratios of examples a CPU-second."""
    ratios: dict[str, list[float]] = {'from start to end': [], 'without start and imports': []}
    for _ in range(_ROUNDS.value):
        theirs, their_examples = run_reference(program, tokenizer, folder, seq_len)
        ours, our_examples = run_job(folder / 'records', seq_len, 1)
        # Around the original _UNDER_V1 prints what the imports took; ours says in its last line
        # what it took without start and imports.
        imports = float(re.search(r'^imports: (\S+)', theirs.output, re.M)[1])
        working = float(re.search(r'([\d.]+) CPU-seconds', ours.output)[1])
        rate, their_rate = our_examples / ours.cpu_seconds, their_examples / theirs.cpu_seconds
        ratios['from start to end'].append(rate / their_rate)
        rate, their_rate = our_examples / working, their_examples / (theirs.cpu_seconds - imports)
        ratios['without start and imports'].append(rate / their_rate)
    for counted, values in ratios.items():
        print(
            f'S={seq_len} beside {program}, {counted}: {statistics.median(values):.1f} times'
            f' ({min(values):.1f} to {max(values):.1f})',
            flush=True,
        )
    return {'seq_len': seq_len, 'ratios': ratios}


def run_reference(
    program: pathlib.Path, tokenizer: Any, folder: pathlib.Path, seq_len: int
) -> tuple[processes.Cost, int]:
    """Run the original with the options of the job; return cost and examples."""
    from bert_jax.input_pipeline.records.tfrecord import frame_bounds

    # The original wants a plain vocabulary file and its own names of the same options.
    output, vocabulary = folder / 'reference.tfrecord', folder / 'vocab.txt'
    vocabulary.write_text('\n'.join(tokenizer.tokens(range(tokenizer.vocab_size))) + '\n')
    options = {
        'input_file': _INPUT.value,
        'output_file': output,
        'vocab_file': vocabulary,
        'do_lower_case': tokenizer.lower_case,
        'max_seq_length': seq_len,
        'max_predictions_per_seq': math.ceil(seq_len * 0.15),
        'masked_lm_prob': 0.15,
        'short_seq_prob': 0.1,
        'dupe_factor': _DUPE_FACTOR.value,
        'random_seed': 12345,
    }
    # Neither TensorFlow's log lines nor the kernels of oneDNN, which the original did not have.
    quiet = {'TF_CPP_MIN_LOG_LEVEL': '3', 'TF_ENABLE_ONEDNN_OPTS': '0'}
    flags_of_original = [f'--{name}={value}' for name, value in options.items()]
    command = [sys.executable, '-c', _UNDER_V1, str(program), *flags_of_original]
    cost = processes.run(command, quiet)
    # Bounds are one more than records.
    return cost, len(frame_bounds(output.read_bytes())) - 1


if __name__ == '__main__':
    machine.run(main)
