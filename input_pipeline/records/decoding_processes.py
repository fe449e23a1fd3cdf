"""Processes that decode blocks of records, where one thread of Python is not enough.

Both ends of them: what the process that reads records asks for (DecodingProcesses), and the program
that does it (`python -m`, not for people). It must not know where blocks come from, nor what to say
of one that is not in order.

A block passes through memory that both share; a pipe says that it is there, and that it is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import mmap
import os
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import weakref
from typing import IO

import numpy as np
from absl import logging

from configs.errors import UserError
from input_pipeline.records import fields, frames, shards
from input_pipeline.records.fields import RecordSpec

_ASKED = struct.Struct('<QQ')  # bytes of a block, and its records
_DONE, _NOT_DONE = b'\1', b'\0'


class DecodingProcesses:
    """So many processes, each of which decodes a block at a time. A context manager.

    They end with the process that started them, however that ends.
    """

    def __init__(self, count: int, spec: RecordSpec, vocab_size: int, most_bytes: int):
        """`spec`, `vocab_size`: what records hold. most_bytes: of a block that is decoded.

        UserError where the system starts no more processes.
        """
        self._all: list[_Process] = []
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        # At the latest when Python exits, for a generator in whose `with` this stands ends later.
        self._end = weakref.finalize(self, _end_all, self._all, self._idle)
        for _ in range(count):
            try:
                self._all.append(_Process(spec, vocab_size, most_bytes))
            except OSError as error:
                raise UserError(
                    f'runtime.decoding_processes={count}: the system starts no more than'
                    f' {len(self._all)} of them ({error.strerror}): lower it'
                ) from error
            self._idle.put(self._all[-1])

    def __enter__(self) -> DecodingProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def decode(self, text: bytes, rows: np.ndarray) -> bool:
        """Decodes a block of N records into `rows`, [N] of `fields.kept_as`; threads may call it.

        False where it was not decoded: a record is not in order, or its process has ended.
        """
        process = self._idle.get()
        try:
            return process.decode(text, rows)
        finally:
            self._idle.put(process)


def _end_all(processes: list[_Process], idle: queue.SimpleQueue[_Process]) -> None:
    # Each finishes the block that it is at; and all are put back, for a thread that still asks.
    for process in [idle.get() for _ in processes]:
        process.end()
        idle.put(process)


class _Process:
    """One of them, and the memory that it shares with this one."""

    def __init__(self, spec: RecordSpec, vocab_size: int, most_bytes: int):
        rows = _room_for_rows(spec, vocab_size)
        with _file_in_memory() as file:
            os.truncate(file.fileno(), rows + most_bytes)
            self._memory = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
            described = json.dumps([file.fileno(), vocab_size, dataclasses.asdict(spec)])
            # What this process can import, the other can. A group of its own, or Ctrl-C would go to
            # both; unbuffered, for every message is awaited.
            self._process = subprocess.Popen(
                [sys.executable, '-P', '-m', __name__, described],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=(file.fileno(),),
                process_group=0,
                env=os.environ
                | {
                    'PYTHONPATH': os.pathsep.join(path or os.getcwd() for path in sys.path),
                    'OPENBLAS_NUM_THREADS': '1',  # numpy would keep memory for more
                },
            )
        self._text = self._memory[rows:]
        self._ended = False

    def decode(self, text: bytes, rows: np.ndarray) -> bool:
        """As DecodingProcesses.decode, for one thread at a time."""
        if self._ended:
            return False
        self._text[: len(text)] = np.frombuffer(text, np.uint8)
        answer = self._ask(_ASKED.pack(len(text), len(rows)))
        if not answer:
            self._ended = True
            logging.warning(
                'a process of runtime.decoding_processes has ended with exit code %s (not enough'
                ' memory?): records are decoded without it',
                self._process.wait(),
            )
        if answer != _DONE:
            return False

        # As bytes: numpy copies them at once, and lets other threads run meanwhile.
        into = rows.view(np.uint8).reshape(-1)
        into[:] = self._memory[: into.size]
        return True

    def _ask(self, message: bytes) -> bytes:
        """The answer of the process; nothing where it has ended."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(message)
        except BrokenPipeError:
            return b''
        return self._process.stdout.read(1)

    def end(self) -> None:
        """Ends the process, which is at no block: it holds nothing that could be lost."""
        self._ended = True
        self._process.kill()
        self._process.communicate()  # closes the pipes, and waits


def _file_in_memory() -> contextlib.AbstractContextManager[IO[bytes]]:
    """A file without a name: in memory, where the system has such files."""
    if hasattr(os, 'memfd_create'):
        return os.fdopen(os.memfd_create('records'), 'r+b')
    return tempfile.TemporaryFile()


def _room_for_rows(spec: RecordSpec, vocab_size: int) -> int:
    """Bytes before the text, where the rows of a block go."""
    return shards.BLOCK * fields.kept_as(spec, vocab_size).itemsize


# ---- the program


def main() -> None:
    """Decodes block after block, until the other end of the pipe is closed."""
    # Who asks decides when this ends: it may have work to finish after a signal to all processes.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    descriptor, vocab_size, described = json.loads(sys.argv[1])
    spec = RecordSpec(**described)
    memory = mmap.mmap(descriptor, 0)
    fields.keep_freed_memory()
    rows = np.frombuffer(memory, fields.kept_as(spec, vocab_size), shards.BLOCK)
    first = rows.nbytes

    with (
        open(0, 'rb', buffering=0) as asked,
        open(1, 'wb', buffering=0) as answers,
        contextlib.suppress(BrokenPipeError),  # who asked was killed meanwhile
    ):
        while message := asked.read(_ASKED.size):
            size, count = _ASKED.unpack(message)
            done = _decoded(spec, vocab_size, memory[first : first + size], rows[:count])
            answers.write(_DONE if done else _NOT_DONE)


def _decoded(spec: RecordSpec, vocab_size: int, text: bytes, rows: np.ndarray) -> bool:
    """Decodes the N records of a text into `rows` [N]; False where these are not in order."""
    try:
        starts, ends = frames.payloads_in(text)
        if len(starts) != len(rows):
            return False
        fields.keep_numpy(spec, vocab_size, text, starts, ends, rows)
    except (frames.BadFrame, fields.BadRecord):
        return False
    return True


if __name__ == '__main__':
    main()
