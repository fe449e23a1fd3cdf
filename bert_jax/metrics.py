"""What a run reports: metrics.jsonl, TensorBoard events, and the same as lines of the log.

Owns the files' form and how they survive an interruption: after a resume metrics.jsonl is what an
undisturbed run would have written. It must not know what the metrics mean, and it imports neither
jax nor TensorFlow (which tensorboard would load where it is installed: 18 s).

A line of metrics.jsonl: {"step": int, "split": "train" | "eval", name: number or null, ...}; null
stands for a number that is not finite.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import types
from collections.abc import Mapping
from typing import Any

from absl import logging
from etils import epath

from configs.errors import UserError

FILE = 'metrics.jsonl'

# In the log line these come first, and those are left out; files have all.
_FIRST = ('loss', 'mlm_loss', 'mlm_accuracy', 'nsp_accuracy', 'learning_rate', 'tokens_per_s', 'mfu')
_LEFT_OUT = (
    'nsp_loss',
    'nsp_accuracy_is_next',
    'nsp_accuracy_random',
    'param_norm',
    'seconds',
    'sequences_per_s',
    'step_ms',
    'model_tflops',
)


class MetricWriter:
    """Appends the metrics of a run to its workdir; to be closed at the end.

    resume_step: the step of the checkpoint that the run goes on from (0: from the start); what an
    interrupted run wrote beyond it is dropped, because it will be written again.
    """

    def __init__(self, workdir: epath.PathLike, resume_step: int = 0):
        folder = epath.Path(workdir)
        folder.mkdir(parents=True, exist_ok=True)
        truncate_after(folder / FILE, resume_step)
        self._file = (folder / FILE).open('a')
        self._events = _event_writer(folder, resume_step)

    def write(self, step: int, metrics: Mapping[str, Any], total: int | None = None, eta: float | None = None) -> None:
        """Records one set of metrics; `total` steps and `eta` seconds left are for the log line alone."""
        values = {name: _plain(value) for name, value in metrics.items()}
        logging.info('%s', describe(step, values, total, eta))
        self._file.write(json.dumps({'step': step, **values}) + '\n')
        self._file.flush()
        self._add_events(step, values)

    def close(self) -> None:
        """Writes what is buffered. The writer is of no use afterwards."""
        self._file.close()
        self._events.close()

    def _add_events(self, step: int, values: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        split = values.get('split', 'train')
        scalars = [
            summary_pb2.Summary.Value(tag=f'{split}/{name}', simple_value=value)
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        self._events.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=scalars)))
        if split != 'train':
            self._events.flush()


class NoWriter:
    """Stands in for a MetricWriter in the processes of a run that are not its first."""

    def write(self, step: int, metrics: Mapping[str, Any], total: int | None = None, eta: float | None = None) -> None:
        """Records nothing."""

    def close(self) -> None:
        """Does nothing."""


def read_metrics(path: epath.PathLike) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl. A last line that was cut off by an interruption is left out.

    Raises UserError where there is no such file, or another line is not JSON.
    """
    path, found = epath.Path(path), []
    if not path.exists():
        raise UserError(f'{os.fspath(path)}: no such file; a run writes it at its first log line')
    lines = path.read_text().split('\n')
    for number, line in enumerate(lines[:-1], start=1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise UserError(f'{os.fspath(path)}:{number}: not a line of metrics ({error}); delete it to go on') from error
    return found


def truncate_after(path: epath.PathLike, step: int) -> None:
    """Drops the lines beyond `step` from a metrics.jsonl, and a last line that was cut off."""
    path = epath.Path(path)
    if path.exists():
        kept = [line for line in read_metrics(path) if line['step'] <= step]
        temporary = path.with_name(f'{path.name}.tmp')
        with temporary.open('w') as file:
            file.writelines(json.dumps(line) + '\n' for line in kept)
            file.flush()
            if '://' not in os.fspath(path):
                os.fsync(file.fileno())
        temporary.replace(path)


def describe(step: int, values: Mapping[str, Any], total: int | None = None, eta: float | None = None) -> str:
    """One readable line: 'step 200/1000 train  loss 6.31  mlm_accuracy 0.153  ... eta 1:02:03'."""
    names = [name for name in _FIRST if name in values] + [name for name in values if name not in _FIRST + _LEFT_OUT]
    shown = [f'{name} {_short(values[name])}' for name in names if values[name] is None or isinstance(values[name], float)]
    if eta is not None:
        minutes, seconds = divmod(round(eta), 60)
        shown.append(f'eta {minutes // 60}:{minutes % 60:02}:{seconds:02}')
    return '  '.join([f'step {step}' + (f'/{total}' if total else '') + f' {values.get("split", "train")}', *shown])


def _short(value: float | None) -> str:
    if value is None:
        return 'not finite'
    return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'


def _plain(value: Any) -> Any:
    """A JSON value for a Python, numpy or jax scalar; None for a number that is not finite."""
    value = value.item() if hasattr(value, 'item') else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _event_writer(folder: epath.Path, resume_step: int) -> Any:
    """TensorBoard's own writer, without the TensorFlow that it would import."""
    sys.modules.setdefault('tensorboard.compat.notf', types.ModuleType('tensorboard.compat.notf'))
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(os.fspath(folder))
    if resume_step:  # TensorBoard then forgets what an interrupted run wrote from this step on
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        writer.add_event(event_pb2.Event(wall_time=time.time(), step=resume_step + 1, session_log=start))
    return writer
