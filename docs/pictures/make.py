"""Makes the pictures of a quickstart that has run: its loss, its page and the end of its output.

    bert-quickstart | tee quickstart.txt
    python docs/pictures/make.py runs/quickstart quickstart.txt

Without a Chromium on the PATH (or in CHROMIUM) the page is left out.
"""

from __future__ import annotations

import html
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from etils import epath
from PIL import Image

from bert_jax.runs.workdir import plots
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.notes import guesses
from bert_jax.runs.workdir.workdir import Workdir

FOLDER = pathlib.Path(__file__).parent
MOST_BYTES = 150_000
COLUMNS, LINE, LETTER = 100, 17, 7.3  # of the terminal; a line's height and a letter's width


def draw_loss(run: pathlib.Path) -> None:
    """The loss of masked words in training and on held-out text, beside what guessing has."""
    lines, name = read_metrics(run / 'metrics.jsonl'), 'mlm_loss'
    level = plots.select_guesses(guesses(Workdir(epath.Path(run))), name)
    measured = []
    for split, label in (('train', 'training'), ('eval', 'held-out text')):
        points = plots.select_points(lines, split, name)
        measured.append(plots.Measured(label, 0, points, level, split == 'train'))
    title, unit, _ = plots.get_quantity(name)
    plots.save(epath.Path(FOLDER / 'loss.png'), plots.make_chart(title, unit, measured))


def draw_terminal(text: str) -> None:
    """The table and the masked words at the end of the output, in the letters of a terminal."""
    lines = text.partition('\nWhat to do next')[0].rstrip().splitlines()
    steps = [number for number, line in enumerate(lines) if line.startswith('[')]  # [09:30:00] text
    shown = [line[:COLUMNS].rstrip() for line in lines[steps[-1] + 2 :]]
    width, height = COLUMNS * LETTER + 24, len(shown) * LINE + 24
    rows = [
        f'<text x="12" y="{number * LINE + 24}" xml:space="preserve">{html.escape(line)}</text>'
        for number, line in enumerate(shown)
        if line
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}"'
        ' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12"'
        f' fill="#e6e6e6">\n<rect width="100%" height="100%" rx="6" fill="#1e2530"/>'
    )
    (FOLDER / 'terminal.svg').write_text('\n'.join([head, *rows, '</svg>']) + '\n')


def photograph(page: pathlib.Path) -> None:
    """The top of the page, as a browser shows it."""
    chromium = os.environ.get('CHROMIUM') or shutil.which('chromium')
    if not chromium:
        print('no chromium: page.png is left as it is', file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        shot = pathlib.Path(folder) / 'page.png'
        flags = ['--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars']
        flags += ['--window-size=900,1150', f'--screenshot={shot}', f'--user-data-dir={folder}']
        command = [chromium, *flags, page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        written = io.BytesIO()
        # Text and lines need few colours.
        Image.open(shot).convert('RGB').quantize(48).save(written, 'png', optimize=True)
    (FOLDER / 'page.png').write_bytes(written.getvalue())


def main(workdir: str, output: str) -> None:
    run = pathlib.Path(workdir)
    draw_loss(run / 'pretrain')
    draw_terminal(pathlib.Path(output).read_text())
    photograph(run / 'report.html')
    for name in ('loss.png', 'terminal.svg', 'page.png'):
        size = (FOLDER / name).stat().st_size if (FOLDER / name).exists() else 0
        print(f'{name}: {size:,} bytes')
        if size > MOST_BYTES:
            sys.exit(f'{name} is larger than {MOST_BYTES:,} bytes')


if __name__ == '__main__':
    main(*sys.argv[1:])
