"""Several processes as one run, which all start alike.

Owns what jax.distributed leaves open. It aborts the process, without a name, when a host never
arrives, and it starts whatever settings the hosts were given: so the processes call the roll before
(roll_call.py), and stay in touch (process_group.py). It must not know what is trained.
"""

from __future__ import annotations

import collections
import contextlib
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from bert_jax.configs.errors import UserError
from bert_jax.mesh.process_group import ProcessGroup, find_objection
from bert_jax.mesh.roll_call import Absent, Caller, Lead, call_roll, open_server

_Made = TypeVar('_Made')
_CONNECT_S = 20.0  # seconds in which the processes of a cluster, all there, must find process 0


class ClusterAddress(NamedTuple):
    """How the processes of a run find each other, and which of them this one is.

    coordinator: 'HOST:PORT' of process 0, whose PORT and PORT + 1 must be reachable; None where the
    cluster tells it, the number of processes and that of this one (Cloud TPU, Slurm, Open MPI,
    Kubernetes). All must arrive within `timeout_s` seconds; a process that is silent for
    `heartbeat_s` seconds counts as dead.
    """

    coordinator: str | None
    processes: int | None
    process_id: int | None
    timeout_s: int
    heartbeat_s: int

    def host_and_port(self) -> tuple[str, int] | None:
        """Return host and port of process 0; None where the cluster tells them.

        UserError for flags that contradict each other.
        """
        # Read from the right: an IPv6 address has colons of its own, and brackets that sockets do
        # not want.
        if not self.coordinator:
            return None
        host, _, port = self.coordinator.rpartition(':')
        # PORT + 1 must be a port too.
        if not host or not port.isdecimal() or not 0 < int(port) < 65535:
            raise UserError(
                f'--coordinator={self.coordinator}: must be HOST:PORT, with a PORT from 1 to 65534'
            )
        if self.processes is None or self.process_id is None:
            raise UserError('--coordinator needs --num_processes and --process_id')
        if not 0 <= self.process_id < self.processes:
            last = self.processes - 1
            raise UserError(
                f'--process_id={self.process_id}: must be from 0 to {last} '
                f'(--num_processes={self.processes})'
            )
        return host.strip('[]'), int(port)


@contextlib.contextmanager
def join_run(
    cluster: ClusterAddress,
    ready: Callable[[], _Made],
    describe: Callable[[_Made], Mapping[str, Any]],
) -> Iterator[_Made]:
    """Join this process to a run, for as long as the block lasts; yields what `ready` makes.

    To be entered before any device is used. `describe` gives, of what `ready` made, what must be
    the same in all processes, {name: JSON value}. Raises UserError, in every process, where it is
    not, or where `ready` raises one in any of them; Absent where not all processes arrive. An error
    inside the block ends the other processes too, with a line that says so.
    """
    address = cluster.host_and_port()
    group, refusal = None, None
    # First what this process can find out by itself. A refusal waits: the others would wait for
    # this process in vain, so it meets them all the same and says why it does not start.
    try:
        if address and cluster.process_id == 0:  # a port that is taken crashes jax
            with open_server(address[1], cluster.timeout_s):
                pass
        made = ready()
        says = dict(describe(made))
    except UserError as error:
        logging.info('this process does not start; the others are told why')
        refusal, says = error, {'refused': str(error)}
    try:
        # The roll is called before jax starts, which would abort where a process is missing.
        if address:
            assert cluster.process_id is not None and cluster.processes is not None, 'checked above'
            group = call_roll(
                (address[0], address[1] + 1),
                cluster.process_id,
                cluster.processes,
                cluster.timeout_s,
                says,
                cluster.heartbeat_s,
            )
        _start_jax(cluster)
        _check_devices()
        # Where the cluster tells the addresses, jax must be there to ask: the roll comes after it.
        group = group or _meet_in_cluster(says, cluster.heartbeat_s)
        if not is_lead_process():  # the log of the run is that of process 0
            logging.set_verbosity(logging.WARNING)
        logging.info(
            'process %d of %d, %d of %d devices here',
            jax.process_index(), jax.process_count(), len(jax.local_devices()), jax.device_count(),
        )  # fmt: skip
        yield made
    except BaseException as error:
        if group:
            group.end(error)
        if refusal and isinstance(error, UserError):  # in its own words
            raise refusal from None
        raise
    group.end()


