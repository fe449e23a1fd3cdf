"""Threefry-2x32 (Salmon et al., 2011), as plain arithmetic.

From "Parallel random numbers: as easy as 1, 2, 3". The function behind jax's own keys. Called by
itself it gives two words for each counter, and being elementwise it is fused into what reads them.
`jax.random.bits` gives one word for both (their xor), and on a CPU computes it in a loop over whole
arrays, which takes five times as long.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

# Both are the published constants of Threefry-2x32.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
ROUNDS = 20  # the paper's recommendation, and jax's
FEWER_ROUNDS = 13  # the fewest that pass the paper's tests of randomness


def row_major(shape: tuple[int, ...], number: int = 0) -> Array:
    """Return the number of each place of an array, counted row by row: uint32, wrapping around.

    The array is slice `number` of a stack of such. Elementwise, so the same on every mesh.
    """
    places = jnp.full(shape, number, jnp.uint32)
    for axis, size in enumerate(shape):
        iota = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        places = places * jnp.uint32(size) + iota
    return places


# So it is traced once for each shape, of which a model has many places.
@functools.partial(jax.jit, static_argnames='rounds')
def threefry(key: Any, counter: tuple[Array, Array], rounds: int = ROUNDS) -> tuple[Array, Array]:
    """Two uint32 arrays of random words, one of each for every pair of counters.

    key: two words, uint32; counters: uint32, broadcast against each other.
    """
    # The third word of the key has a constant in it: a key of zeros changes the counters too.
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    x, y = (c + k for c, k in zip(jnp.broadcast_arrays(*counter), keys, strict=False))
    # Blocks of four rounds; rotations alternate, and after each block a key is added, with the
    # block's number, so that equal rounds do not repeat.
    for done in range(1, rounds + 1):
        bits = _ROTATIONS[(done - 1) // 4 % 2][(done - 1) % 4]
        x = x + y
        # Rotate left by `bits`: uint32 has no such operation in jax.
        y = x ^ (y << bits | y >> (32 - bits))
        if done % 4 == 0:
            block = done // 4
            x, y = x + keys[block % 3], y + keys[(block + 1) % 3] + jnp.uint32(block)
    return x, y
