"""The losses of replaced-token detection (Clark et al. 2020), and the draw of the replacements.

A generator learns masked words. At each chosen position a token is drawn from what it says, and a
detector tells of every token whether it is the original one (google-research/electra
run_pretraining.py:56-175).

Dims: B batch, T positions, P chosen positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.model.dropout import FEWER_ROUNDS, DropoutRng, threefry
from bert_jax.model.replaced_tokens import ReplacedTokens
from bert_jax.train.losses.distillation import mark_real_tokens
from bert_jax.train.losses.masked_lm import count_masked_tokens, sum_masked_lm
from bert_jax.train.losses.objective import Batch, MetricSums, Objective, sum_weighted

# Beyond the sites of dropout in any model: the draw, and the generator's dropout.
_DRAW_SITE, _GENERATOR_SITE = (1 << 20) + 2, (1 << 20) + 3


def make_replaced_tokens_objective(model: ReplacedTokens, detector_weight: float) -> Objective:
    """Make the objective: masked LM of the generator + `detector_weight` times detection.

    Args:
      model: both models.
      detector_weight: of the mean over all tokens, [CLS] and [SEP] among them.
    """

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        of_detector, of_generator = model.split(params)
        generator_rng = dropout_rng
        if dropout_rng is not None:
            key = jax.random.fold_in(dropout_rng.key, _GENERATOR_SITE)
            generator_rng = dataclasses.replace(dropout_rng, key=key)
        logits_BPV, _ = model.generator.apply({'params': of_generator}, batch, generator_rng)
        drawn_BP = draw_tokens(logits_BPV, batch, dropout_rng)
        shown_BT = write_chosen(batch, drawn_BP)
        replaced_BT = shown_BT != write_chosen(batch, batch['masked_lm_ids'])
        read = {**batch, 'input_ids': shown_BT}
        told_BT: Any = model.detector.apply({'params': of_detector}, read, dropout_rng)
        return sum_masked_lm(logits_BPV, batch) | sum_detection(told_BT, replaced_BT, batch)

    def weights(batch: Batch) -> dict[str, jax.Array]:
        tokens = jnp.maximum(jnp.sum(mark_real_tokens(batch)), 1.0)
        return {'mlm_loss': count_masked_tokens(batch), 'rtd_loss': tokens / detector_weight}

    return Objective(sums, weights)


def sum_detection(told_BT: jax.Array, replaced_BT: jax.Array, batch: Batch) -> MetricSums:
    """Return loss and accuracy over all tokens, the share replaced, and how many of it are found.

    A detector that always says "original" has most of all tokens right: hence the last.
    """
    real_BT, replaced = mark_real_tokens(batch), replaced_BT.astype(jnp.float32)
    correct_BT = ((told_BT > 0) == replaced_BT).astype(jnp.float32)
    loss_BT = optax.sigmoid_binary_cross_entropy(told_BT, replaced)
    return {
        'rtd_loss': sum_weighted(loss_BT, real_BT),
        'rtd_accuracy': sum_weighted(correct_BT, real_BT),
        'rtd_share': sum_weighted(replaced, real_BT),
        'rtd_found': sum_weighted(correct_BT, real_BT * replaced),
    }


def write_chosen(batch: Batch, ids_BP: jax.Array) -> jax.Array:
    """Return the rows with these tokens at the chosen positions, [B, T]."""
    ids_BT = jnp.asarray(batch['input_ids'])
    # Places that hold no position write one past the end, which mode='drop' leaves out.
    is_real_BP = batch['masked_lm_weights'] > 0
    at_BP = jnp.where(is_real_BP, batch['masked_lm_positions'], ids_BT.shape[1])
    rows_B1 = jnp.arange(ids_BT.shape[0])[:, None]
    return ids_BT.at[rows_B1, at_BP].set(ids_BP.astype(ids_BT.dtype), mode='drop')


def draw_tokens(
    logits_BPV: jax.Array, batch: Batch, dropout_rng: DropoutRng | None = None
) -> jax.Array:
    """Draw a token of softmax(logits) at each chosen position, [B, P]; there is no gradient.

    The bits of a draw are named by the step, the row in the whole batch and the position, so that
    neither mesh nor accumulation changes it. Without `dropout_rng`, as in evaluation, they are
    named by the row's tokens: a record is shown alike wherever it stands.
    """
    if dropout_rng is None:
        key_data = jnp.zeros(2, jnp.uint32)
        rows_B = _hash_rows(batch['input_ids'])
    else:
        site_key = jax.random.fold_in(dropout_rng.key, _DRAW_SITE)
        key_data, rows_B = jax.random.key_data(site_key)[:2], dropout_rng.rows_B
    # A call of threefry has two words: one for each half of the vocabulary, whose table has an even
    # number of rows.
    half = logits_BPV.shape[-1] // 2
    place_BPV = batch['masked_lm_positions'].astype(jnp.uint32)[..., None] * jnp.uint32(half)
    place_BPV += jnp.arange(half, dtype=jnp.uint32)
    words = threefry(key_data, (place_BPV, rows_B[:, None, None]), FEWER_ROUNDS)
    # The middle of one of 2**23 equal parts of (0, 1), which a float32 holds exactly.
    uniform_BPV = ((jnp.concatenate(words, -1) >> 9).astype(jnp.float32) + 0.5) * 2.0**-23
    noise_BPV = -jnp.log(-jnp.log(uniform_BPV))
    return jnp.argmax(jax.lax.stop_gradient(logits_BPV) + noise_BPV, -1)


def _hash_rows(ids_BT: jax.Array) -> jax.Array:
    """Return a number of the tokens of each row and their order, uint32 [B]."""
    # Powers of an odd number (Knuth's, of the golden ratio), modulo 2**32.
    powers_T = jnp.cumprod(jnp.full(ids_BT.shape[1], 2_654_435_761, jnp.uint32))
    return jnp.sum(ids_BT.astype(jnp.uint32) * powers_T, -1)
