"""Processes that decode: the same batches and errors as without, and an end with their master."""

from __future__ import annotations

import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from absl import logging

from benchmarks.processes import children
from configs.errors import UserError
from configs.schema import PretrainConfig, RuntimeConfig
from input_pipeline.records import decoding_processes
from input_pipeline.records import stream as stream_module
from input_pipeline.records.decoding_processes import DecodingProcesses
from input_pipeline.records.stream import RecordStream
from tests.helpers.records import assert_same, frame_start, take, write_directory

SIZES = {'train': [300, 520, 256, 3], 'eval': [70]}


def ours() -> list[int]:
    """Those of this process that decode."""
    decode = lambda child: (
        'decoding_processes' in pathlib.Path(f'/proc/{child}/cmdline').read_text()
    )
    return [child for child in children(os.getpid()) if decode(child)]


def wait_until(done) -> None:
    for _ in range(200):
        if done():
            return
        time.sleep(0.05)
    raise AssertionError('it did not come to that in ten seconds')


@pytest.mark.parametrize('masking, max_packs', [('static', 1), ('dynamic', 1), ('static', 4)])
def test_batches_are_those_of_one_process(tmp_path, masking, max_packs):
    """From a step on, of a share of the rows, for several epochs."""
    write_directory(tmp_path, SIZES, masking, max_packs)
    alone, helped = (
        RecordStream(tmp_path, 'train', 96, 1, rows=((5, 40), (60, 96)), processes=processes)
        for processes in (0, 2)
    )
    assert_same(take(helped, 30, 7), take(alone, 30, 7))


def test_they_decode(tmp_path, monkeypatch):
    """Or the test above would compare this process with itself."""
    write_directory(tmp_path, SIZES)
    stream = RecordStream(tmp_path, 'train', 96, 1, processes=2)
    monkeypatch.setattr('input_pipeline.records.fields.keep_numpy', lambda *_: pytest.fail('here'))
    assert len(take(stream, 30)) == 30


def test_blocks_without_room_in_the_shared_memory_are_decoded_here(tmp_path, monkeypatch):
    """Many small ones, more of which one group of batches touches than are shared."""
    write_directory(tmp_path, {'train': [3] * 120, 'eval': [70]})
    here, decode = [], DecodingProcesses.decode

    def seen(self, block, rows):
        done = decode(self, block, rows)
        here.append(not done)
        return done

    monkeypatch.setattr(DecodingProcesses, 'decode', seen)
    alone, helped = (
        RecordStream(tmp_path, 'train', 20, 1, order='blocks', processes=processes)
        for processes in (0, 2)
    )
    assert_same(take(helped, 60), take(alone, 60))
    assert any(here)


@pytest.mark.parametrize('what', ['a byte', 'the length of a frame', 'the whole file'])
def test_damage_is_named_as_without_them(tmp_path, what):
    write_directory(tmp_path, SIZES)
    file = tmp_path / 'train-00001-of-00004.tfrecord'
    streams = [RecordStream(tmp_path, 'train', 64, 1, processes=processes) for processes in (0, 2)]
    if what == 'the whole file':
        file.unlink()
    else:
        text = file.read_bytes()
        at = frame_start(text, 290) + (50 if what == 'a byte' else 0)
        file.write_bytes(text[:at] + bytes([text[at] ^ 4]) + text[at + 1 :])
    said = []
    for stream in streams:
        with pytest.raises(UserError) as error:
            take(stream, 20)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert ('gone since' if what == 'the whole file' else f'{file}: record 290 at byte') in said[0]


@pytest.mark.skipif(sys.platform != 'linux', reason='looks processes up in /proc')
def test_one_that_is_killed_is_told_and_missed_by_no_batch(tmp_path, monkeypatch):
    # Six of the seven blocks are kept, so that one is soon decoded again.
    monkeypatch.setattr(stream_module, '_STEPS_AT_ONCE', 1)
    told = []
    monkeypatch.setattr(logging, 'warning', lambda *line: told.append(line[0] % line[1:]))
    write_directory(tmp_path, SIZES)
    alone = take(RecordStream(tmp_path, 'train', 30, 1, order='blocks'), 400)
    batches = RecordStream(tmp_path, 'train', 30, 1, order='blocks', processes=2).batches()
    found = [next(batches)]
    first, second = ours()
    os.kill(first, signal.SIGKILL)
    found += itertools.islice(batches, 199)
    os.kill(second, signal.SIGKILL)
    found += itertools.islice(batches, 200)
    assert_same(found, alone)
    assert len(told) == 2 and all('has ended with exit code -9' in line for line in told)
    batches.close()


@pytest.mark.skipif(sys.platform != 'linux', reason='looks processes up in /proc')
def test_they_end_with_the_batches(tmp_path):
    write_directory(tmp_path, SIZES)
    batches = RecordStream(tmp_path, 'train', 64, 1, processes=2).batches()
    next(batches)
    started = ours()
    assert len(started) == 2
    # A signal to all processes is for the one that trains, which may have to save its work.
    for child in started:
        os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGINT)
    next(batches)
    assert ours() == started
    batches.close()
    assert not ours()


READER = """
import sys, time
from input_pipeline.records.stream import RecordStream

batches = RecordStream(sys.argv[1], 'train', 64, 1, processes=2).batches()
next(batches)
print('reads', flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='looks processes up in /proc')
@pytest.mark.parametrize('how', ['by itself', 'killed'])
def test_they_end_with_the_process(tmp_path, how):
    """However that ends, and without a word."""
    write_directory(tmp_path, SIZES)
    with subprocess.Popen(
        [sys.executable, '-c', READER, str(tmp_path), '1' if how == 'by itself' else '60'],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout.readline() == 'reads\n'
        started = children(reader.pid)
        if how == 'killed':
            assert len(started) == 2
            reader.kill()
        # Its stderr is theirs too: it ends when all have ended.
        assert reader.stderr.read() == ''
    wait_until(lambda: not any(pathlib.Path(f'/proc/{child}').exists() for child in started))


def test_too_many_are_refused(tmp_path, monkeypatch):
    write_directory(tmp_path, SIZES)
    start, left = subprocess.Popen, iter(range(1))

    def popen(*arguments, **options):
        if next(left, None) is None:
            raise BlockingIOError(11, 'Resource temporarily unavailable')
        return start(*arguments, **options)

    monkeypatch.setattr(decoding_processes.subprocess, 'Popen', popen)
    with pytest.raises(UserError, match='decoding_processes=3: the system starts no more than 1'):
        take(RecordStream(tmp_path, 'train', 64, 1, processes=3), 1)
    monkeypatch.undo()
    wait_until(lambda: not ours())


def test_not_with_tensorflow():
    with pytest.raises(UserError, match='decoding_processes=2: decoder=tfdata decodes'):
        PretrainConfig(runtime=RuntimeConfig(decoding_processes=2, decoder='tfdata')).check()
