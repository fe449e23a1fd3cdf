"""The pages (README.md, docs/, examples/README.md) as data: links, blocks, commands in these."""

from __future__ import annotations

import pathlib
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from bert_jax.cli.commands import SUBCOMMANDS

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [
    ROOT / 'README.md',
    *sorted((ROOT / 'docs').rglob('*.md')),
    ROOT / 'examples/README.md',
]
# What a line of a block begins with if it is a command; other lines are what a command prints.
_PROGRAM = re.compile(
    r'(?:[A-Z_]+=\S+ )*(?:\S*bin/)?'
    r'(?:python[\d.]*|bert-[a-z-]+|bash|source|export|pip|cat|paste|docker|gcloud|kubectl|sbatch|hf|tensorboard|tfds|curl)\b'
)
_FENCE = re.compile(r'^```(\w*)$')


class Command(NamedTuple):
    """A command as a shell would have it (continued lines joined), and where it stands."""

    page: str
    line: int
    text: str

    @property
    def ours(self) -> tuple[str, list[str]] | None:
        """(NAME of our launch.NAME, its arguments); None where no program of ours is run.

        `python -m launch.NAME` and `bert-NAME` are the same. What a program of ours starts itself
        (after --) is not among its arguments.
        """
        words = shlex.split(self.text, comments=True)
        while words and re.fullmatch(r'[A-Z_]+=.*', words[0]):
            words.pop(0)
        for place, word in enumerate(words[:3]):
            name = re.fullmatch(r'(?:launch\.|bert-)([a-z_-]+)', word)
            if name and (word.startswith('bert-') or words[place - 1] == '-m'):
                arguments = words[place + 1 :]
                stop = next((i for i, w in enumerate(arguments) if w in ('--', '|', '>')), None)
                return file_of(name[1].replace('-', '_'), arguments[:stop])
        return None


def file_of(name: str, arguments: list[str]) -> tuple[str, list[str]]:
    """(a file of launch/, its arguments): those of a subcommand, where the first is one."""
    file = SUBCOMMANDS.get(name, {}).get(arguments[0] if arguments else '')
    return (file, arguments[1:]) if file else (name, arguments)


class Block(NamedTuple):
    """A block of a page, fenced or indented: its language ('' for none) and numbered lines."""

    page: str
    language: str
    lines: list[tuple[int, str]]

    def commands(self) -> list[Command]:
        """The lines that are commands."""
        found: list[Command] = []
        pending = ''
        for number, line in self.lines:
            if pending:
                found[-1] = found[-1]._replace(text=pending + line.strip())
            elif _PROGRAM.match(line):
                found.append(Command(self.page, number, line.strip()))
            else:
                continue
            text = found[-1].text
            pending = text[:-1] if text.endswith('\\') else ''
        return found


def name_of(page: pathlib.Path) -> str:
    """The page's path from the root."""
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def blocks(page: pathlib.Path) -> Iterator[Block]:
    """The fenced blocks, and those of lines indented by four."""
    language: str | None = None
    lines: list[tuple[int, str]] = []
    for number, line in enumerate([*page.read_text().splitlines(), ''], 1):
        fence = _FENCE.match(line)
        inside = language is not None
        if fence or (not inside and lines and not line.startswith('    ')):
            if lines:
                yield Block(name_of(page), language or '', lines)
            lines = []
        if fence:
            language = None if inside else fence[1]
        elif inside or line.startswith('    '):
            lines.append((number, line if inside else line[4:]))
    assert language is None, f'{page}: a block is not closed'


def commands() -> list[Command]:
    """Every command of every page, in order."""
    return [
        command
        for page in PAGES
        for block in blocks(page)
        if block.language in ('', 'bash', 'sh')
        for command in block.commands()
    ]


def prose(page: pathlib.Path) -> str:
    """The page without its blocks."""
    inside = {number for block in blocks(page) for number, _ in block.lines}
    lines = enumerate(page.read_text().splitlines(), 1)
    return '\n'.join(line for number, line in lines if number not in inside)


def links(page: pathlib.Path) -> list[str]:
    """Where the page's links lead, without those to other sites."""
    found = re.findall(r'\]\(([^)\s]+)\)', prose(page))
    return [link for link in found if '://' not in link]


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors of its headings, as a viewer of Markdown makes them."""
    headings = re.findall(r'^#+ (.+)$', prose(page), re.M)
    return {re.sub(r'[^\w\- ]', '', h.lower()).replace(' ', '-') for h in headings}
