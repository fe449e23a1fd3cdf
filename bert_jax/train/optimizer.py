"""What is done with a gradient: clipping, AdamW or LAMB by name, decay, freezing, layer-wise rates.

Sources: google-research/bert optimization.py; ALBERT lamb_optimizer.py; MLPerf training
lamb_optimizer_v1.py; NVIDIA apex FusedLAMB; Wortsman et al. 2023 and ModernBERT's src/optimizer.py
for StableAdamW; Clark et al. 2020 for layer-wise rates. Where blocks
are stacked, a leaf under `layers` being [L, ...] (of blocks that share their weights one for each
group, which is one variable in ALBERT's code too), nothing here may show it: trust ratios, rates
and freezing act on each block's slice. Where an optimizer measures whole tensors, these are of the
family's own code: its table of names says which of our arrays it keeps in one. The learning rate
itself is learning_rate.py's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.configs.errors import UserError
from bert_jax.configs.model import embedding_kinds
from bert_jax.configs.schema import ModelConfig, OptimizerConfig
from bert_jax.mesh.sharding import format_path, group_by_path
from bert_jax.model import layout
from bert_jax.model.dropout import FEWER_ROUNDS, number_elements, threefry
from bert_jax.model.embeddings import pad_vocab
from bert_jax.train.learning_rate import Hparams, compute_learning_rate

# Biases and layer norms (optimization.py:65); embeddings are decayed, but not a network of words:
# its own code trains it without, and frozen it must not move.
_NETWORKS = [
    f'(^|/){kind.network}/' for kind in embedding_kinds.EMBEDDINGS.values() if kind.network
]
NOT_DECAYED = re.compile('|'.join(['(bias|scale)$', *_NETWORKS]))
# The encoder's own tree and a model's around it: 'embeddings/word', 'encoder/embeddings/word'.
EMBEDDINGS = re.compile(r'(^|/)embeddings/')

# How the paths of arrays end that have a row for each entry of the vocabulary.
OF_VOCABULARY = ('embeddings/word', 'mlm/bias', 'mlm/decoder')

# One that the settings describe, or one's own.
Optimizer: TypeAlias = OptimizerConfig | optax.GradientTransformation


class _Lamb(NamedTuple):
    """Where the implementations of LAMB differ; all add the decay before the trust ratio."""

    bias_correction: bool
    # The leaves with a trust ratio: 'decayed' ones by name, those with a 'positive decay', or 'all'
    adapts: str


# The values of OptimizerConfig.algorithm that are LAMB's.
LAMB = {
    'lamb_albert': _Lamb(bias_correction=False, adapts='decayed'),
    'lamb_mlperf': _Lamb(bias_correction=True, adapts='decayed'),
    'lamb_nvidia': _Lamb(bias_correction=True, adapts='positive decay'),
    'lamb_nvlamb': _Lamb(bias_correction=True, adapts='all'),
}


def is_stacked(path: str) -> bool:
    """Tell whether the leaf at `path` holds all blocks, its first axis being L."""
    return '/layers/' in f'/{path}' and layout.parse(path)[1] is None


def count_padding_rows(path: str, model: ModelConfig) -> int:
    """Return how many rows of the array at `path` only pad it for the hardware."""
    if not path.endswith(OF_VOCABULARY):
        return 0
    return pad_vocab(model.vocab_size) - model.vocab_size


def average_tensors(values: Any, model: ModelConfig | None) -> Any:
    """Return a tree like `values` with the mean of a tensor at each leaf that is in it.

    A mean is a scalar, or [L, 1, ...] of a stack. Rows that pad count for nothing; they must be 0.

    Args:
      values: a tree like a model's parameters.
      model: the encoder's shape; None: each leaf is a tensor, and none has rows that pad.
    """
    sums: dict[Any, jax.Array] = {}
    sizes: dict[Any, int] = defaultdict(int)
    leaves = group_by_path(values)
    for path, x in leaves.items():
        tensor, blocks, axes = _find_tensor(path, model), 1, range(x.ndim)
        if is_stacked(path):
            blocks, axes = x.shape[0], range(1, x.ndim)
        size = x.size
        if model is not None:
            size -= count_padding_rows(path, model) * (x.size // x.shape[0])
        sizes[tensor] += size // blocks
        total = jnp.sum(x, axis=tuple(axes))
        if tensor in sums:
            total = sums[tensor] + total
        sums[tensor] = total

    means = []
    for path, x in leaves.items():
        tensor = _find_tensor(path, model)
        mean = sums[tensor] / sizes[tensor]
        if is_stacked(path):
            mean = mean.reshape(-1, *(1,) * (x.ndim - 1))
        means.append(mean)
    return jax.tree.unflatten(jax.tree.structure(values), means)


def _find_tensor(path: str, model: ModelConfig | None) -> tuple[str, int | None]:
    """Return the name of the tensor that a leaf is in, and the number of its block, if any."""
    at_rest, number = layout.parse(path)
    if model is None:
        return at_rest, number
    try:
        pieces = model.traits.transformers.array(at_rest).pieces
    except KeyError:  # an array that the family's released models lack
        return at_rest, number
    if len(pieces) == 1 and pieces[0].parts > 1:
        return pieces[0].name, number
    return at_rest, number


def mark_decayed(params: Any) -> Any:
    """Return a tree like `params`, True for the leaves that weight decay touches."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: NOT_DECAYED.search(format_path(path)) is None, params
    )


