"""What a part of a block says of itself: its matrices, how they are split, what they cost.

Owns the interface by which a block, sharding rules, counts of FLOPs and estimates of memory read a
part; they list no matrix by hand. Which parts there are is attention.py's and feed_forward.py's.

Dims: as in model/encoder.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from bert_jax.configs.schema import ModelConfig
from bert_jax.model.dropout import DropoutRng

# linear(name, x): the product of x and the part's matrix of that name, with its bias. A matrix may
# be asked for again, with another x.
Linear = Callable[[str, Array], Array]


class Rows(NamedTuple):
    """What the blocks are told of the rows of a batch.

    input_mask_BT: 1 where there is a token and 0 for padding; pack_ids_BT: the example that a token
    is of, where rows hold several; position_ids_BT: where each token is in its example, or None
    where positions count from 0; dropout_rng: None outside of training; attentions: gets the
    probabilities [B, N, T, T] of each block in turn, where they are asked for; relative: what the
    positions share between blocks, where they add to scores.
    """

    input_mask_BT: Array
    pack_ids_BT: Array | None = None
    position_ids_BT: Array | None = None
    dropout_rng: DropoutRng | None = None
    attentions: list[Array] | None = None
    relative: Any = None


class Part:
    """A part of a block: the branch of one residual sum.

    Attributes:
      columns: names of the matrices that read the part's input. The mesh axis `model` splits their
        outputs.
      rows: names of the matrices that read what is made of these. `model` splits their inputs, so
        that their products are sums over it. The last one's output is the part's.
      norm: the name of the sub-layer's norm.
      is_normed: whether the sub-layer has that norm.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    norm = ''
    is_normed = True

    def __init__(self, shape: ModelConfig, number: int = 0):
        """Make the part of block `number`, from 0, in an encoder of this shape."""
        self.config, self.number = shape, number

    @property
    def kind(self) -> Any:
        """What tells this part from that of another block; equal where a program may repeat it."""
        return self.is_normed

    @property
    def dropout(self) -> float:
        """The rate of dropout on what is added to the sub-layer's input."""
        return self.config.hidden_dropout

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return the (inputs, outputs) of each matrix by name."""
        raise NotImplementedError

    def split_sizes(self) -> dict[str, int]:
        """Return the settings, by name, that runtime.model_parallel must divide to split it."""
        raise NotImplementedError

    def flops(self, seq_len: int) -> int:
        """Return the FLOPs of a sequence in products of activations, forward."""
        return 0

    def kept(self) -> int:
        """Return how many numbers of a token the backward pass needs: the matrices' outputs."""
        return sum(outputs for _, outputs in self.shapes().values())

    def scores(self, seq_len: int) -> int:
        """Return how many attention scores of a token the backward pass needs."""
        return 0

    def __call__(
        self, linear: Linear, x_BTH: Array, rows: Rows, site: Array | int, kernel: str
    ) -> Array:
        """Return what is added to x [B, T, H].

        Args:
          linear: computes a product with a matrix of the part.
          x_BTH: the sub-layer's input.
          rows: what is known of the batch.
          site: the dropout site of the part's own.
          kernel: what computes attention, one of attention_kernels.choose_kernel.
        """
        raise NotImplementedError
