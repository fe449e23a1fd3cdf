"""The roll call: the processes of a run meet before jax starts, and compare what they run.

Every process but the first calls process 0, says its number and a description of what it runs, and
waits for the verdict, which is the same for all: start, who is missing, or what differs. Anybody
may call a port: who does not say a proper first line in time is dropped and counted, and holds up
nobody, because each caller has a thread of its own; and a stranger that holds the port itself for a
moment is waited for. A process that calls again, because it was restarted, counts once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.mesh.process_group import TRY_AGAIN, Connection, ProcessGroup, find_objection

# Goes up with each change of what is said; process 0 refuses callers that speak another.
_PROTOCOL = 3
_FIRST_WORD_S = 5.0  # seconds that a caller has for its first line, which it sends at once
_ANSWER_S = 20.0  # seconds that process 0 has to answer, which may have many to hear first
_TELL_S = 30.0  # seconds for which a process that refuses to start tries to tell the others
# Seconds for which process 0 waits for a port that is taken: a connection that has ended keeps its
# port for 60 on Linux.
_PORT_S = 70.0


class Absent(UserError):
    """Not all processes of a run arrived in time."""

    exit_code = TRY_AGAIN


def call_roll(
    address: tuple[str, int],
    process: int,
    processes: int,
    timeout_s: float,
    says: Mapping[str, Any],
    silence_s: float = 100,
) -> ProcessGroup:
    """Meet the other processes of a run, and returns the connection to them once all say the same.

    Args:
      address: host and port at which process 0 is to be met.
      process: the number of this one.
      processes: how many there are.
      timeout_s: seconds that all have to arrive.
      says: {name: JSON value}, which must be the same in all; or {'refused': why this one does not
        start}, which ends the others with that line.
      silence_s: seconds after which a host that says nothing counts as gone, later in the run.

    Raises, in every process, Absent, naming who is missing, or UserError, naming what differs.
    """
    # Who refuses does not wait the whole time: the others learn of it, or they are not there.
    if 'refused' in says:
        timeout_s = min(timeout_s, _TELL_S)
    else:
        says = {**says, '--num_processes': processes}
    if process == 0:
        with open_server(address[1], timeout_s) as server:
            return Lead(processes, silence_s).meet(server, timeout_s, says)
    return Caller(process, processes, silence_s).meet(address, timeout_s, says)


class Lead(ProcessGroup):
    """Process 0, which all others call."""

    def __init__(self, processes: int, silence_s: float):
        super().__init__(0, processes, silence_s)
        self._said: dict[int, Mapping[str, Any]] = {}
        self._strangers = 0  # callers that were none of this run's processes
        self._open = True  # until the verdict is out
        self._changed = threading.Condition()  # guards all of these

    def meet(
        self, server: socket.socket, timeout_s: float, says: Mapping[str, Any]
    ) -> ProcessGroup:
        """Wait for all to call; tells them, and returns or raises, the verdict."""
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()

        # The verdict falls when all are in, or when the time is over.
        with self._changed:
            self._changed.wait_for(lambda: len(self._said) == self.processes - 1, timeout_s)
            # Closed under the lock: who calls from here on is too late, and the verdict is of all
            # who are in. What differs comes first, for it would not mend by waiting longer.
            self._open = False
            if self._strangers:
                logging.info(
                    '%d connections from elsewhere, as of a port scanner or a health check, were'
                    ' ignored', self._strangers,
                )  # fmt: skip
            missing = sorted(set(range(1, self.processes)) - set(self._said))
            error: UserError | None = None
            line = find_objection({0: says, **self._said})
            if line:
                error = UserError(line)
            elif missing:
                error = Absent(
                    f'{len(self._said) + 1} of {self.processes} processes arrived within'
                    f' {timeout_s:g} s; missing: {", ".join(map(str, missing))}. Start the same'
                    ' command there with that --process_id'
                )
            if error:  # all who have called hear it, and are hung up on
                self.tell({'refused': str(error), 'absent': isinstance(error, Absent)})
                self.close()
                raise error
            self.tell({'start': True})
        return self

    def _accept(self, server: socket.socket) -> None:
        """Take calls until the verdict is out, each in a thread of its own."""
        while self._open:
            try:
                connected, _ = server.accept()
                threading.Thread(target=self._serve, args=(connected,), daemon=True).start()
            except TimeoutError:
                continue
            except (OSError, RuntimeError):  # too many files or threads, for a while
                time.sleep(0.1)

    def _serve(self, connected: socket.socket) -> None:
        """Hear one caller, from its first line to the end of its connection."""
        try:
            connection = Connection(connected, self._silence_s)
        except OSError:  # gone already
            connected.close()
            return

        # A first line is ours if it names the protocol; anything else is hung up on without an
        # answer.
        match connection.receive(_FIRST_WORD_S):
            case {'bert_jax': int(protocol)} if protocol != _PROTOCOL:
                line = 'process 0 runs another version of this program: install one everywhere'
                connection.send({'refused': line})
            case {'bert_jax': int(), 'process': int(process), 'says': dict(says)}:
                # JSON's true is an int in Python.
                if 0 < process < self.processes and process is not True:
                    self._admit(process, says, connection)
                    return
                here = f'process 0 was started with --num_processes={self.processes}'
                connection.send({'refused': f'{here}: there is no process {process}'})
            case _:
                with self._changed:
                    self._strangers += 1
        connection.close()

    def _admit(self, process: int, says: Mapping[str, Any], connection: Connection) -> None:
        """Note what a process says, in place of what it said in an earlier call."""
        with self._changed:
            if not self._open:
                connection.close()
                return
            # The newest call counts: the older connection belongs to a process that was restarted,
            # or to a second one with the same number, which then gets that answer.
            older = self.connections.get(process)
            self.connections[process] = connection
            self._said[process] = says
            connection.send({'heard': process})
            self._changed.notify()
        if older:
            line = f'another process says --process_id={process} too: give each its own number'
            older.send({'refused': line})
            older.close()
        self.listen(process, connection)

    def listen(self, peer: int, connection: Connection) -> None:
        """Listen as `ProcessGroup` does, but who hangs up before the verdict never came.

        Unless to refuse: that is the verdict.
        """
        # Nothing is expected before the verdict, so this returns either with the connection's end
        # or with the first line after the verdict.
        message = connection.receive()
        with self._changed:  # once the verdict is out
            if self.connections.get(peer) is not connection:  # it has called again
                connection.close()
                return
            if self._open:
                if 'refused' not in self._said[peer]:
                    del self.connections[peer], self._said[peer]
                connection.close()
                return
        if message:
            self._hear(message)
        super().listen(peer, connection)


class Caller(ProcessGroup):
    """A process that calls process 0."""

    def meet(
        self, address: tuple[str, int], timeout_s: float, says: Mapping[str, Any]
    ) -> ProcessGroup:
        """Call until process 0 has heard and given its verdict; returns, or raises UserError."""
        deadline, why = time.monotonic() + timeout_s, ''
        while (seconds_left := deadline - time.monotonic()) > 0:
            # Nobody may be there yet: process 0 may start later than this one.
            try:
                connected = socket.create_connection(address, timeout=min(seconds_left, 20))
            except (OSError, UnicodeError) as error:
                why = f' ({getattr(error, "strerror", None) or error})'
                time.sleep(min(seconds_left, 0.2))
                continue
            if connected.getsockname() == connected.getpeername():
                # Where nobody listens yet, on this very host, the system may have chosen the port
                # that is called for the calling end too: then a socket is connected to itself.
                # Closed at once, with a reset, for process 0 wants this port.
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
                connected.close()
                continue
            connection = Connection(connected, self._silence_s)
            verdict = self._ask(connection, says, seconds_left)
            if verdict and 'start' in verdict:
                self.connections[0] = connection
                threading.Thread(target=self.listen, args=(0, connection), daemon=True).start()
                return self
            connection.close()
            if verdict:
                raise (Absent if verdict.get('absent') else UserError)(verdict['refused'])
            # Without a verdict it was another program, or a process 0 that ended: call again.
            why = ' (who is there is not process 0 of a run, or ended)'
            time.sleep(min(seconds_left, 0.2))
        host, port = address
        raise Absent(
            f'process 0 did not answer at {host}:{port} within {timeout_s:g} s{why}: '
            'start the same command there, and open that port'
        )

    def _ask(
        self, connection: Connection, says: Mapping[str, Any], seconds_left: float
    ) -> Mapping[str, Any] | None:
        """Return the verdict of process 0, or the refusal that it has heard; None if neither."""
        # Two answers come: that it was heard, then the verdict, which takes as long as the last
        # arrival.
        connection.send({'bert_jax': _PROTOCOL, 'process': self.process, 'says': says})
        answer = connection.receive(_ANSWER_S)
        if answer and 'heard' in answer:
            if 'refused' in says:
                return says
            # the clock of process 0 decides
            answer = connection.receive(seconds_left + _ANSWER_S)

        # Another program may answer in JSON too, if only by an echo.
        return answer if answer and answer.keys() & {'start', 'refused'} else None


@contextlib.contextmanager
def open_server(port: int, patience_s: float = 0) -> Iterator[socket.socket]:
    """Return a socket that takes calls on `port` of all addresses.

    Waits for a port that is taken, for `patience_s` seconds and at most for as long as one that is
    taken by chance is; then UserError.
    """
    # One socket for both families where the system has that, so that any name of this host works.
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    wait_s, warned = min(patience_s, _PORT_S), False
    deadline = time.monotonic() + wait_s
    while True:
        try:
            server = socket.create_server(('', port), family=family, dualstack_ipv6=both)
            break
        except OSError as error:
            if time.monotonic() >= deadline or error.errno != errno.EADDRINUSE:
                raise UserError(
                    f'port {port} cannot be used ({os.strerror(error.errno or 0)}): choose another'
                    ' --coordinator, which takes its port and the next, or stop the process 0 that'
                    ' is there'
                ) from error

        # Taken by chance: by a connection of another program, for which the system chose this
        # number, or by a process 0 that is about to end.
        if not warned:
            logging.warning('port %d is taken: waiting for it, for at most %.0f s', port, wait_s)
            warned = True
        time.sleep(0.2)
    with server:
        server.settimeout(0.2)  # so that who accepts may look whether to go on
        yield server
