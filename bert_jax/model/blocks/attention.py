"""Attention: which keys a query sees, what is computed of them, and the part of a block.

`SelfAttention` is a class for each value of `model.attention`. It makes queries, keys and values,
and `attend` computes the heads' outputs: in plain jax, on every device, or by a fused kernel
(attention_kernels.py). Padding is masked by `make_padding_mask`. Where a window limits what a query
sees, long rows are computed in blocks (`Blocks`): time and memory then grow with the row, not with
its square.

Dims: as in model/encoder.py; M heads of keys and values, S key position, b blocks of a row, C
queries of a block, K keys of its neighbourhood.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from bert_jax.configs.options import find_class
from bert_jax.model.blocks.attention_kernels import TPU_BLOCK, run_cudnn, run_tpu_splash
from bert_jax.model.blocks.part import Linear, Part, Rows
from bert_jax.model.blocks.positions import POSITIONS, Positions
from bert_jax.model.dropout import dropout

MASKED = -10000.0  # added to the scores of masked keys (google-research/bert modeling.py:712)
# A block's least size and what it is a multiple of: smaller ones are slower, timed on a CPU.
_LEAST, _MULTIPLE = 32, 16
# From so many keys of the neighbourhood on a row is cut: shorter ones are as fast whole. A CPU took
# 1.1 times as long for blocks of 256 tokens at a window of 64 (192 keys), 0.6 times for 512.
_WORTH = 2

Function = Callable[[Array], Array]


class AttentionMask(NamedTuple):
    """Which keys a query sees.

    keys_BS is 1 where there is a token and 0 for padding, which comes last. Where rows hold several
    examples, packs_BS are their numbers, and a query sees the keys of its own example alone. With
    `window` it sees none that is more places away (in a packed row too, where what lies between is
    of the same example); with `causal` none right of it.
    """

    keys_BS: Array
    packs_BS: Array | None = None
    window: int | None = None
    causal: bool = False


def make_padding_mask(
    keys_BS: Array, packs_BT: Array | None = None, packs_BS: Array | None = None
) -> Array:
    """Return what is added to scores so that padding and other examples are not seen, float32.

    It is [B, 1, 1, S], or [B, 1, T, S] with the examples' numbers of queries and keys. Axes between
    B and the last stay where they are.
    """
    # [B, 1, S] without packs: one line of keys for all queries of a row.
    seen_BTS = keys_BS[..., None, :] > 0
    if packs_BT is not None and packs_BS is not None:
        seen_BTS = seen_BTS & (packs_BT[..., None] == packs_BS[..., None, :])
    # A large negative number and not -inf: a row that is padding alone (the end of an evaluation)
    # would be NaN.
    return jnp.where(seen_BTS, 0.0, MASKED)[..., None, :, :]


def attend(
    q_BTND: Array,
    k_BSND: Array,
    v_BSND: Array,
    mask: AttentionMask,
    drop: Function | None = None,
    kernel: str = 'xla',
    bias_BNTS: Array | None = None,
    terms: int = 1,
) -> Array:
    """Return attention's output [B, T, N, D]; scores and softmax are float32.

    Paper section 3; modeling.py:694-749.

    Args:
      q_BTND: queries.
      k_BSND: keys.
      v_BSND: values.
      mask: which keys a query sees.
      drop: dropout on probabilities, which only 'xla' has.
      kernel: what computes it, one of attention_kernels.choose_kernel.
      bias_BNTS: added to scores, which only 'xla' without a window has.
      terms: scores are divided by the root of so many widths of a head.
    """
    # Batches of short texts in fine-tuning may be narrower than a block: xla takes those. cuDNN has
    # no window, for it takes no keys to be hidden on the right.
    tokens, window = q_BTND.shape[1], mask.window
    if kernel == 'tpu_splash' and tokens >= TPU_BLOCK:
        # A query sees keys of its number. None may see nothing: padding sees padding.
        numbers_BT = mask.keys_BS if mask.packs_BS is None else mask.packs_BS
        return run_tpu_splash(q_BTND, k_BSND, v_BSND, numbers_BT, window, mask.causal)
    if kernel == 'cudnn' and window is None:
        return run_cudnn(q_BTND, k_BSND, v_BSND, mask.keys_BS)
    if window is not None:
        blocks = Blocks(tokens, window, mask.causal)
        if blocks.pays:
            return _attend_in_blocks(q_BTND, k_BSND, v_BSND, mask, drop, blocks)

    bias_B1TS = make_padding_mask(mask.keys_BS, mask.packs_BS, mask.packs_BS)
    if window is not None:
        # Each query sees itself at least, so that -inf makes no row NaN.
        t_T1, s_1S = jnp.arange(tokens)[:, None], jnp.arange(k_BSND.shape[1])[None]
        near_TS = _is_near(t_T1, s_1S, window, mask.causal)
        bias_B1TS = jnp.where(near_TS[None, None], bias_B1TS, -jnp.inf)
    elif mask.causal:
        # tri is true at and left of the diagonal: key position at most query position.
        past_TS = jnp.tri(tokens, k_BSND.shape[1], dtype=bool)
        bias_B1TS = jnp.where(past_TS[None, None], bias_B1TS, MASKED)
    if bias_BNTS is not None:
        bias_B1TS = bias_B1TS + bias_BNTS
    return _compute_attention(q_BTND, k_BSND, v_BSND, bias_B1TS, drop, terms)


def _attend_in_blocks(
    q_BTND: Array,
    k_BSND: Array,
    v_BSND: Array,
    mask: AttentionMask,
    drop: Function | None,
    blocks: Blocks,
) -> Array:
    """Return attention's output [B, T, N, D], each block of queries with its keys alone."""
    packs_BbC = packs_BbK = None
    keys_BbK = blocks.cut_keys(mask.keys_BS)
    if mask.packs_BS is not None:
        packs_BbC, packs_BbK = blocks.cut_queries(mask.packs_BS), blocks.cut_keys(mask.packs_BS)
    bias_Bb1CK = make_padding_mask(keys_BbK, packs_BbC, packs_BbK)
    bias_Bb1CK = jnp.where(blocks.find_near_keys()[None], bias_Bb1CK, -jnp.inf)

    # Each key is in several neighbourhoods: kept for the backward pass they would be several.
    kept = jax.checkpoint_policies.save_only_these_names('kept')

    @functools.partial(jax.checkpoint, policy=kept)
    def compute(q_BTND: Array, k_BSND: Array, v_BSND: Array) -> Array:
        q, k, v = blocks.cut_queries(q_BTND), blocks.cut_keys(k_BSND), blocks.cut_keys(v_BSND)
        return _compute_attention(q, k, v, bias_Bb1CK, drop)

    return blocks.join(compute(q_BTND, k_BSND, v_BSND))


