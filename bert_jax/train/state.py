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
from bert_jax.mesh.sharding import group_by_path
from bert_jax.model import layout
from bert_jax.model.embeddings import make_first_words
from bert_jax.model.partition import choose_shardings
from bert_jax.model.tuning import choose_tuning_method, find_neutral, is_added
from bert_jax.train.learning_rate import Hparams
from bert_jax.train.optimizer import Optimizer, count_padding_rows, make_optimizer


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
    """Make fresh parameters of `model`, a function of the seed alone.

    Jit it with out_shardings to make them in place. `inputs` are the arrays that it reads besides
    the usual ones, for one row of one token; a model may also have them as `first_inputs`.
    """
    # One row of one token: shapes of parameters do not depend on the batch.
    names = ('input_ids', 'input_mask', 'segment_ids', 'masked_lm_positions')
    batch: dict[str, Any] = dict.fromkeys(names, np.zeros((1, 1), np.int32))
    encoder_shape = getattr(model, 'config', None)
    if isinstance(encoder_shape, ModelConfig):
        batch.update(make_first_words(encoder_shape))
    batch.update(getattr(model, 'first_inputs', {}))
    if inputs is not None:
        batch.update(inputs)
    return model.init(jax.random.key(seed), batch)['params']


def split_frozen(params: Any, encoder_shape: ModelConfig) -> tuple[Any, Any]:
    """Divide a model's parameters into (what training changes, what it leaves as it is).

    The latter, the frozen tree, is what tuning leaves alone and what is computed from the
    vocabulary; None where all are trained. Blocks lie in both as they do in `params`: a stacked
    leaf that is trained from some block on is in both, its blocks below frozen. `join_frozen` puts
    them together again.
    """
    computed, method = encoder_shape.words.computed, choose_tuning_method(encoder_shape)
    if method.trains_matrices and not computed:
        return params, None

    # Blocks one by one: a method may train an array of the upper ones alone.
    blocks_apart = traverse_util.flatten_dict(layout.separate_blocks(params))
    was_stacked = blocks_apart.keys() != traverse_util.flatten_dict(params).keys()
    # Stacks begin with the block above those that are frozen whole.
    first_block = encoder_shape.tuning.frozen_layers or 0
    trained, frozen = {}, {}
    for names, leaf in blocks_apart.items():
        path, number = layout.parse('/'.join(names))
        first_trained = None
        if path not in computed:
            first_trained = method.trained_from(path)
        if first_trained is None:
            frozen[names] = leaf
        elif number is None or first_block + number >= first_trained:
            trained[names] = leaf
        elif is_added(path):
            # What the method adds to a block below changes nothing there.
            frozen[names] = jnp.full_like(leaf, find_neutral(path))
        else:
            frozen[names] = leaf
    trained = traverse_util.unflatten_dict(trained)
    frozen = traverse_util.unflatten_dict(frozen)
    if was_stacked:
        return layout.stack_blocks(trained), layout.stack_blocks(frozen)
    return trained, frozen


def join_frozen(params: Any, frozen: Any) -> Any:
    """Return a model's parameters of what is trained and what is frozen, from `split_frozen`."""
    if frozen is None:
        return params
    whole = traverse_util.flatten_dict(frozen)
    for names, leaf in traverse_util.flatten_dict(params).items():
        # A leaf in both trees is a stack, of which the frozen blocks are the lower ones.
        if names in whole:
            leaf = jnp.concatenate([whole[names], leaf])
        whole[names] = leaf
    return traverse_util.unflatten_dict(whole)


def count_weights(params: Any, encoder_shape: ModelConfig) -> int:
    """Count the weights of a tree: those of a whole model, or what its tuning trains of it.

    encoder_shape: the model's. Rows that pad the vocabulary's tables for the hardware are none.
    """
    count = 0
    for path, leaf in group_by_path(params).items():
        count += leaf.size - count_padding_rows(path, encoder_shape) * math.prod(leaf.shape[1:])
    return count


