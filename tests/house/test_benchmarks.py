"""The benchmarks: what they count and divide, on small things whose cost is known."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

from benchmarks import stages
from bert_jax.configs import schema

ROOT = pathlib.Path(__file__).parents[2]


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