def _start_jax(cluster: ClusterAddress) -> None:
    # jax's own notice of a preemption takes SIGTERM away until StopSignal is there: a signal that
    # comes meanwhile would be lost, and the run go on.
    jax.config.update('jax_enable_preemption_service', False)
    try:
        jax.distributed.initialize(
            cluster.coordinator,
            cluster.processes,
            cluster.process_id,
            initialization_timeout=cluster.timeout_s,
            heartbeat_timeout_seconds=cluster.heartbeat_s,
        )
    except ValueError as error:  # as jax words it where no cluster tells
        raise UserError(
            f'--distributed: no cluster tells the processes apart here ({error}): '
            'give --coordinator, --num_processes and --process_id'
        ) from error


def _check_devices() -> None:
    """Raise UserError, in every process, unless all have as many devices of the same kind."""
    # All processes see the devices of all, so all come to the same verdict without a word.
    counts = collections.Counter((d.process_index, d.device_kind) for d in jax.devices())
    devices = {process: {'devices': f'{n} x {kind}'} for (process, kind), n in counts.items()}
    line = find_objection(devices, 'give each as many of the same kind')
    if line:
        raise UserError(line)


def _meet_in_cluster(says: Mapping[str, Any], silence_s: float) -> ProcessGroup:
    """Compare what all processes say, over the devices; then connects them to process 0.

    There the cluster, not a flag, tells who is process 0, and it tells the others its address.
    Raises UserError in every process where they differ; where one cannot reach process 0 they run
    unconnected.
    """
    process, processes = jax.process_index(), jax.process_count()
    with contextlib.ExitStack() as stack:
        address_here = None
        # Process 0 listens before it tells where, so that nobody calls in vain.
        if is_lead_process():
            server = stack.enter_context(open_server(0))
            address_here = [_find_own_address(), server.getsockname()[1]]
        gathered = _gather({'says': says, 'address': address_here})
        # All have gathered the same, so all raise or none does.
        line = find_objection({i: message['says'] for i, message in enumerate(gathered)})
        if line:
            raise UserError(line)
        address = tuple(gathered[0]['address'])

        # Only connections are made here (nothing left to compare), hence the empty descriptions.
        try:
            if is_lead_process():
                return Lead(processes, silence_s).meet(server, _CONNECT_S, {})
            return Caller(process, processes, silence_s).meet(address, _CONNECT_S, {})
        except Absent:
            logging.warning(
                'not all processes can reach process 0 at %s:%d: '
                'a process that dies is noticed by jax alone, after --heartbeat_s',
                *address,
            )
            return ProcessGroup(process, processes)


def _find_own_address() -> str:
    """Return the address of the interface by which other hosts know this one."""
    # A UDP socket that is connected has chosen its interface, and has sent nothing.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(('10.255.255.255', 1))  # sends nothing
        return probe.getsockname()[0]
    return socket.gethostname()


def _gather(message: Any) -> list[Any]:
    """Gather the JSON values of all processes, in all of them, by process."""
    # Arrays alone can be gathered: JSON as bytes, padded to the longest, cut again by the sizes.
    text = np.frombuffer(json.dumps(message).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(text.size)).reshape(-1)
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: text.size] = text
    rows = multihost_utils.process_allgather(padded).reshape(len(sizes), -1)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def is_lead_process() -> bool:
    """Tell whether this is process 0, which writes a run's small files."""
    return jax.process_index() == 0


def compare(say: Callable[[], Mapping[str, Any]], advice: str) -> None:
    """Raise UserError in every process, naming what differs, unless `say` gives the same in all.

    `say` gives {name: JSON value}; where there is only one process it is not called.
    """
    # All processes must come here, or none: a gathering waits for everybody.
    if jax.process_count() == 1:
        return
    line = find_objection(dict(enumerate(_gather(say()))), advice)
    if line:
        raise UserError(line)


def broadcast_from_lead(ask: Callable[[], bool]) -> bool:
    """Return the answer of `ask`, which process 0 alone is asked, in every process.

    UserError in all of them where it raises one.
    """
    if jax.process_count() == 1:
        return ask()
    message: dict[str, Any] | None = None  # of process 0 alone
    # A refusal of process 0 is gathered like an answer: raised at once it would leave the others
    # waiting.
    refusal = None
    if is_lead_process():
        try:
            message = {'answer': bool(ask())}
        except UserError as error:
            message, refusal = {'refused': str(error)}, error
    heard = _gather(message)[0]
    if 'refused' in heard:
        raise refusal or UserError(f'process 0 refused to start: {heard["refused"]}')
    return heard['answer']
