"""The pictures of runs: PNG files in their folders, and SVG for the page of bert_jax/reports/page.

Owns how curves and spreads over seeds are drawn, in which units, and beside which guess. Knows the
names in metrics.jsonl and nothing of how they came about.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.store import write_note
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.notes import Guess, guesses
from bert_jax.runs.workdir.workdir import Workdir

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[float, float]]

# Of curves in their order, dark enough for thin lines on white; then axes, grid and what is common.
COLOURS = (
    '#0b62a4', '#c44e00', '#007a5a', '#a8327f', '#6b4fa0', '#8a6a00', '#b3263a', '#4d6b78',
)  # fmt: skip
INK, GRID, COMMON = '#333333', '#d0d0d0', '#707070'

# What of matplotlib's SVG does not belong in a page, and what is there instead.
_IN_A_PAGE = [
    (r'<\?xml.*?(?=<svg)|<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>', ''),
    (r'<svg [^>]*(viewBox="[^"]*")[^>]*>', r'<svg \1>'),
    ('xlink:href', 'href'),
    # Such names are the same in all pictures, and nothing refers to them.
    (r' id="[\w.]+_\d+"', ''),
    # A curve shows its name where a pointer rests on it.
    (r'<g id=(["\'])curve (.*?)\1>', r'<g><title>\2</title>'),
    # A page has a value of each of these variables for a light and for a dark screen.
    *((f': {colour}', f': var(--run-{number})') for number, colour in enumerate(COLOURS)),
    (f': {GRID}', ': var(--grid)'),
    (f': {COMMON}', ': var(--common)'),
    ('(fill|stroke): #[0-9a-f]{6}', r'\1: var(--ink)'),
]

# All in the colours of this file, so that a page can put others in their place. Names are drawn as
# they are, also those with a $.
_LOOK: dict[str, Any] = {
    'axes.edgecolor': INK,
    'axes.labelcolor': INK,
    'axes.spines.right': False,
    'axes.spines.top': False,
    'axes.grid': True,
    'grid.color': GRID,
    'grid.linewidth': 0.6,
    'legend.frameon': False,
    'text.parse_math': False,
    'xtick.color': INK,
    'ytick.color': INK,
}

_STYLES: dict[str, dict[str, Any]] = {
    'main': {'linewidth': 1.6},
    'thin': {'linewidth': 0.9, 'alpha': 0.55},
    'points': {'linestyle': '', 'marker': 'o'},
    'guessing': {'linestyle': ':', 'linewidth': 1.6},
}


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
    'rtd_loss': Quantity('Replaced tokens: loss', 'nats a token'),
    'rtd_accuracy': Quantity('Replaced tokens: accuracy', '%', 100),
    'rtd_found': Quantity('Replaced tokens: share found', '%', 100),
    'accuracy': Quantity('Accuracy', '%', 100),
    'learning_rate': Quantity('Learning rate', ''),
    'tokens_per_s': Quantity('Speed', 'tokens a second'),
}


class Measured(NamedTuple):
    """What a run measured in a metric, as metrics.jsonl has it.

    label, colour: of its curve; guesses: (step, score) of what guessing has from each step on;
    in_training: whether it was measured on what the run learns from.
    """

    label: str
    colour: int
    points: Points
    guesses: Sequence[tuple[int, float]] = ()
    in_training: bool = False


class Curve(NamedTuple):
    """A line of a chart, in the unit of the chart.

    kind: the main ones are drawn with their points where these are few; thin ones are behind
    them; points have no line; what guessing scores is dotted. colour: a place in COLOURS, which
    begin again behind the last; None: the common one. deviations: of the points, where they are
    means.
    """

    label: str
    points: Points
    kind: Literal['main', 'thin', 'points', 'guessing']
    colour: int | None
    deviations: Sequence[float] | None = None


class Chart(NamedTuple):
    """Curves of one quantity over the steps, or over what `across` says.

    tried: the values of a setting that the curves are over, where that is no step.
    """

    title: str
    unit: str
    curves: Sequence[Curve]
    across: str = 'step'
    tried: Sequence[float] = ()

    def draw(self, axes: Axes) -> None:
        """Draw all curves; the title is the caller's."""
        for curve in self.curves:
            across, up = zip(*curve.points)
            colour = COMMON if curve.colour is None else COLOURS[curve.colour % len(COLOURS)]
            (line,) = axes.plot(across, up, color=colour, **_STYLES[curve.kind])
            line.set(label=curve.label, gid=f'curve {curve.label}')
            # A few scores need markers to be seen; on a long curve they would hide it.
            if len(up) == 1 or (curve.kind == 'main' and len(up) < 50):
                line.set_marker('o' if curve.kind == 'points' else '.')
            if curve.deviations is not None:
                axes.errorbar(across, up, curve.deviations, fmt='none', ecolor=colour, capsize=3)
        if self.tried:
            if min(self.tried) > 0:  # most settings are tried in steps that grow
                axes.set_xscale('log')
            axes.set_xticks(self.tried, [f'{value:,g}' for value in self.tried])
            axes.minorticks_off()
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

        names = []
        for row, (name, scores) in enumerate(self.groups.items()):
            # All fonts have plain letters: a name with others is shown by its number, as in tables.
            names.append(name if name.isascii() else f'{row + 1}.')
            gid = f'curve {name}'
            axes.plot(scores, [row] * len(scores), 'o', color=INK, alpha=0.6, ms=5, gid=gid)
            # The mean as a bar; the sample standard deviation, which a single run does not have.
            sd = np.std(scores, ddof=1) if len(scores) > 1 else None
            axes.errorbar(np.mean(scores), row + 0.22, xerr=sd, fmt='|', color=INK, capsize=3, ms=9)
        if self.guess is not None:
            gid, label = 'curve guessing', 'guessing'
            axes.axvline(self.guess, color=COMMON, linestyle=':', gid=gid, label=label)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel(self.unit or 'score')


