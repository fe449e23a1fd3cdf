"""What TensorBoard shows of a run."""

from __future__ import annotations

import pathlib
import sys
import types


def points(workdir: pathlib.Path, tag: str) -> list[tuple[int, float]]:
    """The points of a curve, as TensorBoard's own loader reads them."""
    # Without it TensorBoard would load TensorFlow, which takes seconds and half a gigabyte.
    sys.modules.setdefault('tensorboard.compat.notf', types.ModuleType('notf'))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [(e.step, e.value) for e in EventAccumulator(str(workdir)).Reload().Scalars(tag)]
