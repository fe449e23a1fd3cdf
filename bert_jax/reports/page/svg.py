"""Drawings as SVG inside a page, in the page's own colours and letters.

Owns what of matplotlib's SVG has no place in a page: its addresses, its fonts and its colours. It
must not know what is drawn.
"""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

from bert_jax.reports.page.markup import Element, element
from bert_jax.runs.workdir.plots import (
    COLOURS,
    COMMON,
    GRID,
    INK,
    Chart,
    Spread,
    drawn_quietly,
    figure,
)

# The page has a value of each for a light and for a dark screen (style.py).
VARIABLES = {
    **{colour: f'var(--run-{place})' for place, colour in enumerate(COLOURS)},
    INK: 'var(--ink)',
    GRID: 'var(--grid)',
    COMMON: 'var(--common)',
}
_COLOUR = re.compile(r'#[0-9a-f]{6}')

# Inches: so narrow that its letters are still read on a telephone, where it is as wide as this.
_WIDTH, _HEIGHT = 4.6, 2.9


def drawing(drawn: Chart | Spread, label: str, height: float = _HEIGHT) -> Element:
    """The <svg> of a chart, as wide as its place; `label` is what a screen reader says of it."""
    import matplotlib

    # 'none' keeps letters as text, which the browser sets; equal drawings get equal bytes by the
    # salt of their names and without the date.
    # The browser has the letters that matplotlib's fonts have not.
    with (
        drawn_quietly(),
        matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': label, 'font.size': 9}),
    ):
        made, axes = figure(drawn, _WIDTH, height)
        made.patch.set_visible(False)
        axes.patch.set_visible(False)
        for line, curve in zip(axes.get_lines(), drawn.curves if isinstance(drawn, Chart) else ()):
            line.set_gid(f'curve {curve.label}')
        written = io.BytesIO()
        made.savefig(written, format='svg', metadata={'Date': None, 'Creator': None})
    root = ElementTree.fromstring(written.getvalue())
    references = set(re.findall(rb'#[\w-]+', written.getvalue()))

    # A curve tells its name where a pointer rests on it. Other names of parts would stand on the
    # page as often as there are drawings, and only those that are referred to are of use.
    for node in root.iter():
        name = node.attrib.pop('id', '')
        if name.startswith('curve '):
            node.insert(0, element('title', name.removeprefix('curve ')))
        elif f'#{name}'.encode() in references:
            node.set('id', name)
    _plain(root)
    for name in ('width', 'height', 'version'):
        root.attrib.pop(name, None)
    root.attrib |= {'role': 'img', 'aria-label': label}
    return root


def _plain(node: Element) -> None:
    """Takes away namespaces and whatever names an address, and puts the page's colours in."""
    for child in list(node):
        if child.tag.endswith(('}metadata', '}style')):
            node.remove(child)
        else:
            _plain(child)
    node.tag = node.tag.rpartition('}')[2]

    # xlink:href="#..." is href="#..." in a page; colours stand in `style`, fonts too.
    attributes = {name.rpartition('}')[2]: value for name, value in node.attrib.items()}
    if 'style' in attributes:
        style = _COLOUR.sub(lambda found: _variable(found[0]), attributes['style'])
        attributes['style'] = re.sub(r'font: ([\d.]+px) [^;]*', r'font-size: \1', style)
    node.attrib.clear()
    node.attrib.update(attributes)


def _variable(colour: str) -> str:
    return VARIABLES.get(colour) or 'var(--ink)'
