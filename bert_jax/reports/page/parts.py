"""One HTML page made of parts: tables, figures, notes and commands, in sections.

Owns the kinds of parts; page.html draws each of them, for light and dark screens and for paper. It
must not know runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple


@dataclass(frozen=True)
class Table:
    """Rows under a head; the first cell of a row names it.

    A cell is a text or, for page.html, a Hidden, an Answers or a Share. style: '', 'words',
    'facts' or 'matrix'. summary: where there is one, the table is shown when that is chosen.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    style: str = ''
    summary: str = ''

    kind: ClassVar = 'table'


class Key(NamedTuple):
    """An entry of a legend: a line in the colour of that name; style: '', 'thin' or 'guess'."""

    label: str
    colour: str
    style: str = ''


@dataclass(frozen=True)
class Figure:
    """A picture with its legend, and its numbers as a table that is folded."""

    title: str
    unit: str
    svg: str
    label: str
    keys: Sequence[Key] = ()
    numbers: Table | None = None

    kind: ClassVar = 'figure'


@dataclass(frozen=True)
class Figures:
    """Figures that share the width of the page."""

    figures: Sequence[Figure]

    kind: ClassVar = 'figures'


@dataclass(frozen=True)
class Text:
    """A text by itself; kind: 'headline', 'heading', 'note', 'commands' or 'report'."""

    text: str
    kind: str = 'note'


class Answers(NamedTuple):
    """The likeliest words for a hidden one, each with its probability."""

    answers: Sequence[tuple[str, float]]
    right: str


@dataclass(frozen=True)
class Share:
    """A count, and its share of its row, by which the cell is dark."""

    count: int
    share: float


Part = Table | Figures | Text


def render(title: str, sections: Sequence[tuple[str, Sequence[Part]]]) -> str:
    """Return the page of these sections, (heading, parts) each, as HTML.

    Every text is escaped by the template, so that none of a user's is read as markup.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template('page.html').render(title=title, sections=sections)
