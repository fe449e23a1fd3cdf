"""Processes that read and decode blocks, where one thread of Python is not enough.

Both ends of them: what the process that wants records asks for (DecodingProcesses), and the program
that does it (`python -m`, not for people). It must not know what to say of a block that is not in
order: who asks looks at it then.

Rows pass through memory that all share, so that none is copied; sockets say which block is wanted
where, and that it is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import mmap
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from typing import IO

import numpy as np
from absl import logging
from etils import epath

from configs.errors import UserError
from input_pipeline.records import fields, frames, shards
from input_pipeline.records.blocks import Blocks, stretch
from input_pipeline.records.fields import RecordSpec

# A block: its bytes from and to, the first of its rows in memory, its records, and its file.
_ASKED = struct.Struct('<QQQQ256p')
_DONE, _NOT_DONE = b'\1', b'\0'


class DecodingProcesses:
    """So many processes, which fill `rows` with decoded blocks. A context manager.

    They end with the process that started them, however that ends.

    rows [M, BLOCK] of `fields.kept_as`: the memory that all share. at_once: blocks that may be
    asked for at a time.
    """

    def __init__(
        self,
        count: int,
        readers: int,
        blocks: Blocks,
        spec: RecordSpec,
        vocab_size: int,
        most: int,
    ):
        """`spec`, `vocab_size`: what records of `blocks` hold. most: M, blocks that are kept.

        readers: blocks that are read at a time, at least, by all together; two by each, so that
        one is there when another is decoded. UserError where the system starts no more processes.
        """
        kind = fields.kept_as(spec, vocab_size)
        self._blocks = blocks
        self._processes: list[_Process] = []
        self._idle: queue.SimpleQueue[_Line] = queue.SimpleQueue()
        # At the latest when Python exits, for a generator in whose `with` this stands ends later.
        self._end = weakref.finalize(self, _end_all, self._processes, self._idle)
        with _file_in_memory() as file:
            os.truncate(file.fileno(), most * shards.BLOCK * kind.itemsize)
            self.rows = np.frombuffer(mmap.mmap(file.fileno(), 0), kind).reshape(most, shards.BLOCK)
            described = [str(blocks.directory), vocab_size, dataclasses.asdict(spec)]
            lines = max(2, -(-readers // count))
            for _ in range(count):
                try:
                    self._processes.append(_Process(file.fileno(), lines, described))
                except OSError as error:
                    raise UserError(
                        f'runtime.decoding_processes={count}: the system starts no more than'
                        f' {len(self._processes)} of them ({error.strerror}): lower it'
                    ) from error
                for line in self._processes[-1].lines:
                    self._idle.put(line)
        self.at_once = lines * count

    def __enter__(self) -> DecodingProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def decode(self, block: int, rows: np.ndarray) -> bool:
        """Reads a block and decodes its records into `rows`, which are some of ours.

        Several threads may call it. False where it was not done: the block cannot be read, a record
        is not in order, its process has ended, or the rows are not ours.
        """
        first = (rows.ctypes.data - self.rows.ctypes.data) // rows.itemsize
        if not 0 <= first < self.rows.size:
            return False
        shard, number = self._blocks.place(block)
        message = _ASKED.pack(*shard.block(number), first, len(rows), shard.file.encode())
        line = self._idle.get()
        try:
            return line.ask(message) == _DONE
        finally:
            self._idle.put(line)


def _end_all(processes: list[_Process], idle: queue.SimpleQueue[_Line]) -> None:
    # Each finishes the blocks that it is at; and all lines are put back, for a thread that still
    # asks.
    lines = [idle.get() for process in processes for _ in process.lines]
    for process in processes:
        process.end()
    for line in lines:
        idle.put(line)


class _Process:
    """One of them, and the lines to it: a block at a time is asked for on each."""

    def __init__(self, memory: int, lines: int, described: list[object]):
        """`memory`: the descriptor of what is shared. `described`: the rest that it must know."""
        self._ending = threading.Lock()
        self.ended = False
        pairs = [socket.socketpair() for _ in range(lines)]
        self.lines = [_Line(self, ours) for ours, _ in pairs]
        theirs = [other.fileno() for _, other in pairs]
        try:
            # What this process can import, the other can. A group of its own, or Ctrl-C would go
            # to both.
            self._popen = subprocess.Popen(
                [sys.executable, '-P', '-m', __name__, json.dumps([memory, theirs, *described])],
                pass_fds=(memory, *theirs),
                process_group=0,
                env=os.environ
                | {
                    'PYTHONPATH': os.pathsep.join(path or os.getcwd() for path in sys.path),
                    # numpy would keep memory for more threads, and the C library for each.
                    'OPENBLAS_NUM_THREADS': '1',
                    'MALLOC_ARENA_MAX': '1',
                },
            )
        except OSError:
            self._close()
            raise
        finally:
            # A line is told to have ended when nobody holds its other end.
            for _, other in pairs:
                other.close()

    def has_ended(self) -> None:
        """Says so, once."""
        with self._ending:
            if self.ended:
                return
            self.ended = True
            logging.warning(
                'a process of runtime.decoding_processes has ended with exit code %s (not enough'
                ' memory?): records are decoded without it',
                self._popen.wait(),
            )

    def end(self) -> None:
        """Ends the process, which is at no block: it holds nothing that could be lost."""
        self.ended = True
        self._popen.kill()
        self._popen.wait()
        self._close()

    def _close(self) -> None:
        for line in self.lines:
            line.socket.close()


@dataclasses.dataclass(frozen=True)
class _Line:
    """A way to ask a process, for one thread at a time."""

    process: _Process
    socket: socket.socket

    def ask(self, message: bytes) -> bytes:
        """The answer of the process; nothing where it has ended."""
        if self.process.ended:
            return b''
        try:
            self.socket.sendall(message)
            answer = self.socket.recv(1)
        except OSError:
            answer = b''
        if not answer:
            self.process.has_ended()
        return answer


def _file_in_memory() -> contextlib.AbstractContextManager[IO[bytes]]:
    """A file without a name: in memory, where the system has such files."""
    if hasattr(os, 'memfd_create'):
        return os.fdopen(os.memfd_create('records'), 'r+b')
    return tempfile.TemporaryFile()


# ---- the program


class _Decoder:
    """What the threads of the program do, one for each line."""

    def __init__(self, memory: int, directory: str, vocab_size: int, spec: RecordSpec):
        kind = fields.kept_as(spec, vocab_size)
        self._rows = np.frombuffer(mmap.mmap(memory, 0), kind)
        self._directory, self._vocab_size, self._spec = epath.Path(directory), vocab_size, spec
        self._decoding = threading.Lock()

    def serve(self, line: socket.socket) -> None:
        """Reads and decodes block after block, until nobody can ask any more."""
        with contextlib.suppress(OSError):  # who asked was killed meanwhile
            while message := line.recv(_ASKED.size, socket.MSG_WAITALL):
                line.sendall(_DONE if self._done(*_ASKED.unpack(message)) else _NOT_DONE)

    def _done(self, start: int, end: int, first: int, count: int, file: bytes) -> bool:
        """Whether that stretch of a file is so many records, which are now in their rows."""
        try:
            text = stretch(self._directory / file.decode(), start, end)
            # One at a time, as in stream.py.
            with self._decoding:
                starts, ends = frames.payloads_in(text)
                if len(starts) != count:
                    return False
                rows = self._rows[first : first + count]
                fields.keep_numpy(self._spec, self._vocab_size, text, starts, ends, rows)
        except Exception:  # whatever it is: who asked does it again, and meets it too
            return False
        return True


def main() -> None:
    """Starts a thread for each line, and ends with the last of them."""
    # Who asks decides when this ends: it may have work to finish after a signal to all processes.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    memory, lines, directory, vocab_size, described = json.loads(sys.argv[1])
    fields.keep_freed_memory()
    decoder = _Decoder(memory, directory, vocab_size, RecordSpec(**described))
    for line in lines:
        threading.Thread(target=decoder.serve, args=(socket.socket(fileno=line),)).start()


if __name__ == '__main__':
    main()
