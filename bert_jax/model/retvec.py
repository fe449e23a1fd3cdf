"""RETVec's network: from a word's characters, as bits, to its vector.

Bursztein et al. 2023 (arXiv 2302.09207); google-research/retvec retvec/tf/models/retvec_base.py,
retvec/tf/layers/binarizer.py. Owns the bits, the network, and the head under which it is trained to
tell words apart. It must not know what a word is, nor the encoder that reads its vectors.

A word is the Unicode code points of its first 16 characters, 0 behind its end. A code point is 24
bits, the most significant one first; the first three are always 0, for Unicode ends below 2^21.

Dims: B words, F forms of each, C = 16 characters, ... any axes.
"""

from __future__ import annotations

import types
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from bert_jax.configs.model.embedding_kinds import Retvec
from bert_jax.model.dropout import DropoutRng, dropout

CHARACTERS, BITS, WIDTH = Retvec.characters, Retvec.bits, Retvec.width
# Dropout of bits in training: a bit that is dropped is dropped of all characters of a word.
_BIT_DROPOUT = 1 / 16
# Its sites, beyond those of any head: one for each form of a word.
_SITE = 1 << 21
# Of Keras, whose layers the paper's are.
_glorot = nn.initializers.glorot_uniform()


def spell_in_bits(characters: Array) -> Array:
    """Return the bits of code points [..., C]: float32 [..., C, 24], each 0 or 1."""
    shifts = jnp.arange(BITS - 1, -1, -1, dtype=jnp.int32).reshape(*(1,) * characters.ndim, BITS)
    return ((characters[..., None] >> shifts) & 1).astype(jnp.float32)


class WordNetwork(nn.Module):
    """Words' vectors, each number in [-1, 1]; 198,976 parameters."""

    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, bits: Array) -> Array:
        """Return the vectors [..., 256] of bits [..., C, 24]."""

        def layer(name: str, width: int, x: Array) -> Array:
            return nn.Dense(width, dtype=self.dtype, kernel_init=_glorot, name=name)(x)

        # Each character by itself, then all of a word, whose places thereby differ.
        x = jax.nn.gelu(layer('character_1', 32, bits), approximate=False)
        x = jax.nn.gelu(layer('character_2', 32, x), approximate=False)
        x = layer('word', WIDTH, x.reshape(*x.shape[:-2], CHARACTERS * 32))
        x = jax.nn.gelu(x, approximate=False)
        return jnp.tanh(layer('output', WIDTH, x))


class WordSimilarity(nn.Module):
    """The network as it is trained, under a head that is dropped afterwards."""

    dtype: DTypeLike = jnp.float32
    # what train/state.py makes its parameters with: one form of one word
    first_inputs = types.MappingProxyType({'characters': np.zeros((1, 1, CHARACTERS), np.int32)})

    @nn.compact
    def __call__(self, batch: Mapping[str, Array], dropout_rng: DropoutRng | None = None) -> Array:
        """batch['characters'] [B, F, C] -> unit vectors [B, F, 256], float32."""
        bits = spell_in_bits(batch['characters'])
        # Each form of a word loses bits of its own.
        words, forms = bits.shape[:2]
        ones = jnp.ones((words, 1, BITS))
        sites = range(_SITE, _SITE + forms)
        kept = jnp.stack([dropout(ones, _BIT_DROPOUT, dropout_rng, site) for site in sites], 1)
        vectors = WordNetwork(self.dtype, name=Retvec.network)(bits * kept)
        head = nn.Dense(WIDTH, dtype=self.dtype, kernel_init=_glorot, name='similarity')
        x = head(vectors).astype(jnp.float32)
        return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), -1, keepdims=True) + 1e-12)
