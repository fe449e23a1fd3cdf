"""What ONNX has one node for, found among the operations that it is made of in jax.

An engine has a fast kernel for each of them. Each function is given the last operation of a
pattern; what came before it stays in the graph until `program.py` drops what nothing reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.conversion.onnx.graph import Graph, Made, Value

# They change no number.
_SAME = {'broadcast_in_dim', 'stop_gradient', 'name', 'copy', 'copy_p', 'reshape'}
_GELU = 20  # the opset that has it


def find(graph: Graph, made: Made) -> tuple[str, Made] | None:
    """Return (the name of what one node gives in place of an operation, what it is), or None."""
    for pattern in PATTERNS.get(made.name, ()):
        if (fused := pattern(graph, made)) is not None:
            return fused
    return None


def _bare(value: Value) -> Value:
    """Return the value of which this one is a copy, broadcast or in another shape."""
    while value.made and value.made.name in _SAME:
        value = value.made.inputs[0]
    return value


def _is(value: Value, name: str, params: str = '', wanted: object = None) -> Made | None:
    """Return what made a value, where that was the operation of that name."""
    made = _bare(value).made
    if made is None or made.name != name:
        return None
    return None if params and made.params[params] != wanted else made


def _number(value: Value) -> float | None:
    """Return the one number of a constant."""
    array = _bare(value).array
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def _near(value: Value, number: float) -> bool:
    held = _number(value)
    return held is not None and math.isclose(held, number, rel_tol=1e-5)


def _is_vector(value: Value) -> bool:
    """Whether a value is a constant that has an entry for each place of the last axis."""
    return value.array is not None and value.shape[-1:] == (value.array.size,)


def _over_last(value: Value, name: str) -> Value | None:
    """Return what is reduced over its last axis to make a value."""
    if (made := _is(value, name)) is None:
        return None
    of = made.inputs[0]
    return of if tuple(made.params['axes']) == (len(of.shape) - 1,) else None


def _mean(value: Value) -> Value | None:
    """Return what a value is the mean of, over the last axis."""
    if (made := _is(value, 'div')) is None:
        return None
    of = _over_last(made.inputs[0], 'reduce_sum')
    return of if of is not None and _number(made.inputs[1]) == of.shape[-1] else None


def _softmax(graph: Graph, made: Made) -> tuple[str, Made] | None:
    """Find exp(z) / sum(exp(z)); what is subtracted from all of a row leaves it as it is."""
    powers, total = made.inputs
    of, power = _over_last(total, 'reduce_sum'), _is(powers, 'exp')
    if power is None or of is None or _bare(of) is not _bare(powers):
        return None
    scores = power.inputs[0]
    if (shifted := _is(scores, 'sub')) and _over_last_max(shifted.inputs[1]):
        scores = shifted.inputs[0]
    name = graph.node('Softmax', graph.whole(scores), axis=-1)
    return name, Made('softmax', (scores,), {})


def _over_last_max(value: Value) -> bool:
    """Whether a value is the greatest of a row, or that and a constant's greater."""
    if made := _is(value, 'max'):
        return any(_over_last(side, 'reduce_max') is not None for side in made.inputs)
    return _over_last(value, 'reduce_max') is not None


def _layer_norm(graph: Graph, made: Made) -> tuple[str, Made] | None:
    """Find (x - mean) / sqrt(variance + epsilon) times a scale."""
    for side, scale in (made.inputs, made.inputs[::-1]):
        if not _is_vector(scale):
            continue
        if (normed := _is(side, 'mul')) is None or (root := _is(normed.inputs[1], 'rsqrt')) is None:
            continue
        centred, total = normed.inputs[0], _is(root.inputs[0], 'add')
        difference = _is(centred, 'sub')
        if total is None or difference is None or (epsilon := _number(total.inputs[1])) is None:
            continue
        squares, x = _mean(total.inputs[0]), difference.inputs[0]
        square = None if squares is None else _is(squares, 'square')
        if not square or square.inputs[0] is not centred or _mean(difference.inputs[1]) is not x:
            continue
        attributes: dict[str, Any] = {'epsilon': epsilon, 'axis': -1}
        inputs = graph.whole(x), graph.weight(np.ravel(np.asarray(scale.array)), _bare(scale).name)
        name = graph.node('LayerNormalization', *inputs, **attributes)
        return name, Made('layer_norm', (x, scale), attributes)
    return None


