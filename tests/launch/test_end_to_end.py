"""The whole path through the real command lines.

Text to a score, with a kill in the middle of training.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bert_jax.runs.pretraining.baselines import baselines
from bert_jax.runs.workdir import notes
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train.checkpoint import load_params, saved_steps

ROOT = pathlib.Path(__file__).parents[2]
TOPICS = {
    'sea': (
        'the ship sailed over deep water while sailors watched waves harbour storm anchor tide'
        ' captain'.split()
    ),
    'farm': (
        'a farmer ploughed his field before rain so that wheat barley cattle sheep barn tractor'
        ' grew'.split()
    ),
}
TRAINING = [
    'phases.0.steps=30',
    'phases.0.batch_size=32',
    'optimizer.warmup_steps=5',
    'runtime.log_every=2',
    'runtime.eval_every=15',
    'runtime.checkpoint_every=4',
]


def sentence(topic: str, rng: random.Random) -> str:
    """Eight words of a topic."""
    return ' '.join(rng.choices(TOPICS[topic], k=8)) + '.'


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
    """A text of documents on two topics, and a task that asks for the topic."""
    folder, rng = tmp_path_factory.mktemp('path'), random.Random(0)
    documents = [
        '\n'.join(sentence(topic, rng) for _ in range(8)) for topic in ('sea', 'farm') * 60
    ]
    (folder / 'text.txt').write_text('\n\n'.join(documents) + '\n')
    for split, size in (('train', 120), ('dev', 40)):
        rows = [
            {'text': sentence(topic, rng), 'label': topic}
            for topic in ('sea', 'farm') * (size // 2)
        ]
        (folder / f'{split}.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    task = {
        'kind': 'classification',
        'files': {'train': 'train.jsonl', 'dev': 'dev.jsonl'},
        'columns': {'text': 'text', 'label': 'label'},
    }
    (folder / 'task.json').write_text(
        json.dumps({**task, 'labels': ['sea', 'farm'], 'metrics': ['accuracy']})
    )
    return folder


def ok(result: subprocess.CompletedProcess) -> None:
    """Fails, with what the binary said, unless it succeeded."""
    assert result.returncode == 0, result.stderr


def make_records(folder: pathlib.Path, binary) -> None:
    """A vocabulary and TFRecords from the folder's text."""
    text = f'--input={folder}/text.txt'
    ok(binary('train_vocab', text, f'--output={folder}/vocab', '--vocab_size=200'))
    options = ['--seq_len=32', '--dupe_factor=3', '--eval_fraction=0.1']
    ok(
        binary(
            'preprocess',
            text,
            f'--tokenizer={folder}/vocab',
            f'--output={folder}/records',
            *options,
        )
    )


def pretrain_command(folder: pathlib.Path, workdir: str) -> list[str]:
    """The training command of every run here."""
    records = folder / 'records'
    vocab_size = json.loads((records / 'manifest.json').read_text())['vocab_size']
    changes = [f'--set={c}' for c in (*TRAINING, f'model.vocab_size={vocab_size}')]
    return [
        sys.executable,
        '-m',
        'bert_jax.launch.pretrain',
        '--config=quickstart',
        f'--data={records}',
        f'--workdir={folder / workdir}',
        *changes,
    ]


def stop_at(
    step: int,
    command: list[str],
    workdir: pathlib.Path,
    number: int,
    later: float = 0.0,
    **environment: str,
) -> int:
    """Starts a run, sends it a signal once it has logged `step`, and returns its exit status.

    `later`: seconds between the two; a later step will do.
    """
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stderr=subprocess.DEVNULL
    )
    metrics, until = workdir / 'metrics.jsonl', time.monotonic() + 400
    while process.poll() is None and time.monotonic() < until:
        if metrics.exists() and max((m['step'] for m in read_metrics(metrics)), default=0) >= step:
            time.sleep(later)
            process.send_signal(number)
            break
        time.sleep(0.01)
    return process.wait(timeout=120)


@pytest.fixture(scope='module')
def undisturbed(folder, binary) -> pathlib.Path:
    """A run that nothing stopped."""
    make_records(folder, binary)
    command = pretrain_command(folder, 'undisturbed')
    ok(subprocess.run(command, cwd=ROOT, capture_output=True, text=True))
    return folder / 'undisturbed'


