"""Parameter-efficient tuning: LoRA, adapters, BitFit, (IA)3, and full fine-tuning as their base.

A class for each value of `tuning.method` says what the method adds to a block, which weights it
trains, and how what was added is folded into BERT's own weights. A block asks its method for each
matrix product (`apply_linear`), each output of a sub-layer (`adapt_branch`) and each residual sum
(`adapt_sum`). Sources and options of the methods: configs/model/tuning_config.py.

Dims: as in model/encoder.py; R rank or bottleneck, M experts.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from bert_jax.configs.model.tuning_config import MATRICES, TuningConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.model.blocks.feed_forward import ACTIVATIONS
from bert_jax.model.dropout import DropoutRng, dropout

# Sites of its own dropout and draws, beyond those of any depth of encoder and of heads.
_SITE = 1 << 21
_SITES_PER_LAYER = 8
_EXPERT_SITE = 7  # of a block's: the draw of AdaMix
# The last of the path of what is added, and its value where it changes nothing.
_ADDED = re.compile(r'_(lora_[ab]|ia3|adapter_down|adapter_up)/(kernel|bias|scale)$')
_IA3_AFTER = ('key', 'value')  # scaled after their product, the others before it

Function = Callable[[Array], Array]


class Context(NamedTuple):
    """Where in the model and in the step a block asks.

    block: its number, which may be traced; dropout_rng: None outside of training.
    """

    config: ModelConfig
    dtype: DTypeLike
    block: Array | int
    dropout_rng: DropoutRng | None

    def site(self, number: int) -> Array | int:
        """Return site `number`, from 0 to 7, of this block."""
        return _SITE + self.block * _SITES_PER_LAYER + number


class Method:
    """Full fine-tuning: nothing is added, and all weights are trained.

    Attributes:
      begins: the first matrix of a block at which something is trained, of those that it is asked
        for in order.
      trains_matrices: whether the encoder's own matrices are trained.
      folds: whether what is trained can be put into weights of BERT's own.
    """

    begins = 'query'
    trains_matrices = True
    folds = True

    def __init__(self, shape: ModelConfig):
        """Make the method with the options of a model's tuning."""
        self.tuning = shape.tuning

    def trained_from(self, path: str) -> int | None:
        """Return the block from which on the leaf at `path` is trained; None where it is frozen.

        0 of what is no block's; path: of a model with a head, as in 'encoder/layers/query/bias'.
        Every trained leaf is trained up to the last block.
        """
        return 0

    def weights(self, name: str, inputs: int, outputs: int) -> int:
        """Return by how many added weights a token is multiplied where matrix `name` is."""
        return 0

    def apply_linear(self, name: str, product: Function, x: Array, context: Context) -> Array:
        """Return what takes the place of `product(x)`; `name` is that of its matrix."""
        return product(x)

    def adapt_branch(self, name: str, out: Array, drop: Function, context: Context) -> Array:
        """Return what takes the place of drop(out), a sub-layer's output after matrix `name`."""
        return drop(out)

    def adapt_sum(self, name: str, total: Array, norm: Function, context: Context) -> Array:
        """Return what takes the place of the residual sum, read by `norm`, after matrix `name`."""
        return total

    def fold(self, layers: dict[str, Any]) -> dict[str, Any]:
        """Return stacked blocks with what was added put into their own weights, as numpy arrays."""
        return layers

    def left(self) -> TuningConfig:
        """Return the tuning that a model has after `fold`."""
        return TuningConfig() if self.folds else self.tuning


