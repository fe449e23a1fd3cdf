"""For each kind of task head: the model, what it minimises, and what of its output leaves the
device.

Owns that correspondence and nothing else: models are in heads.py, losses in losses.py. A head is
named as tasks name it: classifier, regressor, span, tokens or choice.

Dims: B batch, T position, C classes, K best positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model import heads
from bert_jax.train import losses
from configs.schema import ModelConfig, RuntimeConfig


def make_model(
    head: str, config: ModelConfig, outputs: int, head_dropout: float, runtime: RuntimeConfig
) -> Any:
    """The encoder of `config` with that head; `outputs` classes for a classifier, of texts or of
    tokens.
    """
    shared = (config, jnp.dtype(runtime.compute_dtype), runtime.remat, runtime.scan_layers)
    if head == 'span':
        return heads.Span(*shared)
    if head == 'choice':
        return heads.Choice(*shared, head_dropout=head_dropout)
    return (heads.Tokens if head == 'tokens' else heads.Classifier)(
        *shared, outputs=outputs, head_dropout=head_dropout
    )


def make_objective(head: str, model: Any) -> losses.Objective:
    """Cross-entropy over classes or choices, squared error, or cross-entropy over start and end
    positions.
    """
    functions = {
        'classifier': losses.classification_objective,
        'regressor': losses.regression_objective,
        'span': losses.span_objective,
        'tokens': losses.token_objective,
        'choice': losses.classification_objective,
    }
    return functions[head](model)


def make_predict(
    head: str, model: Any, n_best: int
) -> Callable[[Any, losses.Batch], dict[str, jax.Array]]:
    """-> predict(params, batch) -> what a task decodes, without dropout.

    {'logits': [B, C]}, for tokens [B, T, C]; for a span the `n_best` best positions in place of [B,
    T] logits, best first: {'start_scores', 'start_indices', 'end_scores', 'end_indices': [B, K],
    'null_scores': [B]}, where the null score is start + end at [CLS]. Padding is never among the
    best (K is at most T).
    """

    def classes(params: Any, batch: losses.Batch) -> dict[str, jax.Array]:
        return {'logits': model.apply({'params': params}, batch)}

    def spans(params: Any, batch: losses.Batch) -> dict[str, jax.Array]:
        logits_BT2 = model.apply({'params': params}, batch)
        real_BT = batch['input_mask'] > 0
        found = {'null_scores': logits_BT2[:, 0].sum(-1)}
        for place, side in enumerate(('start', 'end')):
            scores_BT = jnp.where(real_BT, logits_BT2[..., place], -1e9)
            found[f'{side}_scores'], found[f'{side}_indices'] = jax.lax.top_k(
                scores_BT, min(n_best, scores_BT.shape[1])
            )
        return found

    return spans if head == 'span' else classes
