"""AdamW as BERT has it, the learning-rate schedules, and which parameters decay.

Everything a sweep varies (learning rate, warm-up, total steps, weight decay) is a traced scalar of
`Hyper`, so that a sweep compiles once; what changes the program (schedule's shape, moments' constants) is not.
Source: google-research/bert optimization.py; facts differ from optax.adamw in the missing bias correction.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.sharding import path_of
from configs.schema import OptimizerConfig

NOT_DECAYED = re.compile(r'(bias|scale)$')  # biases and layer norms (optimization.py:65); embeddings are decayed


class Hyper(NamedTuple):
    """The traced scalars of a run: float32 but for the uint32 seed."""

    seed: Any
    peak_lr: Any
    end_lr: Any
    warmup_steps: Any
    total_steps: Any
    weight_decay: Any


def hyper(config: OptimizerConfig, seed: int, total_steps: int, warmup_steps: int | None = None) -> Hyper:
    """The scalars of `config` for a run of `total_steps`; `warmup_steps` overrides the configuration's."""
    warmup = config.warmup_steps if warmup_steps is None else warmup_steps
    scalars = (config.peak_lr, config.end_lr, warmup, total_steps, config.weight_decay)
    return Hyper(np.uint32(seed & 0xFFFFFFFF), *(np.float32(x) for x in scalars))


def learning_rate(config: OptimizerConfig, h: Hyper, step: Any) -> jax.Array:
    """The rate at `step` (0-based): linear warm-up from 0, then the schedule, `end_lr` from the last step on.

    'bert' counts its decay from step 0 and so drops from peak to peak * (1 - warmup / total) when warm-up
    ends (optimization.py:32-54); 'linear' decays from the end of warm-up.
    """
    t = jnp.asarray(step, jnp.float32)
    after = jnp.clip((t - h.warmup_steps) / jnp.maximum(h.total_steps - h.warmup_steps, 1.0), 0.0, 1.0)
    match config.schedule:
        case 'bert':
            left = 1.0 - jnp.clip(t / h.total_steps, 0.0, 1.0)
        case 'linear':
            left = 1.0 - after
        case 'cosine':
            left = 0.5 * (1.0 + jnp.cos(jnp.pi * after))
        case 'wsd':
            left = jnp.clip((h.total_steps - t) / (config.decay_fraction * h.total_steps), 0.0, 1.0)
        case 'constant':
            left = jnp.ones(())
    decayed = h.end_lr + (h.peak_lr - h.end_lr) * left
    return jnp.where(t < h.warmup_steps, h.peak_lr * t / jnp.maximum(h.warmup_steps, 1.0), decayed)


def decay_mask(params: Any) -> Any:
    """True for the leaves that weight decay touches."""
    return jax.tree_util.tree_map_with_path(lambda path, _: NOT_DECAYED.search(path_of(path)) is None, params)


def scale_by_bert_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """m / (sqrt(v) + eps) without bias correction (optimization.py:131-137)."""

    def init(params):
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(count=jnp.zeros((), jnp.int32), mu=zeros(), nu=zeros())

    def update(grads, state, params=None):
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, grads)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(state.count + 1, mu, nu)

    return optax.GradientTransformation(init, update)


def make_optimizer(config: OptimizerConfig, h: Hyper, step: Any) -> optax.GradientTransformation:
    """Clip by global norm, Adam, decoupled decay, learning rate of `step`; `h` and `step` may be traced."""
    adam = optax.scale_by_adam if config.bias_correction else scale_by_bert_adam
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        adam(b1=config.b1, b2=config.b2, eps=config.eps),
        optax.add_decayed_weights(h.weight_decay, mask=decay_mask),
        optax.scale(-learning_rate(config, h, step)),
    )
