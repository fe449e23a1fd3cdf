"""Vectors of texts: the states of chosen layers, of every piece or pooled to one vector.

Owns the poolings, by their names in configs/model/sentence.py; the figures are those of
sentence-transformers (its modules/pooling.py). Sums are taken in float32. Layers are counted as
transformers counts hidden_states: 0 is the embeddings' output, i that of block i, and -1 the last.

Dims: as in model/encoder.py; K chosen layers, D the numbers of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.model.blocks import matmul
from bert_jax.model.embeddings import get_words
from bert_jax.model.encoder import Encoder

Pool = Literal['none', 'cls', 'mean', 'max', 'mean_sqrt_len', 'weighted_mean', 'last']
_TINY = 1e-12  # a vector of zeros stays one


def _pool_first(x_BTH: Array, real_BT: Array) -> Array:
    return x_BTH[:, 0]


def _pool_mean(x_BTH: Array, real_BT: Array) -> Array:
    count_B1 = jnp.sum(real_BT, 1, keepdims=True)
    return _sum(x_BTH, real_BT) / jnp.maximum(count_B1, 1)


def _pool_max(x_BTH: Array, real_BT: Array) -> Array:
    return jnp.max(jnp.where(real_BT[..., None] > 0, x_BTH, -jnp.inf), 1)


def _pool_mean_sqrt_len(x_BTH: Array, real_BT: Array) -> Array:
    count_B1 = jnp.sum(real_BT, 1, keepdims=True)
    return _sum(x_BTH, real_BT) / jnp.sqrt(jnp.maximum(count_B1, 1))


def _pool_weighted_mean(x_BTH: Array, real_BT: Array) -> Array:
    """Weigh each piece by its place, counted from 1 (SGPT, section 3.1.2)."""
    weights_BT = real_BT * jnp.arange(1, x_BTH.shape[1] + 1, dtype=jnp.float32)[None]
    return _sum(x_BTH, weights_BT) / jnp.maximum(jnp.sum(weights_BT, 1, keepdims=True), 1)


def _pool_last(x_BTH: Array, real_BT: Array) -> Array:
    """Take the state of the last real piece, wherever the padding is."""
    positions_1T = jnp.arange(x_BTH.shape[1])[None]
    last_B = jnp.max(jnp.where(real_BT > 0, positions_1T, 0), 1)
    return jnp.take_along_axis(x_BTH, last_B[:, None, None], 1)[:, 0]


def _sum(x_BTH: Array, weights_BT: Array) -> Array:
    return jnp.sum(x_BTH * weights_BT[..., None], 1)


# (states [B, T, H] float32, 1.0 at real pieces [B, T]) -> [B, H].
POOLINGS: Mapping[str, Callable[[Array, Array], Array]] = {
    'cls': _pool_first,
    'mean': _pool_mean,
    'max': _pool_max,
    'mean_sqrt_len': _pool_mean_sqrt_len,
    'weighted_mean': _pool_weighted_mean,
    'last': _pool_last,
}


def pool_states(x_BTH: Array, mask_BT: Array, pooling: str) -> Array:
    """Return one vector [B, H] for each text, float32; mask_BT is 1 at real pieces."""
    return POOLINGS[pooling](x_BTH.astype(jnp.float32), (mask_BT > 0).astype(jnp.float32))


def compute_sentence_vectors(x_BTH: Array, mask_BT: Array, config: SentenceConfig) -> Array:
    """Return the vectors [B, D] of texts, float32, as `config` says."""
    vectors_BD = pool_states(x_BTH, mask_BT, config.pooling)[:, : config.truncate_dim]
    return normalize(vectors_BD) if config.normalize else vectors_BD


def normalize(vectors: Array) -> Array:
    """Return vectors [..., D] scaled to length one; the gradient at zero is finite."""
    squares = jnp.sum(vectors * vectors, -1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, _TINY**2))


def _make_encode(
    config: ModelConfig, compute_dtype: DTypeLike, kept: list[str]
) -> Callable[..., Any]:
    """Return a function of (encoder's parameters, batch): its outputs, and the states `kept`."""
    compute_dtype, read = matmul.choose_inference_products(compute_dtype)
    # A pooler that only tasks have may be absent, and no state goes through it.
    encoder = Encoder(config, compute_dtype, matmul_dtype=read, pools=False)

    def encode(params: Any, batch: Mapping[str, Array]) -> Any:
        inputs = (get_words(batch, config), batch['input_mask'], batch['segment_ids'])
        return encoder.apply({'params': params}, *inputs, mutable=kept)

    return encode


def make_states(
    config: ModelConfig, compute_dtype: DTypeLike, attentions: bool
) -> Callable[[Any, dict[str, Array]], dict[str, Array]]:
    """Return a function of (encoder's parameters, batch) that gives the states of all layers.

    Its results, float32: 'hidden' [B, T, H] and 'pooled' [B, H]; 'hidden_states' [L + 1, B, T, H],
    the embeddings first; with `attentions` the probabilities of that name [L, B, N, T, T].
    """
    kept = ['intermediates', 'attentions'] if attentions else ['intermediates']
    encode = _make_encode(config, compute_dtype, kept)

    def function(params: Any, batch: dict[str, Array]) -> dict[str, Array]:
        (x_BTH, pooled_BH, _), state = encode(params, batch)
        results = {
            'hidden': x_BTH,
            'pooled': pooled_BH,
            'hidden_states': jnp.stack(state['intermediates']['hidden']),
        }
        if attentions:
            results['attentions'] = jnp.stack(state['attentions']['probabilities'])
        return {name: array.astype(jnp.float32) for name, array in results.items()}

    return function


def make_features(
    config: ModelConfig,
    layers: Sequence[int],
    pool: Pool,
    compute_dtype: DTypeLike,
    dtype: DTypeLike,
) -> Callable[[Any, dict[str, Array]], dict[str, Array]]:
    """Return a function of (encoder's parameters, batch) -> {'features': [B, T, K, H]} in `dtype`.

    Pooled, features are [B, K, H], over the real positions, [CLS] and [SEP] among them. UserError
    for no layer, one that is not there, or one that is named twice.
    """
    # Layers are checked before anything is compiled; -1 - count is the embeddings, counted from the
    # end.
    count = config.num_layers
    if not layers:
        raise UserError('--layers: none is named: write numbers, as in -1,-2')
    for layer in layers:
        if not -count - 1 <= layer <= count:
            raise UserError(
                f'--layers: no layer {layer}: this encoder has 0 (the embeddings) to {count}, or'
                f' {-count - 1} to -1'
            )
    # By their number from the front, since the same may be counted from both ends; Python's modulo
    # makes -1 the last of count + 1 entries.
    named: dict[int, int] = {}
    for layer in layers:
        from_front = layer % (count + 1)
        if from_front in named:
            before = named[from_front]
            raise UserError(f'--layers: {before} and {layer} are the same layer: name it once')
        named[from_front] = layer
    encode = _make_encode(config, compute_dtype, ['intermediates'])

    def function(params: Any, batch: dict[str, Array]) -> dict[str, Array]:
        _, state = encode(params, batch)
        # The encoder sows what it computed: the embeddings, then each block.
        x_LBTH = jnp.stack(state['intermediates']['hidden'])
        x_KBTH = jnp.stack([x_LBTH[from_front] for from_front in named]).astype(jnp.float32)
        # K goes before H: [B, T, K, H], or [B, K, H] where positions are pooled.
        if pool != 'none':
            x_KBTH = jax.vmap(lambda x_BTH: pool_states(x_BTH, batch['input_mask'], pool))(x_KBTH)
        return {'features': jnp.moveaxis(x_KBTH, 0, -2).astype(dtype)}

    return function
