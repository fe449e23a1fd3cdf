"""Steps: made once, in order; what fails is marked; who was killed leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from bert_jax.configs.files.store import taken
from bert_jax.reports.studies import steps
from bert_jax.reports.studies.steps import Folder, Step

# Each "command" of these tests is a line of Python.
RUN = [sys.executable, '-c']


@pytest.fixture(autouse=True)
def python_lines(monkeypatch):
    monkeypatch.setattr(steps, 'command', lambda name, *code: [*RUN, *code])


def step(name: str, code: str = '', needs=()) -> Step:
    """Runs `code`, then adds a letter to made.txt in its folder."""
    body = 'import os, sys, time; f = {!r}; os.makedirs(f, exist_ok=True)\n'
    made = "open(f + '/made.txt', 'a').write('x')\n"
    commands = lambda folder: [('x', [body.format(str(folder)) + code + '\n' + made])]
    return Step(name, name, {}, commands, needs)


def times(folder: Folder, name: str) -> int:
    return len((folder.of(name) / 'made.txt').read_text())


def wait_for(condition, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def test_a_failed_step_is_marked_and_the_others_go_on(tmp_path, capsys):
    folder = Folder(str(tmp_path))
    broken = step('a', "sys.exit('a: error: no such thing')")
    look = f'assert os.path.exists({str(tmp_path / "a/made.txt")!r})'
    others = [step('b', look, needs=('a',)), step('c')]
    steps.make(folder, [broken, *others])
    why = 'bert-x ended with exit code 1: a: error: no such thing'
    assert folder.failure('a') == folder.failure('b') == why
    assert folder.done('c') and not folder.of('b').exists()
    assert 'FAILED: a: bert-x ended' in capsys.readouterr().out

    # Started again it is tried again, and the mark goes; what is done is not made again.
    steps.make(folder, [step('a'), *others])
    assert folder.done('a') and folder.done('b') and folder.failure('b') is None
    assert times(folder, 'c') == 1


@pytest.mark.parametrize('times_75, fails', [(2, False), (9, True)])
def test_a_command_that_wants_to_be_started_again_is(tmp_path, capsys, times_75, fails):
    """As the watchdog of a run that stands still ends it: not for ever, and not as a failure."""
    folder, count = Folder(str(tmp_path)), tmp_path / 'count.txt'
    code = (
        f"open({str(count)!r}, 'a').write('x')\n"
        f'if len(open({str(count)!r}).read()) <= {times_75}: sys.exit(75)'
    )
    steps.make(folder, [step('a', code)])
    assert len(count.read_text()) == (4 if fails else times_75 + 1)
    assert bool(folder.failure('a')) == fails != folder.done('a')
    assert capsys.readouterr().out.count('is started again') == (3 if fails else times_75)


def test_a_command_that_was_stopped_stops_the_study(tmp_path):
    folder = Folder(str(tmp_path))
    with pytest.raises(SystemExit) as end:
        steps.make(folder, [step('a', 'sys.exit(143)'), step('b')])
    assert end.value.code == 143 and folder.failure('a') is None and not folder.of('b').exists()


PROGRAM = """
    import sys
    from bert_jax.reports.studies import steps
    from tests.bert_jax.reports.studies.test_steps import RUN, step
    steps.command = lambda name, *code: [*RUN, *code]
    steps._POLL_S = 0.05
    steps.make(steps.Folder(sys.argv[1]), [step(n, sys.argv[2]) for n in 'abcd'])
"""


def start(folder, code: str) -> subprocess.Popen:
    program = [*RUN, textwrap.dedent(PROGRAM), str(folder), code]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)


def test_two_processes_divide_the_steps(tmp_path):
    both = [start(tmp_path, 'time.sleep(0.3)') for _ in range(2)]
    printed = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [times(Folder(str(tmp_path)), name) for name in 'abcd'] == [1, 1, 1, 1]
    assert sum(text.count('step ') for text in printed) == 4


def test_a_killed_study_leaves_its_command_the_step(tmp_path):
    """Nobody takes the step while the command of the killed one is still at work."""
    go_on, lock = tmp_path / 'go_on', tmp_path / 'run/locks/a.lock'
    waits = (
        'open(f + "/begun", "w")\nfor _ in range(3000):\n'
        f'  if os.path.exists({str(go_on)!r}): break\n  time.sleep(0.02)'
    )
    first = start(tmp_path / 'run', waits)
    wait_for((tmp_path / 'run/a/begun').exists, first)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    with taken(lock) as mine:
        assert mine is None  # the command has it
    go_on.touch()
    deadline = time.monotonic() + 30
    while True:
        with taken(lock) as mine:
            if mine is not None:
                break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert times(Folder(str(tmp_path / 'run')), 'a') == 1


def test_sigterm_is_passed_on(tmp_path):
    """The command saves and ends by itself, and the study with the code of the signal."""
    code = (
        'import signal\n'
        f'saved = lambda *_: (open({str(tmp_path / "saved")!r}, "w").close(), sys.exit(143))\n'
        'signal.signal(signal.SIGTERM, saved)\n'
        f'open({str(tmp_path / "ready")!r}, "w").close(); time.sleep(30)'
    )
    study = start(tmp_path / 'run', code)
    wait_for((tmp_path / 'ready').exists, study)
    study.terminate()
    printed, _ = study.communicate(timeout=30)
    assert study.returncode == 143 and (tmp_path / 'saved').exists()
    assert 'stopped by signal 15; the same command goes on from here' in printed
