"""Losses of vectors of texts that learn from a teacher's scores of them, usually a reranker's.

Owns their formulas, which are those of sentence-transformers. batch['teacher_scores'] is float32
[B, N, 1]: of each example the score of the query with each of its N documents, the positive first.

Dims: B batch, N documents of an example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.text_vectors import Texts
from bert_jax.train.losses.objective import Batch


def margin_mse(texts: Texts, batch: Batch, scale: float) -> dict[str, jax.Array]:
    """Bring the positive's lead over each negative to the teacher's: squared error, their mean.

    Hofstaetter et al. 2020, section 3 (sentence_transformer/losses/margin_mse.py:179-217).
    """
    ours_BN, theirs_BN = texts.compare_own(), batch['teacher_scores'][..., 0]
    errors_BN = square_margins(ours_BN, theirs_BN, jnp.zeros((1, 1), jnp.int32))
    return {'loss': jnp.mean(errors_BN[:, 1:], axis=1)}


def square_margins(ours_BN: jax.Array, theirs_BN: jax.Array, best_B1: jax.Array) -> jax.Array:
    """Return the squared errors [B, N] of the margins of the best document above each, itself too.

    best_B1 int32: which it is; [1, 1] where it is the same in all examples.
    """
    errors_BN = ours_BN - theirs_BN
    return jnp.square(jnp.take_along_axis(errors_BN, best_B1, 1) - errors_BN)


def distill_kl(texts: Texts, batch: Batch, temperature: float) -> dict[str, jax.Array]:
    """Bring the softmax of an example's scores to the teacher's: T^2 KL(teacher || ours).

    Lin et al. 2020, section 3 (sentence_transformer/losses/distill_kl_div.py:174-210).
    """
    ours_BN = jax.nn.log_softmax(texts.compare_own() / temperature)
    theirs_BN = jax.nn.log_softmax(batch['teacher_scores'][..., 0] / temperature)
    divergence_B = jnp.sum(jnp.exp(theirs_BN) * (theirs_BN - ours_BN), axis=1)
    return {'loss': temperature**2 * divergence_B}


def guess_alike(measure: Callable[..., dict[str, jax.Array]]) -> Callable[..., float]:
    """Return (features, examples of a batch, scale) -> the loss of documents that score alike."""

    def constant(features: Mapping[str, np.ndarray], batch_size: int, scale: float) -> float:
        alike = SimpleNamespace(compare_own=lambda: jnp.zeros(features['teacher_scores'].shape[:2]))
        return float(jnp.mean(measure(alike, features, scale)['loss']))

    return constant
