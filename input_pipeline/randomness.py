"""Random numbers that depend on names, never on who draws them.

This file owns the two sources of randomness of the offline job: a Philox stream per
name, and a mixing function over arrays of 64-bit names. Both give the same numbers on
every machine, for any number of workers and with any numpy: only `random_raw` of a bit
generator is used (numpy promises that stream, and not those of `Generator`), and never
Python's `hash`. It must not know what the numbers are for.
"""

from __future__ import annotations

import hashlib

import numpy as np

# 2**64 / the golden ratio: splitmix64's step, odd, so multiples of it never meet
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Stream:
    """The random numbers that belong to a name, e.g. `Stream(seed, 'pairs', 'train', bucket)`."""

    def __init__(self, *name: int | str):
        # Names are joined by a control character that no name holds, so (1, 23) and (12, 3) stay
        # two.
        self._philox = np.random.Philox(key=hashed('\x1f'.join(map(str, name)).encode(), 16))

    def bits(self, count: int) -> np.ndarray:
        """Draw uint64 [count], all 64 bits random."""
        return self._philox.random_raw(count)

    def bits32(self, count: int) -> np.ndarray:
        """Draw uint32 [count], all 32 bits random."""
        # Little-endian whatever the machine is, else the halves would come in another order there.
        return self.bits((count + 1) // 2).astype('<u8', copy=False).view('<u4')[:count]

    def below(self, bounds: np.ndarray) -> np.ndarray:
        """Draw int64, one uniform integer of [0, bound) for each bound.

        Bounds are 1 to 2**31; the bias is below bound / 2**32.
        """
        # Multiply and shift instead of a remainder (Lemire 2019): one pass, and no number is drawn
        # again, so how many numbers a stream has given never depends on their values.
        high = self.bits(bounds.size) >> np.uint64(32)
        return ((high * bounds.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)

    def chance(self, probability: float, count: int) -> np.ndarray:
        """Draw bool [count], each True with this probability."""
        # 53 random bits are all that a float64 in [0, 1) can hold.
        return (self.bits(count) >> np.uint64(11)) * 2.0**-53 < probability

    def half_of(self, counts: np.ndarray) -> np.ndarray:
        """Draw int64, a Binomial(count, 1/2) number for each count.

        That is the number of heads in `count` tosses.
        """
        # 64 tosses are the one-bits of a random number; a count below 64 keeps only so many of its
        # bits. Rounds go on with the counts that are not used up, usually one round.
        heads = np.zeros(counts.shape, np.int64)
        untossed = counts.astype(np.int64)
        rows = np.flatnonzero(untossed)
        while rows.size:
            tosses = np.minimum(untossed[rows], 64)
            heads[rows] += np.bitwise_count(self.bits(rows.size) >> (64 - tosses).astype(np.uint64))
            untossed[rows] -= tosses
            rows = rows[untossed[rows] > 0]
        return heads


def mix(name: np.ndarray | int, salt: np.ndarray | int) -> np.ndarray:
    """Mix two 64-bit names into one: uint64.

    The finaliser of splitmix64 (Steele et al. 2014).
    """
    # Wrapping around is part of the function. salt + 1: salt 0 must move the name, too.
    with np.errstate(over='ignore'):
        z = np.asarray(name, np.uint64) + (np.asarray(salt, np.uint64) + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def digest64(*name: int | str) -> int:
    """Return a 64-bit name for a tuple of numbers and strings."""
    return hashed('\x1f'.join(map(str, name)).encode())


def hashed(content: bytes, size: int = 8) -> int:
    """Return a hash of so many bytes as a number."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=size).digest(), 'little')