def count_checkpoint_bytes(state: TrainState) -> int:
    """Return bytes of a checkpoint of the state, before compression; the arrays may be abstract."""
    leaves = jax.tree.leaves(state._replace(frozen=None))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def make_state(params: Any, optimizer: Optimizer, frozen: Any = None) -> TrainState:
    """Return a state at step 0 around given parameters, and `frozen` ones beside them."""
    # The moments' shapes follow from the parameters alone: any scalars do to make them.
    zero = Hparams(*(0.0 for _ in Hparams._fields))
    count = jnp.zeros((), jnp.int32)
    return TrainState(params, make_optimizer(optimizer, zero, 0).init(params), count, count, frozen)


def create_state(
    model: Any,
    seed: int,
    optimizer: Optimizer,
    mesh: jax.sharding.Mesh,
    shard_optimizer: bool = False,
    encoder: ModelConfig | None = None,
) -> TrainState:
    """Return a fresh state, made on the mesh: no device ever holds what is not its part.

    Args:
      model: anything with flax's `init` that reads what `init_params` gives it.
      seed: of the parameters.
      optimizer: its settings, or an optax one of your own.
      mesh: the devices.
      shard_optimizer: whether weights and moments are split over `data`.
      encoder: the model's, whose arrays that are not trained are then frozen in the state
        (`split_frozen`).
    """
    # Shapes tell the places, and the places are given to the program that makes the arrays.
    places = choose_shardings(
        compute_state_shapes(model, optimizer, encoder), mesh, shard_optimizer
    )
    make = jax.jit(_make_state_maker(model, optimizer, encoder), out_shardings=places)
    return make(np.uint32(seed))


