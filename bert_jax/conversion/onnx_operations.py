"""The table of jax's operations: which nodes of ONNX each becomes.

Owns that correspondence and nothing else. A row is given the graph, what the operation reads, its
parameters and the type of its result, and returns the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.conversion.onnx_graph import Graph, Made, Value


class Call(NamedTuple):
    """An operation that is to become nodes.

    Attributes:
      graph: where they go.
      inputs: what it reads.
      params: its parameters, as jax has them.
      shapes: of its results; sizes may be symbolic.
      dtypes: of its results.
    """

    graph: Graph
    inputs: tuple[Value, ...]
    params: dict[str, Any]
    shapes: tuple[tuple[Any, ...], ...]
    dtypes: tuple[np.dtype, ...]

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of its one result."""
        return self.shapes[0]

    def make_result(self, name: str, held: Sequence[Any] | None = None) -> Value:
        """Return its one result, of that name in the graph."""
        return Value(self.shape, self.dtypes[0], name, held)

    def read_wholes(self) -> list[str]:
        """Return the names of what it reads, every axis as long as its shape says."""
        return [self.graph.read_whole(value) for value in self.inputs]

    def add_elementwise(self, op: str, *inputs: Value, **attributes: Any) -> Value:
        """Return what `op` gives entry by entry; broadcasts are left to it."""
        inputs = inputs or self.inputs
        names = [self.graph.read(value) for value in inputs]
        return self.make_result(
            self.graph.add_node(op, *names, **attributes), _find_common_axes(inputs)
        )

    def make_scalar(self, number: float) -> Value:
        """Return a constant of the type that it reads."""
        array = np.array(number, self.inputs[0].dtype)
        return Value((), array.dtype, array=array)


Row = Callable[[Call], Any]


def onnx_type(dtype: np.dtype) -> int:
    """Return ONNX's number of a type."""
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _find_common_axes(values: Sequence[Value]) -> tuple[Any, ...]:
    """Return the axes of what is computed of some values entry by entry, as they are held."""
    axes: list[Any] = [1] * max(len(value.held) for value in values)
    for value in values:
        for axis, size in enumerate(value.held, start=len(axes) - len(value.held)):
            if size != 1 and axes[axis] == 1:
                axes[axis] = size
    return tuple(axes)


def _elementwise(op: str) -> Row:
    return lambda call: call.add_elementwise(op)


def _either(of_numbers: str, of_truths: str) -> Row:
    """Return the row of an operation that ONNX calls otherwise for booleans."""

    def row(call: Call) -> Value:
        return call.add_elementwise(of_truths if call.inputs[0].dtype == bool else of_numbers)

    return row


def _reduce(op: str) -> Row:
    def row(call: Call) -> Value:
        axes, graph = list(map(int, call.params['axes'])), call.graph
        name = graph.read_whole(call.inputs[0])
        # Axes became an input of the sum first, and of the maximum later.
        if op == 'ReduceSum' or graph.opset >= 18:
            return call.make_result(graph.add_node(op, name, graph.add_integers(*axes), keepdims=0))
        return call.make_result(graph.add_node(op, name, axes=axes, keepdims=0))

    return row


def _integer_pow(call: Call) -> Value:
    if call.params['y'] == 2:
        return call.add_elementwise('Mul', *call.inputs * 2)
    return call.add_elementwise('Pow', *call.inputs, call.make_scalar(call.params['y']))


def _rsqrt(call: Call) -> Value:
    return call.add_elementwise('Reciprocal', call.add_elementwise('Sqrt'))


def _log1p(call: Call) -> Value:
    grown = call.add_elementwise('Add', *call.inputs, call.make_scalar(1))
    return call.add_elementwise('Log', grown)


def _erfc(call: Call) -> Value:
    return call.add_elementwise('Sub', call.make_scalar(1), call.add_elementwise('Erf'))


def _select(call: Call) -> Value:
    which, false, true = call.inputs
    return call.add_elementwise('Where', which, true, false)


def _clamp(call: Call) -> Value:
    lower, value, upper = call.inputs
    return call.add_elementwise('Min', call.add_elementwise('Max', value, lower), upper)


def _convert(call: Call) -> Value:
    if call.dtypes[0] == call.inputs[0].dtype:
        return call.inputs[0]
    return call.add_elementwise('Cast', to=onnx_type(call.dtypes[0]))


