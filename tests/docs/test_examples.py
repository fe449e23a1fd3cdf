"""examples/: its page's commands run as printed, its notebooks run, its data is what it says."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import sys

import pytest

from tests.helpers import pages
from tests.helpers.files import read_json
from tests.helpers.pages import ROOT
from tests.helpers.shell import Shell

PAGE = ROOT / 'examples/README.md'
NOTEBOOKS = ('own_text', 'own_task', 'search')  # in the order in which they are run


@pytest.fixture
def shell(tmp_path: pathlib.Path) -> Shell:
    """A shell in a folder with a copy of examples/, as in a checkout of its own."""
    shutil.copytree(ROOT / 'examples', tmp_path / 'examples')
    made = Shell(tmp_path, seconds=1500)
    made.install()
    return made


def test_a_notebook_is_kept_without_what_it_printed():
    assert {f'{name}.ipynb' for name in NOTEBOOKS} == {p.name for p in PAGE.parent.glob('*.ipynb')}
    for name in NOTEBOOKS:
        cells = read_json(PAGE.parent / f'{name}.ipynb')['cells']
        code = [cell for cell in cells if cell['cell_type'] == 'code']
        assert code and all(not cell['outputs'] and not cell['execution_count'] for cell in code)


def test_the_data_is_as_large_as_the_page_says():
    page, folder = PAGE.read_text(), PAGE.parent
    assert 150_000 < (folder / 'novel.txt').stat().st_size < 250_000
    rows = [
        line
        for split in ('train', 'dev')
        for line in (folder / f'topics/{split}.tsv').read_text().splitlines()[1:]
    ]
    assert f'{len(set(rows))} sentences about' in page and len(set(rows)) == len(rows)
    files = [(folder / f'names/{split}.txt').read_text() for split in ('train', 'dev')]
    sentences = [sentence for text in files for sentence in text.split('\n\n')]
    assert f'{len(sentences)} sentences with names' in page
    articles = [
        article
        for split in ('train', 'dev')
        for article in read_json(folder / f'questions/{split}.json')['data']
    ]
    paragraphs = [paragraph for article in articles for paragraph in article['paragraphs']]
    questions = [question for paragraph in paragraphs for question in paragraph['qas']]
    assert f'{len(questions)} questions on {len(paragraphs)} short texts' in page
    for paragraph in paragraphs:
        for question in paragraph['qas']:
            (answer,) = question['answers']
            assert paragraph['context'][answer['answer_start'] :].startswith(answer['text'])


@pytest.mark.slow
def test_every_command_of_the_page_runs_as_printed_and_learns(shell):
    texts = [command.text for block in pages.blocks(PAGE) for command in block.commands()]
    commands = [text for text in texts if not text.startswith('pip install')]
    wrong = [f'{text}\n  {fault}' for text in commands if (fault := shell(text))]
    assert len(commands) > 12 and not wrong, '\n\n'.join(wrong)
    runs = shell.folder / 'runs/examples'
    # Guessing has 0.25 of the topics. One run had 0.45 of these, and an F1 of 0.40 on the names.
    assert read_json(runs / 'topics/eval/dev.json')['metrics']['accuracy'] > 0.35
    assert read_json(runs / 'names/eval/dev.json')['metrics']['entity_f1'] > 0.2
    assert len((runs / 'topics.jsonl').read_text().splitlines()) == 4


@pytest.mark.slow
def test_the_notebooks_run_as_the_page_prints_it(shell):
    pytest.importorskip('nbclient')
    pytest.importorskip('ipykernel')
    # The program of this environment, as `bert-...` are.
    code = 'from nbclient.cli import main; main()'
    (shell.bin / 'jupyter').write_text(
        f'#!/bin/sh\nshift\nexec {sys.executable} -c "{code}" "$@"\n'
    )
    (shell.bin / 'jupyter').chmod(0o755)
    (printed,) = re.findall(r'^jupyter execute .*$', PAGE.read_text(), re.MULTILINE)
    assert re.findall(r'examples/(\w+)\.ipynb', printed) == list(NOTEBOOKS)
    fault = shell(printed.replace('execute', 'execute --inplace'))  # keeps what they print
    assert not fault, fault
    cells = read_json(shell.folder / 'examples/search.ipynb')['cells']
    outputs = json.dumps([cell.get('outputs') for cell in cells])
    share = re.search(r'same topic: ([01]\.\d+)', outputs)
    assert share and float(share[1]) > 0.25, outputs
