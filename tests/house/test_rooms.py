"""The rooms of the house: how they rest on each other, and what names them."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess

import pytest

from tests.helpers.processes import ROOT

PACKAGES = ('configs', 'bert_jax', 'input_pipeline', 'launch')
# Floors from the ground up: a room imports rooms of floors below its own, never beside or above.
FLOORS = {
    'bert_jax': (
        {'configs'},
        {'cli', 'mesh'},
        {'model'},
        {'train'},
        {'costs', 'conversion', 'input_pipeline'},
        {'runs.supervision', 'runs.vocabulary_training'},
        {'runs.workdir'},
        {'runs.sources'},
        {'runs.finetuning'},
        {'runs.pretraining', 'runs.noise', 'inference'},
        {'reports.page', 'runs.crosslingual', 'runs.vector_evaluation'},
        {'runs.functions', 'reports.quickstart'},
        {'reports.studies'},
        {'launch'},
    ),
    'bert_jax.input_pipeline': (
        {'records', 'tokenizer'},
        {'text', 'examples'},
        {'preprocess', 'tasks'},
    ),
}


def python_files(folder: str) -> list[pathlib.Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob('*.py'))


def modules() -> dict[str, pathlib.Path]:
    """Every module of ours by the name that it is imported by."""
    found = {}
    for package in PACKAGES:
        for file in python_files(package):
            name = '.'.join(file.with_suffix('').parts).removesuffix('.__init__')
            found[name if package == 'bert_jax' else f'bert_jax.{name}'] = file
    return found


def imported(file: pathlib.Path) -> set[str]:
    """The dotted names that a file imports, deferred imports too."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f'{node.module}.{alias.name}' for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def room_of(package: str, name: str) -> str | None:
    """The room of a package in which the dotted name stands; None outside of all."""
    rooms = [room for floor in FLOORS[package] for room in floor]
    return next((r for r in rooms if f'{name}.'.startswith(f'{package}.{r}.')), None)


def arrows(package: str) -> set[tuple[str, str]]:
    """(room, room that it imports) for all files of a package that stand in rooms."""
    found = {
        (room_of(package, name), room_of(package, other))
        for name, file in modules().items()
        for other in imported(file)
    }
    return {(room, other) for room, other in found if room and other and room != other}


@pytest.mark.parametrize('package', FLOORS)
def test_a_room_rests_only_on_the_floors_below_it(package):
    height = {room: number for number, floor in enumerate(FLOORS[package]) for room in floor}
    climbing = [f'{a} -> {b}' for a, b in sorted(arrows(package)) if height[b] >= height[a]]
    assert arrows(package)
    assert not climbing


@pytest.mark.parametrize('package', FLOORS)
def test_every_module_has_its_room(package):
    """Files beside the rooms are tools that rooms use, and import none of them."""
    for name, file in modules().items():
        if name.startswith(f'{package}.') and room_of(package, name) is None:
            known = {other for other in imported(file) if room_of(package, other)}
            assert not known, f'{file} imports {known}'


def test_setup_names_every_package():
    text = (ROOT / 'setup.cfg').read_text()
    named = re.search(r'^packages =\n((?:    .*\n)+)', text, re.MULTILINE)
    there = {name for name, file in modules().items() if file.name == '__init__.py'}
    assert set(named[1].split()) == there


def test_launch_itself_holds_commands_alone():
    for file in (ROOT / 'launch').glob('*.py'):
        if file.name not in ('__init__.py', '__main__.py'):
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
    tops = 'bert_jax|benchmarks'
    pattern = re.compile(rf'(?:\bfrom|\bimport|python3? -m) ((?:{tops})(?:\.[a-z_]+)+)')
    pages = [ROOT / 'README.md', *sorted((ROOT / 'docs').rglob('*.md'))]
    found = [(page.name, name) for page in pages for name in pattern.findall(page.read_text())]
    assert len(found) > 20
    places = [(page, name, ROOT / name.replace('.', '/')) for page, name in found]
    assert not [
        (page, name)
        for page, name, place in places
        if not place.is_dir() and not place.with_suffix('.py').exists()
    ]