def describe_state(
    model: Any,
    optimizer: Optimizer,
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    shard_optimizer: bool = False,
    encoder: ModelConfig | None = None,
) -> TrainState:
    """Return what create_state would make, as ShapeDtypeStructs with their shardings."""

    def place(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    state = compute_state_shapes(model, optimizer, encoder)
    return jax.tree.map(place, state, choose_shardings(state, mesh, shard_optimizer))


@functools.lru_cache(maxsize=1)
def compute_state_shapes(
    model: Any, optimizer: Optimizer, encoder: ModelConfig | None = None
) -> TrainState:
    """Return a train state's shapes, without places; kept, as a search asks for them often."""
    return jax.eval_shape(_make_state_maker(model, optimizer, encoder), np.uint32(0))


def compute_parameter_shapes(model: Any) -> Any:
    """Return the shapes of a model's parameters, stacked."""
    return jax.eval_shape(_make_initialiser(model), np.uint32(0))


# To trace a model takes longer than to read a compiled program. jax keeps the trace of a function
# that it is given again, so these are the same functions for the same model.
@functools.lru_cache(maxsize=2)
def _make_initialiser(model: Any) -> Callable[[Any], Any]:
    return jax.jit(functools.partial(init_params, model))


@functools.lru_cache(maxsize=2)
def _make_state_maker(
    model: Any, optimizer: Optimizer, encoder: ModelConfig | None
) -> Callable[[Any], TrainState]:
    def make(seed: jax.Array) -> TrainState:
        params = layout.arrange_for_model(_make_initialiser(model)(seed), model)
        if encoder is None:
            return make_state(params, optimizer)
        trained, frozen = split_frozen(params, encoder)
        return make_state(trained, optimizer, frozen)

    return make


def load_params_into(
    params: Any, source: Mapping[str, Any], name: str, subtree: str | None = None
) -> Any:
    """Return `params` with the leaves of `source`, placed as they were; or of its `subtree` alone.

    `name` is the source's in errors. UserError where names or shapes do not match; nothing is
    left out silently.
    """
    # Only what is replaced is compared: with a subtree the rest of the source may be anything.
    old, new = dict(params), dict(source)
    if subtree is not None:
        old = {subtree: params[subtree]}
        new = {name: tree for name, tree in source.items() if name == subtree}
    new = layout.stack_blocks(new)
    _check_shapes(_list_shapes_at_rest(old), _list_shapes_at_rest(new), name)

    def place(replaced: jax.Array, leaf: Any) -> jax.Array:
        # In the dtype of the leaf that it replaces, and straight to the devices where that lies.
        return jax.device_put(np.asarray(leaf, replaced.dtype), replaced.sharding)

    placed = jax.tree.map(place, old, layout.arrange_like(new, old))
    return {**params, **placed}


def _list_shapes_at_rest(params: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of each leaf by its path, blocks stacked."""
    leaves = group_by_path(jax.eval_shape(layout.stack_blocks, params))
    return {path: leaf.shape for path, leaf in leaves.items()}


def _check_shapes(
    wanted: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]], name: str
) -> None:
    """Raise UserError where names or shapes differ; it tells how much does, not only the first."""
    differ = []
    for path in sorted({*wanted, *given}):
        here, there = wanted.get(path, 'absent'), given.get(path, 'absent')
        if here != there:
            differ.append(f'{path}: {there} there, {here} here')
    if differ:
        raise UserError(
            f'{name}: its weights do not fit this model ({"; ".join(differ[:3])}; {len(differ)} in'
            ' all): use the same model settings'
        )


def load_moments(state: TrainState, source: Mapping[str, Any], name: str) -> TrainState:
    """Return `state` with both moments and the count of updates of another run, at its own step.

    source: {path in that run's optimizer state: numpy array}. `name` is the source's in UserError,
    where names or shapes do not match.
    """
    # Behind the number of the transformation, which clipping and freezing change.
    below = {path.partition('/')[2]: leaf for path, leaf in source.items()}
    tree = traverse_util.unflatten_dict(below, sep='/')
    given = {moment: tree.get(moment, {}) for moment in ('mu', 'nu')}

    def holds_moments(entry: Any) -> bool:
        return isinstance(entry, optax.ScaleByAdamState)

    def place(entry: Any) -> Any:
        if not holds_moments(entry):
            return entry
        moments = load_params_into({'mu': entry.mu, 'nu': entry.nu}, given, name)
        count = jax.device_put(np.asarray(tree['count'], entry.count.dtype), entry.count.sharding)
        return optax.ScaleByAdamState(count, moments['mu'], moments['nu'])

    opt_state = jax.tree.map(place, state.opt_state, is_leaf=holds_moments)
    return state._replace(opt_state=opt_state)


def load_frozen(state: TrainState, params: Mapping[str, Any], name: str) -> TrainState:
    """Return `state` with its frozen arrays as they are in `params`; as it was if it has none.

    params: numpy arrays, of the whole model or of those arrays alone. `name` is the source's in
    UserError, where a shape does not match.
    """
    if state.frozen is None:
        return state
    given = traverse_util.flatten_dict(dict(params))
    at_rest = jax.eval_shape(layout.stack_blocks, state.frozen)
    wanted = {names: given[names] for names in traverse_util.flatten_dict(at_rest)}
    frozen = load_params_into(state.frozen, traverse_util.unflatten_dict(wanted), name)
    return state._replace(frozen=frozen)


def load_encoder(
    state: TrainState,
    encoder: Mapping[str, Any],
    encoder_shape: ModelConfig,
    name: str,
    shared: Mapping[str, Any] = types.MappingProxyType({}),
) -> TrainState:
    """Return `state` with the weights of a source's encoder; what is no weight of BERT's stays.

    Args:
      state: a fresh one.
      encoder: numpy arrays, all blocks in one stack.
      encoder_shape: the model of the state.
      name: the source's, for errors.
      shared: arrays of other parts that go along, by name.

    Raises:
      UserError: names or shapes do not match.
    """
    # In the model's own layout: blocks that are frozen whole stand in a stack of their own.
    below, layers = encoder_shape.tuning.frozen_layers or 0, encoder['layers']
    if below:
        encoder = {
            **encoder,
            layout.BELOW: layout.cut(layers, 0, below),
            'layers': layout.cut(layers, below, None),
        }
    trained, frozen = split_frozen({'encoder': encoder}, encoder_shape)

    params = _load_with_added(state.params, trained, name)
    for part in shared:
        params = load_params_into(params, shared, name, part)
    state = state._replace(params=params)
    if frozen is not None:
        state = state._replace(frozen=_load_with_added(state.frozen, frozen, name))
    return state


def _load_with_added(params: Any, encoder: Mapping[str, Any], name: str) -> Any:
    """Return `params` with a source's encoder, which has nothing of what tuning adds."""
    added = {}
    for names, leaf in traverse_util.flatten_dict(params).items():
        if is_added('/'.join(names)):
            added[names] = leaf
    at_rest = traverse_util.flatten_dict(layout.stack_blocks(traverse_util.unflatten_dict(added)))
    whole = traverse_util.flatten_dict(encoder) | at_rest
    return load_params_into(params, traverse_util.unflatten_dict(whole), name, 'encoder')
