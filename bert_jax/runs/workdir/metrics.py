"""What a run reports: metrics.jsonl, TensorBoard events, and the same as lines of the log.

Owns the files' form and how they survive an interruption: after a resume metrics.jsonl is what an
undisturbed run would have written. It must not know what the metrics mean, and it imports neither
jax nor TensorFlow (which tensorboard would load where it is installed: 18 s).

A line of metrics.jsonl: {"step": int, "split": "train" | "eval", name: number or null, ...}; null
means a number that is not finite.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.files.json_object import parse
from bert_jax.input_pipeline import progress
from bert_jax.runs.workdir.growing_file import GrowingFile
from bert_jax.runs.workdir.tensorboard import TensorBoard

if TYPE_CHECKING:
    from bert_jax.train.loop import LogEntry, Writer

FILE = 'metrics.jsonl'

# In the log line these come first, and those are left out; files have all.
_FIRST = (
    'loss rtd_loss rtd_nats_gained mlm_loss nats_gained mlm_accuracy nsp_accuracy learning_rate'
    ' tokens_per_s mfu'
).split()
_LEFT_OUT = (
    'nsp_loss nsp_accuracy_is_next nsp_accuracy_random param_norm seconds sequences_per_s step_ms'
    ' model_tflops'
).split()

# What a log line calls them, which has room for few.
_SHORT = {
    'mlm_accuracy': 'mlm_acc',
    'nsp_accuracy': 'nsp_acc',
    'nats_gained': 'nats gained',
    'rtd_nats_gained': 'rtd_gained',
    'learning_rate': 'lr',
    'tokens_per_s': 'tok/s',
}
# Of a line: 80, without the time and the level's letter.
_COLUMNS = 80 - len('12:34:56 I ')


class Writers:
    """A list of writers (bert_jax/train/loop.py has the protocol) that acts as one.

    None at all is the writer of the processes of a run that are not its first.
    """

    def __init__(self, writers: Sequence[Writer]):
        self._writers = writers

    def write(self, line: LogEntry) -> None:
        """Hand a line to each in turn, its metrics as JSON values: None for what is not finite."""
        values = {name: _plain(value) for name, value in line.metrics.items()}
        for writer in self._writers:
            writer.write(line._replace(metrics=values))

    def close(self) -> None:
        """Close each, also where one fails. They are of no use afterwards."""
        with contextlib.ExitStack() as stack:
            for writer in reversed(self._writers):
                stack.callback(writer.close)


class MetricWriter(Writers):
    """Tells a run's metrics to the log, its workdir's files and `more`; to be closed at the end.

    resume_step: the step of the checkpoint that the run goes on from (0: from the start); what an
    interrupted run wrote beyond it is dropped, because it will be written again: all of it where
    that run had no checkpoint yet.
    required: whether a full disk ends the run; otherwise what does not fit is written when there is
    room again.
    """

    def __init__(
        self,
        workdir: epath.PathLike,
        resume_step: int = 0,
        required: bool = True,
        more: Sequence[Writer] = (),
    ):
        folder = epath.Path(workdir)
        folder.mkdir(parents=True, exist_ok=True)
        # To the log first: it still tells where the disk takes nothing.
        super().__init__(
            [
                LogLines(),
                JsonLines(folder, resume_step, required),
                TensorBoard(folder, resume_step, required),
                *more,
            ]
        )


class LogLines:
    """The log: a readable line for each set of metrics."""

    def write(self, line: LogEntry) -> None:
        """Log what `describe` says."""
        logging.info(describe(line))

    def close(self) -> None:
        """Do nothing."""


class JsonLines(GrowingFile):
    """The metrics.jsonl of a folder; arguments as for MetricWriter."""

    def __init__(self, folder: epath.Path, resume_step: int, required: bool):
        # Cut off first: the file is then opened at the end of what stays.
        truncate_after(folder / FILE, resume_step)
        super().__init__(folder / FILE, required)

    def write(self, line: LogEntry) -> None:
        """Append a line, which has neither `total` nor `eta`."""
        self.append(json.dumps({'step': line.step, **line.metrics}).encode() + b'\n')


def read_metrics(path: epath.PathLike) -> list[dict[str, Any]]:
    """Read the lines of a metrics.jsonl, without a last one that was cut off.

    Raises UserError where there is no such file, it cannot be read, or another line is not JSON.
    """
    path, parsed = epath.Path(path), []
    content = _content(path)
    if content is None:
        raise UserError(f'{path}: no such file; a run writes it at its first log line')

    # Whole lines end in a newline, so what follows the last one is a line that was cut off.
    for number, line in enumerate(content.split(b'\n')[:-1], start=1):
        try:
            parsed.append(parse(line))
            if not isinstance(parsed[-1].get('step'), int):
                raise ValueError('it has no step')
        except (ValueError, AttributeError) as error:
            raise UserError(
                f'{path}:{number}: not a line of metrics ({error}); delete it to go on'
            ) from error
    return parsed


def _content(path: epath.Path) -> bytes | None:
    """Read the bytes of the file; None where there is none, for b'' is no mistake."""
    with reading(path):
        return path.read_bytes() if path.exists() else None


def truncate_after(path: epath.PathLike, step: int) -> None:
    """Drop the lines beyond `step` from a metrics.jsonl, and a last line that was cut off."""
    path = epath.Path(path)
    before = _content(path)
    if before is None:
        return

    # Steps only grow down the file, so the lines to keep are the first ones.
    keep = bisect.bisect_right([line['step'] for line in read_metrics(path)], step)
    content = b''.join(before.splitlines(keepends=True)[:keep])

    # An object store has no truncation: the object is written again.
    if '://' in os.fspath(path):
        path.write_bytes(content)
    else:
        os.truncate(path, len(content))  # which a full disk allows too


def say_missing(path: epath.PathLike, step: int) -> None:
    """Log which steps, up to `step`, have no line of training, where the end of the file is gone.

    Args:
      path: a metrics.jsonl.
      step: the last one that had a line before the checkpoint that the run goes on from.
    """
    lines = read_metrics(path) if epath.Path(path).exists() else []
    steps = [line['step'] for line in lines if line.get('split') == 'train']
    last = max((each for each in steps if each <= step), default=0)
    if last < step:
        logging.warning(
            f'{os.fspath(path)}: the lines of steps {last + 1} to {step} are missing, for the file'
            ' was cut; the run goes on without them'
        )


def describe(line: LogEntry) -> str:
    """Return a readable line: 'step 200/1000 train  loss 6.31  mlm_acc 0.153  ...  eta 1:02:03'.

    It has the first figures, as many as a terminal of 80 columns shows; files have all.
    """
    # Whole numbers (counts, the phase) are left to the files; None is a figure that is not finite.
    values = line.metrics
    figures = [
        _figure(line, name)
        for name in _in_order(values)
        if values[name] is None or isinstance(values[name], float)
    ]

    # The exception: a discarded step must be seen.
    discarded = values.get('discarded_steps')
    last = [f'discarded_steps {discarded}'] if discarded else []
    last += [progress.eta(line.eta)] if line.eta is not None else []
    first = f'{_place(line)} {progress.split_in_words(values["split"])}'
    while figures and len('  '.join([first, *figures, *last])) > _COLUMNS:
        figures.pop()
    return '  '.join([first, *figures, *last])


def status(line: LogEntry) -> progress.Status:
    """Return the same for a bar: the loss first, then accuracies, then the parts of the loss."""
    shown = [name for name in _in_order(line.metrics) if name.endswith(('loss', 'accuracy'))]
    shown.sort(key=lambda name: (name != 'loss', not name.endswith('accuracy')))
    step_ms = line.metrics.get('step_ms')
    return progress.Status(
        _place(line),
        line.step / line.total,
        [_figure(line, name) for name in shown],
        progress.rate(1e3 / step_ms, 'steps') if step_ms else '',
        line.eta,
    )


def _in_order(values: Mapping[str, Any]) -> list[str]:
    """Return the usual figures in their fixed order, then whatever else a task or head reports."""
    return [name for name in _FIRST if name in values] + [
        name for name in values if name not in _FIRST + _LEFT_OUT
    ]


def _place(line: LogEntry) -> str:
    return f'step {line.step}/{line.total}'


def _figure(line: LogEntry, name: str) -> str:
    return f'{_SHORT.get(name, name)} {_short(line.metrics[name])}'


def _short(value: float | None) -> str:
    if value is None:
        return 'not finite'
    return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'


def _plain(value: Any) -> Any:
    """Return a JSON value of a Python, numpy or jax value; None if it is not finite."""
    # numpy's and jax's have both methods; JSON knows no NaN, so it becomes null.
    if hasattr(value, 'tolist'):
        value = value.item() if value.size == 1 else value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
