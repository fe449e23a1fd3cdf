"""The benchmarks: what they count and divide, on small things whose cost is known."""

from __future__ import annotations

import configparser
import dataclasses
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

from benchmarks import preprocess, processes, stages
from bert_jax.configs import schema

ROOT = pathlib.Path(__file__).parents[2]
# The flags, modules and way of starting of google-research/bert's program; one example a line and
# pass.
STAND_IN = """
import collections
import json
import tokenization
import tensorflow as tf

flags = tf.flags
FLAGS = flags.FLAGS
for name in ('input_file', 'output_file', 'vocab_file'):
    flags.DEFINE_string(name, None, name)
flags.DEFINE_bool('do_lower_case', True, '')
flags.DEFINE_bool('do_whole_word_mask', False, '')
for name in ('max_seq_length', 'max_predictions_per_seq', 'random_seed', 'dupe_factor'):
    flags.DEFINE_integer(name, 0, name)
for name in ('masked_lm_prob', 'short_seq_prob'):
    flags.DEFINE_float(name, 0, name)


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    print(json.dumps(FLAGS.flag_values_dict()))
    with (
        tf.gfile.GFile(FLAGS.input_file, 'r') as file,
        tf.python_io.TFRecordWriter(FLAGS.output_file) as writer,
    ):
        for line in file.read().split('\\n'):
            for _ in range(FLAGS.dupe_factor if line.strip() else 0):
                ids = tf.train.Int64List(value=tokenization.ids(line))
                features = collections.OrderedDict(a=tf.train.Feature(int64_list=ids))
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())


if __name__ == '__main__':
    flags.mark_flag_as_required('input_file')
    tf.app.run()
"""


@pytest.fixture
def text(tmp_path):
    """A vocabulary, and 30 documents of four lines."""
    words = [f'w{i}' for i in range(50)]
    (tmp_path / 'vocabulary').mkdir()
    (tmp_path / 'vocabulary' / 'vocab.txt').write_text(
        '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words]) + '\n'
    )
    (tmp_path / 'vocabulary' / 'tokenizer_config.json').write_text('{"do_lower_case": true}')
    lines = [' '.join(words[(7 * i + j) % 50] for j in range(12)) for i in range(120)]
    (tmp_path / 'text.txt').write_text(
        '\n\n'.join('\n'.join(lines[i : i + 4]) for i in range(0, 120, 4)) + '\n\n'
    )
    return tmp_path


