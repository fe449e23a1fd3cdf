"""Freed memory is kept: the kernel is not asked for the same pages again."""

import subprocess
import sys

import pytest

# Arrays of 8 MiB, taken and given back 40 times: 2,048 pages each.
PROGRAM = """
import resource, sys
import numpy as np
from bert_jax.mesh import heap

if sys.argv[1] == 'kept':
    assert heap.keep_freed_memory()
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

    assert faults('kept') < 100
    # numpy asks for huge pages where it may: 4 of 2 MiB an array at least.
    assert faults('not') >= 40 * 4
