"""What is found out and said before jax: freed memory that is kept, the processor's flags."""

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
MACOS = 'hw.optional.neon: 1\nhw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_SME: 0\n'
# Arrays of 8 MiB, taken and given back 40 times: 2,048 pages each.
PROGRAM = """
import resource, sys
from bert_jax.mesh import before_jax

if sys.argv[1] == 'kept':
    assert before_jax.keep_freed_memory()
import numpy as np
np.ones(1 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    np.ones(1 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='mallopt is of glibc')
def test_freed_memory_is_taken_again():
    def faults(how):
        run = subprocess.run(
            [sys.executable, '-c', PROGRAM, how], capture_output=True, text=True, check=True
        )
        return int(run.stdout)

    not_kept = faults('not')
    # Pages may be huge, of 2 MiB, where the kernel gives such.
    assert not_kept >= 40 * 4
    assert faults('kept') < not_kept / 2


@pytest.mark.parametrize(('platforms', 'cpu'), [('cpu,cuda', True), ('cuda,cpu', False)])
def test_what_the_user_has_chosen(monkeypatch, platforms, cpu):
    monkeypatch.setenv('JAX_PLATFORMS', platforms)
    assert before_jax.will_compute_on_cpu() == cpu


@pytest.mark.parametrize(
    ('platform', 'listed', 'expected'),
    [
        ('linux', LINUX, {'fpu', 'sse2', 'amx_bf16'}),
        ('linux', OSError(), set()),
        ('darwin', MACOS, {'neon', 'feat_bf16'}),
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