def _compute_attention(
    q_TND: Array,
    k_SND: Array,
    v_SND: Array,
    bias_1TS: Array,
    drop: Function | None,
    terms: int = 1,
) -> Array:
    """Return attention's output [..., T, N, D]; what leads is the batch, and blocks of its rows."""
    # Scores come out of the product in float32: in bfloat16 a sum over D loses what softmax is to
    # compare.
    scores_NTS = jnp.einsum(
        '...TND,...SND->...NTS', q_TND, k_SND, preferred_element_type=jnp.float32
    )
    scores_NTS = scores_NTS * (q_TND.shape[-1] * terms) ** -0.5
    probs_NTS = _softmax(scores_NTS + bias_1TS, v_SND.dtype)
    if drop is not None:
        probs_NTS = drop(probs_NTS)
    # Named 'kept': what REMAT_POLICIES in encoder.py keeps for the backward pass.
    return checkpoint_name(jnp.einsum('...NTS,...SND->...TND', probs_NTS, v_SND), 'kept')


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _softmax(scores: Array, dtype: DTypeLike) -> Array:
    """Softmax over the last axis, computed in float32 and given back as `dtype`.

    The backward pass needs the result alone. Left to itself jax would keep it in float32 too: with
    bfloat16 that is 4 bytes a score beside the 2 that the product with the values needs, the
    largest thing that a layer keeps of long sequences.
    """
    return jax.nn.softmax(scores, axis=-1).astype(dtype)


def _softmax_forward(scores: Array, dtype: DTypeLike) -> tuple[Array, Array]:
    probs = checkpoint_name(_softmax(scores, dtype), 'kept')
    return probs, probs


def _softmax_backward(dtype: DTypeLike, probs: Array, gradient: Array) -> tuple[Array]:
    probs, gradient = probs.astype(jnp.float32), gradient.astype(jnp.float32)
    # d softmax: p * (g - sum(p g)), of the result alone.
    return (probs * (gradient - jnp.sum(probs * gradient, axis=-1, keepdims=True)),)


