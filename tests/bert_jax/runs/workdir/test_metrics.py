"""metrics.jsonl, TensorBoard events and plots, read back.

By json, TensorBoard's own loader and PNG headers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import struct

import numpy as np
import pytest
from etils import epath

from bert_jax.runs.workdir import plots
from bert_jax.runs.workdir.metrics import (
    MetricWriter,
    describe,
    read_metrics,
    say_missing,
    truncate_after,
)
from bert_jax.runs.workdir.notes import Guess, note_guess
from bert_jax.runs.workdir.plots import plot_run, plot_workdir
from bert_jax.train.loop import LogEntry
from tests.helpers.events import points
from tests.helpers.files import write_jsonl
from tests.helpers.full_disk import files_of_at_most
from tests.helpers.refusals import refused


def write_steps(workdir, steps, resume_step=0):
    writer = MetricWriter(workdir, resume_step)
    for step in steps:
        writer.write(line(step))
        if step % 20 == 0:
            writer.write(LogEntry(step, {'split': 'eval', 'mlm_accuracy': 0.5}, 100))
    writer.close()


def line(step):
    return LogEntry(
        step,
        {'split': 'train', 'phase': 0, 'loss': np.float32(step / 2), 'learning_rate': 1e-3},
        100,
    )


def test_reading(tmp_path):
    path = tmp_path / 'metrics.jsonl'
    path.write_text('{"step": 1}\n{"step": 2}')
    assert read_metrics(path) == [{'step': 1}]
    for damaged in (b'{"st', b'\xff\xfe{', b'[1]', b'{}'):
        path.write_bytes(b'{"step": 1}\n' + damaged + b'\n{"step": 2}\n')
        with refused('metrics.jsonl:2: not a line of metrics'):
            read_metrics(path)
    with refused('no such file'):
        read_metrics(tmp_path / 'other.jsonl')


def test_lines_beyond_the_resumed_step_go(tmp_path):
    write_steps(tmp_path, (10, 20, 30))
    truncate_after(tmp_path / 'metrics.jsonl', 20)
    assert [line['step'] for line in read_metrics(tmp_path / 'metrics.jsonl')] == [10, 20, 20]
    truncate_after(tmp_path / 'metrics.jsonl', 0)
    assert read_metrics(tmp_path / 'metrics.jsonl') == []
    truncate_after(tmp_path / 'none.jsonl', 0)
    assert not (tmp_path / 'none.jsonl').exists()


def test_a_failing_disk_under_the_metrics_is_one_line(tmp_path, monkeypatch):
    write_steps(tmp_path, (10, 20))
    path = tmp_path / 'metrics.jsonl'

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(type(epath.Path(path)), 'read_bytes', fail)
    for read in (read_metrics, lambda path: MetricWriter(path.parent, resume_step=10)):
        with refused(f'{path}: cannot be read .Input/output error'):
            read(path)


def test_on_a_full_disk_lines_wait_until_there_is_room(tmp_path, caplog):
    write_steps(tmp_path / 'whole', range(1, 9))
    with files_of_at_most(300):
        writer = MetricWriter(tmp_path / 'run', required=False)
        for step in range(1, 8):
            writer.write(line(step))
        assert 1 < len(read_metrics(tmp_path / 'run/metrics.jsonl')) < 5
        assert (tmp_path / 'run/metrics.jsonl').read_bytes().endswith(b'\n')  # no half line
    writer.write(line(8))
    writer.close()
    assert (tmp_path / 'run/metrics.jsonl').read_bytes() == (
        tmp_path / 'whole/metrics.jsonl'
    ).read_bytes()
    assert points(tmp_path / 'run', 'train/loss') == [(s, s / 2) for s in range(1, 9)]
    assert caplog.text.count('lines are kept until there is room') == 2  # said once for each file

    with files_of_at_most(300), contextlib.closing(MetricWriter(tmp_path / 'must')) as writer:
        with pytest.raises(OSError, match=r'File too large: .*must/(metrics|events)'):
            for step in range(1, 8):
                writer.write(line(step))


def test_what_keeps_plots_from_being_drawn_ends_no_run(tmp_path, caplog):
    plot_workdir(tmp_path)  # of a run that ended before its first log line there is nothing to say
    assert not caplog.text and not (tmp_path / 'plots').exists()
    write_steps(tmp_path, range(10, 50, 10))
    # Drawn once before: what is imported on a full disk would leave broken files of Python's own.
    plot_run(tmp_path / 'metrics.jsonl', tmp_path / 'before')
    with files_of_at_most(500):
        plot_workdir(tmp_path)
    assert 'losses.png: not drawn (' in caplog.text and list((tmp_path / 'plots').iterdir()) == []
    plot_workdir(tmp_path)
    assert (tmp_path / 'plots/losses.png').exists()


def test_tensorboard_shows_no_point_twice_after_a_kill_before_the_first_checkpoint(tmp_path):
    write_steps(tmp_path, range(10, 41, 10))
    write_steps(tmp_path, range(10, 61, 10))
    steps = lambda tag: [step for step, _ in points(tmp_path, tag)]
    assert steps('train/loss') == list(range(10, 61, 10))
    assert steps('eval/mlm_accuracy') == [20, 40, 60]


def test_describe():
    values = {'split': 'train', 'phase': 0, 'grad_norm': None, 'seconds': 3.5}
    values |= {'learning_rate': 1e-4, 'loss': 6.31256, 'tokens_per_s': 16234.5}
    expected = 'step 200/1000 train  loss 6.313  lr 0.0001  tok/s 16,234  eta 1:02:03'
    assert describe(LogEntry(200, values, 1000, 3723.4)) == expected
    # Of 80 columns the time takes eleven: what comes last is left to the files.
    longest = LogEntry(987_654, values | {'mlm_loss': 6.3, 'mlm_accuracy': 0.1}, 1_000_000, 360_000)
    assert (
        describe(longest).endswith('mlm_loss 6.3  eta 100:00:00') and len(describe(longest)) <= 69
    )
    assert describe(LogEntry(2, {'split': 'train', 'grad_norm': None}, 9)).endswith('not finite')
    told = lambda metrics: describe(LogEntry(5, metrics, 9))
    discarded = {'split': 'train', 'loss': 1.0, 'discarded_steps': 3}
    assert told(discarded) == 'step 5/9 train  loss 1  discarded_steps 3'
    assert told(discarded | {'discarded_steps': 0}) == 'step 5/9 train  loss 1'
    assert told({'split': 'eval', 'mlm_loss': 2.0}) == 'step 5/9 held out  mlm_loss 2'
    held_out = {'split': 'eval', 'mlm_accuracy': 0.06953, 'mlm_loss': 6.571, 'nats_gained': -0.1234}
    wide = describe(LogEntry(100_000, held_out, 1_000_000))
    assert wide.endswith('mlm_loss 6.571  nats gained -0.1234')


def test_plots(tmp_path):
    write_steps(tmp_path, range(10, 101, 10))
    written = plot_run(tmp_path / 'metrics.jsonl', tmp_path / 'plots')
    assert [pathlib.Path(p).name for p in written] == [
        'losses.png',
        'held_out.png',
        'learning_rate.png',
    ]
    for path in written:
        head = pathlib.Path(path).read_bytes()[:24]
        assert head[:8] == b'\x89PNG\r\n\x1a\n' and struct.unpack('>II', head[16:24]) == (840, 480)
    assert sorted(p.name for p in (tmp_path / 'plots').iterdir()) == sorted(
        pathlib.Path(p).name for p in written
    )


@pytest.fixture
def drawn(monkeypatch):
    """{name of the picture: what was to be drawn}."""
    found = {}
    monkeypatch.setattr(plots, 'save', lambda path, made: found.update({path.name: made}))
    return found


def curves_of(chart):
    return {curve.label: list(curve.points) for curve in chart.curves}


def test_what_guessing_scores_is_a_line_of_each_picture_in_its_unit(tmp_path, drawn):
    lines = [{'step': step, 'split': 'eval', 'mlm_accuracy': 0.25} for step in (10, 20, 30)]
    lines += [
        {'step': 30, 'split': 'train', 'mlm_loss': 2.0},
        {'step': 30, 'split': 'dev', 'f1': 1},
    ]
    write_jsonl(tmp_path / 'metrics.jsonl', lines)
    # A second phase begins at step 20, on other records.
    note_guess(str(tmp_path), Guess(0, {'mlm_accuracy': 0.125, 'mlm_loss': 7.5, 'f1': 0.5}))
    note_guess(str(tmp_path), Guess(20, {'mlm_accuracy': 0.0625}))
    plot_run(tmp_path / 'metrics.jsonl', tmp_path)
    assert curves_of(drawn['held_out.png']) == {
        'mlm_accuracy': [(10, 25), (20, 25), (30, 25)],
        'guessing': [(0, 12.5), (20, 12.5), (20, 6.25), (30, 6.25)],
    }
    assert curves_of(drawn['losses.png'])['guessing'] == [(0, 7.5), (30, 7.5)]
    assert curves_of(drawn['scores.png'])['guessing'] == [(0, 0.5), (30, 0.5)]


def test_steps_whose_lines_were_cut_off_are_named(tmp_path, caplog):
    path = tmp_path / 'metrics.jsonl'
    say_missing(path, 0)
    write_steps(tmp_path, (10, 20, 30))
    say_missing(path, 20)
    assert 'missing' not in caplog.text
    say_missing(path, 50)
    assert 'the lines of steps 31 to 50 are missing' in caplog.text
    path.unlink()
    say_missing(path, 50)
    assert 'the lines of steps 1 to 50 are missing' in caplog.text
