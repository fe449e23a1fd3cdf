"""The files of fixed versions agree, but where Apache Beam needs older ones."""

from __future__ import annotations

import configparser
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# Requirements whose modules have another name.
MODULES = {
    'absl-py': 'absl',
    'google-crc32c': 'google_crc32c',
    'orbax-checkpoint': 'orbax',
    'scikit-learn': 'sklearn',
    'tensorflow-cpu': 'tensorflow',
    'tensorflow-datasets': 'tensorflow_datasets',
}
FOR_OTHERS = {'flatbuffers', 'importlib_resources', 'protobuf'}  # setup.cfg says for whom
OLDER_FOR_BEAM = {'pillow', 'protobuf', 'pyarrow', 'python-dateutil'}


def versions(name):
    return dict(
        line.partition('#')[0].strip().split('==')
        for line in (ROOT / name).read_text().splitlines()
        if '==' in line and not line.startswith('#')
    )


def test_beam_has_the_same_versions():
    core, beam = versions('constraints.txt'), versions('constraints-beam.txt')
    assert {
        name for name in core.keys() & beam.keys() if core[name] != beam[name]
    } == OLDER_FOR_BEAM
    assert {'apache-beam', 'dask', 'distributed', 'jax', 'tensorflow-cpu'} <= beam.keys()


def requirements():
    """The names in install_requires, and in the extra [tensorflow]."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / 'setup.cfg')
    extra = settings['options.extras_require']['tensorflow']
    lines = f'{settings["options"]["install_requires"]}\n{extra}'.split('\n')
    return sorted({re.match(r'[\w.-]+', line)[0] for line in lines if line and line[0] != '#'})


@pytest.mark.parametrize('name', requirements())
def test_what_is_required_is_imported_by_us_and_has_a_fixed_version(name):
    assert name in versions('constraints.txt')
    packages = ('bert_jax', 'configs', 'input_pipeline', 'launch')
    sources = [path.read_text() for package in packages for path in (ROOT / package).rglob('*.py')]
    module = re.escape(MODULES.get(name, name))
    pattern = re.compile(rf'^ *(import|from) {module}\b', re.M)
    assert name in FOR_OTHERS or any(pattern.search(source) for source in sources)