class Efficient(Method):
    """Parameter-efficient tuning: what is added is trained, and what a class names.

    Heads are trained always, and so is a BiLSTM, which is fresh.

    Attributes:
      trained: the pattern of paths of the block's own leaves that are trained.
      bottlenecks: the matrices after whose outputs there is an adapter (`compute_adapter`).
    """

    trains_matrices = False
    trained = r'$^'
    bottlenecks: tuple[str, ...] = ()

    def weights(self, name: str, inputs: int, outputs: int) -> int:
        """Return the weights of an adapter's two matrices: see Method."""
        return 2 * self.tuning.option('width') * outputs if name in self.bottlenecks else 0

    def trained_from(self, path: str) -> int | None:
        """Return the block from which on a leaf is trained: see Method."""
        if not path.startswith('encoder/') or '/bilstm/' in path:
            return 0
        if '/layers/' in path:
            if is_added(path):
                return self.added_from()
            return self.tuning.option('frozen_layers') if re.search(self.trained, path) else None
        if '/pooler/' in path and self.tuning.option('pooler') == 'trained':
            return 0
        return 0 if self.trains_outside(path) else None

    def added_from(self) -> int:
        """Return the lowest block to which something is added."""
        return self.tuning.option('frozen_layers')

    def trains_outside(self, path: str) -> bool:
        """Tell whether an encoder's leaf outside of the blocks is trained in any case."""
        return False

    def compute_adapter(
        self,
        name: str,
        x: Array,
        activation: str,
        init: jax.nn.initializers.Initializer,
        context: Context,
        down: Function | None = None,
    ) -> Array:
        """Return an adapter's change, W2 act(W1 x + b1) + b2, of the output of matrix `name`.

        Args:
          name: the matrix.
          x: what the adapter reads.
          activation: the name of act.
          init: of both matrices; biases are 0 at first.
          context: where the block asks.
          down: what computes W1 x + b1 in place of a dense layer.
        """
        layer = functools.partial(nn.Dense, dtype=context.dtype, kernel_init=init)
        if down is None:
            down = layer(self.tuning.option('width'), name=f'{name}_adapter_down')
        up = layer(x.shape[-1], name=f'{name}_adapter_up')
        return up(ACTIVATIONS[activation](down(x)))


class BitFit(Efficient):
    """All biases, or those of query and intermediate (Ben Zaken et al. 2022); nothing is added."""

    def __init__(self, shape: ModelConfig):
        """Make the method: see Method."""
        super().__init__(shape)
        self._has_all = self.tuning.option('biases') == 'all'
        self.trained = r'/bias$' if self._has_all else r'/(query|intermediate)/bias$'

    def trains_outside(self, path: str) -> bool:
        """Tell whether it is a bias above the blocks, or one of the embeddings, that is trained.

        Below frozen blocks nothing may be differentiated: not the embeddings' norm either.
        """
        is_above = '/pooler/' in path or '/final_norm/' in path
        below = self._has_all and not self.tuning.option('frozen_layers')
        return path.endswith('/bias') and (is_above or below)


class LoRA(Efficient):
    """Low-rank updates of chosen matrices (Hu et al. 2021): y + alpha / rank * drop(x) A B.

    loralib layers.py:90-150; B is 0 at first.
    """

    def __init__(self, shape: ModelConfig):
        """Make the method: see Method."""
        super().__init__(shape)
        self._matrices = self.tuning.option('matrices').split(',')
        self._rank, self._rate = self.tuning.option('rank'), self.tuning.option('lora_dropout')
        self._scale = self.tuning.option('alpha') / self._rank
        self.begins = min(self._matrices, key=MATRICES.index)

    def weights(self, name: str, inputs: int, outputs: int) -> int:
        """Return the weights of an update's two matrices: see Method."""
        return self._rank * (inputs + outputs) if name in self._matrices else 0

    def apply_linear(self, name: str, product: Function, x: Array, context: Context) -> Array:
        """Return the product and its update: see Method."""
        y = product(x)
        if name not in self._matrices:
            return y
        # Uniform within 1 / sqrt(inputs): torch's kaiming_uniform_ with a = sqrt(5).
        uniform = jax.nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')
        plain = functools.partial(nn.Dense, use_bias=False, dtype=context.dtype)
        down = plain(self._rank, kernel_init=uniform, name=f'{name}_lora_a')
        up = plain(y.shape[-1], kernel_init=nn.initializers.zeros, name=f'{name}_lora_b')
        x = dropout(x, self._rate, context.dropout_rng, context.site(MATRICES.index(name)))
        return y + jnp.asarray(self._scale, y.dtype) * up(down(x))

    def fold(self, layers: dict[str, Any]) -> dict[str, Any]:
        """Return the blocks with W + alpha / rank * A B for W, in float32."""
        layers = dict(layers)
        for name in self._matrices:
            a = layers.pop(f'{name}_lora_a')['kernel']
            b = layers.pop(f'{name}_lora_b')['kernel']
            update = np.float32(self._scale) * np.matmul(a, b)
            layers[name] = {**layers[name], 'kernel': layers[name]['kernel'] + update}
        return layers


