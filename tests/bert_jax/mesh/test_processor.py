"""How the flags of a processor are read."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bert_jax.mesh import before_jax

# conftest.py puts another in its place in every test.
FLAGS = before_jax.read_processor_flags
LINUX = 'processor\t: 0\nmodel name\t: A\nflags\t\t: fpu sse2 AMX_BF16\nbugs\t\t: spectre\n'


@pytest.mark.parametrize(
    ('platform', 'listed', 'expected'),
    [
        ('linux', LINUX, {'fpu', 'sse2', 'amx_bf16'}),
        ('linux', OSError(), set()),
        (
            'darwin',
            'hw.optional.neon: 1\nhw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_SME: 0\n',
            {'neon', 'feat_bf16'},
        ),
    ],
    ids=['x86', 'no file', 'macOS'],
)
def test_flags(monkeypatch, platform, listed, expected):
    def read(*args, **kwargs):
        if isinstance(listed, OSError):
            raise listed
        return SimpleNamespace(stdout=listed) if platform == 'darwin' else listed

    monkeypatch.setattr(sys, 'platform', platform)
    monkeypatch.setattr(subprocess, 'run', read)
    monkeypatch.setattr(pathlib.Path, 'read_text', read)
    assert FLAGS() == expected
