"""The processes of one run, apart from jax: all are there, all run the same, who is gone.

jax.distributed aborts without a name when a host never arrives, trains on where two hosts were
given different settings, and notices a dead one by its silence. So every process keeps one
connection to process 0, one JSON object a line, from before jax is started to the end of the run.
Over it the processes call the roll and compare what they run (roll_call.py); and the end of a
connection, unless a farewell came before it, is the death of a process. Knows nothing of jax, nor
of what is trained.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from bert_jax.configs.errors import UserError

# EX_TEMPFAIL, the exit code where a restart may mend it: bert-jax supervise starts it again
TRY_AGAIN = 75

_LONGEST = 1 << 20  # bytes of a line; what sends more is none of ours
_GRACE_S = 15.0  # seconds that a process has to end by itself when another has ended with an error
_DEFECT = 1  # exit code of an error that is no user's mistake
_HEARD_S = 5.0  # seconds that process 0 has to hear a farewell
_ECHO_S = 2.0  # seconds within which an error may turn out to be that of another process


class Connection:
    """A TCP connection on which each line is one JSON object."""

    def __init__(self, connected: socket.socket, silence_s: float):
        """Keep the connection alive; it is lost when the other host is silent for `silence_s`."""
        self._socket, self._unread = connected, b''

        # Keep-alive probes begin after half of the silence that is allowed, five follow in the
        # other half.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Linux's names; elsewhere the system's own pace has to do
        pace = {'TCP_KEEPIDLE': silence_s / 2, 'TCP_KEEPINTVL': silence_s / 10, 'TCP_KEEPCNT': 5}
        for name, value in pace.items():
            if hasattr(socket, name):
                number = min(max(1, round(value)), 3600)
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), number)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a JSON object, unless the other side is gone: `receive` reports that."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(None)
            # A peer may have died between two lines: its end is noticed by the thread that
            # receives.
            self._socket.sendall(json.dumps(message).encode() + b'\n')

    def receive(self, within: float | None = None) -> dict[str, Any] | None:
        """Return the next JSON object; None if the other side is gone or says nothing of ours.

        It is taken for gone when it is silent for `within` seconds.
        """
        # One line may come in several pieces, and one piece may hold several lines: what is beyond
        # the first line waits in _unread.
        deadline = None if within is None else time.monotonic() + within
        try:
            while b'\n' not in self._unread:
                seconds_left = None if deadline is None else deadline - time.monotonic()
                if len(self._unread) > _LONGEST or (seconds_left is not None and seconds_left <= 0):
                    return None
                self._socket.settimeout(seconds_left)
                received = self._socket.recv(1 << 16)
                if not received:
                    return None
                self._unread += received
            # Neither bytes that are no JSON nor deep nesting end this thread: a port is open to
            # anybody.
            line, _, self._unread = self._unread.partition(b'\n')
            message = json.loads(line)
        except (OSError, ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        """End it on both sides, and wakes the thread that waits in `receive`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def name_processes(processes: Sequence[int]) -> str:
    """Return 'process 3', or 'processes 0, 1, 2'; of more than eight the first eight."""
    # Eight are enough to find the fault; a run may have hundreds.
    shown = ', '.join(map(str, processes[:8])) + (', ...' if len(processes) > 8 else '')
    return f'process{"es" if len(processes) > 1 else ""} {shown}'


_ALIKE = 'start all of them with the same program, settings and records'


def find_objection(descriptions: Mapping[int, Mapping[str, Any]], advice: str = _ALIKE) -> str:
    """Return why processes that say this must not run together, in one line; '' where they may.

    descriptions: {process: {name: JSON value}}; a name 'refused' holds why that process does not
    start.
    """
    # A refusal explains itself; differences are named only where all would have started.
    refused = sorted(process for process in descriptions if 'refused' in descriptions[process])
    if refused:
        return f'{name_processes(refused)} refused to start: {descriptions[refused[0]]["refused"]}'

    # By value: few values and many holders in most cases, and the odd one out is what is looked
    # for.
    lines = []
    for name in sorted(set().union(*descriptions.values())):
        holders_of: dict[str, list[int]] = {}
        for process, description in sorted(descriptions.items()):
            value = 'unset'
            if name in description:
                value = json.dumps(description[name], sort_keys=True)
            holders_of.setdefault(value, []).append(process)
        if len(holders_of) > 1:
            values = [
                f'{value} in {name_processes(holders)}' for value, holders in holders_of.items()
            ]
            lines.append(f'{name}: {", ".join(values)}')
    if not lines:
        return ''
    more = f' (and {len(lines) - 10} more)' if len(lines) > 10 else ''
    return f'the processes of this run differ in {"; ".join(lines[:10])}{more}: {advice}'


