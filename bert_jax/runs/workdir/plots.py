"""A run's metrics as pictures: which quantities there are, in which units, with which guess.

Owns the drawing of curves, of spreads over seeds and of means over a setting, for PNG files here
and for the page of bert_jax/reports/page. Knows the names in metrics.jsonl and nothing of how they
came about. Names that are not plain ASCII are not drawn: no font has the letters of all languages.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_file, atomic_write
from bert_jax.configs.files.store import write_note
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.notes import Guess, guesses
from bert_jax.runs.workdir.workdir import Workdir

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]

# Of curves in their order, dark enough for thin lines on white; then axes, grid and what is common.
COLOURS = (
    '#0b62a4', '#c44e00', '#007a5a', '#a8327f', '#6b4fa0', '#8a6a00', '#b3263a', '#4d6b78',
)  # fmt: skip
INK, GRID, COMMON = '#333333', '#d0d0d0', '#707070'


class Quantity(NamedTuple):
    """What a metric is called where its numbers are; a unit may be ''.

    factor: from the number of metrics.jsonl to that unit.
    """

    title: str
    unit: str
    factor: float = 1.0


# By the names of metrics.jsonl; accuracies in per cent, losses in nats, as in the tables.
QUANTITIES = {
    'loss': Quantity('Loss', 'nats'),
    'mlm_loss': Quantity('Masked tokens: loss', 'nats a token'),
    'mlm_accuracy': Quantity('Masked tokens: accuracy', '%', 100),
    'nsp_loss': Quantity('Next sentence: loss', 'nats a pair'),
    'nsp_accuracy': Quantity('Next sentence: accuracy', '%', 100),
    'accuracy': Quantity('Accuracy', '%', 100),
    'learning_rate': Quantity('Learning rate', ''),
    'tokens_per_s': Quantity('Speed', 'tokens a second'),
}

# file: (title, unit, split, names of the lines where they exist)
PICTURES = {
    'losses.png': ('Loss in training', 'nats', 'train', ('loss', 'mlm_loss', 'nsp_loss')),
    'held_out.png': (
        'Accuracy on held-out text',
        '%',
        'eval',
        ('mlm_accuracy', 'nsp_accuracy', 'accuracy'),
    ),
    'learning_rate.png': ('Learning rate', '', 'train', ('learning_rate',)),
}


class Curve(NamedTuple):
    """A line of a chart, in the unit of the chart.

    kind: the main ones are drawn with their points where these are few; thin ones are behind
    them; points have no line; what guessing scores is dotted. colour: a place in COLOURS, which
    begin again behind the last; None: the common one.
    """

    label: str
    points: Points
    kind: Literal['main', 'thin', 'points', 'guessing']
    colour: int | None


class Chart(NamedTuple):
    """Curves of one quantity over the steps, or over what `across` says."""

    title: str
    unit: str
    curves: Sequence[Curve]
    across: str = 'step'

    def draw(self, axes: Axes) -> None:
        """Draw all curves; the title is the caller's."""
        for curve in self.curves:
            # A few scores need markers to be seen; on a long curve they would hide it.
            few = len(curve.points) < (50 if curve.kind == 'main' else 2)
            axes.plot(
                *zip(*curve.points),
                label=curve.label,
                color=COMMON if curve.colour is None else COLOURS[curve.colour % len(COLOURS)],
                marker='o' if curve.kind == 'points' else '.' if few else None,
                linestyle={'guessing': ':', 'points': ''}.get(curve.kind, '-'),
                linewidth=0.9 if curve.kind == 'thin' else 1.6,
                alpha=0.55 if curve.kind == 'thin' else 1,
            )
        axes.set(xlabel=self.across, ylabel=self.unit)


class Spread(NamedTuple):
    """Scores of runs that differ in their seeds alone: each a point, with mean and deviation.

    groups: settings, in words -> the scores; guess: what guessing scores, where it is known.
    """

    title: str
    unit: str
    groups: Mapping[str, Sequence[float]]
    guess: float | None

    def draw(self, axes: Axes) -> None:
        """Draw a row for each group, the first on top; the title is the caller's."""
        import numpy as np

        for height, values in enumerate(self.groups.values()):
            axes.plot(values, [height] * len(values), 'o', color=INK, alpha=0.6, markersize=5)
            # The mean as a bar; the sample standard deviation, which a single run does not have.
            sd = np.std(values, ddof=1) if len(values) > 1 else None
            axes.errorbar(
                np.mean(values), height + 0.22, xerr=sd, fmt='|', color=INK, capsize=3, ms=9
            )
        if self.guess is not None:
            axes.axvline(self.guess, color=COMMON, linestyle=':', label='guessing')
        # All fonts have plain letters: a name with others is shown by its number, as in tables.
        names = [name if name.isascii() else f'{n}.' for n, name in enumerate(self.groups, 1)]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(self.groups) - 0.4, -0.6)  # the first on top
        axes.set_xlabel(self.unit or 'score')


