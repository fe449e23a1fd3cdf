"""A reader finds every page: links lead somewhere, two clicks from README do, no dead end."""

from __future__ import annotations

import re

import pytest

from tests.helpers import pages
from tests.helpers.pages import PAGES, ROOT

NAMES = [pages.name_of(page) for page in PAGES]
LINKED = [*NAMES, 'CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md']


def targets(name: str) -> list[tuple[str, str]]:
    """(file from the root, anchor or '') of each link of a page."""
    folder = (ROOT / name).parent
    found = (link.partition('#') for link in pages.links(ROOT / name))
    return [
        ((folder / file).resolve().relative_to(ROOT).as_posix() if file else name, anchor)
        for file, _, anchor in found
    ]


@pytest.mark.parametrize('name', LINKED)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(name):
    for file, anchor in targets(name):
        assert (ROOT / file).exists(), f'{name}: {file}'
        assert not anchor or anchor in pages.anchors(ROOT / file), f'{name}: {file}#{anchor}'


def test_every_page_is_two_clicks_from_the_readme():
    near = {file for file, _ in targets('README.md')}
    reached = near | {file for name in near if name in NAMES for file, _ in targets(name)}
    assert set(NAMES) - {'README.md'} - reached == set()


@pytest.mark.parametrize('name', [name for name in NAMES if name != 'README.md'])
def test_every_page_ends_with_where_to_go_next(name):
    last = pages.prose(ROOT / name).strip().split('\n\n')[-1]
    assert last.startswith('Next: '), f'{name} ends: {last[:80]}'
    assert re.search(r'\]\([^)\s]+\)', last), f'{name}: no link after Next:'


def test_every_picture_is_light():
    pictures = [
        path for path in (ROOT / 'docs/pictures').iterdir() if path.suffix in ('.svg', '.png')
    ]
    assert len(pictures) >= 2 and all(path.stat().st_size < 150_000 for path in pictures)