def benchmark(folder, *arguments):
    flags = [
        f'--input={folder}/text.txt',
        f'--tokenizer={folder}/vocabulary',
        '--dupe_factor=2',
        *arguments,
    ]
    return subprocess.run(
        [sys.executable, '-m', 'benchmarks.preprocess', *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_benchmarks_are_not_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / 'setup.cfg')
    assert not [
        name
        for name in config['options']['packages'].split()
        if name.startswith(('benchmarks', 'tests'))
    ]


def test_a_program_is_measured_with_all_that_it_starts():
    inner = 'import time\nkept = b"x" * (100 << 20)\nwhile time.process_time() < 0.6: pass'
    code = (
        'import subprocess, sys\nkept = b"x" * (150 << 20)\nsubprocess.run([sys.executable, "-c",'
        f' {inner!r}])'
    )
    cost = processes.run([sys.executable, '-c', code + '\nprint("done")'])
    assert cost.output == 'done\n' and 0.6 <= cost.cpu_seconds < 3 and cost.seconds >= 0.6
    if pathlib.Path('/proc/self/statm').exists():
        assert 250 << 20 <= cost.peak_bytes < 330 << 20
    with pytest.raises(SystemExit, match='exit code 3'):
        processes.run([sys.executable, '-c', 'import sys; sys.exit(3)'])


def test_processor_time_is_that_of_all_that_runs():
    """This process and one that it has started; a number only where /proc tells."""
    if not pathlib.Path('/proc/self/stat').exists():
        assert processes.cpu_seconds(os.getpid()) == 0
        return
    code = 'import time\nwhile time.process_time() < 0.5: pass\nprint(1, flush=True)\ninput()'
    before = processes.cpu_seconds(os.getpid())
    assert before == pytest.approx(sum(os.times()[:4]), abs=0.1)
    with subprocess.Popen(
        [sys.executable, '-c', code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.read(1) == b'1'
        assert 0.45 < processes.cpu_seconds(os.getpid()) - before < 1
        child.stdin.write(b'\n')
        child.stdin.flush()


def test_a_stage_has_its_own_time_only():
    def burn(seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    clock = stages.Clock()
    inner = clock.around('inner', lambda: burn(0.2))

    def items():
        for _ in range(2):
            burn(0.05)
            inner()
            yield 1

    def outer():
        burn(0.1)
        assert sum(clock.around('items', items)()) == 2

    clock.around('outer', outer)()
    assert dict(clock.seconds) == pytest.approx(
        {'outer': 0.1, 'items': 0.1, 'inner': 0.4}, abs=0.05
    )


def test_a_larger_text_has_no_line_twice(text):
    source = ['in 1990 he went home .', 'then it was 12 .', '', 'one two three four five .']
    (text / 'source').write_text('\n'.join(source) + '\n')
    lines = preprocess.scaled(text / 'source', text / 'scaled', 4).read_text().splitlines()
    assert lines[:4] == source and lines[5:7] == ['2001 he went home . in', 'it was 23 . then']
    kept = [line for line in lines if line]
    assert len(kept) == 12 == len(set(kept)) and {len(line.split()) for line in kept} == {6, 5}
    assert (
        preprocess.beginning(text / 'source', text / 'part', 30).read_text().splitlines()
        == source[:2]
    )


def test_the_command(text):
    done = benchmark(text, '--seq_len=32', '--scale=3', f'--json={text}/found.json')
    assert done.returncode == 0, done.stderr
    found = json.loads((text / 'found.json').read_text())
    (job,) = found['jobs']
    assert found['text_bytes'] == (text / 'text.txt').stat().st_size * 3 + 3
    assert found['machine']['cores']
    assert found['machine']['numpy']
    assert job['examples_a_cpu_second'] == pytest.approx(job['examples'] / job['cpu_seconds'][0])
    assert f'{job["examples"]:,} examples' in done.stdout
    assert job['last_line'].startswith(f'{job["examples"]:,} examples in')
    shares = found['stages']['32']
    assert sum(shares.values()) == pytest.approx(1)
    assert set(shares) == {name for name, _, _ in stages.CLOCKS}
    assert min(shares.values()) > 0
    missing = benchmark(text, f'--reference={text}')
    assert missing.returncode == 2 and 'no create_pretraining_data.py in it' in missing.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec('tensorflow'), reason='TensorFlow is not installed'
)
def test_the_original_program_is_run_on_the_same_text(text):
    (text / 'original').mkdir()
    (text / 'original' / 'create_pretraining_data.py').write_text(STAND_IN)
    (text / 'original' / 'tokenization.py').write_text(
        'def ids(line):\n    return [len(word) for word in line.split()]\n'
    )
    done = benchmark(
        text,
        '--seq_len=64',
        f'--reference={text}/original',
        '--reference_mb=0.002',
        f'--json={text}/found.json',
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((text / 'found.json').read_text())['reference']
    sample = (text / 'text.txt').read_text()[: found['text_bytes']]
    assert 2000 <= found['text_bytes'] < 2500
    assert found['examples']['reference'] == 2 * len([line for line in sample.split('\n') if line])
    rates = found['examples_a_cpu_second']
    for counted, words in (
        ('whole', 'from start to end'),
        ('without_start', 'without start and imports of both'),
    ):
        ours, theirs = (rates[counted][name][0] for name in ('ours', 'reference'))
        assert found['ratios'][counted] == [pytest.approx(ours / theirs)] and theirs > 0
        assert words in done.stdout
    for name in ('ours', 'reference'):  # both are counted alike
        assert rates['without_start'][name][0] > 1.2 * rates['whole'][name][0]


@pytest.mark.slow
def test_train_step_measures_ours_beside_the_bare_gradient(tmp_path):
    report = tmp_path / 'step.json'
    flags = [
        '--cases=bert_tiny:32',
        '--batch_size=2',
        '--rounds=2',
        '--seconds=0.02',
        '--notorch',
        f'--json={report}',
    ]
    done = subprocess.run(
        [sys.executable, '-m', 'benchmarks.train_step', *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and 'bert_tiny:32, batch 2' in done.stdout, done.stderr
    case = json.loads(report.read_text())['cases'][0]
    assert case['programs'].keys() == {'ours', 'bare'}
    assert all(p['sequences_a_second'] > 0 for p in case['programs'].values())
    # By hand: 6 (4 H^2 + 2 H F) S L + 12 L H S^2 + 6 P (H^2 + H V) + 6 H^2, with H=128 F=512 L=2
    # S=32 P=5 V=30522.
    assert (
        case['flops_a_sequence']
        == 6 * 2 * (4 * 128**2 + 2 * 128 * 512) * 32
        + 12 * 2 * 128 * 32**2
        + 6 * 5 * (128**2 + 128 * 30522)
        + 6 * 128**2
    )


def test_fine_tuning_is_compared_with_pytorch_over_seeds(tmp_path):
    """Means, deviations and the error of their difference, of seeds that were run before.

    By hand: sd of (1, 2, 3) is 1 and of (2, 4) sqrt(2), so the error is sqrt(1/3 + 2/2).
    """
    folder, scores = tmp_path / 'sweep', tmp_path / 'pytorch.json'
    rows = [
        {
            'name': f'seed={seed}',
            'settings': {'seed': seed},
            'metrics': {'f1': 1.0 + seed, 'accuracy': 0.5},
        }
        for seed in range(3)
    ]
    (folder / 'runs' / 'seed=0').mkdir(parents=True)
    scores.write_text(
        json.dumps(
            {'seeds': {str(i): {'metrics': {'f1': 2.0 + 2 * i, 'accuracy': 0.5}} for i in range(2)}}
        )
    )
    (tmp_path / 'train.jsonl').write_text('')

    def run(config, rows) -> subprocess.CompletedProcess:
        (folder / 'sweep.json').write_text(json.dumps({'runs': rows}))
        (folder / 'runs' / 'seed=0' / 'config.json').write_text(schema.dumps(config))
        flags = [
            '--task=mrpc',
            f'--data_dir={tmp_path}',
            '--init_from=nowhere',
            '--seeds=0,1',
            f'--runs={folder}',
            f'--json={scores}',
        ]
        return subprocess.run(
            [sys.executable, '-m', 'benchmarks.finetune', *flags],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )

    optimizer = schema.FinetuneConfig().optimizer
    repeatable = schema.FinetuneConfig(
        optimizer=dataclasses.replace(optimizer, algorithm='adamw', schedule='linear')
    )
    done = run(repeatable, rows)
    assert (
        done.stdout.splitlines()[0]
        == 'f1: ours 2.0000 (sd 1.0000, 3 seeds), PyTorch 3.0000 (sd 1.4142, 2 seeds); difference'
        ' -1.0000, its standard error 1.1547'
    ), done.stderr
    for config, of, message in (
        (
            schema.FinetuneConfig(),
            rows,
            '--set optimizer.algorithm=adamw --set optimizer.schedule=linear',
        ),
        (repeatable, [rows[0] | {'settings': {'epochs': 2}}], 'its runs differ in epochs'),
    ):
        refused = run(config, of)
        assert (
            refused.returncode == 2
            and message in refused.stderr
            and refused.stderr.count('\n') == 1
        ), refused.stderr


@pytest.mark.slow
def test_the_gpu_day_goes_through_its_parts_on_a_cpu(tmp_path):
    """The parts run for real, on a tiny model; what has no time or fails is said, not dropped."""
    draw = random.Random(0)
    words = [a + b for a in 'bcdfgklm' for b in ('a', 'en', 'ist', 'o', 'u')]
    lines = [' '.join(draw.choices(words, k=14)) for _ in range(2000)]
    documents = [lines[i : i + 20] for i in range(0, len(lines), 20)]
    (tmp_path / 'text.txt').write_text('\n\n'.join('\n'.join(d) for d in documents) + '\n')

    def day(output, *flags) -> tuple[dict, str]:
        done = subprocess.run(
            [
                sys.executable,
                '-m',
                'benchmarks.gpu_day',
                f'--text={tmp_path}/text.txt',
                f'--output={tmp_path}/{output}',
                *flags,
            ],
            cwd=ROOT,
            env={**os.environ, 'XLA_FLAGS': ''},  # one device, as there would be one GPU
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / output / 'gpu_day.json').read_text())
        assert all(name in (tmp_path / output / 'day.html').read_text() for name in found['parts'])
        return found['parts'], done.stdout

    parts, told = day('whole', '--minutes=20')
    assert {name: part['state'] for name, part in parts.items()} == dict.fromkeys(
        ('records', 'speed128', 'resume', 'attention'), 'done'
    )
    assert parts['resume']['equal_bits'] and parts['resume']['arrays'] > 50
    # The killed run was: its second command says from where it goes on.
    log = (tmp_path / 'whole' / 'logs' / 'resume.log').read_text()
    assert log.count('--workdir=') == 3 and 'killed: resumed at step 20 of 60' in log
    assert parts['speed128']['ours'] > 0
    assert 'resume: done, equal_bits True' in told

    # A preset that is none: the records stand, each part after them says why it failed.
    parts, told = day('broken', '--preset=bert_nano')
    assert parts['records']['state'] == 'done'
    assert parts['resume']['state'] == parts['speed128']['state'] == 'failed'
    assert 'bert_nano' in parts['resume']['error'] and 'resume: failed' in told