# What fills a pair of axes; the title is put above them by others.
Drawing = Chart | Spread


def get_quantity(name: str) -> Quantity:
    """Return what a metric is called; one that is not known here keeps its name."""
    return QUANTITIES.get(name, Quantity(name, ''))


def get_loss_unit(data: Mapping[str, Any]) -> str:
    """Return the unit of `loss` of a run; `data`: what its data.json says."""
    return 'squared error' if data.get('head') == 'regressor' else 'nats'


def select_points(
    lines: Sequence[Mapping[str, Any]], split: str, name: str
) -> list[tuple[int, float]]:
    """Return (step, value) of one metric of one split, in order, without what was not finite.

    What is no number, such as a text, has no points.
    """
    return [
        (line['step'], line[name])
        for line in lines
        if line.get('split') == split and isinstance(line.get(name), int | float)
    ]


def select_guesses(guessed: Sequence[Guess], name: str) -> list[tuple[int, float]]:
    """Return (step, score) of what guessing has in a metric from each step on."""
    return [(guess.step, guess.scores[name]) for guess in guessed if name in guess.scores]


def make_chart(title: str, unit: str, measured: Sequence[Measured]) -> Chart:
    """Return metrics over each other, and beside what guessing scores."""
    # What is measured in training is drawn first, behind what is measured on other data.
    factor = 100 if unit == '%' else 1
    scored = not all(each.in_training for each in measured)
    behind, before = [], []
    for each in measured:
        points = [(step, value * factor) for step, value in each.points]
        if scored and each.in_training:
            behind.append(Curve(each.label, points, 'thin', each.colour))
        else:
            before.append(Curve(each.label, points, 'main', each.colour))

    # Each level of guessing is a line in stairs, in no run's colour where there is one for all.
    last = max(each.points[-1][0] for each in measured)
    levels: dict[tuple[tuple[int, float], ...], Measured] = {}
    for each in measured:
        if each.guesses:
            levels.setdefault(tuple(each.guesses), each)
    for level, each in levels.items():
        ends = [step for step, _ in level[1:]] + [last]
        stairs: list[tuple[float, float]] = []
        for (step, score), end in zip(level, ends):
            stairs += [(step, score * factor), (end, score * factor)]
        if len(levels) == 1:
            behind.append(Curve('guessing', stairs, 'guessing', None))
        else:
            behind.append(Curve(f'{each.label}, guessing', stairs, 'guessing', each.colour))
    return Chart(title, unit, behind + before)


