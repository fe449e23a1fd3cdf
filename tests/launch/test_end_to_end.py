"""The whole path through the commands, from text to a score, and kills on the way."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.train.checkpoint import list_saved_steps, load_params
from tests.helpers.files import read_json
from tests.helpers.mood import write
from tests.helpers.processes import ROOT, mistake, ok
from tests.helpers.texts import documents

SEA = 'the ship sailed over deep water while sailors watched waves harbour storm anchor'.split()
SMALL = ('model.num_layers=1', 'model.hidden_size=32', 'model.intermediate_size=64')
FARM = 'a farmer ploughed his field before rain so that wheat barley cattle sheep barn'.split()


@pytest.fixture(scope='module')
def folder(tmp_path_factory, binary) -> pathlib.Path:
    """A task that asks for the topic of a sentence, and records of documents on two topics."""
    folder, rng = tmp_path_factory.mktemp('path'), random.Random(0)
    sentence = lambda words: ' '.join(rng.choices(words, k=8)) + '.'
    parts = [documents(words, 1, seed) for seed in range(60) for words in (SEA, FARM)]
    (folder / 'text.txt').write_text('\n'.join(parts))
    topic = lambda _, word: {'text': sentence(SEA if word == 'sea' else FARM)}
    write(folder, topic, ['sea'], ['farm'], (120, 40))
    text = f'--input={folder}/text.txt'
    options = (
        '--seq_len=32',
        '--dupe_factor=3',
        '--workers=1',
        '--eval_fraction=0.1',
        f'--output={folder}/records',
    )
    for command in (
        ('train_vocab', text, f'--output={folder}/vocab', '--vocab_size=200'),
        ('preprocess', text, f'--tokenizer={folder}/vocab', *options),
        ('verify_data', f'{folder}/records'),
    ):
        ok(binary(*command))
    return folder


def pretrain_command(folder: pathlib.Path, workdir: str, *changes: str) -> list[str]:
    """The training command of every run here."""
    settings = (
        'phases.0.steps=30',
        'phases.0.batch_size=32',
        'optimizer.warmup_steps=5',
        'runtime.log_every=2',
        'runtime.eval_every=30',
        'runtime.checkpoint_every=30',
        f'model.vocab_size={Manifest.load(folder / "records").vocab_size}',
    )
    return [
        'pretrain',
        '--config=quickstart',
        f'--data={folder}/records',
        f'--workdir={folder / workdir}',
        *(f'--set={change}' for change in (*settings, *changes)),
    ]


@pytest.fixture(scope='module')
def pretrained(folder, binary) -> pathlib.Path:
    ok(binary(*pretrain_command(folder, 'run', *SMALL)))
    return folder / 'run'


def test_text_to_score(pretrained, folder, binary):
    settings = ['--set=epochs=20', '--set=optimizer.peak_lr=3e-3', '--set=max_seq_length=16']
    run = (f'--task={folder}/mood.json', f'--init_from={pretrained}', f'--workdir={folder}/tuned')
    ok(binary('finetune', *run, *settings))
    ok(binary('evaluate', f'--workdir={folder}/tuned', '--split=dev'))
    result = read_json(folder / 'tuned/eval/dev.json')
    assert result['metrics']['accuracy'] > 0.95
    ok(binary('evaluate', f'--workdir={pretrained}', f'--data={folder}/records'))

    refused = binary(*pretrain_command(folder, 'run', *SMALL, 'seed=5'))
    assert 'seed: 12345 -> 5' in mistake(refused)


@pytest.mark.slow
def test_kills_in_a_row_at_any_moment_leave_no_trace(folder):
    """SIGKILL while it imports or compiles, while it trains, and while it evaluates or writes.

    The parameters are, to the bit, those of a run left alone.
    """
    changes = (
        'phases.0.steps=90', 'phases.0.batch_size=8', 'runtime.eval_every=20',
        'runtime.eval_batches=2', 'runtime.checkpoint_every=10',
    )  # fmt: skip
    rng, reached = random.Random(int(os.environ['BERT_JAX_TEST_SEED'])), []

    def started(name: str) -> subprocess.Popen:
        program, *arguments = pretrain_command(folder, name, *changes)
        command = [sys.executable, '-m', f'bert_jax.launch.{program}', *arguments]
        settings = {'JAX_NUM_CPU_DEVICES': '1', 'JAX_DISABLE_MOST_OPTIMIZATIONS': '0'}
        environment = os.environ | settings
        return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)

    metrics = folder / 'killed/metrics.jsonl'
    logged = lambda: max((m['step'] for m in read_metrics(metrics)), default=0)
    assert started('alone').wait() == 0
    for step in (0, rng.randrange(2, 36), rng.randrange(46, 70)):
        process, until = started('killed'), time.monotonic() + 400
        while step and process.poll() is None and time.monotonic() < until:
            if metrics.exists() and logged() >= step:
                break
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2 if step else 6))
        process.kill()
        assert process.wait() == -signal.SIGKILL
        reached.append(max(list_saved_steps(folder / 'killed'), default=0))
    assert started('killed').wait() == 0
    # It went on from where it was.
    assert reached[1] < reached[2] and reached == sorted(reached), reached
    (want, step), (got, other) = load_params(folder / 'alone'), load_params(folder / 'killed')
    assert step == other == 90
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=f'killed at {reached}')


@pytest.mark.parametrize(
    'change, message',
    [
        (
            '--set=model.vocab_size=99',
            'entries, but model.vocab_size=99: add --set model.vocab_size=',
        ),
        ('--set=runtime.accumulation=5', 'does not divide by runtime.accumulation=5'),
        ('--set=phases.0.bach_size=12', 'phases.0.bach_size'),
        ('--set=runtime.fsdp=3', 'there are 8 devices'),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(folder, binary, change, message):
    result = binary(*pretrain_command(folder, 'refused'), change)
    assert (result.returncode, result.stdout) == (2, '')
    assert message in result.stderr.splitlines()[-1], result.stderr
    assert not (folder / 'refused').exists()
