"""Dropout's masks: what they depend on, their shares, their independence, and their generator."""

from __future__ import annotations

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.model import dropout as dropout_module
from bert_jax.model import heads
from bert_jax.model.dropout import GENERATORS, DropoutRng, dropout, list_rounded_rates, threefry
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.tiny import tiny_config


def make_rng(rows: int, generator: str = 'threefry') -> DropoutRng:
    numbers = jnp.arange(rows, dtype=jnp.uint32)
    return DropoutRng(jax.random.key(0), numbers, GENERATORS[generator])


def test_dropout_depends_on_step_site_and_row_alone():
    x = jnp.ones((6, 50, 8))
    rows = jnp.arange(6, dtype=jnp.uint32)
    drawn = lambda seed, rows, site: dropout(
        x[: len(rows)], 0.25, DropoutRng(jax.random.key(seed), rows), site
    )
    whole = drawn(1, rows, 4)
    np.testing.assert_array_equal(whole, [drawn(1, rows[i : i + 1], 4)[0] for i in range(6)])
    assert (whole != drawn(1, rows, 5)).any()
    assert (whole != drawn(2, rows, 4)).any()
    assert (whole[0] != whole[1]).any()
    np.testing.assert_array_equal(dropout(x, 0.25, None, 4), x)


@pytest.mark.parametrize(
    ('name', 'shape'), [('threefry', (2, 32765)), ('threefry13_8bit', (2, 8, 63, 64))]
)
def test_all_parts_of_the_random_words_drop_their_share_and_none_tells_of_another(shape, name):
    generator = GENERATORS[name]
    dropped = np.asarray(dropout(jnp.ones(shape), 0.25, make_rng(2, name), 1)) == 0
    axis = max(len(shape) - 2, 1)
    size = -(-shape[axis] // generator.parts)
    parts = [
        np.moveaxis(part, axis, 0)
        for part in np.split(dropped, range(size, shape[axis], size), axis)
    ]
    # Rounded up, so many places a part may leave nothing for the last ones.
    assert len(parts) == -(-shape[axis] // size)
    for part in parts:
        # 4,000 draws or more: 4 standard deviations.
        assert part.mean() == pytest.approx(0.25, abs=4 * (0.1875 / part.size) ** 0.5)
    for one, other in itertools.combinations(parts, 2):
        agree = 0.25**2 + 0.75**2
        near = pytest.approx(agree, abs=4 * (agree * (1 - agree) / other.size) ** 0.5)
        assert (one[: len(other)] == other).mean() == near


@pytest.mark.parametrize(
    ('name', 'share'), [('threefry', 6554 / 65536), ('threefry13_8bit', 26 / 256)]
)
def test_a_rate_is_exact_to_the_bits_and_the_mean_stays(name, share):
    out = np.asarray(dropout(jnp.ones((64, 64, 512)), 0.1, make_rng(64, name), 1))
    # 2 million draws: the two shares are 7 standard deviations apart.
    assert (out == 0).mean() == pytest.approx(share, abs=3 * (0.09 / out.size) ** 0.5)
    assert set(np.unique(out)) == {np.float32(0), np.float32(1 / (1 - share))}


def test_a_rate_that_eight_bits_cannot_tell_from_none_is_refused():
    with pytest.raises(UserError, match=r'dropout of 0\.001 cannot be had of 8 random bits'):
        dropout(jnp.ones((1, 8)), 0.001, make_rng(1, 'threefry_8bit'), 1)


@pytest.mark.parametrize(
    ('rounds', 'key', 'counter', 'words'),
    [
        (20, (0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
        (13, (0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xBA3E4725, 0xF27D669E)),
    ],
)
def test_threefry_gives_the_words_that_its_authors_published(rounds, key, counter, words):
    """Of Random123's known answers for threefry2x32."""
    found = threefry(jnp.array(key, jnp.uint32), tuple(jnp.uint32(c) for c in counter), rounds)
    assert tuple(int(word) for word in found) == words


def test_places_of_one_shape_share_the_trace_of_their_bits():
    rng = make_rng(2)
    twice = lambda x: dropout(dropout(x, 0.1, rng, 1), 0.1, rng, 2)
    equations = jax.make_jaxpr(twice)(jnp.ones((2, 8, 4))).eqns
    one, other = (e.params['jaxpr'] for e in equations if e.params.get('name') == 'threefry')
    assert one is other


@pytest.mark.parametrize(
    ('rate', 'generator', 'had'),
    [
        (0.002, 'threefry_8bit', ['0.00391']),
        (0.1, 'threefry_8bit', []),  # 26/256
        (2e-5, 'threefry13', ['1.53e-05']),
    ],
)
def test_a_rate_that_becomes_another_is_said(rate, generator, had):
    said = list_rounded_rates({'head_dropout': rate}, generator)
    assert [re.findall(r' becomes ([^,]+)', line)[0] for line in said] == had


@pytest.mark.parametrize(('family', 'around'), [('bert', 2), ('roberta', 3)])
def test_no_two_places_of_a_model_draw_the_same_bits(monkeypatch, family, around):
    """In attention, after it and after the feed-forward part of each block, and around them."""
    config = tiny_config(num_layers=3, family=family)
    model = heads.Classifier(config)
    params, batch, drawn = noisy_params(model), make_batch(config), []
    kept = dropout_module._draw_mask

    def noted(key, rng, shape, keep):
        drawn.append(tuple(np.asarray(key).tolist()))
        return kept(key, rng, shape, keep)

    monkeypatch.setattr(dropout_module, '_draw_mask', noted)
    model.apply({'params': params}, batch, make_rng(4))
    # Around the blocks are the embeddings, the head and, of RoBERTa, the pooler of a task.
    assert len(set(drawn)) == len(drawn) == 3 * 3 + around