class SPAFIT(LoRA):
    """By depth nothing, biases, and biases with LoRA (Arora and Wang 2024)."""

    trained = r'/bias$'

    def added_from(self) -> int:
        """Return the first block above those of which biases alone are trained."""
        return super().added_from() + self.tuning.option('bias_layers')


class Houlsby(Efficient):
    """Adapters after both sub-layers, before the sum with their input (Houlsby et al. 2019).

    x + W2 act(W1 x + b1) + b2; adapter-bert modeling.py:321-360: nearly the identity at first.
    Norms are trained too.
    """

    begins = 'attention_output'
    folds = False
    trained = r'_norm/(scale|bias)$'
    bottlenecks = ('attention_output', 'output')

    def trains_outside(self, path: str) -> bool:
        """Tell whether it is the norm above the last block, which is trained like the others."""
        return '/final_norm/' in path

    def adapt_branch(self, name: str, out: Array, drop: Function, context: Context) -> Array:
        """Return the dropped output and the adapter's change of it: see Method."""
        out, small = drop(out), jax.nn.initializers.truncated_normal(1e-3)
        return out + self.compute_adapter(name, out, context.config.hidden_act, small, context)


class Pfeiffer(Efficient):
    """An adapter in place of the feed-forward part's residual sum (Pfeiffer et al. 2021).

    total + W2 relu(W1 norm(total) + b1) + b2; AdapterHub's 'pfeiffer': both norms are the block's
    own.
    """

    begins = 'output'
    folds = False
    bottlenecks = ('output',)

    def adapt_sum(self, name: str, total: Array, norm: Function, context: Context) -> Array:
        """Return the sum and the adapter's change of it: see Method."""
        if name != 'output':
            return total
        init = nn.initializers.normal(0.02)
        return total + self.compute_adapter(name, norm(total), 'relu', init, context)


class Scale(nn.Module):
    """x times a learned vector, ones at first."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Scale x [..., width]; the result has the same shape and dtype."""
        scale = self.param('scale', nn.initializers.ones, (x.shape[-1],))
        return x * scale.astype(x.dtype).reshape(*(1,) * (x.ndim - 1), -1)


class IA3(Efficient):
    """Keys, values and the input of the feed-forward part's second product, scaled by vectors.

    (IA)3 (Liu et al. 2022), t-few src/models/lora.py:30-55; of a BERT the activation's output is
    what t-few's wi_1 is.
    """

    begins = 'key'

    def __init__(self, shape: ModelConfig):
        """Make the method: see Method."""
        super().__init__(shape)
        # peft finds 'output.dense' at the end of the attention's output's name too.
        of_peft = self.tuning.option('vectors') == 'peft'
        self._before = ('attention_output', 'output') if of_peft else ('output',)

    def apply_linear(self, name: str, product: Function, x: Array, context: Context) -> Array:
        """Return the scaled product, or the product of what is scaled: see Method."""
        if name in _IA3_AFTER:
            return Scale(name=f'{name}_ia3')(product(x))
        if name in self._before:
            return product(Scale(name=f'{name}_ia3')(x))
        return product(x)

    def fold(self, layers: dict[str, Any]) -> dict[str, Any]:
        """Return the blocks with the scales in the rows or columns next to them."""
        layers = dict(layers)
        for name in self._before:
            scale_LI = layers.pop(f'{name}_ia3')['scale']
            kernel = layers[name]['kernel'] * scale_LI[:, :, None]
            layers[name] = {**layers[name], 'kernel': kernel}
        for name in _IA3_AFTER:
            scale_LO = layers.pop(f'{name}_ia3')['scale']
            scaled = {'kernel': layers[name]['kernel'] * scale_LO[:, None]}
            if 'bias' in layers[name]:
                scaled['bias'] = layers[name]['bias'] * scale_LO
            layers[name] = scaled
        return layers