def _layer_norm_bias(graph: Graph, made: Made) -> tuple[str, Made] | None:
    """Find a bias on what `_layer_norm` has found."""
    normed, bias = made.inputs
    if normed.made is None or normed.made.name != 'layer_norm':
        return None
    if not _is_vector(bias):
        return None
    x, scale = normed.made.inputs
    assert scale.array is not None
    vectors = [
        graph.weight(vector.array.reshape(-1), _bare(vector).name)  # type: ignore[union-attr]
        for vector in (scale, bias)
    ]
    name = graph.node('LayerNormalization', graph.whole(x), *vectors, **normed.made.params)
    return name, Made('layer_norm_bias', (x, scale, bias), {})


def _gelu_erf(graph: Graph, made: Made) -> tuple[str, Made] | None:
    """Find x/2 erfc(-x / sqrt(2))."""
    half, tail = made.inputs
    halved, complement = _is(half, 'mul'), _is(tail, 'erfc')
    if halved is None or complement is None or not _near(halved.inputs[0], 0.5):
        return None
    x, scaled = halved.inputs[1], _is(complement.inputs[0], 'mul')
    negative = scaled and _is(scaled.inputs[0], 'neg')
    if not scaled or not negative or _bare(negative.inputs[0]) is not _bare(x):
        return None
    if not _near(scaled.inputs[1], math.sqrt(0.5)):
        return None
    name = graph.whole(x)
    if graph.opset >= _GELU:
        return graph.node('Gelu', name), Made('gelu', (x,), {})
    # In the form that engines know as one operation.
    number = lambda value: graph.weight(np.array(value, np.float32))
    erf = graph.node('Erf', graph.node('Div', name, number(math.sqrt(2))))
    product = graph.node('Mul', name, graph.node('Add', erf, number(1)))
    return graph.node('Mul', product, number(0.5)), Made('gelu', (x,), {})


def _gelu_tanh(graph: Graph, made: Made) -> tuple[str, Made] | None:
    """Find x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    x, product = made.inputs
    halved = _is(product, 'mul')
    above = halved and _near(halved.inputs[0], 0.5) and _is(halved.inputs[1], 'add')
    bent = above and _near(above.inputs[0], 1) and _is(above.inputs[1], 'tanh')
    scaled = bent and _is(bent.inputs[0], 'mul')
    total = (
        scaled and _near(scaled.inputs[0], math.sqrt(2 / math.pi)) and _is(scaled.inputs[1], 'add')
    )
    third = total and total.inputs[0] is x and _is(total.inputs[1], 'mul')
    power = (
        third and _near(third.inputs[0], 0.044715) and _is(third.inputs[1], 'integer_pow', 'y', 3)
    )
    if not power or power.inputs[0] is not x:
        return None
    name = graph.whole(x)
    if graph.opset >= _GELU:
        return graph.node('Gelu', name, approximate='tanh'), Made('gelu', (x,), {})
    number = lambda value: graph.weight(np.array(value, np.float32))
    cube = graph.node('Mul', number(0.044715), graph.node('Pow', name, number(3)))
    inner = graph.node('Mul', number(math.sqrt(2 / math.pi)), graph.node('Add', name, cube))
    outer = graph.node('Add', number(1), graph.node('Tanh', inner))
    product = graph.node('Mul', graph.node('Mul', name, number(0.5)), outer)
    return product, Made('gelu', (x,), {})


# By the last operation of each.
PATTERNS: dict[str, tuple[Callable[[Graph, Made], tuple[str, Made] | None], ...]] = {
    'div': (_softmax,),
    'mul': (_layer_norm, _gelu_erf, _gelu_tanh),
    'add': (_layer_norm_bias,),
}
