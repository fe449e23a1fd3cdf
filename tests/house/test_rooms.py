"""The rooms of the house: how they rest on each other, how full they are, and what names them."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ('configs', 'bert_jax', 'input_pipeline', 'launch')
MOST_ENTRIES = 12
# Floors from the ground up: a room imports rooms of floors below its own, never beside or above.
FLOORS = {
    'bert_jax': ({'mesh'}, {'model'}, {'train'}, {'costs', 'interchange'}),
    'input_pipeline': ({'records', 'tokenizer'}, {'text', 'examples'}, {'preprocess', 'tasks'}),
    'launch': (
        {'workdir'},
        {'sources'},
        {'finetuning'},
        {'pretraining', 'inference', 'robustness'},
        {'page', 'crosslingual'},
        {'demo'},
        {'studies'},
    ),
}


def python_files(folder: str) -> list[pathlib.Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob('*.py'))


def imported(file: pathlib.Path) -> set[str]:
    """The dotted names that a file imports, deferred imports too."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f'{node.module}.{alias.name}' for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def arrows(package: str) -> set[tuple[str, str]]:
    """(room, room that it imports) for all files of a package that stand in rooms."""
    rooms = {room for floor in FLOORS[package] for room in floor}
    found = set()
    for file in python_files(package):
        for name in imported(file):
            parts = name.split('.')
            if len(file.parts) > 2 and parts[0] == package and parts[1] in rooms:
                found.add((file.parts[1], parts[1]))
    return {(room, other) for room, other in found if room != other}


@pytest.mark.parametrize('package', FLOORS)
def test_a_room_rests_only_on_the_floors_below_it(package):
    height = {room: number for number, floor in enumerate(FLOORS[package]) for room in floor}
    climbing = [f'{a} -> {b}' for a, b in sorted(arrows(package)) if height[b] >= height[a]]
    assert arrows(package)
    assert not climbing


@pytest.mark.parametrize('package', FLOORS)
def test_every_room_has_its_floor(package):
    rooms = {path.name for path in (ROOT / package).iterdir() if (path / '__init__.py').exists()}
    assert rooms == {room for floor in FLOORS[package] for room in floor}


def test_what_stands_outside_the_rooms_knows_none_of_them():
    """Files beside the rooms are tools that rooms use, and import none of them.

    launch's own files are commands, and may.
    """
    for package in ('bert_jax', 'input_pipeline'):
        inner = {f'{package}.{room}' for floor in FLOORS[package] for room in floor}
        for file in python_files(package):
            if len(file.parts) == 2:
                known = {name for name in imported(file) if '.'.join(name.split('.')[:2]) in inner}
                assert not known, f'{file} imports {known}'


def test_no_room_is_crowded():
    for package in PACKAGES:
        for folder in [ROOT / package, *(p.parent for p in (ROOT / package).rglob('__init__.py'))]:
            entries = {path.name for path in folder.iterdir()} - {
                '__pycache__',
                '__init__.py',
                'py.typed',
            }
            if folder.name != 'launch':
                assert len(entries) <= MOST_ENTRIES, f'{folder}: {len(entries)} entries'


def test_setup_names_every_package():
    text = (ROOT / 'setup.cfg').read_text()
    named = re.search(r'^packages =\n((?:    .*\n)+)', text, re.MULTILINE)
    there = {
        '.'.join(path.parent.relative_to(ROOT).parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob('__init__.py')
    }
    assert set(named[1].split()) == there


def test_launch_itself_holds_commands_alone():
    for file in (ROOT / 'launch').glob('*.py'):
        if file.name not in ('__init__.py', '__main__.py', 'app.py', 'flags.py', 'neighbours.py'):
            assert "\nif __name__ == '__main__':" in file.read_text(), f'{file.name} is no command'


def mentions() -> list[tuple[str, str]]:
    """(place, path) of every file of this project that a page, a docstring or a comment names.

    It counts as named only with its folder.
    """
    pages = subprocess.run(
        ['git', 'ls-files', '*.md'], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [pathlib.Path(page) for page in pages.stdout.split() if page != 'CHANGELOG.md']
    files += [
        file for package in (*PACKAGES, 'benchmarks', 'tests') for file in python_files(package)
    ]
    tops = '|'.join((*PACKAGES, 'benchmarks', 'tests', 'docs'))
    pattern = re.compile(rf'(?<![\w/.-])((?:{tops})/[\w/.-]+\.(?:py|md|sh))\b')
    return [(str(f), path) for f in files for path in pattern.findall((ROOT / f).read_text())]


def test_every_file_that_is_named_is_there():
    found = mentions()
    assert len(found) > 20
    assert not [(place, path) for place, path in found if not (ROOT / path).exists()]


def test_every_module_of_ours_that_a_page_imports_or_runs_is_there():
    tops = '|'.join((*PACKAGES, 'benchmarks'))
    pattern = re.compile(rf'(?:\bfrom|\bimport|python3? -m) ((?:{tops})(?:\.[a-z_]+)+)')
    pages = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
    found = [(page.name, name) for page in pages for name in pattern.findall(page.read_text())]
    assert len(found) > 20
    places = [(page, name, ROOT / name.replace('.', '/')) for page, name in found]
    assert not [
        (page, name)
        for page, name, place in places
        if not place.is_dir() and not place.with_suffix('.py').exists()
    ]
