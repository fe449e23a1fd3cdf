"""The orders of records: permutations, as documented for ever, and well mixed."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

from bert_jax.input_pipeline.records.sampler import BlocksSampler, Sampler, SpreadSampler

SEED = 12345
FEW = [256, 44, 256, 3]


def mix(name: int, salt: int) -> int:
    z = (name + (salt + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) % 2**64
    return z ^ z >> 31


def key_of(name: str, epoch: int) -> int:
    text = f'{name}\x1f{SEED}\x1f{epoch}'.encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), 'little')


def located(order: Sampler, rows: np.ndarray) -> list[tuple[int, int]]:
    blocks, places = order.indices(rows)
    return list(zip(blocks.tolist(), places.tolist(), strict=True))


# Both against a spelled-out computation: another answer means that resumed runs would see other
# data than they began with.


def test_blocks_is_the_documented_order():
    wanted = []
    for epoch in range(3):
        key = key_of('records', epoch)
        for block in sorted(range(4), key=lambda block: mix(block, key)):
            salt = mix(block, key)
            for place in sorted(range(FEW[block]), key=lambda place: mix(place, salt)):
                wanted.append((block, place))
    assert located(BlocksSampler(np.array(FEW), SEED), np.arange(3 * 559)) == wanted


@pytest.mark.parametrize('sizes', [FEW, [2] * 700 + [1]], ids=['one window', 'two windows'])
def test_spread_is_the_documented_order(sizes):
    count, wanted = len(sizes), []
    borders = [0, count] if count < 512 else [0, count // 2, count]
    for epoch in range(3):
        key = key_of('spread', epoch)
        permuted = sorted(range(count), key=lambda block: mix(block, key))
        for first, end in itertools.pairwise(borders):
            window = []
            for turn, block in enumerate(permuted[first:end]):
                salt, size = mix(block, key), sizes[block]
                shuffled = sorted(range(size), key=lambda place: mix(place, salt) >> 9)
                phase = mix(salt, 0) >> 32
                for k, place in enumerate(shuffled):
                    # the k-th of n is due at (k + phase) / n of the window; ties as they stand
                    window.append((((k << 32) + phase) // size, turn, k, block, place))
            wanted += [(block, place) for *_, block, place in sorted(window)]
    order = SpreadSampler(np.array(sizes), SEED)
    assert located(order, np.arange(3 * sum(sizes))) == wanted