class ProcessGroup:
    """The connections of this process to the others: to process 0, or of process 0 to each.

    A process that dies ends all others, with a line that names it and exit code 75. One that ends
    with an error says so: the others have a while to come to the same end, then they end too.
    """

    def __init__(self, process: int, processes: int, silence_s: float = 0):
        self.process, self.processes, self._silence_s = process, processes, silence_s
        self.connections: dict[int, Connection] = {}
        self._said_farewell: set[int] = set()  # processes that will end as they should
        self._closed: set[int] = set()  # processes whose connection has ended
        self._ending = threading.Event()  # this process ends as it should
        self._heard = threading.Event()  # process 0 has heard this process's farewell
        self._leaving = threading.Lock()  # held by the thread that ends this process
        # The first that ended with an error: (process, exit code, line).
        self._failure: tuple[int, int, str] | None = None

    def listen(self, peer: int, connection: Connection) -> None:
        """Take what a peer says for as long as it lives; to be run in a thread of its own."""
        while message := connection.receive():
            self._hear(message)
        connection.close()
        self._closed.add(peer)
        if peer not in self._said_farewell:
            self._gone(peer)

    def tell(self, message: Mapping[str, Any], but: int | None = None) -> None:
        """Send a message on all connections, or on all but that of process `but`."""
        # `list`: another thread may add a connection meanwhile.
        for peer, connection in list(self.connections.items()):
            if peer != but:
                connection.send(message)

    def _hear(self, message: Mapping[str, Any]) -> None:
        match message:
            # Process 0 passes on a death that the others cannot see.
            case {'gone': int(process)}:
                self._gone(process)
            case {'farewell': int(process), 'code': int(code), 'line': str(line)}:
                if process == self.process:  # process 0 has heard it
                    self._heard.set()
                    return
                self._said_farewell.add(process)
                if self.process == 0:  # the others hear it from here
                    self.tell(message)
                if code:
                    self._failure = self._failure or (process, code, line)
                    threading.Thread(target=self._follow, daemon=True).start()

    def _gone(self, process: int) -> None:
        """End this process, before jax aborts it: nothing can be saved without the other."""
        if self._ending.is_set():
            return
        if self._failure is not None:  # it has followed the one that ended with an error
            self._follow_now()
        # One thread ends the process. It tells the others first: their only line is to process 0.
        if not self._leaving.acquire(blocking=False):
            return
        if self.process == 0:
            self.tell({'gone': process}, but=process)
        logging.error(
            'process %d of %d is gone: it was killed, or its host or network is down; '
            'this process ends with code %d, to be started again',
            process, self.processes, TRY_AGAIN,
        )  # fmt: skip
        self._leave_last(TRY_AGAIN, besides=process)

    def _follow(self) -> None:
        """End this process after one that ended with an error, unless it ends by itself."""
        if self._ending.wait(_GRACE_S):  # jax's exit handler may wait in vain for that process
            time.sleep(2 * _GRACE_S)
        self._follow_now()

    def _follow_now(self) -> None:
        assert self._failure is not None, 'there is one to be followed'
        if not self._leaving.acquire(blocking=False):
            return
        process, code, line = self._failure
        logging.error('process %d of %d has ended: %s', process, self.processes, line)
        self._leave_last(TRY_AGAIN if code == _DEFECT else code, besides=process)

    def _leave_last(self, code: int, besides: int) -> None:
        """End this process; process 0 once the others have ended, or after a while.

        jax's service ends with process 0 and aborts those that are left, which then say nothing of
        why. `besides` is the process that is not waited for.
        """
        if self.process == 0:
            self._outlast(set(self.connections) - {besides}, _HEARD_S)
        leave(code)

    def _outlast(self, others: set[int], seconds: float) -> None:
        """Wait until the connections of these processes have ended, for so long at the most."""
        deadline = time.monotonic() + seconds
        while others - self._closed and time.monotonic() < deadline:
            time.sleep(0.05)

    def end(self, error: BaseException | None = None) -> None:
        """Say farewell; to be called when the work is done, or with the error that ends it.

        An error is sent to the others, and jax, whose exit handler waits for all, is not asked.
        """
        # A user's mistake has its own code and line; everything else counts as a defect, by its
        # type.
        code, line = 0, ''
        if isinstance(error, UserError):
            code, line = error.exit_code, str(error)
        elif error is not None:
            code, line = _DEFECT, f'{type(error).__name__}: {error}'
            # A collective that another process has left raises here too: that is the other's error.
            # So wait for word of it before this error counts as one of its own.
            time.sleep(_ECHO_S)
            if self._failure and self._failure[1] != _DEFECT:
                self._follow_now()
            if self._leaving.locked():  # another thread ends this process, and has said why
                time.sleep(2 * _HEARD_S)
        self._ending.set()
        line = ' '.join(line.split())[:1000]
        self.tell({'farewell': self.process, 'code': code, 'line': line})
        if not code:
            return
        # Do not end before the farewell is heard; process 0 not before the others, because jax's
        # service ends with it and aborts those that are left.
        if self.process:
            self._heard.wait(_HEARD_S)
        else:
            self._outlast(set(range(1, self.processes)), _GRACE_S + 5)
        atexit.register(leave, code)

    def close(self) -> None:
        """Close all connections without a farewell."""
        self._ending.set()
        for connection in self.connections.values():
            connection.close()


def leave(code: int) -> None:
    """End this process now with exit code `code`, its last lines written."""
    logging.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
