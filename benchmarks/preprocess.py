"""How fast the offline job is, where its time goes, what memory it takes; and the original's.

  python -m benchmarks.preprocess --input=wiki_en.txt --segment --tokenizer=VOCAB
                                  [--seq_len=128,512] [--workers=1,2] [--scale=10] [--reference=DIR]
                                  [--rounds=3] [--json=FILE]

Runs `bert-preprocess` as a user would and counts the processor time of all its processes, from
their start to their end, and their resident memory together, sampled 20 times a second. With
--scale the text becomes so many times as large: further variants of it have other numbers and
another order of words. Segmenting is done before and timed apart. With --reference=DIR, a clone of
google-research/bert, both programs make examples of the first --reference_mb of the text, one after
the other, each in one process; the original runs under tensorflow.compat.v1. Two ratios are
printed: of all processor time of both, and of that without the start and the imports of both.
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
import time
from collections.abc import Sequence
from typing import Any

from absl import flags

from benchmarks import machine, processes
from bert_jax.cli import app

_INPUT = flags.DEFINE_string(
    'input',
    None,
    'text: one sentence a line, blank lines between documents',
    required=True,
    allow_overwrite=False,
)
_TOKENIZER = flags.DEFINE_string('tokenizer', None, 'tokenizer directory', required=True)
_SEGMENT = flags.DEFINE_bool(
    'segment', False, 'lines are paragraphs: cut them into sentences first'
)
_SEQ_LEN = flags.DEFINE_list('seq_len', ['128'], 'lengths to measure')
_WORKERS = flags.DEFINE_list('workers', ['1'], 'numbers of processes to measure')
_DUPE_FACTOR = flags.DEFINE_integer('dupe_factor', 10, 'passes over the text')
_SCALE = flags.DEFINE_integer('scale', 1, 'make the text so many times as large')
_ROUNDS = flags.DEFINE_integer('rounds', 1, 'runs of everything; printed is the median')
_REFERENCE = flags.DEFINE_string(
    'reference', None, 'a clone of google-research/bert to compare with'
)
_REFERENCE_MB = flags.DEFINE_float(
    'reference_mb',
    10,
    'text of the comparison, large enough that start and imports are little of it: '
    'the original makes 1,400 examples a second at 128, and holds them all',
)
_TMPDIR = flags.DEFINE_string(
    'tmpdir',
    None,
    'folder for text and records while measuring, 50 times the text; by default as the system'
    ' has it',
)
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
    from bert_jax.configs.errors import UserError
    from bert_jax.input_pipeline.tokenizer import Tokenizer

    # What may be wrong is found before an hour of measuring.
    tokenizer = Tokenizer.load(_TOKENIZER.value)
    reference = (
        pathlib.Path(_REFERENCE.value) / 'create_pretraining_data.py' if _REFERENCE.value else None
    )
    if reference and not reference.exists():
        raise UserError(
            f'--reference={_REFERENCE.value}: no create_pretraining_data.py in it: name a clone of'
            ' google-research/bert'
        )
    report: dict[str, Any] = {'machine': machine.describe('numpy', 'google-crc32c')}
    report |= {'dupe_factor': _DUPE_FACTOR.value, 'scale': _SCALE.value}

    # From the text to the figures: segment it, make it larger, run the job for each length and
    # number of workers, see where the time goes, and last the original and ours.
    with tempfile.TemporaryDirectory(dir=_TMPDIR.value) as name:
        folder = pathlib.Path(name)
        text = pathlib.Path(_INPUT.value)
        if _SEGMENT.value:
            text, report['segmentation'] = segmented(text, folder / 'segmented.txt')
        larger = scaled(text, folder / 'scaled.txt', _SCALE.value) if _SCALE.value > 1 else text
        report['text_bytes'] = larger.stat().st_size
        report['jobs'] = [
            job(larger, folder, int(seq_len), int(workers), _ROUNDS.value)
            for seq_len, workers in itertools.product(_SEQ_LEN.value, _WORKERS.value)
        ]
        # Stages on the text as it is: shares do not depend on its size.
        report['stages'] = {
            seq_len: stages(text, folder, int(seq_len)) for seq_len in _SEQ_LEN.value
        }
        if reference:
            sample = beginning(text, folder / 'sample.txt', int(_REFERENCE_MB.value * 1e6))
            report['reference'] = [
                compare(reference, tokenizer, sample, folder, int(seq_len), _ROUNDS.value)
                for seq_len in _SEQ_LEN.value
            ]
    if _JSON.value:
        pathlib.Path(_JSON.value).write_text(json.dumps(report, indent=1) + '\n')


# ---- the text


def segmented(source: pathlib.Path, target: pathlib.Path) -> tuple[pathlib.Path, dict[str, float]]:
    """Write the text to `target`, one sentence a line; return it, and bytes and time."""
    from bert_jax.input_pipeline.text import corpus

    # Timed apart, because the original has no such step.
    cpu = time.process_time()
    with target.open('w') as file:
        for document in corpus.read_documents(str(source), corpus.TextOptions(segment=True)):
            file.write('\n'.join(document.sentences) + '\n\n')
    seconds, size = time.process_time() - cpu, source.stat().st_size
    print(
        f'segmenting: {size / 1e6:.1f} MB in {seconds:.1f} CPU-seconds, {size / 1e6 / seconds:.1f}'
        ' MB a CPU-second'
    )
    return target, {'bytes': size, 'cpu_seconds': seconds}


def scaled(source: pathlib.Path, target: pathlib.Path, scale: int) -> pathlib.Path:
    """Write `scale` variants of the text to `target`: no line twice, as many words.

    In variant i words stand i places further on in their line, and digits are i higher.
    """
    digits = '0123456789'
    with target.open('w') as file:
        for variant in range(scale):
            # Digits of the variant: i higher, cyclic; then words turned by i places.
            other = str.maketrans(digits, digits[variant % 10 :] + digits[: variant % 10])
            with source.open() as lines:
                for line in lines:
                    words = line.translate(other).split()
                    index = variant % max(1, len(words))
                    file.write(' '.join(words[index:] + words[:index]) + '\n')
            file.write('\n')
    return target


def beginning(source: pathlib.Path, target: pathlib.Path, size: int) -> pathlib.Path:
    """Write the first documents of the text, about `size` bytes of them."""
    with source.open('rb') as file:
        # On to the end of the document in which so many bytes end: no half of a line.
        text = file.read(size)
        for line in file:
            if not line.strip():
                break
            text += line
    target.write_bytes(text)
    return target


# ---- the programs


def command(text: pathlib.Path, output: pathlib.Path, seq_len: int) -> list[str]:
    """Return the flags of the job; what it says of progress goes to its stderr."""
    paths = [f'--input={text}', f'--tokenizer={_TOKENIZER.value}', f'--output={output}']
    return [*paths, f'--seq_len={seq_len}', f'--dupe_factor={_DUPE_FACTOR.value}']


def run_job(
    text: pathlib.Path, output: pathlib.Path, seq_len: int, workers: int
) -> tuple[processes.Cost, int, int]:
    """Run the job once; return cost, examples, bytes of their records."""
    from bert_jax.input_pipeline.records.shards import Manifest

    # As a user runs it, in a process of its own; records are counted by its manifest and deleted.
    cost = processes.run(
        [
            sys.executable,
            '-m',
            'bert_jax.launch.preprocess',
            *command(text, output, seq_len),
            f'--workers={workers}',
        ]
    )
    manifest = Manifest.load(output)
    shutil.rmtree(output)
    return (
        cost,
        sum(shard.records for shard in manifest.files),
        sum(shard.bytes for shard in manifest.files),
    )


def job(
    text: pathlib.Path, folder: pathlib.Path, seq_len: int, workers: int, rounds: int
) -> dict[str, Any]:
    """Run the job `rounds` times and print the medians; return all figures for the JSON."""
    # The records are the same in each round, only the times differ.
    results = [run_job(text, folder / 'records', seq_len, workers) for _ in range(rounds)]
    seconds, cpu, peak = (statistics.median(cost[i] for cost, _, _ in results) for i in range(3))
    (_, examples, size), megabytes = results[0], text.stat().st_size / 1e6
    print(
        f'S={seq_len} workers={workers}: {examples:,} examples of {megabytes:.1f} MB in'
        f' {seconds:.1f} s, {cpu:.1f} CPU-seconds: {examples / cpu:,.0f} examples a CPU-second,'
        f' {megabytes / cpu:.2f} MB of text a CPU-second, {megabytes / seconds:.2f} a second;'
        f' {size / examples:.0f} bytes an example; peak memory {peak / 2**20:,.0f} MiB of all'
        ' processes together',
        flush=True,
    )
    return {
        'seq_len': seq_len,
        'workers': workers,
        'examples': examples,
        'bytes': size,
        'seconds': [cost.seconds for cost, _, _ in results],
        'cpu_seconds': [cost.cpu_seconds for cost, _, _ in results],
        'peak_bytes': [cost.peak_bytes for cost, _, _ in results],
        'examples_a_cpu_second': examples / cpu,
        'megabytes_a_cpu_second': megabytes / cpu,
        'megabytes_a_second': megabytes / seconds,
        'last_line': results[0][0].output.strip().splitlines()[-1],
    }


def stages(text: pathlib.Path, folder: pathlib.Path, seq_len: int) -> dict[str, float]:
    """Return {stage: its share of the job's processor time}, in one process, without imports."""
    processes.run(
        [
            sys.executable,
            '-m',
            'benchmarks.stages',
            str(folder / 'stages.json'),
            *command(text, folder / 'records', seq_len),
        ]
    )
    # Records first, they are large; the figures lie next to them.
    shutil.rmtree(folder / 'records')
    seconds = json.loads((folder / 'stages.json').read_text())
    shares = {
        name: value / sum(seconds.values())
        for name, value in sorted(seconds.items(), key=lambda item: -item[1])
    }
    print(
        f'S={seq_len} stages: '
        + ', '.join(f'{name} {share:.0%}' for name, share in shares.items()),
        flush=True,
    )
    return shares


def compare(
    program: pathlib.Path,
    tokenizer: Any,
    text: pathlib.Path,
    folder: pathlib.Path,
    seq_len: int,
    rounds: int,
) -> dict[str, Any]:
    """Run the original and the job on the same text in turn, and print ratios of their speed.

    In examples a CPU-second. Both are counted alike: from start to end, and without start and
    imports.
    """
    rates: dict[str, dict[str, list[float]]] = {
        counted: {'reference': [], 'ours': []} for counted in ('whole', 'without_start')
    }
    counts: dict[str, int] = {}

    # In turn, round by round, so that both meet the same machine.
    for _ in range(rounds):
        theirs, examples = run_reference(program, tokenizer, text, folder, seq_len)
        # Around the original _UNDER_V1 prints what the imports took; ours says in its last line
        # what it took without start and imports.
        imports = float(re.search(r'^imports: (\S+)', theirs.output, re.M)[1])
        cpu = {'reference': (examples, theirs.cpu_seconds, theirs.cpu_seconds - imports)}
        ours, examples, _ = run_job(text, folder / 'records', seq_len, 1)
        working = float(re.search(r'([\d.]+) CPU-seconds', ours.output)[1])
        cpu['ours'] = examples, ours.cpu_seconds, working
        for name, (examples, whole, without_start) in cpu.items():
            counts[name] = examples
            rates['whole'][name].append(examples / whole)
            rates['without_start'][name].append(examples / without_start)

    # Ratios within a round, then their median and range.
    ratios = {}
    megabytes = text.stat().st_size / 1e6
    for counted, words in (
        ('whole', 'from start to end'),
        ('without_start', 'without start and imports of both'),
    ):
        there, here = rates[counted]['reference'], rates[counted]['ours']
        ratios[counted] = sorted(a / b for a, b in zip(here, there, strict=True))
        print(
            f'S={seq_len} beside {program} on {megabytes:.1f} MB, {words}: '
            f'{statistics.median(there):,.0f} examples a CPU-second there, '
            f'{statistics.median(here):,.0f} here: {_range(ratios[counted])}',
            flush=True,
        )
    return {
        'seq_len': seq_len,
        'text_bytes': text.stat().st_size,
        'examples': counts,
        'examples_a_cpu_second': rates,
        'ratios': ratios,
    }


def _range(ratios: list[float]) -> str:
    return f'{statistics.median(ratios):.1f} times' + (
        f' ({ratios[0]:.1f} to {ratios[-1]:.1f})' if len(ratios) > 1 else ''
    )


def run_reference(
    program: pathlib.Path, tokenizer: Any, text: pathlib.Path, folder: pathlib.Path, seq_len: int
) -> tuple[processes.Cost, int]:
    """Run the original with the options of the job; return cost and examples."""
    from bert_jax.input_pipeline.records.tfrecord import frame_bounds

    # The original wants a plain vocabulary file and its own names of the same options.
    output, vocabulary = folder / 'reference.tfrecord', folder / 'vocab.txt'
    vocabulary.write_text('\n'.join(tokenizer.tokens(range(tokenizer.vocab_size))) + '\n')
    options = {
        'input_file': text,
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
    cost = processes.run(
        [
            sys.executable,
            '-c',
            _UNDER_V1,
            str(program),
            *(f'--{name}={value}' for name, value in options.items()),
        ],
        quiet,
    )
    # Bounds are one more than records.
    return cost, len(frame_bounds(output.read_bytes())) - 1


if __name__ == '__main__':
    app.run(main)