def _make_adam(
    b1: float, b2: float, eps: float, corrects_bias: bool, finite: Any
) -> optax.GradientTransformation:
    """Make Adam's direction m / (sqrt(v) + eps), as optax computes it.

    Without bias correction it is the original's (optimization.py:131-137). Where `finite` is false
    the moments stay as they were.
    """

    def update(grads, state, params=None):
        del params
        count = jnp.where(finite, optax.safe_increment(state.count), state.count)
        if corrects_bias:
            mu = optax.tree.update_moment(grads, state.mu, b1, 1)
            nu = optax.tree.update_moment_per_elem_norm(grads, state.nu, b2, 2)
        else:  # in this order, which rounds as runs begun before did
            mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
            nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, grads)
        mu, nu = _keep_finite(finite, (mu, nu), (state.mu, state.nu))

        first, second = mu, nu
        if corrects_bias:
            first = optax.tree.bias_correction(mu, b1, count)
            second = optax.tree.bias_correction(nu, b2, count)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), first, second)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


def _make_stable_adamw(
    settings: OptimizerConfig, decay: Any, finite: Any, model: ModelConfig | None
) -> optax.GradientTransformation:
    """Make StableAdamW's direction with its decay, both divided by max(1, RMS) of each tensor.

    RMS is that of g / sqrt(v) with the new v: where a gradient is larger than the moments know, the
    tensor's rate is smaller in that step, and so is its decay. Betas are corrected, not moments.
    """

    def update(grads, state, params=None):
        count = jnp.where(finite, optax.safe_increment(state.count), state.count)
        t = count.astype(jnp.float32)
        b1 = 1 - (1 - settings.b1) / (1 - settings.b1**t)
        b2 = 1 - (1 - settings.b2) / (1 - settings.b2**t)
        mu = jax.tree.map(lambda m, g: m + (1 - b1) * (g - m), state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, grads)
        mu, nu = _keep_finite(finite, (mu, nu), (state.mu, state.nu))
        ratios = jax.tree.map(
            lambda g, v: jnp.square(g) / jnp.maximum(v, settings.eps**2), grads, nu
        )

        def direction(m, v, w, is_decayed, mean):
            pulled: Any = 0.0
            adam = m / (jnp.sqrt(v) + settings.eps)
            if is_decayed:
                pulled = decay * w
            return (adam + pulled) / jnp.maximum(1.0, jnp.sqrt(mean))

        means = average_tensors(ratios, model)
        updates = jax.tree.map(direction, mu, nu, params, mark_decayed(params), means)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


def _keep_finite(finite: Any, new: Any, old: Any) -> Any:
    """Return new moments, or the old ones where `finite` is false."""

    def keep(new_x: jax.Array, old_x: jax.Array) -> jax.Array:
        # Computed once, by itself. Else XLA computes a moment a second time where the update needs
        # it, of the old moment. That it then copies first, because the new one takes its memory.
        return jax.lax.optimization_barrier(jnp.where(finite, new_x, old_x))

    return jax.tree.map(keep, new, old)


def _cast(moments: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype), moments)