class Growth(NamedTuple):
    """Means of scores, with deviations, over a setting whose values are numbers.

    lines: what else is set, in words -> (value, mean, sd) in order; colours: of each line, a place
    in COLOURS; guess: what guessing scores, where it is known.
    """

    title: str
    unit: str
    across: str
    lines: Mapping[str, Sequence[tuple[float, float, float]]]
    colours: Mapping[str, int]
    guess: float | None

    def draw(self, axes: Axes) -> None:
        """Draw the lines; the title is the caller's."""
        values = sorted({value for line in self.lines.values() for value, _, _ in line})
        for label, line in self.lines.items():
            colour = COLOURS[self.colours[label] % len(COLOURS)]
            at, means, sds = zip(*line)
            axes.errorbar(at, means, sds, color=colour, marker='o', ms=4, capsize=3, label=label)
        if self.guess is not None:
            axes.axhline(self.guess, color=COMMON, linestyle=':', label='guessing')
        if values[0] > 0:  # most settings are tried in steps that grow
            axes.set_xscale('log')
        axes.set_xticks(values, [f'{value:,g}' for value in values])
        axes.minorticks_off()
        axes.set(xlabel=self.across, ylabel=self.unit or 'score')


# What fills a pair of axes; the title is put above them by others.
Drawing = Chart | Spread | Growth


def quantity(name: str) -> Quantity:
    """Return what a metric is called; one that is not known here keeps its name."""
    return QUANTITIES.get(name, Quantity(name, ''))


def loss_unit(data: Mapping[str, Any]) -> str:
    """Return the unit of `loss` of a run; `data`: what its data.json says."""
    return 'squared error' if data.get('head') == 'regressor' else 'nats'


def in_unit(name: str, points: Points) -> list[tuple[float, float]]:
    """Return points of metrics.jsonl in the unit of their quantity."""
    return [(step, value * quantity(name).factor) for step, value in points]


def levels(name: str, guessed: Sequence[Guess], last: float) -> list[tuple[float, float]]:
    """Return what guessing scores, as a line to the step `last`, in the quantity's unit."""
    scores = [(guess.step, guess.scores[name]) for guess in guessed if name in guess.scores]
    ends = [step for step, _ in scores[1:]] + [last]
    line = [
        point for (step, value), end in zip(scores, ends) for point in ((step, value), (end, value))
    ]
    return in_unit(name, line)


def plot_run(metrics_path: epath.PathLike, out_dir: epath.PathLike) -> list[str]:
    """Draw the pictures of a metrics.jsonl that it has numbers for, and return their paths.

    losses.png, held_out.png, learning_rate.png; scores.png has what fine-tuning scored on the way,
    on a split of its task. What guessing scores is a dotted line where the run's folder knows it.

    Raises:
      UserError: the file is missing.
    """
    # A picture is drawn only where there are points for it: no empty axes.
    lines, folder = read_metrics(metrics_path), epath.Path(out_dir)
    workdir = Workdir(epath.Path(metrics_path).parent)
    guessed = guesses(workdir)
    wanted = {
        name: (title, unit, [(split, metric) for metric in metrics])
        for name, (title, unit, split, metrics) in PICTURES.items()
    }
    if workdir.data_file.exists():
        title, _, metrics = wanted['losses.png']
        wanted['losses.png'] = (title, loss_unit(workdir.data()), metrics)
    # Every metric of a task's scored split, in the order of the first scores.
    scored = dict.fromkeys(
        (line['split'], name)
        for line in lines
        if line['split'] not in ('train', 'eval')
        for name in line.keys() - {'step', 'split'}
    )
    wanted['scores.png'] = ('Scores on the way', 'score', list(scored))

    return [
        os.fspath(folder / name)
        for name, (title, unit, metrics) in wanted.items()
        if (curves := _curves(lines, metrics, guessed, unit))
        and save(folder / name, Chart(title, unit, curves))
    ]


