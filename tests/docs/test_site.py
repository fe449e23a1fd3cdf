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


LONG = 'bert-x ' + ' '.join(f'--flag{i}={i:030}' for i in range(4)) + ' \\\n    --z\n```\n'


@pytest.fixture(scope='module')
def rendered():
    """What mkdocs is given for a page of Markdown."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / 'docs'))
        import hooks
    return hooks.on_page_markdown


@pytest.mark.parametrize(
    ('page', 'wanted'),
    [
        ('See [a](../launch/test.sh).', 'See a (`launch/test.sh`).'),
        ('See [it](squad.md).', 'See [it](squad.md).'),
        ('See [serving.md](serving.md#a).', 'See [Use a trained model](serving.md#a).'),
        ('Two:\n- a\n- b\n', 'Two:\n\n- a\n- b\n'),
        ('1. a:\n   - b\n', '1. a:\n    - b\n'),
        ('```\nx [a](../b)\n- c\n```\n', '```\nx [a](../b)\n- c\n```\n'),
        (f'```text\n{LONG}', f'```text\n{LONG}'),
    ],
)
def test_a_page_is_rendered_as_github_shows_it(rendered, page, wanted):
    assert rendered(page) == wanted


def test_a_long_command_is_cut_at_its_flags(rendered):
    narrow = rendered(f'```\n{LONG}')
    assert max(map(len, narrow.split('\n'))) <= 82 and '=' + '0' * 29 + '3 \\\n    --z' in narrow
    assert narrow.replace(' \\\n   ', '') == f'```\n{LONG}'.replace(' \\\n   ', '')


def test_a_link_is_called_by_the_title_of_its_page_and_no_command_is_cut(site):
    for page in site.glob('**/*.html'):
        assert not re.findall(r'<a [^>]*>[\w/.]+\.md</a>', page.read_text()), page
    assert 'pictures/site.css' in (site / 'modernbert.html').read_text()
    assert 'white-space: pre-wrap' in (site / 'pictures/site.css').read_text()
