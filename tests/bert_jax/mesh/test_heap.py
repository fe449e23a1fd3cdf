"""Freed memory is kept: the kernel is not asked for the same pages again."""

import subprocess
import sys

import pytest

from bert_jax.mesh import heap

# Arrays of 8 MiB, taken and given back 40 times: 2,048 pages each.
PROGRAM = """
import resource, sys
from bert_jax.mesh import heap

if sys.argv[1] == 'kept':
    assert heap.keep_freed_memory()
import numpy as np
np.ones(1 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    np.ones(1 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
# The same by jax's threads: a program with a temporary array of 96 MiB, 24,576 pages, run 10 times.
# The barrier keeps XLA from doing without that array. Below 32 MiB the C library now and then keeps
# memory without being told. The first runs find the places at which the memory stays.
STEPS = """
import resource, sys
from bert_jax.mesh import before_jax

if sys.argv[1] == 'kept':
    before_jax.set_up()
import jax, jax.numpy as jnp

step = jax.jit(lambda x: jax.lax.optimization_barrier(jnp.sin(x)).max(0))
x = jnp.ones((4096, 6144))
for _ in range(30):
    step(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='mallopt is of glibc')
@pytest.mark.parametrize(
    ('program', 'least'),
    # Pages may be huge, of 2 MiB, where the kernel gives such.
    [(PROGRAM, 40 * 4), (STEPS, 10 * 48)],
)
def test_freed_memory_is_taken_again(program, least):
    def faults(how):
        run = subprocess.run(
            [sys.executable, '-c', program, how], capture_output=True, text=True, check=True
        )
        return int(run.stdout)

    not_kept = faults('not')
    assert not_kept >= least
    assert faults('kept') < not_kept / 2


@pytest.mark.parametrize(
    ('platforms', 'cpu'), [('cpu', True), ('cpu,cuda', True), ('cuda,cpu', False), ('tpu', False)]
)
def test_what_the_user_has_chosen(monkeypatch, platforms, cpu):
    monkeypatch.setenv('JAX_PLATFORMS', platforms)
    assert heap.will_compute_on_cpu() == cpu