def _keep_in_bfloat16(
    adam: optax.GradientTransformation, h: Hparams, step: Any
) -> optax.GradientTransformation:
    """Wrap `adam` so that its moments are kept in bfloat16, and computed in float32.

    They are rounded up or down at random, each as likely as it is near: to the nearest, a second
    moment that should fall by a thousandth a step (b2=0.999) would not move at all, a step of
    bfloat16 being 1/256 of it. The random bits are named by seed, step and place, so that neither
    the mesh nor an interruption changes a moment.
    """
    key = (jnp.asarray(h.seed, jnp.uint32), jnp.asarray(step, jnp.uint32))

    def round_all(moments: Any, first: int) -> Any:
        # Named as at rest, so that the layout of blocks changes no bit.
        leaves, tree = jax.tree.flatten(moments)
        numbers: dict[str, int] = {}
        rounded = []
        for x, (path, block) in zip(leaves, layout.find_origins(moments), strict=True):
            number = numbers.setdefault(path, len(numbers))
            rounded.append(_round_at_random(x, key, first + 2 * number, block))
        return jax.tree.unflatten(tree, rounded)

    def init(params):
        state = adam.init(params)
        return state._replace(mu=_cast(state.mu, jnp.bfloat16), nu=_cast(state.nu, jnp.bfloat16))

    def update(grads, state, params=None):
        wide = state._replace(mu=_cast(state.mu, jnp.float32), nu=_cast(state.nu, jnp.float32))
        updates, state = adam.update(grads, wide, params)
        return updates, state._replace(mu=round_all(state.mu, 0), nu=round_all(state.nu, 1))

    return optax.GradientTransformation(init, update)


def _round_at_random(
    x: jax.Array, key: tuple[jax.Array, jax.Array], leaf: int, number: int
) -> jax.Array:
    """Return x, float32, as bfloat16: up or down with chances that leave its mean as it is.

    leaf, number: x is slice `number` of that leaf at rest.
    """
    word, _ = threefry(key, (number_elements(x.shape, number), jnp.uint32(leaf)), FEWER_ROUNDS)
    # bfloat16 is the upper half of float32: a random lower half carries into it, or does not. What
    # is no number stays what it is.
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + (word >> 16)
    upper = jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(x), upper, x.astype(jnp.bfloat16))


def _scale_by_trust_ratio(variant: _Lamb, weight_decay: Any) -> optax.GradientTransformation:
    """Scale the update u of each parameter w by |w| / |u|, and by 1 where either is 0.

    You et al. 2020, algorithm 2; norms are of one block's slice where blocks are stacked.
    """

    def scale(key_path, u, w):
        path = format_path(key_path)
        # By name: biases and norms have no decay, and adapt in the variant 'all' alone.
        if variant.adapts != 'all' and NOT_DECAYED.search(path):
            return u
        # The norm of a stacked leaf is taken over every axis but L: each block has a ratio of its
        # own.
        axes = tuple(range(int(is_stacked(path)), u.ndim))
        over = jnp.sqrt(jnp.sum(jnp.square(w), axes, keepdims=True))
        under = jnp.sqrt(jnp.sum(jnp.square(u), axes, keepdims=True))
        # The inner `where` keeps 0 / 0 out of the branch that is not taken.
        ratio = jnp.where((over > 0) & (under > 0), over / jnp.where(under > 0, under, 1.0), 1.0)
        # NVIDIA's LAMB adapts where there is a decay to adapt to; weight_decay is traced in a
        # sweep, so this is decided in the program.
        if variant.adapts == 'positive decay':
            ratio = jnp.where(weight_decay > 0, ratio, 1.0)
        return u * ratio

    return optax.stateless(
        lambda updates, params: jax.tree_util.tree_map_with_path(scale, updates, params)
    )


def _count_blocks(params: Any) -> int:
    """Return how many blocks a model has, by its stacks or its blocks' numbers; 0 without any."""
    blocks = 0
    for path, leaf in group_by_path(params).items():
        _, number = layout.parse(path)
        if number is not None:
            blocks = max(blocks, number + 1)
        elif is_stacked(path):
            blocks = max(blocks, leaf.shape[0])
    return blocks


