"""What a method of tuning may do to a block, and which weights it trains: the interface.

A block asks `linear` for each of its matrix products, `branch` for the output of each sub-layer and
`total` for each residual sum. Sources and options of the methods: configs/model/tuning.py.

Dims: as in model/encoder.py; R rank or bottleneck, M experts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax import Array
from jax.typing import DTypeLike

from bert_jax.configs.model.tuning import TuningConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.model.dropout import DropoutRng

# Sites of its own dropout and draws, beyond those of any depth of encoder and of heads.
_SITE = 1 << 21
_SITES_PER_LAYER = 8
# The last of the path of what is added, and its value where it changes nothing.
_ADDED = re.compile(r'_(lora_[ab]|ia3|adapter_down|adapter_up)/(kernel|bias|scale)$')

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

    def __init__(self, config: ModelConfig):
        """Make the method with the options of a model's tuning."""
        self.tuning = config.tuning

    def trained_from(self, path: str) -> int | None:
        """Return the block from which on the leaf at `path` is trained; None where it is frozen.

        0 of what is no block's; path: of a model with a head, as in 'encoder/layers/query/bias'.
        Every trained leaf is trained up to the last block.
        """
        return 0

    def weights(self, name: str, inputs: int, outputs: int) -> int:
        """Return by how many added weights a token is multiplied where matrix `name` is."""
        return 0

    def linear(self, name: str, product: Function, x: Array, context: Context) -> Array:
        """Return what takes the place of `product(x)`; `name` is that of its matrix."""
        return product(x)

    def branch(self, name: str, out: Array, drop: Function, context: Context) -> Array:
        """Return what takes the place of drop(out), a sub-layer's output after matrix `name`."""
        return drop(out)

    def total(self, name: str, context: Context, total: Array, norm: Function) -> Array:
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
      bottlenecks: the matrices after whose outputs there is an adapter (`bottleneck`).
    """

    trains_matrices = False
    trained = r'$^'
    bottlenecks: tuple[str, ...] = ()

    def weights(self, name: str, inputs: int, outputs: int) -> int:
        """Return the weights of an adapter's two matrices: see Method."""
        return 2 * self.tuning.option('width') * outputs if name in self.bottlenecks else 0

    def trained_from(self, path: str) -> int | None:
        """Return the block from which on a leaf is trained: see Method."""
        lowest = self.tuning.option('frozen_layers')
        if not path.startswith('encoder/') or '/bilstm/' in path:
            return 0
        if '/layers/' not in path:
            pooler = '/pooler/' in path and self.tuning.option('pooler') == 'trained'
            return 0 if pooler or self.trains_outside(path) else None
        if is_added(path):
            return self.added_from()
        return lowest if re.search(self.trained, path) else None

    def bottleneck(
        self,
        name: str,
        x: Array,
        activation: Function,
        init: jax.nn.initializers.Initializer,
        context: Context,
        down: Function | None = None,
    ) -> Array:
        """Return an adapter's change, W2 act(W1 x + b1) + b2, of the output of matrix `name`.

        Args:
          name: the matrix.
          x: what the adapter reads.
          activation: act.
          init: of both matrices; biases are 0 at first.
          context: where the block asks.
          down: what computes W1 x + b1 in place of a dense layer.
        """
        layer = functools.partial(nn.Dense, dtype=context.dtype, kernel_init=init)
        down = down or layer(self.tuning.option('width'), name=f'{name}_adapter_down')
        return layer(x.shape[-1], name=f'{name}_adapter_up')(activation(down(x)))

    def added_from(self) -> int:
        """Return the lowest block to which something is added."""
        return self.tuning.option('frozen_layers')

    def trains_outside(self, path: str) -> bool:
        """Tell whether an encoder's leaf outside of the blocks is trained in any case."""
        return False


def is_added(path: str) -> bool:
    """Tell whether the leaf at `path` is a method's own, and not BERT's."""
    return _ADDED.search(path) is not None


def neutral(path: str) -> float:
    """Return the value of an added leaf with which it changes nothing: 1 of a scale, else 0."""
    return 1.0 if path.endswith('/scale') else 0.0
