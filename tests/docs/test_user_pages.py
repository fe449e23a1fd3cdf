"""All pages but the notes are short and read at once: words and sentences, counted.

What counts as a word is what stands between spaces and has a letter or a digit; code in a line is
one word, blocks are none. A sentence ends with its full stop, its list item, its cell or its
paragraph.
"""

from __future__ import annotations

import pathlib
import re
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers import pages
from tests.helpers.pages import ROOT

yaml = pytest.importorskip('yaml')
PAGE_WORDS = 1200
SENTENCE_WORDS = 25
MEAN_WORDS = 15
PARTS = ['Start', 'How to', 'Reference', 'Notes']


def names_in(nav: Any) -> list[str]:
    """The pages of a part of mkdocs.yml's nav, those of its groups too."""
    if isinstance(nav, str):
        return [nav]
    return [
        name
        for entry in (nav.values() if isinstance(nav, dict) else nav)
        for name in names_in(entry)
    ]


NAV = {
    part: names_in(entries)
    for top in yaml.safe_load((ROOT / 'mkdocs.yml').read_text())['nav']
    for part, entries in top.items()
}
USER_PAGES = [
    *('README.md', 'CONTRIBUTING.md', 'SECURITY.md', 'examples/README.md'),
    *(f'docs/{name}' for part in PARTS[:3] for name in NAV[part]),
]
NAMES = sorted(map(pages.name_of, pages.PAGES))


def plain(page: pathlib.Path) -> str:
    """The page without blocks, addresses and marks; code in a line is a word."""
    text = re.sub(r'^```\w*$', '', pages.prose(page), flags=re.M)
    text = re.sub(r'<!--.*?-->', '', text, flags=re.S)
    text = re.sub(r'!?\[((?:[^\]`]|`[^`]*`)*)\]\([^)]*\)', r'\1', text)
    return re.sub(r'`[^`]+`', 'Code', text)


def words(text: str) -> int:
    return sum(any(c.isalnum() for c in word) for word in text.split())


def is_table(paragraph: str) -> bool:
    return paragraph.lstrip().startswith('|')


def sentences(paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph, a list or a table."""
    if is_table(paragraph):
        parts = re.split(r'[|\n]', paragraph)
    else:
        parts = re.split(r'^ *(?:[-*]|\d+\.) ', paragraph, flags=re.M)
    for part in parts:
        yield from re.split(r'(?<=[.!?])[)"*]*\s+(?=[^a-z])', part.strip())


def paragraphs(page: pathlib.Path) -> list[str]:
    """What stands between empty lines, headings left out; a table is one by itself."""
    text = re.sub(r'^#+ .*$', '\n', plain(page), flags=re.M)
    text = re.sub(r'^(?!\|)(.*)\n(?=\|)', r'\1\n\n', text, flags=re.M)
    return re.split(r'\n\s*\n', text)


def faults(page: pathlib.Path) -> list[str]:
    """What of the page is too long."""
    wrong, lengths = [], []
    if (total := words(plain(page))) > PAGE_WORDS:
        wrong.append(f'{total} words, of {PAGE_WORDS}')
    for paragraph in paragraphs(page):
        for sentence in sentences(paragraph):
            count = words(sentence)
            if count > SENTENCE_WORDS:
                wrong.append(f'{count} words: {" ".join(sentence.split())}')
            if count and not is_table(paragraph):
                lengths.append(count)
    if (mean := statistics.mean(lengths)) > MEAN_WORDS:
        wrong.append(f'{mean:.1f} words a sentence, of {MEAN_WORDS}')
    return wrong


@pytest.mark.parametrize('name', USER_PAGES)
def test_a_user_page_is_short_and_so_are_its_sentences(name):
    assert not (wrong := faults(ROOT / name)), '\n'.join([name, *wrong])


def test_the_site_has_every_page_once_in_one_of_its_four_parts():
    assert list(NAV) == PARTS
    listed = [f'docs/{name}' for names in NAV.values() for name in names]
    assert sorted(listed) == [name for name in NAMES if name.startswith('docs/')]
