"""A run's metrics as PNG pictures. Knows the names in metrics.jsonl and nothing of how they came about."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax.metrics import read_metrics

# file: (title of the y axis, split, names of the lines where they exist)
PICTURES = {
    'losses.png': ('loss (nats)', 'train', ('loss', 'mlm_loss', 'nsp_loss')),
    'held_out.png': ('accuracy on held-out text', 'eval', ('mlm_accuracy', 'nsp_accuracy', 'accuracy')),
    'learning_rate.png': ('learning rate', 'train', ('learning_rate',)),
}


def plot_run(metrics_path: epath.PathLike, out_dir: epath.PathLike) -> list[str]:
    """Draws losses.png, held_out.png and learning_rate.png of a metrics.jsonl; gives back the paths written.

    A picture for which the run has no numbers is left out. Raises UserError where the file is missing.
    """
    lines, folder, written = read_metrics(metrics_path), epath.Path(out_dir), []
    folder.mkdir(parents=True, exist_ok=True)
    for name, (title, split, names) in PICTURES.items():
        curves = {n: points(lines, split, n) for n in names}
        if any(curves.values()):
            _draw(folder / name, title, {n: xy for n, xy in curves.items() if xy})
            written.append(os.fspath(folder / name))
    return written


def points(lines: Sequence[Mapping[str, Any]], split: str, name: str) -> list[tuple[int, float]]:
    """(step, value) of one metric of one split, in order, without what was not finite."""
    return [(line['step'], line[name]) for line in lines if line.get('split') == split and line.get(name) is not None]


def _draw(path: epath.Path, title: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """One picture; drawn without pyplot, which keeps global state and may look for a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel='step', ylabel=title)
    for name, xy in curves.items():
        axes.plot(*zip(*xy, strict=True), label=name, marker='.' if len(xy) < 50 else None)
    axes.grid(alpha=0.3)
    axes.legend()
    temporary = path.with_name(f'{path.name}.tmp')
    with temporary.open('wb') as file:
        figure.savefig(file, format='png', dpi=120)
    temporary.replace(path)
