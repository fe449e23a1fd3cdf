"""What training carries from step to step, and how it comes to be on the mesh.

The state holds no random key and no stream position: both follow from (seed, step).
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig
from bert_jax.mesh.sharding import by_path
from bert_jax.model import layout
from bert_jax.model.embeddings import first_words
from bert_jax.model.partition import shardings
from bert_jax.model.tuning import is_added, method_of, neutral
from bert_jax.train.optimizer import Optimizer, make_optimizer, padding_rows
from bert_jax.train.schedule import Hparams


class TrainState(NamedTuple):
    """What training carries from step to step, on the mesh.

    step: optimizer steps done, discarded ones included; bad_steps: non-finite steps in a row up to
    now; frozen: weights that the steps read and never change, None where all are trained. They have
    no moments and are in no checkpoint; which they are is model/tuning.py's and
    model/embeddings.py's.
    """

    params: Any
    opt_state: Any
    step: jax.Array
    bad_steps: jax.Array
    frozen: Any = None


def init_params(model: Any, seed: Any, inputs: Mapping[str, Any] | None = None) -> Any:
    """Fresh parameters of `model`, a function of the seed alone.

    Jit it with out_shardings to make them in place. `inputs` are the arrays that it reads besides
    the usual ones, for one row of one token; a model may also have them as `first_inputs`.
    """
    # one row of one token: shapes of parameters do not depend on the batch
    ids = np.zeros((1, 1), np.int32)
    names = ('input_ids', 'input_mask', 'segment_ids', 'masked_lm_positions')
    config = getattr(model, 'config', None)
    words = first_words(config) if isinstance(config, ModelConfig) else {}
    first_inputs = getattr(model, 'first_inputs', {})
    batch = dict.fromkeys(names, ids) | words | dict(first_inputs) | dict(inputs or {})
    return model.init(jax.random.key(seed), batch)['params']


def split(params: Any, config: ModelConfig) -> tuple[Any, Any]:
    """Divide a model's parameters into (what training changes, what it leaves as it is).

    The latter, the frozen tree, is what tuning leaves alone and what is computed from the
    vocabulary; None where all are trained. Blocks lie in both as they do in `params`: a stacked
    leaf that is trained from some block on is in both, its blocks below frozen. `joined` puts them
    together again.
    """
    computed, method = config.words.computed, method_of(config)
    if method.trains_matrices and not computed:
        return params, None
    trained, frozen = {}, {}
    # Stacks begin with the block above those that are frozen whole.
    below = config.tuning.frozen_layers or 0
    separate = traverse_util.flatten_dict(layout.separate(params))
    for names, leaf in separate.items():
        path, number = layout.parse('/'.join(names))
        start = None if path in computed else method.trained_from(path)
        if start is not None and (number is None or number + below >= start):
            trained[names] = leaf
        else:
            is_neutral = start is not None and is_added(path)
            frozen[names] = jnp.full_like(leaf, neutral(path)) if is_neutral else leaf
    trees = traverse_util.unflatten_dict(trained), traverse_util.unflatten_dict(frozen)
    if separate.keys() == traverse_util.flatten_dict(params).keys():
        return trees
    return layout.stacked(trees[0]), layout.stacked(trees[1])


def joined(params: Any, frozen: Any) -> Any:
    """Return a model's parameters of what is trained and what is frozen, from `split`."""
    if frozen is None:
        return params
    # A leaf in both trees is a stack, of which the frozen blocks are the lower ones.
    below, above = traverse_util.flatten_dict(frozen), traverse_util.flatten_dict(params)
    stacks = {
        names: jnp.concatenate([below[names], above[names]]) for names in below.keys() & above
    }
    return traverse_util.unflatten_dict(below | above | stacks)


def parameter_count(params: Any, config: ModelConfig) -> int:
    """How many weights a tree holds: those of a whole model, or what its tuning trains of it.

    config: the model's. Rows that pad the vocabulary's tables for the hardware are none.
    """
    return sum(
        leaf.size - padding_rows(path, config) * math.prod(leaf.shape[1:])
        for path, leaf in by_path(params).items()
    )


def checkpoint_bytes(state: TrainState) -> int:
    """Return bytes of a checkpoint of the state, before compression; the arrays may be abstract."""
    leaves = jax.tree.leaves(state._replace(frozen=None))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def fresh_state(params: Any, config: Optimizer, frozen: Any = None) -> TrainState:
    """Return a state at step 0 around given parameters, and `frozen` ones beside them."""
    # The moments' shapes follow from the parameters alone: any scalars do to make them.
    zero = Hparams(*(0.0 for _ in Hparams._fields))
    count = jnp.zeros((), jnp.int32)
    return TrainState(params, make_optimizer(config, zero, 0).init(params), count, count, frozen)


def create_state(
    model: Any,
    seed: int,
    config: Optimizer,
    mesh: jax.sharding.Mesh,
    shard_optimizer: bool = False,
    encoder: ModelConfig | None = None,
) -> TrainState:
    """Return a fresh state, made on the mesh: no device ever holds what is not its part.

    model: anything with flax's `init` that reads what `init_params` gives it; config: the settings
    of the optimizer, or an optax one of your own; encoder: the model's, whose arrays that are not
    trained are then frozen in the state (`split`).
    """
    # Shapes tell the places, and the places are given to the program that makes the arrays.
    out = shardings(state_shapes(model, config, encoder), mesh, shard_optimizer)
    return jax.jit(_maker(model, config, encoder), out_shardings=out)(np.uint32(seed))


