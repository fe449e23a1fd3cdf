"""The site is built without a warning, and has every page, its four parts and the search."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from tests.helpers import pages
from tests.helpers.files import read_json
from tests.helpers.pages import ROOT
from tests.helpers.processes import ok

pytest.importorskip('mkdocs', reason='mkdocs is not installed: bash launch/test.sh --docs')
DOCS = ROOT / 'docs'
PAGES = [p.relative_to(DOCS).with_suffix('') for p in pages.PAGES if p.is_relative_to(DOCS)]


@pytest.fixture(scope='module')
def site(tmp_path_factory) -> pathlib.Path:
    """The site as mkdocs builds it."""
    folder = tmp_path_factory.mktemp('site')
    build = [sys.executable, '-m', 'mkdocs', 'build', '--strict', f'--site-dir={folder}']
    ok(subprocess.run(build, cwd=ROOT, capture_output=True, text=True))
    return folder


@pytest.fixture(scope='module')
def start(site) -> str:
    return (site / 'index.html').read_text()


def test_every_page_is_there_and_the_first_leads_to_it(site, start):
    assert len(PAGES) > 25
    for page in PAGES:
        assert (site / f'{page}.html').is_file(), page
        assert f'href="{page}.html"' in start or page.name == 'index', page


def test_the_four_parts_are_tabs(start):
    tabs = re.findall(r'<a href="[^"]*" class="md-tabs__link">\s*([^<]*?)\s*</a>', start)
    assert tabs == ['Start', 'How to', 'Reference', 'Notes']


def test_the_search_finds_words_of_every_page(site, start):
    assert 'data-md-component="search"' in start
    found = read_json(site / 'search/search_index.json')['docs']
    assert {f'{page}.html' for page in PAGES} <= {entry['location'] for entry in found}


def test_what_commands_print_and_what_docstrings_say_is_in_it(site):
    commands, settings = (site / f'{name}.html' for name in ('commands', 'settings'))
    assert 'usage: bert-pretrain' in commands.read_text()
    assert 'optimizer.peak_lr' in settings.read_text()
    assert '<!-- output' not in commands.read_text() + settings.read_text()
    assert 'id="bert_jax.Bert.fill_mask"' in (site / 'api.html').read_text()


def test_nothing_is_fetched_from_another_site(site):
    pattern = re.compile(r'<(?:script|link|img)[^>]* (?:src|href)="?https?://[^ >]*')
    assert not [
        link for page in site.glob('**/*.html') for link in pattern.findall(page.read_text())
    ]


def test_a_page_is_rendered_as_github_shows_it():
    sys.path.insert(0, str(ROOT / 'docs'))
    try:
        import hooks
    finally:
        sys.path.pop(0)
    page = (
        'See [a](../launch/test.sh):\n- [`../b`](b.md)\n- two\n\n```\nx [a](../b)\n- c\n```\n- d\n'
    )
    wanted = page.replace('[a](../launch/test.sh):\n', 'a (`launch/test.sh`):\n\n', 1)
    wanted = wanted.replace('```\n- d', '```\n\n- d')
    assert hooks.on_page_markdown(page) == wanted
    assert hooks.on_page_markdown('1. a:\n   - b\n') == '1. a:\n    - b\n'
    titled = hooks.on_page_markdown('See [serving.md](serving.md#for-a-file) and [it](squad.md).')
    long = (
        '```\n'
        + 'bert-x '
        + ' '.join(f'--flag{i}={i:030}' for i in range(4))
        + ' \\\n    --z\n```\n'
    )
    narrow = hooks.on_page_markdown(long)
    assert max(map(len, narrow.split('\n'))) <= 82 and '=' + '0' * 29 + '3 \\\n    --z' in narrow
    assert narrow.replace(' \\\n   ', '') == long.replace(' \\\n   ', '')
    text = long.replace('```\n', '```text\n', 1)
    assert hooks.on_page_markdown(text) == text
    assert titled == 'See [Use a trained model](serving.md#for-a-file) and [it](squad.md).'


def test_a_link_is_called_by_the_title_of_its_page_and_no_command_is_cut(site):
    for page in site.glob('**/*.html'):
        assert not re.findall(r'<a [^>]*>[\w/.]+\.md</a>', page.read_text()), page
    assert 'pictures/site.css' in (site / 'modernbert.html').read_text()
    assert 'white-space: pre-wrap' in (site / 'pictures/site.css').read_text()
