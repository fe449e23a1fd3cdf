"""Bars and lines of progress: how they are worded, and what a terminal shows of them."""

from __future__ import annotations

import concurrent.futures
import io
import re
import signal
import sys
import types

import pytest
from absl import logging

from bert_jax.input_pipeline import progress
from bert_jax.input_pipeline.progress import Bar, Progress, Status
from tests.helpers.processes import ROOT
from tests.helpers.terminal import Terminal, pictures, screen

PROGRAM = """
import sys, time, types
from dataclasses import dataclass
from absl import logging
from bert_jax.configs.options import option
from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.progress import Progress
from bert_jax.cli import app

@dataclass
class Work:
    '''Work.

    Attributes:
      words: long, fail.
    '''
    words: tuple[str, ...] = option((), words="long, fail")

    def __call__(self):
        work(self.words)

def work(argv):
    steps = 1000 if 'long' in argv else 12
    with Progress('reading text', steps * 1e6, 'MB', 1e6) as progress:
        for step in range(steps):
            time.sleep(0.11)
            progress.update(step * 1e6)
            if step == 5:
                logging.warning('a line of the log')
                print('printed', 'in', 'pieces')
                print('half a line', end='')
                progress.update(step * 1e6)
                print(' and its end', file=sys.stderr)
            if step == 9 and 'fail' in argv:
                raise UserError('it failed')
    print('result')

if __name__ == '__main__':
    app.run(Work)
"""
WRITTEN = ['a line of the log', 'printed in pieces', 'half a line and its end']


@pytest.fixture
def command(tmp_path) -> list:
    (tmp_path / 'work.py').write_text(PROGRAM)
    return [sys.executable, tmp_path / 'work.py']


@pytest.fixture(autouse=True)
def found(monkeypatch):
    monkeypatch.setenv('PYTHONPATH', str(ROOT))


def plain(lines: list[str]) -> list[str]:
    """Without the time and the level that lines of the log begin with."""
    return [re.sub(r'^\d\d:\d\d:\d\d [IWE] ', '', line) for line in lines]


def terminal_of(monkeypatch) -> io.StringIO:
    """A terminal that this process writes to."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setattr(sys, 'stderr', terminal)
    monkeypatch.setattr(logging, 'level_info', lambda: True)
    return terminal


@pytest.mark.parametrize(
    ('columns', 'ends'), [(80, r'eta 0:00:0\d  \d+%  \[#+\.*\]'), (24, r'\d/12.*')]
)
def test_on_a_terminal_a_bar_goes_on_below_the_lines_and_leaves_nothing(command, columns, ends):
    terminal = Terminal(command, columns)
    assert terminal.end() == 0
    shown = pictures(terminal.raw)
    assert len(shown) >= 10 and max(map(len, shown)) < columns
    assert all(one.startswith('reading text') for one in shown)
    assert re.fullmatch(f'.*{ends}', shown[-1])
    *lines, last, result, end = plain(screen(terminal.raw))
    assert lines == WRITTEN and (result, end) == ('result', '')
    assert re.fullmatch(r'reading text 12\.0/12\.0 MB  \d\.\d\d MB/s  in 0:00:0\d', last)
    assert '\x1b[' not in terminal.raw.replace('\x1b[J', '')  # no colours, whatever NO_COLOR says


def test_after_a_signal_the_bar_is_gone(command):
    terminal = Terminal([*command, 'long'], 80)
    terminal.read(lambda raw: len(pictures(raw)) > 9)
    terminal.signal(signal.SIGTERM)
    assert terminal.end() == -signal.SIGTERM
    assert plain(screen(terminal.raw)) == [*WRITTEN, '']


def test_lines_come_now_and_then_and_what_was_done_before_is_no_speed(monkeypatch, caplog):
    monkeypatch.setattr(progress, '_LOG_SECONDS', 0.0)
    clock = iter(range(100))
    monkeypatch.setattr(progress.time, 'monotonic', lambda: next(clock))
    with caplog.at_level('INFO'), Progress('reading text', 400e6, 'MB', 1e6) as reading:
        reading.skip(200e6)
        reading.update(300e6)
    before, between, last = caplog.messages
    assert before == 'reading text 200/400 MB  0.00 MB/s  50%'
    # by a clock of one second a question, the 100 MB were read in 5 to 8 seconds
    assert re.fullmatch(r'reading text 300/400 MB  1\d\.\d MB/s  eta 0:00:0[5-8]  75%', between)
    assert re.fullmatch(r'reading text 400/400 MB  \d\d\.\d MB/s  in 0:00:[01]\d', last)


def test_what_matters_most_comes_first():
    status = Status('step 12/300', 0.04, ('loss 7.1', 'accuracy 3%'), '2.00 steps/s', 75)
    line = 'step 12/300  loss 7.1  2.00 steps/s  eta 0:01:15  4%  accuracy 3%'
    assert status.line() == line
    assert Status('step 1/2', 0.5).line() == 'step 1/2  50%'


@pytest.mark.parametrize(('term', 'shown'), [('xterm', True), ('dumb', False)])
def test_dumb_terminals_have_no_bar(monkeypatch, term, shown):
    terminal_of(monkeypatch)
    monkeypatch.setenv('TERM', term)
    assert Bar().shown is shown


def test_a_notebook_has_a_bar_and_two_threads_have_one(monkeypatch):
    shell = types.SimpleNamespace(config={'IPKernelApp': {}})
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, 'IPython', ipython)
    cell = io.StringIO()
    monkeypatch.setattr(sys, 'stderr', cell)
    monkeypatch.setattr(logging, 'level_info', lambda: True)

    def other() -> bool:
        with Bar() as bar:
            return bar.shown

    with Bar() as bar, concurrent.futures.ThreadPoolExecutor(1) as threads:
        assert bar.shown
        bar.show(Status('step 1/2', 0.5))
        assert not threads.submit(other).result()
        with Bar() as inner:  # of the same thread, as a stage within a stage
            assert inner.shown
    assert 'step 1/2  50%  [##########..........]' in cell.getvalue()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        assert threads.submit(other).result()
    shell.config.clear()  # IPython in a terminal
    assert not Bar().shown
