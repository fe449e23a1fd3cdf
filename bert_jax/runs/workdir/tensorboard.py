"""Metrics as TensorBoard reads them: an event file in the workdir.

Imports no TensorFlow, which tensorboard's own writer loads where it is installed (18 s).
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any

from etils import epath

from bert_jax.input_pipeline.records.tfrecord import frame_records
from bert_jax.runs.workdir.growing_file import GrowingFile

if TYPE_CHECKING:
    from bert_jax.train.loop import LogEntry


class TensorBoard(GrowingFile):
    """An event file in a folder, written record by record; arguments as for MetricWriter.

    TensorBoard's own writer does so in a thread, which a full disk ends with a traceback.
    """

    def __init__(self, folder: epath.Path, resume_step: int, required: bool):
        from tensorboard.compat.proto import event_pb2

        # A run that ended before its first checkpoint resumes at 0, and has events all the same.
        interrupted = resume_step or any(folder.glob('events.out.tfevents.*'))

        # TensorBoard finds files by this prefix, and reads them in the order of the seconds after
        # it; host, process and clock keep two writers of one second apart.
        process = f'{socket.gethostname()}.{os.getpid()}'
        name = f'events.out.tfevents.{int(time.time()):010}.{process}.{time.monotonic_ns()}'
        super().__init__(folder / name, required)

        # The header that TensorBoard demands of a file's first record.
        self._add(file_version='brain.Event:2')
        if interrupted:  # TensorBoard then forgets what that run wrote from this step on
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._add(step=resume_step + 1, session_log=start)

    def _add(self, **content: Any) -> None:
        from tensorboard.compat.proto import event_pb2

        # Framed in memory, so that it reaches the file as one whole piece.
        event = event_pb2.Event(wall_time=time.time(), **content)
        self.append(frame_records([event.SerializeToString()]))

    def write(self, line: LogEntry) -> None:
        """Add a point to the curve 'SPLIT/NAME' of each number."""
        from tensorboard.compat.proto import summary_pb2

        values = [
            summary_pb2.Summary.Value(tag=tag, simple_value=value)
            for tag, value in scalars(line).items()
        ]
        self._add(step=line.step, summary=summary_pb2.Summary(value=values))


def scalars(line: LogEntry) -> dict[str, float]:
    """Return the numbers of a line by 'SPLIT/NAME', for TensorBoard to draw together."""
    return {
        f'{line.metrics["split"]}/{name}': value
        for name, value in line.metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
