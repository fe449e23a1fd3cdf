"""What parameter-efficient tuning adds to a block: one class a method, asked at two places.

Owns the added modules, their names and first values, and which weights a method trains. A block
asks `linear` for each of its six matrix products and `residual` for both of its sums; the class of
full fine-tuning answers as BERT does, the others add to that. Sources and options:
configs/model.

Dims: as in model/encoder.py; R rank or bottleneck, M experts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.configs.model import MATRICES
from bert_jax.configs.schema import ModelConfig
from bert_jax.model.dropout import DropoutRng, dropout

# Sites of its own dropout and draws, beyond those of any depth of encoder and of heads.
_SITE = 1 << 21
_SITES_PER_LAYER = 8

Product = Callable[[jax.Array], jax.Array]
ACTIVATIONS: dict[str, Product] = {
    'gelu_tanh': functools.partial(nn.gelu, approximate=True),
    'gelu_erf': functools.partial(nn.gelu, approximate=False),
    'relu': nn.relu,
}


class Place(NamedTuple):
    """Where in the model and in the step a block asks.

    block: its number, which may be traced; dropout_rng: None outside of training.
    """

    config: ModelConfig
    dtype: jnp.dtype
    block: jax.Array
    dropout_rng: DropoutRng | None

    def site(self, number: int) -> jax.Array:
        """Site `number`, from 0 to 7, of this block."""
        return _SITE + self.block * _SITES_PER_LAYER + number


class Added:
    """Nothing: a block as BERT has it; BitFit's too, which adds no weights.

    Attributes:
      begins: the first matrix of a block at which something is trained, of those that it is asked
      for in order.
    """

    begins = 'query'

    def __init__(self, config: ModelConfig):
        self.tuning = config.tuning

    def weights(self, name: str, inputs: int, outputs: int) -> int:
        """By how many added weights each token is multiplied beside the matrix `name`."""
        return 0

    def linear(self, name: str, product: Product, x: jax.Array, place: Place) -> jax.Array:
        """What takes the place of `product(x)`; `name` is that of its matrix in the block."""
        return product(x)

    def residual(
        self, name: str, x: jax.Array, out: jax.Array, drop: Product, norm: Product, place: Place
    ) -> jax.Array:
        """What takes the place of norm(x + drop(out)), after the matrix `name`."""
        return norm(x + drop(out))


class LoRA(Added):
    """y + alpha / rank * drop(x) A B (loralib layers.py:90-150); B is 0 at first."""

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        self._matrices = self.tuning.option('matrices').split(',')
        self._rank, self._rate = self.tuning.option('rank'), self.tuning.option('lora_dropout')
        self._scale = self.tuning.option('alpha') / self._rank
        self.begins = min(self._matrices, key=MATRICES.index)

    def weights(self, name: str, inputs: int, outputs: int) -> int:
        return self._rank * (inputs + outputs) if name in self._matrices else 0

    def linear(self, name: str, product: Product, x: jax.Array, place: Place) -> jax.Array:
        y = product(x)
        if name not in self._matrices:
            return y
        # Uniform within 1 / sqrt(inputs): torch's kaiming_uniform_ with a = sqrt(5).
        uniform = jax.nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')
        plain = functools.partial(nn.Dense, use_bias=False, dtype=place.dtype)
        down = plain(self._rank, kernel_init=uniform, name=f'{name}_lora_a')
        up = plain(y.shape[-1], kernel_init=nn.initializers.zeros, name=f'{name}_lora_b')
        x = dropout(x, self._rate, place.dropout_rng, place.site(MATRICES.index(name)))
        return y + jnp.asarray(self._scale, y.dtype) * up(down(x))


class Scale(nn.Module):
    """x times a learned vector, ones at first."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., width], the same shape and dtype."""
        scale = self.param('scale', nn.initializers.ones, (x.shape[-1],))
        return x * scale.astype(x.dtype).reshape(*(1,) * (x.ndim - 1), -1)


class IA3(Added):
    """Keys, values and what the feed-forward part's second product reads, scaled by vectors.

    t-few src/models/lora.py:30-55; of a BERT the activation's output is what t-few's wi_1 is.
    """

    begins = 'key'

    def linear(self, name: str, product: Product, x: jax.Array, place: Place) -> jax.Array:
        if name in ('key', 'value'):
            return Scale(name=f'{name}_ia3')(product(x))
        # peft finds 'output.dense' at the end of the attention's output's name too.
        too = ('attention_output',) if self.tuning.option('vectors') == 'peft' else ()
        if name in ('output', *too):
            return product(Scale(name=f'{name}_ia3')(x))
        return product(x)


class Houlsby(Added):
    """x + W2 gelu(W1 x + b1) + b2 on the output of both sub-layers, before the sum with its input.

    adapter-bert modeling.py:321-360: nearly the identity at first.
    """

    begins = 'attention_output'

    def weights(self, name: str, inputs: int, outputs: int) -> int:
        both = name in ('attention_output', 'output')
        return 2 * self.tuning.option('width') * outputs if both else 0

    def residual(
        self, name: str, x: jax.Array, out: jax.Array, drop: Product, norm: Product, place: Place
    ) -> jax.Array:
        small = jax.nn.initializers.truncated_normal(1e-3)
        layer = functools.partial(nn.Dense, dtype=place.dtype, kernel_init=small)
        out, act = drop(out), ACTIVATIONS[place.config.hidden_act]
        down = layer(self.tuning.option('width'), name=f'{name}_adapter_down')
        up = layer(out.shape[-1], name=f'{name}_adapter_up')
        return norm(x + (out + up(act(down(out)))))


