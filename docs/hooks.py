"""What mkdocs does to a page before it renders it; mkdocs.yml names this file.

Owns the differences between GitHub's view of a page and the site's. It must not change what a page
says.
"""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import sys
from typing import Any

from pymdownx import slugs

ROOT = pathlib.Path(__file__).parents[1]
_FENCED = re.compile(r'^(```.*?^```$)', re.MULTILINE | re.DOTALL)
# A file of the checkout that is no page: the site has no link to it, and tells its path.
_OUTSIDE = re.compile(r'\[([^\]]*)\]\(\.\./([^)\s]+)\)')
# A link that is called as its file: the site calls it by the title of the page.
_CALLED_AS_FILE = re.compile(r'\[(?:[\w/.]+/)?\w+\.md\](\(([^)#\s]+\.md)[^)]*\))')
_FLAGS = re.compile(r'(?<=\S) (?=--\w)')
_WIDTH = 82  # of the text on a screen of 1280 pixels
# GitHub starts a list or a table right after a line of text or a block, Python's Markdown after an
# empty line alone.
_LIST = re.compile(r'((?:\A|^(?!\s|[-*] |\d+\. |\||$).*)\n)(?=(?:[-*]|\d+\.) |\|)', re.MULTILINE)
# In a numbered list GitHub takes a list that is three spaces in, Python's Markdown four.
_NESTED = re.compile(r'^   (?=- )', re.MULTILINE)
# `<!-- output of: bert-pretrain --help -->`: here stands what the command prints.
_OUTPUT = re.compile(r'^<!-- output of: (bert-\S+) (.*) -->$', re.MULTILINE)


def on_config(config: Any) -> Any:
    """Make the anchors of headings as GitHub makes them."""
    config.mdx_configs.setdefault('toc', {})['slugify'] = slugs.slugify(case='lower')
    return config


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Return the page with its links, lists and outputs as the site needs them."""
    folder = ROOT / 'docs' / (pathlib.PurePath(page.file.src_uri).parent if page else '')
    parts = _FENCED.split(markdown)
    parts[::2] = [_CALLED_AS_FILE.sub(lambda m: _titled(m, folder), part) for part in parts[::2]]
    parts[::2] = [_rendered(part) for part in parts[::2]]
    parts[1::2] = [_narrowed(part) if part[:4] == '```\n' else part for part in parts[1::2]]
    return ''.join(parts)


def _narrowed(block: str) -> str:
    """Return a block of commands whose lines go on below, before a flag, where they are long."""
    lines = []
    for line in block.split('\n'):
        first, *others = _FLAGS.split(line)
        for i, word in enumerate(others, 1):
            # Two columns are left for the backslash; the last word needs none.
            limit = _WIDTH - 2 * (i < len(others))
            if len(line) > _WIDTH and len(f'{first} {word}') > limit:
                lines.append(f'{first} \\')
                first = f'    {word}'
            else:
                first += f' {word}'
        lines.append(first)
    return '\n'.join(lines)


def _titled(link: re.Match[str], folder: pathlib.Path) -> str:
    file = folder / link[2]
    # Of a file outside of the site `_outside` tells the path.
    if not file.resolve().is_relative_to(ROOT / 'docs') or not file.exists():
        return link[0]
    return f'[{file.read_text().partition("# ")[2].partition(chr(10))[0]}]{link[1]}'


def _rendered(markdown: str) -> str:
    markdown = _NESTED.sub('    ', _LIST.sub(r'\1\n', _outside(markdown)))
    return _OUTPUT.sub(_output, markdown)


def _outside(markdown: str) -> str:
    return _OUTSIDE.sub(lambda link: _told(*link.groups()), markdown)


def _told(text: str, path: str) -> str:
    return f'`{path}`' if text.strip('`') == path else f'{text} (`{path}`)'


def _output(match: re.Match[str]) -> str:
    name = [] if match[1] == 'bert-jax' else [match[1].removeprefix('bert-')]
    command = [sys.executable, '-m', 'bert_jax.launch', *name, *shlex.split(match[2])]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return f'```text\n{made.stdout.rstrip()}\n```'