_softmax.defvjp(_softmax_forward, _softmax_backward)


class Blocks(NamedTuple):
    """How a row of `tokens` is cut where a query sees the keys at most `window` places away.

    Scores are computed of the keys of a query's own block and its neighbours alone. With `causal` a
    query sees nothing right of it.
    """

    tokens: int
    window: int
    causal: bool = False

    @property
    def size(self) -> int:
        """How many queries a block has: no fewer than the window, so that neighbours suffice."""
        return max(_LEAST, -(-self.window // _MULTIPLE) * _MULTIPLE)

    @property
    def number(self) -> int:
        """How many blocks a row has; the last may be filled up."""
        return -(-self.tokens // self.size)

    @property
    def neighbourhood(self) -> int:
        """How many keys each query is multiplied by."""
        return (2 if self.causal else 3) * self.size

    @property
    def pays(self) -> bool:
        """Whether blocks are faster than the row as a whole."""
        return isinstance(self.tokens, int) and self.tokens >= _WORTH * self.neighbourhood

    def cut_queries(self, x_BT: Array) -> Array:
        """Return x [B, T, ...] as [B, b, C, ...]."""
        return self._cut(x_BT, 0, self.number * self.size - self.tokens)

    def cut_keys(self, x_BS: Array) -> Array:
        """Return x [B, S, ...] as [B, b, K, ...]: beside each block of queries its keys."""
        right = 0 if self.causal else 1
        whole = (self.number + right) * self.size - self.tokens
        x_BbC = self._cut(x_BS, self.size, whole)
        shifted = [x_BbC[:, i : i + self.number] for i in range(2 + right)]
        return jnp.concatenate(shifted, axis=2)

    def join(self, x_BbC: Array) -> Array:
        """Return x [B, b, C, ...] as [B, T, ...]."""
        B, b, C, *widths = x_BbC.shape
        return x_BbC.reshape(B, b * C, *widths)[:, : self.tokens]

    def find_near_keys(self) -> Array:
        """Return which keys of its neighbourhood a query may see: [b, 1, C, K]."""
        block_b11 = jnp.arange(self.number)[:, None, None]
        t_bC1 = block_b11 * self.size + jnp.arange(self.size)[None, :, None]
        s_b1K = (block_b11 - 1) * self.size + jnp.arange(self.neighbourhood)[None, None]
        # No key lies outside of the row. Queries there are not read; without a key they would be
        # NaN, and NaN times no gradient is NaN.
        inside = (s_b1K >= 0) & ((s_b1K < self.tokens) | (t_bC1 >= self.tokens))
        return (_is_near(t_bC1, s_b1K, self.window, self.causal) & inside)[:, None]

    def _cut(self, x_BT: Array, left: int, right: int) -> Array:
        """Return x [B, T, ...] in blocks [B, b, C, ...], with zeros added on both sides."""
        B, _, *widths = x_BT.shape
        x_BT = jnp.pad(x_BT, [(0, 0), (left, right)] + [(0, 0)] * len(widths))
        return x_BT.reshape(B, -1, self.size, *widths)


def _is_near(t: Array, s: Array, window: int, causal: bool) -> Array:
    """Tell whether a query at `t` may see a key at `s`."""
    left = t - s
    return (left <= window) & (left >= (0 if causal else -window))


class SelfAttention(Part):
    """Every token attends to all tokens of its example (paper section 3; modeling.py:694-749)."""

    columns = ('query', 'key', 'value')
    rows = ('attention_output',)
    norm = 'attention_norm'
    causal = False

    @property
    def window(self) -> int | None:
        """The tokens on each side that a token sees; None: all of its example."""
        return self.config.window(self.number)

    @property
    def kind(self) -> tuple[bool, int | None]:
        """Whether its input is normalised, and the window."""
        return self.is_normed, self.window

    @property
    def is_normed(self) -> bool:  # type: ignore[override]
        """Whether its input is normalised: some families leave the first block without."""
        c = self.config
        return self.number > 0 or c.norm == 'post' or c.traits.has_first_norm

    @property
    def dropout(self) -> float:
        """The rate of dropout on its output."""
        rate = self.config.attention_output_dropout
        return super().dropout if rate is None else rate

    @property
    def positions(self) -> Positions:
        """How it knows the order of tokens."""
        positions = find_class('positions', self.config.positions, POSITIONS)
        return positions(self.config, self.window is not None)

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of four matrices, and of those that distances have.

        They are square, but for keys and values of fewer heads.
        """
        c, H = self.config, self.config.hidden_size
        narrow = H, H // c.num_heads * c.kv_heads
        square = dict.fromkeys(self.columns + self.rows + self.positions.matrices, (H, H))
        return square | {'key': narrow, 'value': narrow}

    def split_sizes(self) -> dict[str, int]:
        """Return the numbers of heads: each device has whole ones."""
        c = self.config
        fewer = {} if c.num_kv_heads is None else {'num_kv_heads': c.num_kv_heads}
        return {'num_heads': c.num_heads, **fewer}

    def flops(self, seq_len: int) -> int:
        """Return the FLOPs of queries by keys and of probabilities by values, 2 S^2 H each.

        Causal attention counts in full, because the masked half is multiplied too. With a window
        of w tokens on each side a query has 2w + 1 keys. Positions add their own.
        """
        of_tokens = 4 * self.config.hidden_size * seq_len * self._count_keys(seq_len)
        return of_tokens + self.positions.flops(seq_len)

    def _count_keys(self, seq_len: int) -> int:
        """Return how many keys a token sees, where the row does not end."""
        return seq_len if self.window is None else min(seq_len, 2 * self.window + 1)

    def kept(self) -> int:
        """Return the numbers of the matrices' outputs and of the context of the heads."""
        # What distances have is of no token.
        of_distances = len(self.positions.matrices) * self.config.hidden_size
        return super().kept() + self.config.hidden_size - of_distances

    def scores(self, seq_len: int) -> int:
        """Return a score for each head and key."""
        return self.config.num_heads * self._count_keys(seq_len)

    def __call__(
        self, linear: Linear, x_BTH: Array, rows: Rows, site: Array | int, kernel: str
    ) -> Array:
        """Return the heads' contexts, put side by side and multiplied: see Part."""
        c, (B, T, H) = self.config, x_BTH.shape
        # [B, T, H] -> [B, T, N, D]: query, key and value of all heads are one product each.
        D = H // c.num_heads
        q_BTND = linear('query', x_BTH).reshape(B, T, c.num_heads, D)
        k_BTMD = linear('key', x_BTH).reshape(B, T, c.kv_heads, D)
        v_BTMD = linear('value', x_BTH).reshape(B, T, c.kv_heads, D)
        positions = self.positions
        q_BTND = positions.turned(q_BTND, rows.position_ids_BT)
        k_BTMD = positions.turned(k_BTMD, rows.position_ids_BT)
        # Every kernel reads as many heads of keys and values as of queries.
        k_BTND, v_BTND = _repeat_heads(k_BTMD, c.num_heads), _repeat_heads(v_BTMD, c.num_heads)
        bias_BNTS = positions.biased(q_BTND, k_BTND, linear, rows, site)

        mask = AttentionMask(rows.input_mask_BT, rows.pack_ids_BT, self.window, self.causal)
        if rows.attentions is not None:
            # Of values that name the keys, the output is the probabilities.
            names_BSNS = jnp.broadcast_to(jnp.eye(T)[:, None], (B, T, c.num_heads, T))
            probs_BTNS = attend(
                q_BTND, k_BTND, names_BSNS, mask, bias_BNTS=bias_BNTS, terms=positions.terms
            )
            rows.attentions.append(probs_BTNS.swapaxes(1, 2))
        drop = functools.partial(
            dropout, rate=c.attention_dropout, dropout_rng=rows.dropout_rng, site=site
        )
        out_BTND = attend(q_BTND, k_BTND, v_BTND, mask, drop, kernel, bias_BNTS, positions.terms)
        return linear('attention_output', out_BTND.reshape(B, T, H))


def _repeat_heads(x_BTMD: Array, heads: int) -> Array:
    """Return [B, T, N, D]: each of M heads so often that there are N, its copies side by side.

    Shazeer 2019; Ainslie et al. 2023; transformers modeling_eurobert.py:100-109.
    """
    B, T, M, D = x_BTMD.shape
    if heads == M:
        return x_BTMD
    copies = B, T, M, heads // M, D
    return jnp.broadcast_to(x_BTMD[:, :, :, None], copies).reshape(B, T, heads, D)


class CausalSelfAttention(SelfAttention):
    """No token sees what comes after it (paper section 5.1)."""

    causal = True


ATTENTIONS: dict[str, type[SelfAttention]] = {
    'bidirectional': SelfAttention,
    'left_to_right': CausalSelfAttention,
}
