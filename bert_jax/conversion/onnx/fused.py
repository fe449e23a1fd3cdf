"""What ONNX has one node for, found among the operations that it is made of in jax.

An engine has a fast kernel for each of them. What is looked for is a formula, as jax traces it,
from its last operation back; what came before that stays in the graph until `program.py` drops what
nothing reads.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bert_jax.conversion.onnx.graph import Graph, Made, Value
from bert_jax.conversion.onnx.primitives import SAME

# They change no number.
_SAME = SAME | {'broadcast_in_dim', 'reshape'}
_GELU = 20  # the opset that has it


def find(graph: Graph, made: Made) -> str | None:
    """Return the name of what one node gives in place of an operation, if there is one."""
    end = Value((), np.dtype(np.float32), made=made)
    for formula, make in _FUSED.items():
        operations, inputs, result = _traced(formula)
        values: dict[Any, Value] = {}
        if _matches(operations, result, end, values):
            name = make(graph, *(values[variable] for variable in inputs))
            if name is not None:
                return name
    return None


@functools.cache
def _traced(formula: Callable[..., Array]) -> tuple[dict[Any, Any], list[Any], Any]:
    """Return ({variable: the operation that gives it}, the inputs, the result) of a formula."""
    matrices = [jnp.zeros((2, 2))] * len(inspect.signature(formula).parameters)
    jaxpr = jax.make_jaxpr(formula)(*matrices).jaxpr
    operations = {equation.outvars[0]: equation for equation in jaxpr.eqns}
    return operations, jaxpr.invars, jaxpr.outvars[0]


def _matches(
    operations: Mapping[Any, Any], atom: Any, value: Value, values: dict[Any, Value]
) -> bool:
    """Whether a value is made as `atom` of a formula is; `values` gets what its variables are."""
    if hasattr(atom, 'val'):
        number = _number(value)
        return number is not None and math.isclose(number, atom.val, rel_tol=1e-5)
    operation = operations.get(atom)
    if operation is not None and operation.primitive.name in _SAME:
        return _matches(operations, operation.invars[0], value, values)
    value = value if operation is None else _bare(value)
    if values.setdefault(atom, value) is not value:
        return False
    if operation is None:  # an input, which may be anything
        return True
    made = value.made
    if made is None or made.name != operation.primitive.name:
        return False
    # All that is reduced is reduced over the last axis.
    axes = made.params.get('axes')
    if axes is not None and tuple(axes) != (len(made.inputs[0].shape) - 1,):
        return False
    return made.params.get('y') == operation.params.get('y') and all(
        _matches(operations, part, of, values) for part, of in zip(operation.invars, made.inputs)
    )


def _bare(value: Value) -> Value:
    """Return the value of which this one is a copy, broadcast or in another shape."""
    while value.made and value.made.name in _SAME:
        value = value.made.inputs[0]
    return value


def _number(value: Value) -> float | None:
    """Return the one number of a constant."""
    array = _bare(value).array
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def _softmax(scores: Array, shift: Array) -> Array:
    powers = jnp.exp(scores - shift)
    return powers / powers.sum(-1, keepdims=True)


def _to_softmax(graph: Graph, scores: Value, shift: Value) -> str | None:
    # What is subtracted from all of a row leaves it as it is.
    is_same = shift.held[-1:] in ((), (1,))
    return graph.node('Softmax', graph.whole(scores), axis=-1) if is_same else None


def _layer_norm(x: Array, n: Array, m: Array, epsilon: Array, scale: Array) -> Array:
    centred = x - x.sum(-1, keepdims=True) / n
    variance = jnp.square(centred).sum(-1, keepdims=True) / m
    return centred * jax.lax.rsqrt(variance + epsilon) * scale


def _layer_norm_bias(
    x: Array, n: Array, m: Array, epsilon: Array, scale: Array, bias: Array
) -> Array:
    return _layer_norm(x, n, m, epsilon, scale) + bias


def _to_layer_norm(
    graph: Graph, x: Value, n: Value, m: Value, epsilon: Value, *vectors: Value
) -> str | None:
    small, weights = _number(epsilon), []
    if small is None or not _number(n) == _number(m) == x.shape[-1]:
        return None
    for vector in vectors:
        # A constant that has an entry for each place of the last axis.
        if vector.array is None or vector.shape[-1:] != (vector.array.size,):
            return None
        weights.append(graph.weight(vector.array.reshape(-1), _bare(vector).name))
    return graph.node('LayerNormalization', graph.whole(x), *weights, epsilon=small, axis=-1)


def _gelu(x: Array) -> Array:
    return x * (0.5 * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _to_gelu(graph: Graph, x: Value) -> str:
    name = graph.whole(x)
    if graph.opset >= _GELU:
        return graph.node('Gelu', name, approximate='tanh')
    # In the form that engines know as one operation.
    number = lambda value: graph.weight(np.array(value, np.float32))
    cube = graph.node('Mul', number(0.044715), graph.node('Pow', name, number(3)))
    inner = graph.node('Mul', number(math.sqrt(2 / math.pi)), graph.node('Add', name, cube))
    outer = graph.node('Add', number(1), graph.node('Tanh', inner))
    return graph.node('Mul', graph.node('Mul', name, number(0.5)), outer)


# A formula, and what makes a node of its inputs, or finds that these are of another kind.
_FUSED: dict[Callable[..., Array], Callable[..., str | None]] = {
    _softmax: _to_softmax,
    _layer_norm: _to_layer_norm,
    _layer_norm_bias: _to_layer_norm,
    _gelu: _to_gelu,
}
