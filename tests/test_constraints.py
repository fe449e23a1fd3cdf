"""The files of fixed versions agree, but where Apache Beam needs older ones."""

from __future__ import annotations

import pathlib

ROOT = pathlib.Path(__file__).parents[1]
OLDER_FOR_BEAM = {'pillow', 'protobuf', 'pyarrow', 'python-dateutil'}


def versions(name):
    return dict(line.split('==') for line in (ROOT / name).read_text().splitlines() if '==' in line and not line.startswith('#'))


def test_beam_has_the_same_versions():
    core, beam = versions('constraints.txt'), versions('constraints-beam.txt')
    assert {name for name in core.keys() & beam.keys() if core[name] != beam[name]} == OLDER_FOR_BEAM
    assert {'apache-beam', 'dask', 'distributed', 'jax', 'tensorflow-cpu'} <= beam.keys()