class Pfeiffer(Added):
    """norm(x + out + W2 relu(W1 norm(x + out) + b1) + b2), in the feed-forward sub-layer alone.

    AdapterHub's 'pfeiffer': both norms are the block's own.
    """

    begins = 'output'

    def weights(self, name: str, inputs: int, outputs: int) -> int:
        return 2 * self.tuning.option('width') * outputs if name == 'output' else 0

    def residual(
        self, name: str, x: jax.Array, out: jax.Array, drop: Product, norm: Product, place: Place
    ) -> jax.Array:
        out = x + drop(out)
        if name != 'output':
            return norm(out)
        layer = functools.partial(
            nn.Dense, dtype=place.dtype, kernel_init=nn.initializers.normal(0.02)
        )
        down = layer(self.tuning.option('width'), name=f'{name}_adapter_down')
        up = layer(out.shape[-1], name=f'{name}_adapter_up')
        return norm(out + up(nn.relu(down(norm(out)))))


class Experts(nn.Module):
    """M dense layers of one shape, of which one, or their mean, is computed."""

    features: int
    experts: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, chosen: jax.Array | None) -> jax.Array:
        """x [..., inputs] through the layer number `chosen`, or where that is None the mean one."""
        shape = (self.experts, x.shape[-1], self.features)
        kernel = self.param('kernel', nn.initializers.normal(0.02), shape)
        bias = self.param('bias', nn.initializers.zeros, (self.experts, self.features))
        # The mean of weights is in float32, whatever the products are computed in.
        take: Any = (lambda w: w.mean(0)) if chosen is None else (lambda w: w[chosen])
        y = x @ take(kernel).astype(self.dtype)
        return y + take(bias).astype(self.dtype).reshape(*(1,) * (x.ndim - 1), -1)


class AdaMix(Added):
    """x + W2 gelu(W1 x + b1) + b2 on the feed-forward output, before dropout and the sum.

    W1 is one of M, drawn anew in each block and pass for the whole batch; W2 is shared
    (expert_soup.py:14-110 with --sharing_up 1). Outside of training W1 is the mean of all.
    """

    begins = 'output'

    def weights(self, name: str, inputs: int, outputs: int) -> int:
        return 2 * self.tuning.option('width') * outputs if name == 'output' else 0

    def residual(
        self, name: str, x: jax.Array, out: jax.Array, drop: Product, norm: Product, place: Place
    ) -> jax.Array:
        if name != 'output':
            return norm(x + drop(out))
        M, chosen = self.tuning.option('experts'), None
        if place.dropout_rng is not None and M > 1:
            key = jax.random.fold_in(place.dropout_rng.key, place.site(7))
            chosen = jax.random.randint(key, (), 0, M)
        down = Experts(self.tuning.option('width'), M, place.dtype, name=f'{name}_adapter_down')
        up = nn.Dense(
            out.shape[-1],
            dtype=place.dtype,
            kernel_init=nn.initializers.normal(0.02),
            name=f'{name}_adapter_up',
        )
        out = out + up(ACTIVATIONS['gelu_erf'](down(out, chosen)))
        return norm(x + drop(out))


METHODS: dict[str, type[Added]] = {
    'full': Added,
    'bitfit': Added,
    'lora': LoRA,
    'houlsby': Houlsby,
    'pfeiffer': Pfeiffer,
    'ia3': IA3,
    'adamix': AdaMix,
    'spafit': LoRA,
}


def added_by(config: ModelConfig) -> Added:
    """What the tuning of that model adds to each of its blocks."""
    return METHODS[config.tuning.method](config)


# The last of the path of what is added, and its value where it changes nothing.
_ADDED = re.compile(r'_(lora_[ab]|ia3|adapter_down|adapter_up)/(kernel|bias|scale)$')


def is_added(path: str) -> bool:
    """Whether the leaf at `path` is a method's own, and not BERT's."""
    return _ADDED.search(path) is not None


def neutral(path: str) -> float:
    """The value of an added leaf with which it changes nothing: 1 of a scale, else 0."""
    return 1.0 if path.endswith('/scale') else 0.0


def trained_from(path: str, config: ModelConfig) -> int | None:
    """The block from which on the leaf at `path` is trained, 0 of what is no block's; None: frozen.

    path: of a model with a head, as in 'encoder/layers/query/bias'. Heads are trained always, and
    so is a BiLSTM, which is fresh; every trained leaf is trained up to the last block.
    """
    tuning = config.tuning
    if tuning.method == 'full' or not path.startswith('encoder/') or '/bilstm/' in path:
        return 0
    name, lowest = path.rpartition('/')[2], tuning.option('frozen_layers')
    if '/pooler/' in path:
        biases = tuning.method == 'bitfit' and name == 'bias'
        return 0 if biases or tuning.option('pooler') == 'trained' else None

    # Below what is trained nothing may be differentiated: not the embeddings' norm either.
    if '/layers/' not in path:
        all_biases = tuning.method == 'bitfit' and tuning.option('biases') == 'all'
        return 0 if all_biases and name == 'bias' and not lowest else None
    if is_added(path):
        return lowest + (tuning.option('bias_layers') if tuning.method == 'spafit' else 0)
    trained = {
        'bitfit': r'/bias$',
        'spafit': r'/bias$',
        'houlsby': r'_norm/(scale|bias)$',
    }.get(tuning.method, r'$^')
    if tuning.method == 'bitfit' and tuning.option('biases') == 'partial':
        trained = r'/(query|intermediate)/bias$'
    return lowest if re.search(trained, path) else None