def _curves(
    lines: Sequence[Mapping[str, Any]],
    metrics: Sequence[tuple[str, str]],
    guessed: Sequence[Guess],
    unit: str,
) -> list[Curve]:
    """Return the curves of a run's metrics, (split, name) each, and of guessing in each."""
    curves = []
    for colour, (split, name) in enumerate(metrics):
        measured: Points = points(lines, split, name)
        if not measured:
            continue

        # Scores of several kinds share an axis, as metrics.jsonl has them.
        level = levels(name, guessed, measured[-1][0])
        factor = quantity(name).factor
        if unit == 'score':
            level = [(step, value / factor) for step, value in level]
        else:
            measured = in_unit(name, measured)
        label = name if split in ('train', 'eval') else f'{split} {name}'
        curves.append(Curve(label, measured, 'main', colour))
        if level:
            curves.append(Curve(f'{label}, guessing', level, 'guessing', colour))
    return curves


def plot_workdir(folder: epath.PathLike) -> None:
    """Draw plots/ of a run that ends, however it does; what keeps them away is a warning."""
    workdir = Workdir(folder)
    if not workdir.metrics_file.exists():  # it ended before its first log line
        return
    try:
        plot_run(workdir.metrics_file, workdir.plots)
    except (OSError, UserError) as error:
        logging.warning(f'{workdir}: plots are not drawn ({error})')


def points(lines: Sequence[Mapping[str, Any]], split: str, name: str) -> list[tuple[int, float]]:
    """Return (step, value) of one metric of one split, in order, without what was not finite.

    What is no number, such as a text, has no points.
    """
    return [
        (line['step'], line[name])
        for line in lines
        if line.get('split') == split and isinstance(line.get(name), int | float)
    ]


def figure(width: float, height: float, *drawings: Drawing) -> tuple[Figure, list[Axes]]:
    """Return a figure, in inches, with the drawings one below the other, and their axes.

    They have no titles and no legends. The figure is made without pyplot, which keeps global state
    and may look for a display.
    """
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout='constrained')
    panels = list(made.subplots(len(drawings), squeeze=False)[:, 0])
    for axes, drawing in zip(panels, drawings):
        drawing.draw(axes)

        # All in the colours of this file, so that a page can put others in their place.
        axes.grid(color=GRID, linewidth=0.6)
        axes.spines[['top', 'right']].set_visible(False)
        axes.spines[['left', 'bottom']].set_color(INK)
        axes.tick_params(colors=INK)
        axes.xaxis.label.set_color(INK)
        axes.yaxis.label.set_color(INK)
    return made, panels


def save(path: epath.Path, *drawings: Drawing, height: float = 4) -> bool:
    """Write drawings as one PNG, with their titles and legends; return whether that was possible.

    What keeps it from being drawn is a warning.

    Args:
      path: the file, in a folder that is made.
      drawings: the panels, one below the other.
      height: of a panel, in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    # 7 x 4 inches at 120 dpi, 840 x 480 pixels.
    with drawn_quietly(path):
        made, panels = figure(7, height * len(drawings), *drawings)
        FigureCanvasAgg(made)
        for axes, drawing in zip(panels, drawings):
            axes.set_title(drawing.title)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(frameon=False)
        try:
            # Not synced to the disk: a picture can be drawn again.
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path, durable=False) as file:
                made.savefig(file, format='png', dpi=120)
        except OSError as error:
            logging.warning(f'{path}: not drawn ({error})')
            return False
    return True


def save_report(path: epath.Path, report: Mapping[str, Any], text: str, drawing: Drawing) -> str:
    """Write numbers as PATH.json, a table as PATH.md, a picture as PATH.png; return the table."""
    save(path.with_suffix('.png'), drawing)
    atomic_write(path.with_suffix('.md'), text + '\n')
    write_note(path.with_suffix('.json'), report, 2)
    return text


@contextlib.contextmanager
def drawn_quietly(path: epath.PathLike | None = None) -> Iterator[None]:
    """Draw without matplotlib's warnings, and with names as they are, also those with a $.

    The log says where no font has the letters of a name in the picture at `path`.
    """
    import matplotlib

    with (
        matplotlib.rc_context({'text.parse_math': False}),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter('always')
        yield
    if path and any('missing from font' in str(each.message) for each in caught):
        logging.warning(f'{path}: no font here has the letters of some names: they are boxes')