def plot_run(metrics_path: epath.PathLike, out_dir: epath.PathLike) -> list[str]:
    """Draw the pictures of a metrics.jsonl that it has numbers for, and return their paths.

    losses.png, held_out.png, learning_rate.png; scores.png has what fine-tuning scored on the way,
    on a split of its task. What guessing scores is a dotted line where the run's folder knows it.

    Raises:
      UserError: the file is missing.
    """
    lines, folder = read_metrics(metrics_path), epath.Path(out_dir)
    workdir = Workdir(epath.Path(metrics_path).parent)
    guessed = guesses(workdir)
    data = workdir.data() if workdir.data_file.exists() else {}
    # Every metric of a task's scored split, in the order of the first scores.
    scored: dict[tuple[str, str], None] = {}
    for line in lines:
        if line['split'] not in ('train', 'eval'):
            scored |= {(line['split'], name): None for name in line.keys() - {'step', 'split'}}
    losses = [('train', name) for name in ('loss', 'mlm_loss', 'nsp_loss', 'rtd_loss')]
    accuracies = [('eval', name) for name in ('mlm_accuracy', 'nsp_accuracy', 'accuracy')]
    pictures = {
        'losses.png': ('Loss in training', get_loss_unit(data), losses),
        'held_out.png': ('Accuracy on held-out text', '%', accuracies),
        'learning_rate.png': ('Learning rate', '', [('train', 'learning_rate')]),
        # Scores of several kinds share an axis, as metrics.jsonl has them.
        'scores.png': ('Scores on the way', 'score', list(scored)),
    }

    written = []
    for file, (title, unit, metrics) in pictures.items():
        measured = []
        for colour, (split, name) in enumerate(metrics):
            points = select_points(lines, split, name)
            label = name if split in ('train', 'eval') else f'{split} {name}'
            if points:
                level = select_guesses(guessed, name)
                measured.append(Measured(label, colour, points, level, split == 'train'))
        if measured and save(folder / file, make_chart(title, unit, measured)):
            written.append(os.fspath(folder / file))
    return written


def plot_workdir(folder: epath.PathLike) -> None:
    """Draw plots/ of a run that ends, however it does; what keeps them away is a warning."""
    workdir = Workdir(folder)
    if not workdir.metrics_file.exists():  # it ended before its first log line
        return
    try:
        plot_run(workdir.metrics_file, workdir.plots)
    except (OSError, UserError) as error:
        logging.warning(f'{workdir}: plots are not drawn ({error})')


def save(path: epath.Path, *drawings: Drawing, height: float = 4) -> bool:
    """Write drawings as one PNG, with their titles and legends; return whether that was possible.

    What keeps it from being drawn is a warning.

    Args:
      path: the file, in a folder that is made.
      drawings: the panels, one below the other.
      height: of a panel, in inches.
    """
    # 7 x 4 inches at 120 dpi, 840 x 480 pixels.
    picture = _draw(drawings, (7, height * len(drawings)), 'png', {})
    try:
        # Not synced to the disk: a picture can be drawn again.
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, picture, durable=False)
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


def write_svg(drawing: Drawing, label: str) -> str:
    """Return a picture as the <svg> of a page, as wide as the page lets it be, in its colours.

    Args:
      drawing: what is drawn; title and legend are the page's.
      label: what no other picture of the page has, for the names of its parts.
    """
    # As narrow as a telephone's screen, so that letters are read there.
    height = 1.0 + 0.42 * len(drawing.groups) if isinstance(drawing, Spread) else 2.9
    # 'none' keeps letters as text, which the browser sets: it has those that matplotlib's fonts
    # lack. Equal pictures get equal bytes by the salt of their names.
    settings = {'svg.fonttype': 'none', 'svg.hashsalt': label, 'font.size': 9}
    svg = _draw([drawing], (4.6, height), 'svg', settings).decode()
    for pattern, replacement in _IN_A_PAGE:
        svg = re.sub(pattern, replacement, svg, flags=re.DOTALL)
    return svg


def _draw(
    drawings: Sequence[Drawing],
    inches: tuple[float, float],
    kind: Literal['png', 'svg'],
    settings: Mapping[str, Any],
) -> bytes:
    """Return a picture of the drawings, one below the other; `settings` are matplotlib's.

    It is made without pyplot, which keeps global state and may look for a display.
    """
    import matplotlib
    from matplotlib.figure import Figure

    written = io.BytesIO()
    style: Any = {**_LOOK, **settings}  # matplotlib has a type for the names alone
    with (
        matplotlib.rc_context(style),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter('always')
        figure = Figure(figsize=inches, layout='constrained')
        for axes, drawing in zip(figure.subplots(len(drawings), squeeze=False)[:, 0], drawings):
            drawing.draw(axes)
            if kind == 'png':
                axes.set_title(drawing.title)
                if axes.get_legend_handles_labels()[0]:
                    axes.legend()
        if kind == 'png':
            figure.savefig(written, dpi=120)
        else:
            # Without a date: equal pictures are equal bytes.
            nothing = dict.fromkeys(('Date', 'Creator', 'Format', 'Type'))
            figure.savefig(written, format='svg', metadata=nothing, transparent=True)
    if kind == 'png' and any('missing from font' in str(each.message) for each in warned):
        logging.warning(f'no font here has all letters of {drawings[0].title}: some are boxes')
    return written.getvalue()