class Experts(nn.Module):
    """M dense layers of one shape, of which one, or their mean, is computed."""

    features: int
    experts: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Array, chosen: Array | None) -> Array:
        """Return x [..., inputs] through the layer number `chosen`, or through the mean one."""
        shape = (self.experts, x.shape[-1], self.features)
        kernels = self.param('kernel', nn.initializers.normal(0.02), shape)
        biases = self.param('bias', nn.initializers.zeros, (self.experts, self.features))

        def choose(weights: Array) -> Array:
            # The mean of weights is in float32, whatever the products are computed in.
            taken = weights.mean(0) if chosen is None else weights[chosen]
            return taken.astype(self.dtype)

        y = x @ choose(kernels)
        return y + choose(biases).reshape(*(1,) * (x.ndim - 1), -1)


class AdaMix(Efficient):
    """A mixture of adapters, of which each step draws one (Wang et al. 2022).

    x + W2 gelu(W1 x + b1) + b2 on the feed-forward output, before dropout and the sum. W1 is one of
    M, drawn anew in each block and pass for the whole batch; W2 is shared (expert_soup.py:14-110
    with --sharing_up 1). Outside of training W1 is the mean of all.
    """

    begins = 'output'
    folds = False
    bottlenecks = ('output',)  # of one expert and the shared matrix

    def adapt_branch(self, name: str, out: Array, drop: Function, context: Context) -> Array:
        """Return the output with the change of the expert that was drawn: see Method."""
        if name != 'output':
            return drop(out)
        count, width = self.tuning.option('experts'), self.tuning.option('width')
        chosen = None
        if context.dropout_rng is not None and count > 1:
            key = jax.random.fold_in(context.dropout_rng.key, context.site(_EXPERT_SITE))
            chosen = jax.random.randint(key, (), 0, count)
        experts = Experts(width, count, context.dtype, name=f'{name}_adapter_down')
        down = functools.partial(experts, chosen=chosen)
        init = nn.initializers.normal(0.02)
        return drop(out + self.compute_adapter(name, out, 'gelu_erf', init, context, down))

    def fold(self, layers: dict[str, Any]) -> dict[str, Any]:
        """Return the blocks with one expert, the mean of all, which answers are computed by."""
        mean = {}
        for name, leaf in layers['output_adapter_down'].items():
            mean[name] = leaf.mean(1, keepdims=True)
        return {**layers, 'output_adapter_down': mean}

    def left(self) -> TuningConfig:
        """Return the tuning of a single expert."""
        return dataclasses.replace(self.tuning, experts=1)


METHODS: dict[str, type[Method]] = {
    'full': Method,
    'bitfit': BitFit,
    'lora': LoRA,
    'houlsby': Houlsby,
    'pfeiffer': Pfeiffer,
    'ia3': IA3,
    'adamix': AdaMix,
    'spafit': SPAFIT,
}


def choose_tuning_method(shape: ModelConfig) -> Method:
    """Return the method by which a model is tuned."""
    return METHODS[shape.tuning.method](shape)


def is_added(path: str) -> bool:
    """Tell whether the leaf at `path` is a method's own, and not BERT's."""
    return _ADDED.search(path) is not None


def find_neutral(path: str) -> float:
    """Return the value of an added leaf with which it changes nothing: 1 of a scale, else 0."""
    return 1.0 if path.endswith('/scale') else 0.0
