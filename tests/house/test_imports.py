"""What the rooms may import, proved on the source: neither old names, nor what is not theirs."""

from __future__ import annotations

import ast
import configparser
import pathlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from bert_jax.cli.commands import SUBCOMMANDS, name_as_typed
from tests.helpers.processes import ROOT, ok, python

PACKAGES = ('configs', 'bert_jax', 'input_pipeline', 'launch')
ACCELERATOR = {'jax', 'jaxlib', 'flax', 'optax', 'orbax'}
TENSORFLOW = {'tensorflow', 'tensorflow_datasets', 'tf_keras', 'keras'}
# Where TensorFlow may be imported, and there only inside functions.
TENSORFLOW_READERS = (
    'input_pipeline/text/data_sets',
    'bert_jax/conversion/',
)


class Import(NamedTuple):
    """One import statement: its file and line, and the name that it imports.

    deferred: importing the file does not run it.
    """

    file: str
    line: int
    name: str
    deferred: bool

    @property
    def top(self) -> str:
        return self.name.split('.')[0]


def imports_of(tree: ast.AST, file: str, deferred: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name, deferred) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{file}:{node.lineno}: relative import'
            yield from (
                Import(file, node.lineno, f'{node.module}.{alias.name}', deferred)
                for alias in node.names
            )
        else:
            never_runs = isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING'
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_of(node, file, deferred or never_runs or inside)


def sources(package: str) -> list[pathlib.Path]:
    return sorted((ROOT / package).rglob('*.py'))


IMPORTS = {
    package: [
        found
        for path in sources(package)
        for found in imports_of(ast.parse(path.read_text()), path.relative_to(ROOT).as_posix())
    ]
    for package in PACKAGES
}
BINARIES = sorted(
    path.stem for path in sources('launch') if "\nif __name__ == '__main__':" in path.read_text()
)


def refuse(found: list[Import]) -> None:
    assert not found, '\n'.join(f'{i.file}:{i.line} imports {i.name}' for i in found)


def ours(name: str) -> str:
    """The package that a dotted name of ours is in."""
    return name.split('.')[1]


def test_one_name_is_imported_and_neither_tests_nor_benchmarks():
    old = {*PACKAGES, 'tests', 'benchmarks'} - {'bert_jax'}
    refuse([i for package in PACKAGES for i in IMPORTS[package] if i.top in old])
    for file in [*(ROOT / 'tests').rglob('*.py'), *(ROOT / 'benchmarks').rglob('*.py')]:
        found = imports_of(ast.parse(file.read_text()), str(file))
        refuse([i for i in found if i.top in old - {'tests', 'benchmarks'}])


@pytest.mark.parametrize('package', ['configs', 'input_pipeline'])
def test_the_host_side_knows_no_accelerator_and_no_other_package_of_ours(package):
    known = {'configs', package}
    found = IMPORTS[package]
    assert len(found) > 10
    refuse([i for i in found if i.top == 'bert_jax' and ours(i.name) not in known])
    outside = [i for i in found if i.top != 'bert_jax']
    if package == 'configs':
        refuse([i for i in outside if i.top not in sys.stdlib_module_names])
    refuse([i for i in outside if i.top in ACCELERATOR])


@pytest.mark.parametrize(
    ('libraries', 'places'),
    [(TENSORFLOW, TENSORFLOW_READERS), ({'orbax'}, ('bert_jax/train/checkpoint.py',))],
)
def test_a_heavy_library_is_imported_where_it_is_used_and_only_inside_functions(libraries, places):
    found = [i for package in PACKAGES for i in IMPORTS[package] if i.top in libraries]
    assert found
    refuse([i for i in found if not (i.deferred and i.file.startswith(places))])


def test_no_data_format_runs_code():
    """What is read back from disk is data: no pickle, nor arrays of objects, which hold pickles."""
    names = {'pickle', 'cPickle', '_pickle', 'cloudpickle', 'dill', 'marshal', 'shelve', 'joblib'}
    refuse([i for package in PACKAGES for i in IMPORTS[package] if i.top in names])
    for path in (path for package in PACKAGES for path in sources(package)):
        for call in (
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ):
            if ast.unparse(call.func) in ('np.load', 'np.lib.format.read_array'):
                assert 'allow_pickle=False' in ast.unparse(call), f'{path}:{call.lineno}'


def test_help_imports_nothing_heavy():
    code = f"""
import sys
from tests.helpers import commands
for name in {BINARIES}:
    done = commands.run(name, '--help')
    assert (done.returncode, done.stderr) == (0, ''), done
    print(done.stdout)
    heavy = {ACCELERATOR | TENSORFLOW | {'numpy', 'scipy', 'tokenizers', 'etils'}}
    assert not heavy & set(sys.modules), (name, heavy & set(sys.modules))
"""
    shown = ok(python('-c', code)).stdout
    assert [name for name in BINARIES if f'usage: {name_as_typed(name)} ' not in shown] == []


@pytest.mark.oldest
@pytest.mark.parametrize(
    'packages, absent',
    [
        ('', ACCELERATOR | TENSORFLOW | {'numpy'}),
        ('model train costs conversion', TENSORFLOW),
        ('input_pipeline', TENSORFLOW | ACCELERATOR),
    ],
)
def test_importing_whole_packages_loads_none_of_the_others(packages, absent):
    """Third-party packages may import each other; this sees what the source cannot show."""
    folder = ROOT / 'bert_jax'
    files = [path for package in packages.split() for path in (folder / package).rglob('*.py')]
    modules = [
        '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')
        for path in sorted(files) or [folder / '__init__.py']
    ]
    code = f"""
import importlib, sys
for module in {modules}:
    importlib.import_module(module)
assert not set({sorted(absent)}) & set(sys.modules), set({sorted(absent)}) & set(sys.modules)
"""
    result = python('-c', code)
    assert (result.returncode, result.stderr) == (0, '')


def test_setup_cfg_lists_every_binary():
    settings = configparser.ConfigParser()
    settings.read(ROOT / 'setup.cfg')
    # jax: `bert-jax`, the list of all commands. Parts of another command have no script.
    parts = {file for files in SUBCOMMANDS.values() for file in files.values()}
    names = ['jax', *(name for name in BINARIES if name not in parts)]
    scripts = {f'bert-{name.replace("_", "-")} = bert_jax.cli.app:console' for name in names}
    assert set(settings['options.entry_points']['console_scripts'].strip().splitlines()) == scripts
