"""Chosen layers of the encoder, of every token or pooled, as features (paper section 5.3).

Owns what is computed of them on the device. Layers are counted as transformers counts
hidden_states: 0 is the embeddings' output, i that of block i, and -1 the last.

Dims: as in model/encoder.py; K chosen layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig
from bert_jax.model.embeddings import words_of
from bert_jax.model.encoder import Encoder

Pool = Literal['none', 'cls', 'mean', 'max']


def make_features(
    config: ModelConfig,
    layers: Sequence[int],
    pool: Pool,
    compute_dtype: DTypeLike,
    dtype: DTypeLike,
) -> Callable[[Any, dict[str, jax.Array]], dict[str, jax.Array]]:
    """Return a function of (encoder's parameters, batch) -> {'features': [B, T, K, H]} in `dtype`.

    Pooled, features are [B, K, H]: cls is the first token; mean and max are over the real
    positions, [CLS] and [SEP] among them. UserError for no layer, one that is not there, or
    one that is named twice.
    """
    # Layers are checked before anything is compiled; -1 - count is the embeddings, counted from the
    # end.
    count = config.num_layers
    if not layers:
        raise UserError('--layers: none is named: write numbers, as in -1,-2')
    if wrong := [layer for layer in layers if not -count - 1 <= layer <= count]:
        raise UserError(
            f'--layers: no layer {wrong[0]}: this encoder has 0 (the embeddings) to {count}, or'
            f' {-count - 1} to -1'
        )
    # By their place from the front, since the same may be counted from both ends.
    for number, layer in enumerate(layers):
        for before in layers[:number]:
            if (layer - before) % (count + 1) == 0:
                raise UserError(f'--layers: {before} and {layer} are the same layer: name it once')
    encoder = Encoder(config, compute_dtype)

    def function(params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        inputs = (words_of(batch, config), batch['input_mask'], batch['segment_ids'])
        _, state = encoder.apply({'params': params}, *inputs, mutable=['intermediates'])
        # The encoder sows what it computed: the embeddings, then each block.
        x_LBTH = jnp.stack(state['intermediates']['hidden'])
        # Python's modulo makes -1 the last of count + 1 entries.
        x_KBTH = jnp.stack([x_LBTH[layer % (count + 1)] for layer in layers]).astype(jnp.float32)
        # [1, B, T, 1], beside [K, B, T, H].
        real_BT = batch['input_mask'][None, :, :, None] > 0
        # Functions, so that only the pooling that was asked for is traced.
        pooled_KBH = {
            'none': lambda: x_KBTH,
            'cls': lambda: x_KBTH[:, :, 0],
            'mean': lambda: jnp.sum(x_KBTH * real_BT, 2) / jnp.maximum(jnp.sum(real_BT, 2), 1),
            'max': lambda: jnp.max(jnp.where(real_BT, x_KBTH, -jnp.inf), 2),
        }[pool]()
        # K goes before H: [B, T, K, H], or [B, K, H] where positions are pooled.
        return {'features': jnp.moveaxis(pooled_KBH, 0, -2).astype(dtype)}

    return function
