"""Pictures of bert_jax/runs/workdir/plots.py as SVG inside a page, in the page's own colours.

Owns what of matplotlib's SVG does not belong in a page: its addresses, names and colours.
"""

from __future__ import annotations

import io
import re

from bert_jax.runs.workdir.plots import COLOURS, COMMON, GRID, Drawing, drawn_quietly, figure

# page.html has a value of each for a light and for a dark screen.
_VARIABLES = {
    **{colour: f'run-{number}' for number, colour in enumerate(COLOURS)},
    GRID: 'grid',
    COMMON: 'common',
}
_CHANGES = (
    (r'<\?xml.*?(?=<svg)|<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>', ''),
    (r'<svg [^>]*(viewBox="[^"]*")[^>]*>', r'<svg \1>'),
    ('xlink:href', 'href'),
    # A curve shows its name where a pointer rests on it.
    (r'<g id="curve ([^"]*)">', r'<g><title>\1</title>'),
)

# Inches: as narrow as a telephone's screen, so that letters are read there.
_WIDTH, _HEIGHT = 4.6, 2.9


def drawing(drawn: Drawing, label: str, height: float = _HEIGHT) -> str:
    """Return the <svg> of a picture, as wide as the page lets it be.

    Args:
      drawn: what is drawn.
      label: what no other picture of the page has, for the names of its parts.
      height: in inches, for a width of 4.6.
    """
    import matplotlib

    # 'none' keeps letters as text, which the browser sets: it has those that matplotlib's fonts
    # lack. Equal pictures get equal bytes by the salt of their names and without the date.
    written = io.StringIO()
    with (
        drawn_quietly(),
        matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': label, 'font.size': 9}),
    ):
        picture, (axes,) = figure(_WIDTH, height, drawn)
        picture.patch.set_visible(False)
        axes.patch.set_visible(False)
        for line in axes.get_lines():
            name = str(line.get_label())
            if not name.startswith('_'):  # a name of matplotlib's own
                # matplotlib would put a name with " between other quotation marks.
                line.set_gid(f'curve {name}'.replace('"', "'"))
        nothing = dict.fromkeys(('Date', 'Creator', 'Format', 'Type'))
        picture.savefig(written, format='svg', metadata=nothing)

    svg = written.getvalue()
    for pattern, replacement in _CHANGES:
        svg = re.sub(pattern, replacement, svg, flags=re.DOTALL)
    # Other names are the same in all pictures; only those that are referred to are of use.
    referred = set(re.findall(r'#([\w-]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in referred else '', svg)
    return re.sub(r'(fill|stroke): (#[0-9a-f]{6})', _variable, svg)


def _variable(match: re.Match[str]) -> str:
    return f'{match[1]}: var(--{_VARIABLES.get(match[2], "ink")})'