def _broadcast(call: Call) -> Value:
    """Put in the axes that are missing; longer ones are left to what reads them."""
    value, into = call.inputs[0], tuple(call.params['broadcast_dimensions'])
    held: list[Any] = [1] * len(call.shape)
    for axis, size in zip(into, value.held):
        held[axis] = size
    if value.array is not None:
        return Value(call.shape, value.dtype, value.name, held, value.array.reshape(held))
    name, added = value.name, [axis for axis in range(len(call.shape)) if axis not in into]
    if added:
        name = call.graph.add_node('Unsqueeze', name, call.graph.add_integers(*added))
    return call.make_result(name, held)


def _reshape(call: Call) -> Value:
    before, after, graph = call.inputs[0], call.shape, call.graph
    name = graph.read_whole(before)
    # An axis that stays is 0 and one other may be open: so no size has to be computed.
    plain = []
    for axis, size in enumerate(after):
        if isinstance(size, int):
            plain.append(size)
        elif axis < len(before.shape) and before.shape[axis] == size:
            plain.append(0)
        else:
            plain.append(-1)
    sizes = graph.add_integers(*plain) if plain.count(-1) <= 1 else graph.add_sizes(after)
    return call.make_result(graph.add_node('Reshape', name, sizes))


def _squeeze(call: Call) -> Value:
    axes = [int(axis) for axis in call.params['dimensions']]
    value = call.inputs[0]
    held = [size for axis, size in enumerate(value.held) if axis not in axes]
    name = call.graph.read(value)
    return call.make_result(
        call.graph.add_node('Squeeze', name, call.graph.add_integers(*axes)), held
    )


def _transpose(call: Call) -> Value:
    value, order = call.inputs[0], tuple(map(int, call.params['permutation']))
    # Two in a row are one, or none.
    if value.made and value.made.name == 'transpose':
        inner = tuple(map(int, value.made.params['permutation']))
        value, order = value.made.inputs[0], tuple(inner[axis] for axis in order)
    if order == tuple(range(len(order))):
        return value
    held = [value.held[axis] for axis in order]
    name = call.graph.add_node('Transpose', call.graph.read(value), perm=order)
    made = Made('transpose', (value,), {'permutation': order})
    return Value(call.shape, value.dtype, name, held, made=made)


def _concatenate(call: Call) -> Value:
    return call.make_result(
        call.graph.add_node('Concat', *call.read_wholes(), axis=call.params['dimension'])
    )


def _pad(call: Call) -> Value:
    config, graph = call.params['padding_config'], call.graph
    if any(inner or low < 0 or high < 0 for low, high, inner in config):
        raise NotImplementedError(f'pad {config}')
    ends = graph.add_integers(*(low for low, _, _ in config), *(high for _, high, _ in config))
    name, filled = call.read_wholes()
    return call.make_result(graph.add_node('Pad', name, ends, filled))


def _split(call: Call) -> list[Value]:
    sizes = list(map(int, call.params['sizes']))
    pieces = call.graph.add_node(
        'Split', call.read_wholes()[0], call.graph.add_integers(*sizes),
        axis=call.params['axis'], outputs=len(sizes),
    )  # fmt: skip
    names = [pieces] if len(sizes) == 1 else pieces
    return list(map(Value, call.shapes, call.dtypes, names))


def _cut(
    graph: Graph,
    value: Value,
    starts: Sequence[Any],
    ends: Sequence[Any],
    strides: Sequence[int] | None = None,
) -> str:
    """Return the name of a part of an array; axes that stay whole are not cut."""
    axes, steps = [], strides or [1] * len(value.shape)
    for axis, size in enumerate(value.shape):
        if (starts[axis], ends[axis], steps[axis]) != (0, size, 1):
            axes.append(axis)
    name = graph.read_whole(value)
    if not axes:
        return name
    first = graph.add_sizes([starts[axis] for axis in axes])
    last = graph.add_sizes([ends[axis] for axis in axes])
    of_axes, of_steps = (
        graph.add_integers(*axes),
        graph.add_integers(*(steps[axis] for axis in axes)),
    )
    return graph.add_node('Slice', name, first, last, of_axes, of_steps)