def test_text_to_score(undisturbed, folder, binary):
    ok(binary('verify_data', f'{folder}/records'))
    settings = ['--set=epochs=30', '--set=optimizer.peak_lr=1e-3', '--set=max_seq_length=16']
    ok(
        binary(
            'finetune',
            f'--task={folder}/task.json',
            f'--init_from={undisturbed}',
            f'--workdir={folder}/tuned',
            *settings,
        )
    )
    ok(binary('evaluate', f'--workdir={folder}/tuned', '--split=dev'))
    result = json.loads((folder / 'tuned/eval/dev.json').read_text())
    assert result['metrics']['accuracy'] > 0.95
    ok(binary('evaluate', f'--workdir={undisturbed}', f'--data={folder}/records'))

    command = pretrain_command(folder, 'undisturbed')
    refused = binary('pretrain', *command[3:], '--set=seed=5')
    assert (refused.returncode, refused.stderr.count('\n')) == (2, 1), refused.stderr
    assert 'seed: 12345 -> 5' in refused.stderr




def test_a_run_that_ends_with_a_refusal_has_its_last_checkpoint_and_one_line(
    undisturbed, folder, binary
):
    changes = ['optimizer.peak_lr=1e30', 'runtime.max_bad_steps=3', 'runtime.checkpoint_every=1']
    command = pretrain_command(folder, 'diverged') + [f'--set={change}' for change in changes]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 2 and 'Traceback' not in refused.stderr, refused.stderr
    assert refused.stderr.splitlines()[-1].startswith(
        'pretrain: error: 3 steps in a row, 3 to 5, had a non-finite'
    )
    newest = saved_steps(folder / 'diverged')[-1]
    assert newest >= 4 and load_params(folder / 'diverged')[1] == newest
    assert (
        not list((folder / 'diverged/checkpoints').glob('*tmp*'))
        and (folder / 'diverged/plots/losses.png').exists()
    )


@pytest.mark.slow
def test_twenty_kills_in_a_row_at_any_moment_leave_no_trace(undisturbed, folder, binary):
    """SIGKILL while it imports, compiles, trains, evaluates or writes.

    The parameters are, to the bit, those of a run left alone.
    """
    changes = [
        'phases.0.steps=600',
        'phases.0.batch_size=8',
        'runtime.eval_every=100',
        'runtime.eval_batches=2',
        'runtime.checkpoint_every=20',
    ]
    longer = [f'--set={change}' for change in changes]
    settings = {'JAX_NUM_CPU_DEVICES': '1', 'JAX_DISABLE_MOST_OPTIMIZATIONS': '0'}
    alone, command = ([*pretrain_command(folder, name), *longer] for name in ('alone', 'killed'))
    ok(subprocess.run(alone, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True))
    rng, reached = random.Random(int(os.environ['BERT_JAX_TEST_SEED'])), []
    for kill in range(20):
        if kill % 4 == 0:  # before or when it begins to train
            process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ | settings, stderr=subprocess.DEVNULL
            )
            time.sleep(rng.uniform(0, 8))
            process.kill()
            assert process.wait() == -signal.SIGKILL
        else:
            step = 28 * kill + rng.randrange(28)
            assert (
                stop_at(
                    step,
                    command,
                    folder / 'killed',
                    signal.SIGKILL,
                    rng.uniform(0, 0.5),
                    **settings,
                )
                == -signal.SIGKILL
            )
        reached.append(max(saved_steps(folder / 'killed'), default=0))
    ok(subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True))
    # It went on from where it was.
    assert len(set(reached)) > 9 and reached == sorted(reached), reached
    (want, step), (got, other) = load_params(folder / 'alone'), load_params(folder / 'killed')
    assert step == other == 600
    for a, b in zip(leaves(want), leaves(got), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=f'killed at {reached}')


def leaves(tree):
    """The arrays of nested dictionaries, in order of their names."""
    return [
        leaf
        for name in sorted(tree)
        for leaf in (leaves(tree[name]) if isinstance(tree[name], dict) else [tree[name]])
    ]


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (
            ['--set=model.vocab_size=99'],
            'entries, but model.vocab_size=99: add --set model.vocab_size=',
        ),
        (['--set=phases.0.seq_len=128'], 'beyond the position table'),
        (
            ['--set=phases.0.batch_size=12', '--set=runtime.accumulation=8'],
            'does not divide by runtime.accumulation=8',
        ),
        (['--set=phases.0.bach_size=12'], 'phases.0.bach_size'),
        (['--data=/nowhere'], '/nowhere'),
        (['--config=bert_huge'], 'bert_huge'),
        (['--set=runtime.fsdp=3'], 'there are 1 devices'),
    ],
)
def test_mistakes_are_one_line_and_exit_2(undisturbed, folder, binary, change, message):
    result = binary('pretrain', *pretrain_command(folder, 'refused')[3:], *change)
    assert result.returncode == 2
    assert result.stderr.strip().count('\n') == 0 and message in result.stderr
    assert not (folder / 'refused' / 'config.json').exists()