def abstract_state(
    model: Any,
    config: Optimizer,
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    shard_optimizer: bool = False,
    encoder: ModelConfig | None = None,
) -> TrainState:
    """Return what create_state would make, as ShapeDtypeStructs with their shardings."""
    state = state_shapes(model, config, encoder)

    # Both trees have the same structure: each leaf meets its own sharding.
    struct = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return jax.tree.map(struct, state, shardings(state, mesh, shard_optimizer))


@functools.lru_cache(maxsize=1)
def state_shapes(model: Any, config: Optimizer, encoder: ModelConfig | None = None) -> TrainState:
    """Return a train state's shapes, without places; kept, as a search asks for them often."""
    return jax.eval_shape(_maker(model, config, encoder), np.uint32(0))


def parameter_shapes(model: Any) -> Any:
    """Return the shapes of a model's parameters, stacked."""
    return jax.eval_shape(_initialiser(model), np.uint32(0))


# To trace a model takes longer than to read a compiled program. jax keeps the trace of a function
# that it is given again, so these are the same functions for the same model.
@functools.lru_cache(maxsize=2)
def _initialiser(model: Any) -> Callable[[Any], Any]:
    return jax.jit(functools.partial(init_params, model))


@functools.lru_cache(maxsize=2)
def _maker(
    model: Any, config: Optimizer, encoder: ModelConfig | None
) -> Callable[[Any], TrainState]:
    def make(seed: jax.Array) -> TrainState:
        params, frozen = layout.for_model(_initialiser(model)(seed), model), None
        if encoder is not None:
            params, frozen = split(params, encoder)
        return fresh_state(params, config, frozen)

    return make


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
    new = layout.stacked(dict(new))

    shapes = (by_path(jax.eval_shape(layout.stacked, tree)) for tree in (old, new))
    wanted, given = ({path: leaf.shape for path, leaf in leaves.items()} for leaves in shapes)
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
        lambda o, n: jax.device_put(np.asarray(n, o.dtype), o.sharding), old, layout.like(new, old)
    )
    return {**params, **placed}


def load_moments(state: TrainState, source: Mapping[str, Any], name: str) -> TrainState:
    """`state` with both moments and the count of updates of another run; its own step stays.

    source: {path in that run's optimizer state: numpy array}. `name` is the source's in UserError,
    where names or shapes do not match.
    """
    # Behind the number of the transformation, which clipping and freezing change.
    below = {path.partition('/')[2]: leaf for path, leaf in source.items()}
    tree = traverse_util.unflatten_dict(below, sep='/')
    given = {moment: tree.get(moment, {}) for moment in ('mu', 'nu')}

    def placed(entry: Any) -> Any:
        if not isinstance(entry, optax.ScaleByAdamState):
            return entry
        moments = load_params_into({'mu': entry.mu, 'nu': entry.nu}, given, name)
        counted = jax.device_put(np.asarray(tree['count'], entry.count.dtype), entry.count.sharding)
        return optax.ScaleByAdamState(counted, moments['mu'], moments['nu'])

    opt_state = jax.tree.map(
        placed, state.opt_state, is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState)
    )
    return state._replace(opt_state=opt_state)


def load_frozen(state: TrainState, params: Mapping[str, Any], name: str) -> TrainState:
    """`state` with its frozen arrays as they are in `params`; as it was where it has none.

    params: numpy arrays, of the whole model or of those arrays alone. `name` is the source's in
    UserError, where a shape does not match.
    """
    if state.frozen is None:
        return state
    given = traverse_util.flatten_dict(dict(params))
    at_rest = jax.eval_shape(layout.stacked, state.frozen)
    wanted = {names: given[names] for names in traverse_util.flatten_dict(at_rest)}
    frozen = load_params_into(state.frozen, traverse_util.unflatten_dict(wanted), name)
    return state._replace(frozen=frozen)


def load_encoder(
    state: TrainState,
    encoder: Mapping[str, Any],
    config: ModelConfig,
    name: str,
    shared: Mapping[str, Any] = types.MappingProxyType({}),
) -> TrainState:
    """`state` with the weights of a source's encoder; what is no weight of BERT's stays fresh.

    encoder: numpy arrays, all blocks in one stack; config: the model of the state; shared: of other
    parts that go along, by name. `name` is the source's in UserError, where names or shapes do not
    match.
    """
    # In the model's own layout: blocks that are frozen whole stand in a stack of their own.
    below = config.tuning.frozen_layers or 0
    layers = encoder['layers']
    if below:
        cut = {
            layout.BELOW: layout.cut(layers, 0, below),
            'layers': layout.cut(layers, below, None),
        }
        encoder = {**encoder, **cut}
    trained, frozen = split({'encoder': encoder}, config)

    # The source has nothing of what is added: that is taken as it is.
    def placed(leaves: Any, given: Any) -> Any:
        fresh = traverse_util.flatten_dict(leaves)
        added = {names: leaf for names, leaf in fresh.items() if is_added('/'.join(names))}
        added = traverse_util.flatten_dict(layout.stacked(traverse_util.unflatten_dict(added)))
        given = traverse_util.unflatten_dict(traverse_util.flatten_dict(given) | added)
        return load_params_into(leaves, given, name, 'encoder')

    state = state._replace(params=placed(state.params, trained))
    for part in shared:
        state = state._replace(params=load_params_into(state.params, shared, name, part))
    return state if frozen is None else state._replace(frozen=placed(state.frozen, frozen))