def _slice(call: Call) -> Value:
    bounds = (call.params[name] for name in ('start_indices', 'limit_indices', 'strides'))
    return call.make_result(_cut(call.graph, call.inputs[0], *bounds))


def _iota(call: Call) -> Value:
    graph, axis = call.graph, call.params['dimension']
    zero = graph.add_weight(np.array(0, np.int64))
    step = graph.add_weight(np.array(1, np.int64))
    count = graph.add_node('Squeeze', graph.add_size(call.shape[axis]), graph.add_integers(0))
    name = graph.add_node('Range', zero, count, step)
    name = graph.add_node('Cast', name, to=onnx_type(call.dtypes[0]))
    held: list[Any] = [1] * len(call.shape)
    held[axis] = call.shape[axis]
    added = [number for number in range(len(held)) if number != axis]
    if added:
        name = graph.add_node('Unsqueeze', name, graph.add_integers(*added))
    return call.make_result(name, held)


def _size(call: Call) -> Value:
    name = call.graph.add_node(
        'Squeeze', call.graph.add_size(call.params['dim']), call.graph.add_integers(0)
    )
    return call.make_result(call.graph.add_node('Cast', name, to=onnx_type(call.dtypes[0])))


def _gather(call: Call) -> Value:
    """Make of a general gather a look-up of rows, one within each row of a batch, or a part."""
    graph, (data, indices) = call.graph, call.inputs
    of, sizes = call.params['dimension_numbers'], call.params['slice_sizes']
    batch, mapped = tuple(of.operand_batching_dims), tuple(of.start_index_map)
    # Where the places are constants it is a part of the array.
    if indices.array is not None and not batch and len(indices.shape) == 1:
        starts, ends = [0] * len(data.shape), list(sizes)
        for axis, start in zip(mapped, indices.constant()):
            starts[axis] = int(start)
            ends[axis] += int(start)
        name, gone = _cut(graph, data, starts, ends), list(map(int, of.collapsed_slice_dims))
        return call.make_result(
            graph.add_node('Squeeze', name, graph.add_integers(*gone)) if gone else name
        )
    # Else whole rows, each at the place that its index has on one axis.
    batched, name = len(call.shape) - len(of.offset_dims), graph.read_whole(data)
    is_row = len(mapped) == 1 and tuple(of.collapsed_slice_dims) == mapped
    is_row = is_row and tuple(of.offset_dims) == tuple(range(batched, len(call.shape)))
    for axis, size in enumerate(data.shape):
        is_row = is_row and (axis in mapped + batch or sizes[axis] == size)
    if is_row and not batch and mapped == (0,):
        last = graph.add_integers(len(indices.shape) - 1)
        return call.make_result(
            graph.add_node(
                'Gather', name, graph.add_node('Squeeze', graph.read_whole(indices), last)
            )
        )
    if is_row and batch == tuple(range(len(batch))) and mapped == (len(batch),):
        wide = graph.add_node('Cast', graph.read_whole(indices), to=onnx_type(np.dtype(np.int64)))
        return call.make_result(graph.add_node('GatherND', name, wide, batch_dims=len(batch)))
    raise NotImplementedError(f'gather {of}')


