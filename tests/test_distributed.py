"""Several processes: the roll call, the watchdog, and a run of two that is killed, restarted and equal to a run of one."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from bert_jax import distributed
from bert_jax.checkpoint import load_params
from bert_jax.metrics import read_metrics
from configs.errors import UserError

ROOT = pathlib.Path(__file__).parents[1]


def free_port() -> int:
    """A port with a free one after it."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(('', 0))
            port = one.getsockname()[1]
            try:
                two.bind(('', port + 1))
            except OSError:
                continue
            return port


def outcomes(calls: list[Callable[[], None]]) -> list[str]:
    """What each call said, all made at once; '' for one that returned."""
    found = [''] * len(calls)

    def make(place: int) -> None:
        try:
            calls[place]()
        except UserError as error:
            found[place] = str(error)

    threads = [threading.Thread(target=make, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_all_arrive():
    port = free_port()
    assert outcomes([lambda i=i: distributed.roll_call('localhost', port, 4, i, 20) for i in range(4)]) == ['', '', '', '']


def test_who_is_missing_is_named_everywhere():
    port = free_port()
    found = outcomes([lambda i=i: distributed.roll_call('localhost', port, 5, i, 1.0) for i in (0, 1, 3)])
    assert all('3 of 5 processes arrived within 1 s; missing: 2, 4' in line for line in found), found


def test_process_0_is_missing():
    port = free_port()
    assert f'process 0 did not answer at localhost:{port}' in outcomes([lambda: distributed.roll_call('localhost', port, 2, 1, 0.5)])[0]


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [(('nowhere', 2, 0), 'must be HOST:PORT'), (('h:1', None, 0), '--num_processes'), (('h:1', 2, 2), 'from 0 to 1')],
)
def test_mistakes(arguments, message):
    with pytest.raises(UserError, match=message):
        distributed.initialize(*arguments, timeout_s=1, heartbeat_s=1)


def test_watchdog_ends_a_process_in_which_nothing_moves():
    program = """
import time
from bert_jax.distributed import watchdog
with watchdog(0.02) as beat:  # 1.2 seconds
    for _ in range(20):
        time.sleep(0.1)
        beat()
    print('alive', flush=True)
    time.sleep(60)
"""
    done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == distributed.TRY_AGAIN and done.stdout == 'alive\n'
    assert 'no step was done for 0.02 minutes' in done.stderr and 'time.sleep' in done.stderr or 'Thread' in done.stderr


TRAINING = ['phases.0.steps=40', 'phases.0.batch_size=16', 'phases.0.seq_len=32', 'optimizer.warmup_steps=5', 'runtime.log_every=5']
TRAINING += ['runtime.eval_every=20', 'runtime.checkpoint_every=10', 'model.hidden_dropout=0.1', 'runtime.fsdp=2']


@pytest.mark.slow
@pytest.mark.parametrize('count', [2, 4])
def test_processes_of_which_one_is_killed_restart_and_equal_one_process(tmp_path, binary, count):
    words = 'the ship sailed over deep water while farmers ploughed a field before rain fell on barley'.split()
    rng = np.random.default_rng(0)
    documents = ['\n'.join(' '.join(rng.choice(words, 9)) + '.' for _ in range(8)) for _ in range(60)]
    (tmp_path / 'text.txt').write_text('\n\n'.join(documents) + '\n')
    binary('train_vocab', f'--input={tmp_path}/text.txt', f'--output={tmp_path}/vocab', '--vocab_size=120')
    options = ['--seq_len=32', '--dupe_factor=2', '--eval_fraction=0.1']
    made = binary('preprocess', f'--input={tmp_path}/text.txt', f'--tokenizer={tmp_path}/vocab', f'--output={tmp_path}/records', *options)
    assert made.returncode == 0, made.stderr
    size = json.loads((tmp_path / 'records' / 'manifest.json').read_text())['vocab_size']

    def command(run: str) -> list[str]:
        changes = [f'--set={change}' for change in (*TRAINING, f'model.vocab_size={size}')]
        return [
            sys.executable,
            '-m',
            'launch.pretrain',
            '--config=quickstart',
            f'--data={tmp_path}/records',
            f'--workdir={tmp_path / run}',
            *changes,
        ]

    environment = {**os.environ, 'JAX_NUM_CPU_DEVICES': '4'}
    one = subprocess.run(command('one'), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert one.returncode == 0, one.stderr

    port, environment = free_port(), {**os.environ, 'JAX_NUM_CPU_DEVICES': str(4 // count)}
    supervise = [sys.executable, '-m', 'launch.supervise', '--pause_s=0.5', '--max_restarts=8', '--']
    flags = [f'--coordinator=localhost:{port}', f'--num_processes={count}', '--arrival_timeout_s=120', '--heartbeat_s=20']
    logs = [tmp_path / f'process{i}.log' for i in range(count)]
    processes = []
    for i, log in enumerate(logs):
        with log.open('w') as file:
            full = [*supervise, *command('many'), *flags, f'--process_id={i}']
            processes.append(subprocess.Popen(full, cwd=ROOT, env=environment, stdout=file, stderr=file))
    kill_the_second(tmp_path / 'many')
    assert [process.wait(timeout=400) for process in processes] == [0] * count, '\n'.join(log.read_text()[-3000:] for log in logs)
    assert all('restart 1 of' in log.read_text() for log in logs) and 'resumed at step' in logs[0].read_text()

    losses = [
        {m['step']: m['mlm_loss'] for m in read_metrics(tmp_path / run / 'metrics.jsonl') if m['split'] == 'train'}
        for run in ('one', 'many')
    ]
    assert losses[0].keys() == losses[1].keys() and len(losses[0]) == 8
    assert list(losses[0].values()) == pytest.approx(list(losses[1].values()), rel=1e-4)
    (want, _), (got, step) = (load_params(tmp_path / run) for run in ('one', 'many'))
    assert step == 40
    np.testing.assert_allclose(got['encoder']['embeddings']['word'], want['encoder']['embeddings']['word'], atol=1e-4)


def kill_the_second(workdir: pathlib.Path) -> None:
    """SIGKILL to process 1 (not to its supervisor) when a checkpoint is there."""
    until = time.monotonic() + 200
    while time.monotonic() < until:
        if any(path.name.isdecimal() for path in (workdir / 'checkpoints').glob('*')):
            for entry in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
                words = entry.read_bytes().split(b'\0')
                if b'--process_id=1' in words and b'launch.supervise' not in words and f'--workdir={workdir}'.encode() in words:
                    os.kill(int(entry.parent.name), signal.SIGKILL)
                    return
        time.sleep(0.02)
    raise AssertionError('no checkpoint appeared')
