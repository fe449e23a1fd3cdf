"""What training carries from step to step, and how it comes to be on the mesh.

The state holds no random key and no stream position: both follow from (seed, step).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.mesh.sharding import path_of, shardings
from bert_jax.train.optimizer import Optimizer, make_optimizer
from bert_jax.train.schedule import Hparams
from configs.errors import UserError


class TrainState(NamedTuple):
    """What training carries from step to step, on the mesh.

    step: optimizer steps done, discarded ones included; bad_steps: non-finite steps in a row up to
    now.
    """

    params: Any
    opt_state: Any
    step: jax.Array
    bad_steps: jax.Array


def init_params(model: Any, seed: Any, inputs: Mapping[str, Any] | None = None) -> Any:
    """Fresh parameters of `model`, a function of the seed alone.

    Jit it with out_shardings to make them in place. `inputs` are the arrays that it reads besides
    the usual ones, for one row of one token.
    """
    # one row of one token: shapes of parameters do not depend on the batch
    ids = np.zeros((1, 1), np.int32)
    names = ('input_ids', 'input_mask', 'segment_ids', 'masked_lm_positions')
    batch = dict.fromkeys(names, ids) | dict(inputs or {})
    return model.init(jax.random.key(seed), batch)['params']


def fresh_state(params: Any, config: Optimizer) -> TrainState:
    """A state at step 0 around given parameters."""
    # The moments' shapes follow from the parameters alone: any scalars do to make them.
    zero = Hparams(*(0.0 for _ in Hparams._fields))
    count = jnp.zeros((), jnp.int32)
    return TrainState(params, make_optimizer(config, zero, 0).init(params), count, count)


def create_state(
    model: Any,
    seed: int,
    config: Optimizer,
    mesh: jax.sharding.Mesh,
    shard_optimizer: bool = False,
) -> TrainState:
    """A fresh state, made on the mesh: no device ever holds what is not its part.

    model: anything with flax's `init` that reads what `init_params` gives it; config: the settings
    of the optimizer, or an optax one of your own.
    """
    # Shapes tell the places, and the places are given to the program that makes the arrays.
    out = shardings(state_shapes(model, config), mesh, shard_optimizer)
    with jax.set_mesh(mesh):
        return jax.jit(functools.partial(_make, model, config), out_shardings=out)(np.uint32(seed))


def abstract_state(
    model: Any,
    config: Optimizer,
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    shard_optimizer: bool = False,
) -> TrainState:
    """What create_state would make, as ShapeDtypeStructs with their places: nothing is computed."""
    state = state_shapes(model, config)

    # Both trees have the same structure: each leaf meets its own sharding.
    struct = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return jax.tree.map(struct, state, shardings(state, mesh, shard_optimizer))


@functools.lru_cache(maxsize=1)
def state_shapes(model: Any, config: Optimizer) -> TrainState:
    """A train state's shapes, without places; kept, as a search asks for one model's often."""
    return jax.eval_shape(functools.partial(_make, model, config), np.uint32(0))


def _make(model: Any, config: Optimizer, seed: jax.Array) -> TrainState:
    return fresh_state(init_params(model, seed), config)


def load_params_into(
    params: Any, source: Mapping[str, Any], name: str, subtree: str | None = None
) -> Any:
    """`params` with the leaves of `source`, placed as they were; or of its `subtree` at the top.

    `name` is the source's in errors. UserError where names or shapes do not match; nothing is
    left out silently.
    """
    # Only what is replaced is compared: with a subtree the rest of the source may be anything.
    old = params if subtree is None else {subtree: params[subtree]}
    new = source if subtree is None else {k: v for k, v in source.items() if k == subtree}
    shape_of = lambda tree: {
        path_of(p): tuple(leaf.shape) for p, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
    wanted, given = shape_of(old), shape_of(new)
    # All names and shapes at once, so that the message can tell how much differs, not only the
    # first.
    if wanted != given:
        differ = [
            f'{n}: {given.get(n, "absent")} there, {wanted.get(n, "absent")} here'
            for n in sorted(wanted | given)
            if wanted.get(n) != given.get(n)
        ]
        raise UserError(
            f'{name}: its weights do not fit this model ({"; ".join(differ[:3])}; {len(differ)} in'
            ' all): use the same model settings'
        )

    # In the dtype of the leaf that it replaces, and straight to the devices where that lies.
    placed = jax.tree.map(
        lambda o, n: jax.device_put(np.asarray(n, o.dtype), o.sharding), old, dict(new)
    )
    return {**params, **placed}
