"""The supervisor through its command: what is restarted, what is not, and how it is stopped."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.processes import ROOT, mistake, python

# Counts its starts in a file and ends as told: argv = file, exit code of each start; the last
# stands for all after it. A code below 0 is death by that signal.
PROGRAM = """
import os, sys
file, codes = sys.argv[1], [int(c) for c in sys.argv[2].split(',')]
started = len(open(file).read()) if os.path.exists(file) else 0
open(file, 'a').write('x')
code = codes[min(started, len(codes) - 1)]
os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
"""


SUPERVISE = ('-m', 'bert_jax.launch.supervise', '--pause_s=0.01')


def outcome(tmp_path: pathlib.Path, codes: str, *flags: str) -> tuple[int, int]:
    """(exit code of the supervisor, starts of the command)."""
    count = tmp_path / 'starts'
    done = python(*SUPERVISE, *flags, '--', sys.executable, '-c', PROGRAM, count, codes)
    return done.returncode, len(count.read_text())


@pytest.mark.parametrize(
    'codes, flags, expected',
    [
        ('0', [], (0, 1)),
        ('1,-9,143,0', [], (0, 4)),  # a crash, a kill, a preemption that was saved, done
        ('2', [], (2, 1)),  # the user's mistake
        ('1', ['--max_restarts=3'], (1, 4)),
        ('-6', ['--max_restarts=1'], (128 + 6, 2)),
    ],
)
def test_restarts_until_done(tmp_path, codes, flags, expected):
    assert outcome(tmp_path, codes, *flags) == expected


def test_sigterm_reaches_the_command_and_ends_both(tmp_path):
    waits = f"""
import signal, sys, time
def stop(*_):
    open({str(tmp_path / 'saved')!r}, 'w').write('saved')
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
open({str(tmp_path / 'ready')!r}, 'a').write('x')
time.sleep(60)
"""
    command = [sys.executable, *SUPERVISE, '--', sys.executable, '-c', waits]
    supervisor = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    # The file is there before what is written to it.
    until, ready = time.monotonic() + 60, tmp_path / 'ready'
    while not (ready.exists() and ready.stat().st_size) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(supervisor.pid, signal.SIGTERM)
    assert supervisor.wait(timeout=60) == 143
    assert (tmp_path / 'saved').read_text() == 'saved' and (tmp_path / 'ready').read_text() == 'x'


@pytest.mark.parametrize(
    ('handler', 'naps', 'code'), [(signal.SIG_DFL, 600, 143), (signal.SIG_IGN, 10, 0)]
)
def test_the_end_of_the_terminal_reaches_the_command_as_sigterm(tmp_path, handler, naps, code):
    """But where it is ignored, as under nohup, which these tests may be started by too."""
    waits = (
        f'trap "echo saved > {tmp_path}/saved; exit 143" TERM; kill -HUP $PPID;'
        f' for nap in $(seq {naps}); do sleep 0.1; done'
    )
    kept = signal.signal(signal.SIGHUP, handler)  # processes begin with what is ignored here
    try:
        done = python(*SUPERVISE, '--', 'bash', '-c', waits)
    finally:
        signal.signal(signal.SIGHUP, kept)
    assert done.returncode == code and (tmp_path / 'saved').exists() == (code == 143)


@pytest.mark.parametrize(
    'command, message',
    [
        ([], 'no command'),
        (['--', '/nowhere/at/all'], 'cannot be started'),
        (['--', ''], "'': cannot be started"),
        (['--max_pause_s=nan', '--', 'true'], '--max_pause_s=nan: must be a finite number'),
    ],
)
def test_mistakes_are_one_line(command, message):
    done = python(*SUPERVISE, *command)
    assert message in mistake(done) and done.stderr.count('\n') == 1
