"""Signals that ask a run to save and stop, and the step on which all its processes agree.

Owns the handlers of SIGTERM, SIGINT and SIGHUP. jax.distributed knows nothing of signals, so the
processes agree here on the step after which they stop. It must not know what is trained.
"""

from __future__ import annotations

import signal
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.runs.supervision.handlers import in_main_thread, stopping

_SAME_REQUEST_S = 2.0  # seconds within which a second signal to stop is the first one once more


class StopSignal:
    """Signals of `stopping` ask the loop to save and stop; a second one ends the process at once.

    What comes within two seconds is the same request once more: a scheduler may signal every
    process of a job, and bert-jax supervise passes on what it gets itself. Python gives signals to
    the main thread alone: a run in another thread leaves the handlers as they are.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._first = 0.0  # when, on the monotonic clock
        if in_main_thread():
            for number in stopping():
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: Any) -> None:
        del frame
        if self.received is None:
            self.received, self._first = number, time.monotonic()
        elif time.monotonic() - self._first > _SAME_REQUEST_S:
            # The second signal has its default effect at once: the first may wait for a long step
            # or save.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


class Agreement:
    """Whether to stop, the same answer in every process: a signal to one stops all at one step."""

    def __init__(self, stop: StopSignal, mesh: jax.sharding.Mesh):
        self._stop, self._pending = stop, None  # what all had before the last step, on the devices
        self._sharding = NamedSharding(mesh, P(mesh.axis_names))
        self._largest = jax.jit(lambda flags: flags.max(), out_shardings=NamedSharding(mesh, P()))

    def __call__(self) -> int | None:
        """Return the number of the signal, or None; to be called once before each step.

        With several processes it is what all had before the last step, so that nothing waits: the
        devices have done it by now.
        """
        if jax.process_count() == 1:
            return self._stop.received
        before = self._pending
        # One number for each device here, 0 for no signal; the largest of all is what all follow.
        devices = self._sharding.mesh.local_mesh.devices.size
        here = np.full(devices, self._stop.received or 0, np.int32)
        self._pending = self._largest(jax.make_array_from_process_local_data(self._sharding, here))
        return (int(before) or None) if before is not None else None
