"""Several processes as one run: that all of them are there, that they stop together, that none hangs.

Owns what jax.distributed leaves open. It aborts the process, without a name, when a host never
arrives: so the processes call the roll before. It knows nothing of signals: so the processes agree on
the step after which they stop. And a collective waits for ever: so a watchdog ends a process in which
nothing moves. It must not know what is trained. A process that dies is noticed by jax itself (heartbeats),
which then ends the others and names the one that is gone; launch.supervise starts them all again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.loop import StopSignal
from configs.errors import UserError

TRY_AGAIN = 75  # EX_TEMPFAIL, the exit code where a restart may mend it: launch.supervise starts the command again


class Absent(UserError):
    """Not all processes of a run arrived in time."""

    exit_code = TRY_AGAIN


def initialize(coordinator: str | None, processes: int | None, process_id: int | None, timeout_s: int, heartbeat_s: int) -> None:
    """Joins the processes of a run; to be called before any device is used.

    coordinator: 'HOST:PORT' of process 0, whose PORT and PORT + 1 must be reachable; None where the
    cluster tells (Cloud TPU, Slurm, Open MPI, Kubernetes). Raises Absent where not all arrive within
    `timeout_s` seconds, UserError for flags that contradict each other. A process whose heartbeat
    stays away for `heartbeat_s` seconds counts as dead.
    """
    if coordinator:
        host, port = _address(coordinator)
        if processes is None or process_id is None:
            raise UserError('--coordinator needs --num_processes and --process_id')
        if not 0 <= process_id < processes:
            raise UserError(f'--process_id={process_id}: must be from 0 to {processes - 1} (--num_processes={processes})')
        roll_call(host, port + 1, processes, process_id, timeout_s)
    jax.distributed.initialize(coordinator, processes, process_id, initialization_timeout=timeout_s, heartbeat_timeout_seconds=heartbeat_s)
    if not first():  # the log of the run is that of process 0
        logging.set_verbosity(logging.WARNING)
    logging.info(
        'process %d of %d, %d of %d devices here', jax.process_index(), jax.process_count(), len(jax.local_devices()), jax.device_count()
    )


def first() -> bool:
    """Whether this process is the one that writes a run's small files; True where there is one process only."""
    return jax.process_index() == 0


def from_first(ask: Callable[[], bool]) -> bool:
    """What `ask` says in the first process, where alone it is called, in every process. UserError in all where it raises one."""
    if jax.process_count() == 1:
        return ask()
    answer, refusal = 0, None
    if first():
        try:
            answer = int(ask())
        except UserError as error:
            answer, refusal = -1, error
    answer = int(multihost_utils.broadcast_one_to_all(np.int32(answer)))
    if answer < 0:
        raise refusal or UserError('process 0 refused to start: its log says why')
    return bool(answer)


def _address(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(':')
    if not host or not port.isdecimal():
        raise UserError(f'--coordinator={coordinator}: must be HOST:PORT')
    return host, int(port)


def roll_call(host: str, port: int, processes: int, process_id: int, timeout_s: float) -> None:
    """Returns in every process once all have called; Absent in every process, naming who is missing, after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    missing = _take_the_roll(port, processes, deadline) if process_id == 0 else _answer(host, port, process_id, deadline)
    if missing is None:
        raise Absent(f'process 0 did not answer at {host}:{port} within {timeout_s:g} s: start the same command there, and open that port')
    if missing:
        names = ', '.join(map(str, missing))
        raise Absent(
            f'{processes - len(missing)} of {processes} processes arrived within {timeout_s:g} s; missing: {names}. '
            'Start the same command there with that --process_id'
        )


def _take_the_roll(port: int, processes: int, deadline: float) -> list[int]:
    """Process 0's side: -> the processes that did not come, which it tells those that did."""
    arrived: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(socket.create_server(('', port)))
        except OSError as error:
            raise UserError(
                f'port {port} (that of --coordinator plus one) cannot be used ({error.strerror}): choose another port'
            ) from error
        while len(arrived) < processes - 1 and (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            with contextlib.suppress(TimeoutError, ValueError, OSError):
                connection, _ = server.accept()
                stack.enter_context(connection)
                connection.settimeout(max(0.1, deadline - time.monotonic()))
                arrived[int(connection.makefile().readline())] = connection
        missing = sorted(set(range(1, processes)) - set(arrived))
        for connection in arrived.values():
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(missing).encode() + b'\n')
    return missing


def _answer(host: str, port: int, process_id: int, deadline: float) -> list[int] | None:
    """The others' side: -> what process 0 says is missing; None where it does not answer."""
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=left) as connection:
            connection.sendall(b'%d\n' % process_id)
            connection.settimeout(left + 10)  # the clock of process 0 decides
            if line := connection.makefile().readline():
                return json.loads(line)
        time.sleep(0.2)
    return None


class Agreement:
    """Whether to stop, the same answer in every process: a signal to one of them stops all after the same step."""

    def __init__(self, stop: StopSignal, mesh: jax.sharding.Mesh):
        self._stop, self._pending = stop, None
        self._sharding = NamedSharding(mesh, P(mesh.axis_names))
        self._largest = jax.jit(lambda flags: flags.max(), out_shardings=NamedSharding(mesh, P()))

    def __call__(self) -> int | None:
        """To be called once before each step: the number of the signal, or None.

        With several processes it is what all said before the last step, so that nothing waits: the
        devices have done it by now.
        """
        if jax.process_count() == 1:
            return self._stop.received
        before = self._pending
        here = np.full(self._sharding.mesh.local_mesh.devices.size, self._stop.received or 0, np.int32)
        self._pending = self._largest(jax.make_array_from_process_local_data(self._sharding, here))
        return (int(before) or None) if before is not None else None


@contextlib.contextmanager
def watchdog(minutes: float) -> Iterator[Callable[[], None]]:
    """Yields `beat`, to be called as steps are done: without one for `minutes` the process ends (0: never).

    The stacks of all threads go to stderr first. Compiling counts as standing still: leave room for it.
    """
    last, done = [time.monotonic()], threading.Event()

    def beat() -> None:
        last[0] = time.monotonic()

    def watch() -> None:
        while not done.wait(min(5.0, 60 * minutes / 4)):
            if time.monotonic() - last[0] > 60 * minutes:
                logging.error('no step was done for %g minutes (runtime.stall_minutes): this process ends, to be started again', minutes)
                faulthandler.dump_traceback(all_threads=True)
                sys.stderr.flush()
                os._exit(TRY_AGAIN)

    if minutes:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield beat
    finally:
        done.set()