def compute_layer_rates(settings: OptimizerConfig, params: Any) -> Any:
    """Return what each leaf's learning rate is multiplied by: a number, or [L, 1, ...] of a stack.

    0 where it is frozen. With d = layer_decay, heads and pooler have 1, block i of L (from 0) has
    d**(L - i) and the embeddings d**(L + 1). UserError where more blocks are to be frozen than
    there are.
    """
    blocks = _count_blocks(params)
    if settings.freeze_layers > blocks:
        raise UserError(
            f'optimizer.freeze_layers={settings.freeze_layers}: the model has {blocks} layers'
        )
    # d**L for the lowest block to d**1 for the highest; frozen from the bottom.
    of_block = np.float32(settings.layer_decay) ** np.arange(blocks, 0, -1, dtype=np.float32)
    of_block[: settings.freeze_layers] = 0.0
    of_embeddings = np.float32(settings.layer_decay ** (blocks + 1))
    if settings.freeze_embeddings:
        of_embeddings = np.float32(0.0)

    def rate(key_path, leaf):
        path = format_path(key_path)
        _, number = layout.parse(path)
        if number is not None:
            return of_block[number]
        if is_stacked(path):
            return of_block.reshape(-1, *(1,) * (leaf.ndim - 1))
        if EMBEDDINGS.search(path):
            return of_embeddings
        return np.float32(1.0)

    return jax.tree_util.tree_map_with_path(rate, params)


def _multiply_by(factors: Callable[[Any], Any]) -> optax.GradientTransformation:
    """Multiply each update by what `factors`, a function of the parameters, has at its leaf."""
    return optax.stateless(
        lambda updates, params: jax.tree.map(jnp.multiply, updates, factors(params))
    )


def _clip_by_part(norm: float, apart: Collection[str]) -> optax.GradientTransformation:
    """Scale down to a norm each part of the gradient that is named, and all others together."""
    clip = optax.clip_by_global_norm(norm)
    if not apart:
        return clip

    def update(grads, state, params=None):
        del params
        rest = {name: part for name, part in grads.items() if name not in apart}
        clipped, _ = clip.update(rest, state)
        for name in apart:
            clipped[name], _ = clip.update(grads[name], state)
        return clipped, state

    return optax.GradientTransformation(clip.init, update)


def make_optimizer(
    settings: Optimizer,
    h: Hparams,
    step: Any,
    finite: Any = True,
    model: ModelConfig | None = None,
    clipped_apart: Collection[str] = (),
) -> optax.GradientTransformation:
    """Return the optax transformation of step `step`, from 0; it, `h`, `finite` may be traced.

    model: the encoder's shape, whose family says which arrays are one tensor of its own code
    (`average_tensors`); read by algorithm=stable_adamw alone. Frozen parameters do not count in the
    norm, and neither decay nor move. Where `finite` is false the state stays as it was, and the
    updates mean nothing. One's own transformation is taken as it is, with its own schedule,
    clipping and decay; the other arguments are nothing to it. clipped_apart: parts of the gradient
    that are clipped by norms of their own.
    """
    if isinstance(settings, optax.GradientTransformation):
        return settings

    def rates(params: Any) -> Any:
        return compute_layer_rates(settings, params)

    def moves(params: Any) -> Any:
        # 0 or 1: whether a leaf, or a block's slice, moves.
        return jax.tree.map(np.sign, rates(params))

    # What is frozen goes first, so that it does not count in the norm; then clipping, before the
    # moments see the gradient.
    chain = []
    freezes = settings.freeze_embeddings or settings.freeze_layers > 0
    if freezes:
        chain.append(_multiply_by(moves))
    if settings.clip_norm is not None:
        chain.append(_clip_by_part(settings.clip_norm, clipped_apart))

    # Decay is decoupled: it comes after Adam's direction, and the moments do not see it. LAMB's
    # ratio has both in the update that it measures.
    decay, lamb = h.weight_decay, LAMB.get(settings.algorithm)
    if settings.decay == 'fully_decoupled':  # times the rate this is the decay times rate / peak
        decay = decay / jnp.maximum(h.peak_lr, np.float32(1e-37))
    is_stable = settings.algorithm == 'stable_adamw'
    if is_stable:
        adam = _make_stable_adamw(settings, decay, finite, model)
    else:
        corrects_bias = settings.algorithm == 'adamw'
        if lamb is not None:
            corrects_bias = lamb.bias_correction
        adam = _make_adam(settings.b1, settings.b2, settings.eps, corrects_bias, finite)
    if settings.moments == 'bfloat16':
        adam = _keep_in_bfloat16(adam, h, step)
    chain.append(adam)
    if not is_stable:
        chain.append(optax.add_decayed_weights(decay, mask=mark_decayed))
    if lamb is not None:
        chain.append(_scale_by_trust_ratio(lamb, h.weight_decay))

    # Rates come last: whatever is before them is the same at every rate.
    if freezes or settings.layer_decay != 1.0:
        chain.append(_multiply_by(rates))
    chain.append(optax.scale(-compute_learning_rate(settings, h, step)))
    return optax.chain(*chain)
