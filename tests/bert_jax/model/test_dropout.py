"""Dropout's masks: what they depend on, their shares, their independence, and their generator."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.dropout import DropoutRng, dropout
from bert_jax.model.threefry import threefry


def test_dropout_depends_on_step_site_and_row_alone():
    x = jnp.ones((6, 50, 8))
    key = jax.random.key(1)
    whole = dropout(x, 0.25, DropoutRng(key, jnp.arange(6, dtype=jnp.uint32)), 4)
    parts = [
        dropout(x[i : i + 2], 0.25, DropoutRng(key, jnp.arange(i, i + 2, dtype=jnp.uint32)), 4)
        for i in (0, 2, 4)
    ]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert set(np.unique(whole)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(float((whole == 0).mean()) - 0.25) < 0.03
    other_site = dropout(x, 0.25, DropoutRng(key, jnp.arange(6, dtype=jnp.uint32)), 5)
    other_step = dropout(x, 0.25, DropoutRng(jax.random.key(2), jnp.arange(6, dtype=jnp.uint32)), 4)
    assert (whole != other_site).any()
    assert (whole != other_step).any()
    assert (whole[0] != whole[1]).any()
    np.testing.assert_array_equal(dropout(x, 0.25, None, 4), x)


@pytest.mark.parametrize(
    'shape',
    [
        (2, 32768),
        (2, 32765),
        (2, 10922, 3),
        (2, 1, 8192),
        (2, 3, 8192),
        (2, 8, 64, 33),
        (2, 8, 63, 64),
    ],
)
def test_all_parts_of_the_random_words_drop_their_share_and_none_tells_of_another(shape):
    dropped = (
        np.asarray(
            dropout(
                jnp.ones(shape),
                0.25,
                DropoutRng(jax.random.key(0), jnp.arange(2, dtype=jnp.uint32)),
                1,
            )
        )
        == 0
    )
    axis = max(len(shape) - 2, 1)
    size = -(-shape[axis] // 4)
    parts = [
        np.moveaxis(part, axis, 0)
        for part in np.split(dropped, range(size, shape[axis], size), axis)
    ]
    assert len(parts) == min(4, shape[axis])
    for part in parts:
        # 8,000 draws or more: 4 standard deviations.
        assert part.mean() == pytest.approx(0.25, abs=0.02)
    for one, other in itertools.combinations(parts, 2):
        assert (one[: len(other)] == other).mean() == pytest.approx(0.25**2 + 0.75**2, abs=0.02)


@pytest.mark.parametrize(
    ('key', 'counter', 'words'),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_words_that_its_authors_published(key, counter, words):
    """Of Random123's known answers for threefry2x32 with 20 rounds."""
    found = threefry(jnp.array(key, jnp.uint32), tuple(jnp.uint32(c) for c in counter))
    assert tuple(int(word) for word in found) == words