def _dot(call: Call) -> Value:
    """Make a product of matrices: x W with the weights as they are, or of batches of matrices."""
    graph, (a, b) = call.graph, call.inputs
    contracted, batched = call.params['dimension_numbers']
    of_a, of_b = (tuple(map(int, axes)) for axes in contracted)
    batch_a, batch_b = (tuple(map(int, axes)) for axes in batched)
    if not batch_a and len(b.shape) == 2 and of_a == (len(a.shape) - 1,):
        matrix = _order(graph, b, (of_b[0], 1 - of_b[0]))
        return call.make_result(graph.add_node('MatMul', graph.read_whole(a), matrix))
    free_a = tuple(axis for axis in range(len(a.shape)) if axis not in of_a + batch_a)
    free_b = tuple(axis for axis in range(len(b.shape)) if axis not in of_b + batch_b)
    if len(of_a) == 1 and min(len(free_a), len(free_b)) == 1 < max(len(free_a), len(free_b)):
        # Several axes of a factor become one, and are there again in the product.
        first = _order(graph, a, batch_a + free_a + of_a)
        second = _order(graph, b, batch_b + of_b + free_b)
        batch, wide = [a.shape[axis] for axis in batch_a], a.shape[of_a[0]]
        first = graph.add_node('Reshape', first, graph.add_sizes([*batch, -1, wide]))
        second = graph.add_node('Reshape', second, graph.add_sizes([*batch, wide, -1]))
        product = graph.add_node('MatMul', first, second)
        return call.make_result(graph.add_node('Reshape', product, graph.add_sizes(call.shape)))
    if (len(of_a), len(free_a), len(free_b)) != (1, 1, 1):
        raise NotImplementedError(f'dot_general {call.params["dimension_numbers"]}')
    if batch_b + free_b + of_b != tuple(range(len(b.shape))):
        first = _order(graph, a, batch_a + free_a + of_a)
        second = _order(graph, b, batch_b + of_b + free_b)
        return call.make_result(graph.add_node('MatMul', first, second))
    # The second factor lies as a first one does, such as the shares of attention: taken as it is,
    # the product is transposed, and a transposition that follows is merged with that.
    first = _order(graph, a, batch_a + of_a + free_a)
    product = graph.add_node('MatMul', graph.read_whole(b), first)
    rank = len(call.shape)
    order = (*range(rank - 2), rank - 1, rank - 2)
    shape = tuple(call.shape[axis] for axis in order)
    value = Value(shape, call.dtypes[0], product)
    return _transpose(call._replace(inputs=(value,), params={'permutation': order}))


def _order(graph: Graph, value: Value, order: tuple[int, ...]) -> str:
    """Return the name of a factor with its axes in that order; a constant is turned here."""
    if order == tuple(range(len(order))):
        return graph.read_whole(value)
    if value.array is not None:
        key = ('turned', id(value.array), order)
        if key not in graph.root._names:
            name = f'{value.name}.T' if value.name else ''
            turned = np.ascontiguousarray(value.constant().transpose(order))
            # The array too: as long as it is there, no other has its id.
            graph.root._names[key] = graph.add_weight(turned, name), value.array
        return graph.root._names[key][0]
    shape = tuple(value.shape[axis] for axis in order)
    call = Call(graph, (value,), {'permutation': order}, (shape,), (value.dtype,))
    return graph.read_whole(_transpose(call))


# They give back what they are given.
SAME = {'stop_gradient', 'name', 'copy', 'copy_p', 'sharding_constraint', 'optimization_barrier'}
# They are computed entry by entry, and ONNX has them under these names.
_ELEMENTWISE = {
    'add': 'Add', 'sub': 'Sub', 'mul': 'Mul', 'div': 'Div', 'pow': 'Pow', 'neg': 'Neg',
    'abs': 'Abs', 'sign': 'Sign', 'exp': 'Exp', 'log': 'Log', 'sqrt': 'Sqrt', 'tanh': 'Tanh',
    'logistic': 'Sigmoid', 'erf': 'Erf', 'cos': 'Cos', 'sin': 'Sin', 'eq': 'Equal', 'lt': 'Less',
    'le': 'LessOrEqual', 'gt': 'Greater', 'ge': 'GreaterOrEqual', 'and': 'And', 'or': 'Or',
    'not': 'Not', 'floor': 'Floor',
}  # fmt: skip
ROWS: dict[str, Row] = {
    **{name: _elementwise(op) for name, op in _ELEMENTWISE.items()},
    'max': _either('Max', 'Or'),
    'min': _either('Min', 'And'),
    'square': lambda call: call.add_elementwise('Mul', *call.inputs * 2),
    'integer_pow': _integer_pow,
    'rsqrt': _rsqrt,
    'log1p': _log1p,
    'erfc': _erfc,
    'select_n': _select,
    'clamp': _clamp,
    'convert_element_type': _convert,
    'broadcast_in_dim': _broadcast,
    'reshape': _reshape,
    'squeeze': _squeeze,
    'transpose': _transpose,
    'concatenate': _concatenate,
    'pad': _pad,
    'split': _split,
    'slice': _slice,
    'iota': _iota,
    'dim_as_value': _size,
    'gather': _gather,
    'dot_general': _dot,
    'reduce_sum': _reduce('ReduceSum'),
    'reduce_max': _reduce('ReduceMax'),
}  # fmt: skip
