"""Every requirement has a fixed version on every Python that is supported, inside its range."""

from __future__ import annotations

import configparser
import re

import pytest
from packaging.requirements import Requirement

from tests.helpers.processes import ROOT

# Requirements whose modules have another name.
MODULES = {
    'absl-py': 'absl',
    'google-crc32c': 'google_crc32c',
    'orbax-checkpoint': 'orbax',
    'scikit-learn': 'sklearn',
    'tensorflow-cpu': 'tensorflow',
    'tensorflow-datasets': 'tensorflow_datasets',
}
# setup.cfg says for whom; TensorFlow is imported by tensorflow_datasets.
FOR_OTHERS = {'flatbuffers', 'importlib_resources', 'protobuf', 'tensorflow', 'tensorflow-cpu'}
# Nothing in the tests installs them.
FREE = {'etils[epath-gcs]', 'jax[cuda12]', 'mlflow-skinny', 'wandb', 'xprof'}


def read(lines: str) -> list[Requirement]:
    bare = (line.partition('#')[0].strip() for line in lines.splitlines())
    return [Requirement(line) for line in bare if line]


def settings() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / 'setup.cfg')
    return parser


def versions(python: str, file: str = 'constraints.txt') -> dict[str, str]:
    """What a file fixes for a Python: a name once, at one version."""
    environment = {'python_version': python}
    taken = [
        line
        for line in read((ROOT / file).read_text())
        if line.marker is None or line.marker.evaluate(environment)
    ]
    assert len({line.name for line in taken}) == len(taken)
    return {line.name: str(line.specifier).removeprefix('==') for line in taken}


@pytest.mark.parametrize('python', ['3.11', '3.12', '3.13'])
def test_every_requirement_has_a_fixed_version_in_its_range(python):
    fixed = versions(python, 'constraints-beam.txt') | versions(python)
    extras = settings()['options.extras_require'].values()
    wanted = read('\n'.join([settings()['options']['install_requires'], *extras]))
    assert len(wanted) > 30
    wrong = [
        str(line)
        for line in wanted
        if not line.specifier.contains(fixed.get(line.name, ''), prereleases=True)
        and str(line).partition('>')[0] not in FREE
    ]
    assert not wrong


@pytest.mark.parametrize('python', ['3.11', '3.13'])
def test_beam_has_the_same_versions_but_for_what_it_holds_back(python):
    core, beam = versions(python), versions(python, 'constraints-beam.txt')
    other = {name for name in core if core[name] != beam.get(name, core[name])}
    assert other == {'pillow', 'protobuf', 'pyarrow', 'python-dateutil'}


def required() -> list[str]:
    """The names in install_requires, and in the extra [tensorflow]."""
    extra = settings()['options.extras_require']['tensorflow']
    return sorted(r.name for r in read(settings()['options']['install_requires'] + extra))


@pytest.mark.parametrize('name', required())
def test_what_is_required_is_imported_by_us(name):
    packages = ('bert_jax', 'configs', 'input_pipeline', 'launch')
    sources = [path.read_text() for package in packages for path in (ROOT / package).rglob('*.py')]
    module = re.escape(MODULES.get(name, name))
    pattern = re.compile(rf'^ *(import|from) {module}\b', re.M)
    assert name in FOR_OTHERS or any(pattern.search(source) for source in sources)
