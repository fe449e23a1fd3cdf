"""A run's metrics as PNG pictures. Knows the names in metrics.jsonl and nothing of how they came
about.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from configs.atomic import atomic_file
from configs.errors import UserError
from launch.workdir.metrics import read_metrics
from launch.workdir.workdir import Workdir

# file: (title of the y axis, split, names of the lines where they exist)
PICTURES = {
    'losses.png': ('loss (nats)', 'train', ('loss', 'mlm_loss', 'nsp_loss')),
    'held_out.png': (
        'accuracy on held-out text',
        'eval',
        ('mlm_accuracy', 'nsp_accuracy', 'accuracy'),
    ),
    'learning_rate.png': ('learning rate', 'train', ('learning_rate',)),
}


def plot_run(metrics_path: epath.PathLike, out_dir: epath.PathLike) -> list[str]:
    """Draws the pictures of a metrics.jsonl that it has numbers for; gives back the paths written.

    losses.png, held_out.png, learning_rate.png; scores.png has what fine-tuning scored on the way,
    on a split of its task. Raises UserError where the file is missing.
    """
    # A picture is drawn only where there are points for it: no empty axes.
    lines, folder, written = read_metrics(metrics_path), epath.Path(out_dir), []
    folder.mkdir(parents=True, exist_ok=True)
    for name, (title, split, names) in PICTURES.items():
        curves = {n: points(lines, split, n) for n in names}
        if any(curves.values()):
            _draw(folder / name, title, {n: xy for n, xy in curves.items() if xy})
            written.append(os.fspath(folder / name))
    if scores := _scores(lines):
        _draw(folder / 'scores.png', 'score', scores)
        written.append(os.fspath(folder / 'scores.png'))
    return written


def _scores(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Every metric of a task's scored split, as 'SPLIT METRIC'."""
    # A dict for its order: the curves keep the order, and so the colours, of the first scores.
    metrics = dict.fromkeys(
        (line['split'], name)
        for line in lines
        if line['split'] not in ('train', 'eval')
        for name in line.keys() - {'step', 'split'}
    )
    curves = {f'{split} {name}': points(lines, split, name) for split, name in metrics}
    return {title: xy for title, xy in curves.items() if xy}


def plot_workdir(folder: epath.PathLike) -> None:
    """Draws plots/ of a run that ends, however it does: what keeps the pictures from being drawn is
    a warning.
    """
    workdir = Workdir(folder)
    if not workdir.metrics_file.exists():  # it ended before its first log line
        return
    try:
        plot_run(workdir.metrics_file, workdir.plots)
    except (OSError, UserError) as error:
        logging.warning('%s: plots are not drawn (%s)', workdir, error)


def points(lines: Sequence[Mapping[str, Any]], split: str, name: str) -> list[tuple[int, float]]:
    """(step, value) of one metric of one split, in order, without what was not finite."""
    return [
        (line['step'], line[name])
        for line in lines
        if line.get('split') == split and line.get(name) is not None
    ]


def _draw(path: epath.Path, title: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """One picture; drawn without pyplot, which keeps global state and may look for a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # 7 x 4 inches at 120 dpi, 840 x 480 pixels.
    figure = Figure(figsize=(7, 4), layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel='step', ylabel=title)

    # A few scores need markers to be seen; on a long curve they would hide it.
    for name, xy in curves.items():
        axes.plot(*zip(*xy, strict=True), label=name, marker='.' if len(xy) < 50 else None)
    axes.grid(alpha=0.3)
    axes.legend()

    # Not synced to the disk: a picture can be drawn again.
    with atomic_file(path, durable=False) as file:
        figure.savefig(file, format='png', dpi=120)
