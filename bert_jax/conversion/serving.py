"""A model as one function of arrays, and as a file that serves where this project is absent.

Owns that function and its form as a StableHLO artifact of jax.export, which takes any number of
rows of any length up to the position table, and keeps the weights apart from the program. What
each class of model takes and gives, and the axes of it, is in train/task_heads.py. Must not know
texts, tokenizers or labels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax import Array, export
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.conversion.parameters import Tensors, join_names
from bert_jax.conversion.trained_model import Model
from bert_jax.mesh.sharding import group_by_path
from bert_jax.model import layout
from bert_jax.model.blocks import matmul
from bert_jax.train.head_base import PARTS
from bert_jax.train.state import init_params

_WORDS = 'embeddings/word'
PLATFORMS = ('cpu', 'cuda', 'tpu')  # of one StableHLO artifact; jax's names
# (parameters, batch) -> outputs by name.
Function = Callable[[Mapping[str, Any], Mapping[str, Array]], dict[str, Array]]


def make_forward(model: Model, dtype: DTypeLike = jnp.float32) -> Function:
    """-> call(params, batch) -> {output of the model's class: float32 array}.

    `params` as in `model.params`, `batch` as the class's head in train/task_heads.py reads it;
    layers are computed in `dtype`.
    """
    config, head = model.config, model.row
    dtype, read = matmul.choose_inference_products(dtype)
    module = head.model(config, dtype, model.outputs, sentence=model.sentence)
    module = module.clone(matmul_dtype=read)

    def call(params: Mapping[str, Any], batch: Mapping[str, Array]) -> dict[str, Array]:
        result = module.apply({'params': fill_up(module, params, head.parts)}, batch)
        outputs = head.read_outputs(result, config)
        return dict(zip(head.output_names, outputs, strict=True))

    return call


def fill_up(module: Any, params: Mapping[str, Any], read: Collection[str]) -> dict[str, Any]:
    """Return `params` with zeros for the arrays of `module` that it lacks.

    Only parts that are not `read` may be missing: no program computes their output.

    Raises:
      UserError: other arrays are missing.
    """
    # Shapes alone are needed: the module is traced, not computed.
    wanted, given = (
        group_by_path(jax.eval_shape(lambda: init_params(module, 0))),
        group_by_path(params),
    )
    at_rest = {layout.parse(path)[0] for path in given}
    unread = tuple(part.path for name, part in PARTS.items() if name not in read)
    missing, filled = [], {}
    for path, leaf in wanted.items():
        if path not in at_rest:
            filled[path] = jnp.zeros(leaf.shape, leaf.dtype)
            if not path.startswith(unread):
                missing.append(path)
    if missing:
        raise UserError(f'this model lacks {join_names(missing)}: its weights are not whole')
    return nest(filled | given)


def nest(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of weights by name: the inverse of `group_by_path`."""
    return traverse_util.unflatten_dict(weights, sep='/')


def cast_stored(name: str, array: np.ndarray, compute_dtype: DTypeLike) -> np.ndarray:
    """Return an array of a model that computes in `compute_dtype` as it is kept.

    The blocks' matrices and the word table are read as bfloat16 then, and take half as bfloat16.
    `name` is its path.
    """
    if jnp.dtype(compute_dtype) != jnp.bfloat16:
        return array
    name = layout.parse(name)[0]
    is_matrix = name.endswith('/kernel') and any(f'{of}/' in name for of in layout.STACKS)
    return array.astype(jnp.bfloat16) if is_matrix or name.endswith(_WORDS) else array


def select_weights(model: Model, compute_dtype: DTypeLike = jnp.float32) -> Tensors:
    """Return the model's arrays by name, without the parts that its class does not have.

    They are as `cast_stored` has them.
    """
    used = model.row.parts
    unused = tuple(part.path for name, part in PARTS.items() if name not in used)
    weights = {}
    for name, leaf in group_by_path(model.params).items():
        if not name.startswith(unused):
            weights[name] = cast_stored(name, np.asarray(leaf), compute_dtype)
    return weights


def make_inputs(model: Model) -> dict[str, jax.ShapeDtypeStruct]:
    """Return what the model's class reads, with symbols for sizes.

    So one program takes any number of rows of any length, as far as there are positions.
    """
    scope, inputs = export.SymbolicScope([f't <= {model.config.max_position}']), {}
    for name, axes in model.row.inputs.items():
        shape = export.symbolic_shape(axes, scope=scope)
        inputs[name] = jax.ShapeDtypeStruct(shape, jnp.int32)
    return inputs


def export_stablehlo(model: Model, compute_dtype: DTypeLike = jnp.float32) -> bytes:
    """Return the function (weights, batch) -> outputs, all by name, serialised.

    For cpu, cuda and tpu, as jax.export.deserialize reads it. The weights that it takes are those
    of `select_weights` for the same `compute_dtype`.
    """
    weights = {}
    for name, leaf in select_weights(model, compute_dtype).items():
        weights[name] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)

    # Weights are arguments of the program, not constants in it: large's would be 1.3 GB in the
    # artifact.
    call = make_forward(model, compute_dtype)
    exported = export.export(
        jax.jit(lambda weights, batch: call(nest(weights), batch)), platforms=PLATFORMS
    )(weights, make_inputs(model))
    return bytes(exported.serialize())
