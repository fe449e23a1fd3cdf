"""Dropout whose masks depend on the step, the place in the model and the example alone.

Owns the naming of random bits. `nn.Dropout` draws one array per call, so a mask depends on where an
example sits in the batch and on how the batch was cut; here every mask is a function of (step key,
site, global row), so the loss is the same on any mesh, for any accumulation and for scanned or
unrolled layers. Knows nothing of layers: a site is a number.

That holds for threefry keys. For rbg, whose bits cannot be drawn row by row, one array is drawn for
all rows of a micro-batch, named by the first: equal on any mesh, but not for another accumulation.

Threefry-2x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), the function
behind jax's own keys, is here as plain arithmetic. Called by itself it gives two words for each
counter, and being elementwise it is fused into what reads them. `jax.random.bits` gives one word
for both (their xor), and on a CPU computes it in a loop over whole arrays, which takes five times
as long.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.configs.errors import UserError

# Both are the published constants of Threefry-2x32.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
ROUNDS = 20  # the paper's recommendation, and jax's
FEWER_ROUNDS = 13  # the fewest that pass the paper's tests of randomness
# A rate that differs from the one asked for by less of it goes without saying.
_NEAR = 0.02


class Generator(NamedTuple):
    """What draws the bits of masks.

    implementation: of the key, as jax calls it. bits: for each place, so that a rate is exact to
    1 / 2**bits. rounds: of threefry.
    """

    implementation: str = 'threefry2x32'
    bits: int = 16
    rounds: int = ROUNDS

    @property
    def parts(self) -> int:
        """For how many places one evaluation of threefry, two words of 32 bits, has numbers."""
        return 64 // self.bits

    def keeps(self, rate: float) -> int:
        """How many of 2**bits equally likely numbers keep their place, at the rate next to `rate`.

        16 bits make of 0.1 a rate of 6554/65536, 8 bits 26/256. UserError where the next is 0 or 1.
        """
        equal = 1 << self.bits
        keep = round((1 - rate) * equal)
        if keep in (0, equal):
            raise UserError(
                f'a dropout of {rate:g} cannot be had of {self.bits} random bits, which make of it'
                f' {1 - keep / equal:g}: use another rate, or runtime.dropout_rng=threefry'
            )
        return keep

    def scale(self, rate: float) -> float:
        """Return what the places that are kept are multiplied by: exact, and not 1 / (1 - rate)."""
        return (1 << self.bits) / self.keeps(rate)


# The values of runtime.dropout_rng.
GENERATORS = {
    'threefry': Generator(),
    'threefry13': Generator(rounds=FEWER_ROUNDS),
    'threefry_8bit': Generator(bits=8),
    'threefry13_8bit': Generator(bits=8, rounds=FEWER_ROUNDS),
    'rbg': Generator('rbg'),
}


def list_rounded_rates(rates: Mapping[str, float | None], dropout_rng: str) -> list[str]:
    """Return a line for each rate, by setting, that the generator's bits make another one of.

    From a fiftieth on: 26/256 for 0.1 is none.
    """
    generator, warnings = GENERATORS[dropout_rng], []
    for name, rate in rates.items():
        if not rate:
            continue
        had = 1 - generator.keeps(rate) / (1 << generator.bits)
        if abs(had - rate) <= _NEAR * rate:
            continue
        warning = (
            f'{name}={rate:g} becomes {had:.3g}, which is the nearest to be had of'
            f' {generator.bits} random bits'
        )
        if generator.bits < 16:
            warning += ': runtime.dropout_rng=threefry is nearer'
        warnings.append(warning)
    return warnings


@flax.struct.dataclass
class DropoutRng:
    """The random names of a step's dropout: its key, and each example's row in the global batch.

    The train step makes one for every batch. In a step of your own it is

      DropoutRng(jax.random.fold_in(jax.random.key(seed), step), jnp.arange(B, dtype=jnp.uint32))

    given to `Encoder` or a model of heads.py as `dropout_rng`; without one nothing is dropped. The
    same key and row give the same masks on any mesh, however the batch is cut.

    Attributes:
      key: a key of jax.random, another one for each step.
      rows_B: the number of each example in the whole batch, uint32 [B].
      generator: what draws the bits, an entry of GENERATORS, whose kind of key it needs.
    """

    key: Array
    rows_B: Array
    generator: Generator = flax.struct.field(pytree_node=False, default=Generator())


def dropout(x: Array, rate: float, dropout_rng: DropoutRng | None, site: int | Array) -> Array:
    """Zero a share `rate` of x [B, ...] and scale the rest to keep the mean.

    x itself where `dropout_rng` is None. `site` tells apart the places in the model that drop out;
    it may be traced (scanned layers).
    """
    if dropout_rng is None or rate == 0:
        return x

    # Of 2**bits equally likely numbers those below `keep` keep their element.
    generator = dropout_rng.generator
    keep, scale = generator.keeps(rate), generator.scale(rate)
    site_key = jax.random.fold_in(dropout_rng.key, site)
    # rbg's bits are one stream for an array, and cannot be named row by row (see above).
    if jax.random.key_impl(dropout_rng.key) == 'rbg':
        batch_key = jax.random.fold_in(site_key, dropout_rng.rows_B[0])
        kept = jax.random.bits(batch_key, x.shape, jnp.uint16).astype(jnp.uint32) < keep
    else:
        kept = _draw_mask(jax.random.key_data(site_key), dropout_rng, x.shape, keep)
    return jnp.where(kept, x * jnp.asarray(scale, x.dtype), jnp.zeros((), x.dtype))


def _draw_mask(key: Array, rng: DropoutRng, shape: tuple[int, ...], keep: int) -> Array:
    """Return a mask [B, ...], true for a share of `keep` / 2**bits, named by key and row.

    Each evaluation of Threefry gives a number to each of some parts of the last axis but one: the
    tokens, which are not split over devices. Every operation is elementwise, so the compiler
    computes the bits in whatever order in memory the masked array has. Places side by side, as
    their bits lie in the words, would have to be put in order first.
    """
    # The mask is computed as parts of the axis of tokens; rounded up, and cut at the end.
    axis = max(len(shape) - 2, 1)
    part = (*shape[:axis], -(-shape[axis] // rng.generator.parts), *shape[axis + 1 :])
    # Each element's place within its row of the part: row-major, the same wherever it lies.
    offset: Any = 0
    for i in range(1, len(part)):
        iota = jax.lax.broadcasted_iota(jnp.uint32, part, i)
        offset = offset + iota * jnp.uint32(math.prod(part[i + 1 :]))
    rows = rng.rows_B.reshape(-1, *(1 for _ in part[1:]))
    words = threefry(key, (offset, rows), rng.generator.rounds)
    bits = rng.generator.bits
    kept = []
    for word in words:
        for shift in range(0, 32, bits):
            number = word >> shift if shift else word
            # The highest bits of a word need no mask: nothing stands above them.
            if shift + bits < 32:
                number = number & jnp.uint32((1 << bits) - 1)
            kept.append(number < jnp.uint32(keep))
    return jax.lax.slice_in_dim(jnp.concatenate(kept, axis), 0, shape[axis], axis=axis)


# So it is traced once for each shape, of which a model has many places.
@functools.partial(jax.jit, static_argnames='rounds')
def threefry(key: Any, counter: tuple[Array, Array], rounds: int = ROUNDS) -> tuple[Array, Array]:
    """Return two uint32 arrays of random words, one of each for every pair of counters.

    key: two words, uint32; counters: uint32, broadcast against each other.
    """
    # The third word of the key has a constant in it: a key of zeros changes the counters too.
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    x, y = jnp.broadcast_arrays(*counter)
    x, y = x + keys[0], y + keys[1]
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


def number_elements(shape: tuple[int, ...], number: int = 0) -> Array:
    """Return the number of each place of an array, counted row by row: uint32, wrapping around.

    The array is slice `number` of a stack of such. Elementwise, so the same on every mesh.
    """
    places = jnp.full(shape, number, jnp.uint32)
    for axis, size in enumerate(shape):
        iota = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        places = places * jnp.uint32(size) + iota
    return places
