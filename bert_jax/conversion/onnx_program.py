"""What jax has traced, walked from the first operation to the last, and written as an ONNX file.

Owns the walk, what is computed beforehand, loops, and the names that the file's inputs and outputs
have for others. It finds the formulas that ONNX has one node for, by which engines have fast
kernels: a formula, as jax traces it, is looked for from its last operation back, and what came
before that stays in the graph until it is dropped because nothing reads it. Must not know what any
other operation becomes: onnx_operations.py has that. Nothing here knows a family, a head or a part
of the model.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import Array

from bert_jax.configs.errors import UserError
from bert_jax.conversion import serving
from bert_jax.conversion.onnx_graph import Graph, Made, Value
from bert_jax.conversion.onnx_operations import ROWS, SAME, Call, onnx_type
from bert_jax.conversion.trained_model import Model
from bert_jax.mesh.sharding import group_by_path
from bert_jax.model import layout

OPSET = 17  # every engine of the last years reads it; the first that has what all models need
# Ours -> as transformers' tokenizers call them, and programs that read its models.
INPUTS = {
    'input_ids': 'input_ids',
    'input_mask': 'attention_mask',
    'segment_ids': 'token_type_ids',
}
_AXES = {'b': 'batch_size', 't': 'sequence_length', 'c': 'num_choices'}
# A file of protobuf holds 2 GiB; beyond that the weights lie in another.
_MOST_BYTES = 1 << 30
_POSITIONS = 'masked_lm_positions'
# Never computed beforehand: a broadcast would only make a constant larger, a size is not known.
_LATER = {'broadcast_in_dim', 'dim_as_value'}


def check_opset(opset: int) -> None:
    """UserError unless there is such an opset, and it has what every model of ours needs."""
    from onnx import defs

    if opset < OPSET:
        raise UserError(
            f'--opset={opset} is too old: these models need LayerNormalization, which ONNX has'
            f' since opset {OPSET}'
        )
    newest = defs.onnx_opset_version()
    if opset > newest:
        raise UserError(f'--opset={opset}: the onnx that is installed has opsets up to {newest}')


def write(path: epath.PathLike, model: Model, opset: int = OPSET) -> tuple[list[str], list[str]]:
    """Write a model as one ONNX file; weights of more than 1 GiB lie in a file beside it.

    Its inputs are int64 and have the names that transformers' tokenizers give them; those that the
    model does not read are left out. Masked words are told for every position. Any number of rows
    of any length up to the position table is taken. Returns the names of inputs and outputs.

    Raises:
      UserError: the model has a part that no node of ONNX says.
    """
    import onnx

    check_opset(opset)
    proto = _make_proto(model, opset)
    file = os.fspath(path)
    if sum(len(weight.raw_data) for weight in proto.graph.initializer) > _MOST_BYTES:
        beside = f'{os.path.basename(file)}_data'
        onnx.save_model(proto, file, save_as_external_data=True, location=beside)
    else:
        onnx.save_model(proto, file)
    return [each.name for each in proto.graph.input], [each.name for each in proto.graph.output]


def quantise(path: epath.PathLike, output: epath.PathLike) -> None:
    """Write a file again with weights as int8, by onnxruntime's dynamic quantisation."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Each column of a matrix has a scale of its own. All 8 bits are used: 7 (reduce_range), which
    # guard sums of 16 bits on processors without VNNI, gave no better vectors on one of them.
    quantize_dynamic(
        os.fspath(path), os.fspath(output), per_channel=True, weight_type=QuantType.QInt8
    )


def _make_proto(model: Model, opset: int) -> Any:
    """Return the file's content."""
    from onnx import TensorProto, helper, numpy_helper

    traced, names, weights, inputs = _trace_model(model)
    graph = Graph(opset)
    outer = {name: graph.make_name(name) for name in inputs}  # as int32
    for name, spec in inputs.items():
        for axis, size in enumerate(spec.shape):
            graph.symbols.setdefault(str(size), (INPUTS[name], axis))
        cast = helper.make_node('Cast', [INPUTS[name]], [outer[name]], to=TensorProto.INT32)
        graph.nodes.append(cast)
    given = [_make_constant(np.asarray(leaf), name) for name, leaf in weights.items()]
    given += [Value(spec.shape, spec.dtype, outer[name]) for name, spec in inputs.items()]
    ends = {}
    for name, value in zip(names, walk(graph, traced, given), strict=True):
        graph.nodes.append(helper.make_node('Identity', [graph.read_whole(value)], [name]))
        ends[name] = _describe(name, onnx_type(value.dtype), value.shape)
    nodes, used = _drop_unread(graph.nodes, list(ends))
    begins, held = [], []
    for name, spec in inputs.items():
        if INPUTS[name] in used:
            begins.append(_describe(INPUTS[name], TensorProto.INT64, spec.shape))
    for name, array in graph.weights.items():
        if name in used:
            held.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    made = helper.make_graph(nodes, model.architecture, begins, list(ends.values()), held)
    opsets = [helper.make_opsetid('', opset)]
    version = helper.find_min_ir_version_for(opsets)
    return helper.make_model(
        made, opset_imports=opsets, ir_version=version, producer_name='bert_jax'
    )


def _describe(name: str, onnx_type: int, shape: Sequence[Any]) -> Any:
    """Return what a file says of an input or output: axes are numbers, or names where open."""
    from onnx import helper

    axes = [size if isinstance(size, int) else _AXES.get(str(size), str(size)) for size in shape]
    return helper.make_tensor_value_info(name, onnx_type, axes)


def _trace_model(model: Model) -> tuple[Any, list[str], dict[str, Any], dict[str, Any]]:
    """Return (what jax traces, its outputs, the weights by name, the inputs' shapes by our names).

    A sentence encoder gives the states of its pieces too, which engines that pool by themselves
    read.
    """
    calls = [(serving.make_forward(model), list(model.row.output_names))]
    names, whole = list(model.row.output_names), model
    bare, states, of_tokens = model._replace(sentence=None), 'last_hidden_state', 'token_embeddings'
    gives_states = model.sentence is not None and states in bare.row.output_names
    lacks_states = of_tokens not in names and set(bare.row.parts) <= set(model.parts)
    if gives_states and lacks_states:
        calls.append((serving.make_forward(bare), [states]))
        names.append(of_tokens)
        whole = bare
    inputs = serving.make_inputs(model)
    has_positions = inputs.pop(_POSITIONS, None) is not None
    weights = group_by_path(layout.separate_blocks(serving.nest(serving.select_weights(whole))))

    def run(leaves: Sequence[jax.Array], arrays: Sequence[jax.Array]) -> list[jax.Array]:
        batch, params = dict(zip(inputs, arrays)), serving.nest(dict(zip(weights, leaves)))
        if has_positions:
            shape = batch['input_ids'].shape
            batch[_POSITIONS] = jnp.broadcast_to(jnp.arange(shape[1])[None], shape)
        results = []
        for call, of_call in calls:
            outputs = call(params, batch)
            results += [outputs[name] for name in of_call]
        return results

    specs = [jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for leaf in weights.values()]
    traced = jax.jit(run).trace(specs, list(inputs.values())).jaxpr
    return traced, names, weights, inputs


def _make_constant(array: np.ndarray, name: str = '') -> Value:
    return Value(array.shape, array.dtype, name, array=array)


def walk(graph: Graph, traced: Any, given: Sequence[Value]) -> list[Value]:
    """Return the results of what jax has traced, its nodes added to the graph.

    Args:
      graph: where they go.
      traced: the operations: a Jaxpr, or one that is closed over its constants.
      given: its inputs.
    """
    jaxpr, consts = getattr(traced, 'jaxpr', traced), getattr(traced, 'consts', ())
    values = dict(zip(jaxpr.constvars, (_make_constant(np.asarray(const)) for const in consts)))
    values |= dict(zip(jaxpr.invars, given))

    def read(atom: Any) -> Value:
        if hasattr(atom, 'val'):
            return _make_constant(np.asarray(atom.val, atom.aval.dtype))
        return values[atom]

    for equation in jaxpr.eqns:
        inputs = tuple(map(read, equation.invars))
        values |= dict(zip(equation.outvars, _convert(graph, equation, inputs), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _convert(graph: Graph, equation: Any, inputs: tuple[Value, ...]) -> Sequence[Value]:
    """Return the results of one operation."""
    name, params = equation.primitive.name, dict(equation.params)
    shapes = tuple(tuple(result.aval.shape) for result in equation.outvars)
    dtypes = tuple(np.dtype(result.aval.dtype) for result in equation.outvars)
    if name in SAME:
        return inputs
    if name == 'scan':
        return _convert_loop(graph, params, inputs, shapes, dtypes)
    # What is called is walked as if it stood here.
    for key in ('jaxpr', 'call_jaxpr', 'fun_jaxpr'):
        if key in params:
            return walk(graph, params[key], inputs)
    is_known = all(value.array is not None for value in inputs) and name not in _LATER
    if is_known and all(isinstance(size, int) for shape in shapes for size in shape):
        return _compute_now(equation, inputs)
    made = Made(name, inputs, params)
    node = find_fused(graph, made)
    if node is not None:
        return [Value(shapes[0], dtypes[0], node, made=made)]
    if name not in ROWS:
        raise UserError(
            f'--format=onnx: this model computes {name}, which is not built there:'
            ' --format=stablehlo writes it'
        )
    result = ROWS[name](Call(graph, inputs, params, shapes, dtypes))
    if isinstance(result, list):
        return result
    if result.made is None and result not in inputs:
        result = dataclasses.replace(result, made=made)
    return [result]


def _compute_now(equation: Any, inputs: tuple[Value, ...]) -> list[Value]:
    """Return the results of an operation on constants, computed now."""
    arrays = [jnp.asarray(value.constant()) for value in inputs]
    results = equation.primitive.bind(*arrays, **equation.params)
    results = results if equation.primitive.multiple_results else [results]
    return [_make_constant(np.asarray(result)) for result in results]


def _convert_loop(
    graph: Graph,
    params: Mapping[str, Any],
    inputs: tuple[Value, ...],
    shapes: Sequence[tuple[Any, ...]],
    dtypes: Sequence[np.dtype],
) -> list[Value]:
    """Return the results of a loop over the first axis of some arrays, as a node with a body."""
    from onnx import helper

    traced = params['jaxpr']
    operations = getattr(traced, 'jaxpr', traced)
    # jax says how many it keeps, carries and walks over otherwise in each version; ranks say it in
    # all: only what is walked over, or stacked, has an axis more outside than inside.
    walked = carried = 0
    for value, atom in zip(inputs, operations.invars):
        walked += len(value.shape) != len(atom.aval.shape)
    for shape, atom in zip(shapes, operations.outvars):
        carried += len(shape) == len(atom.aval.shape)
    fixed = len(inputs) - carried - walked
    states, rows = inputs[fixed : fixed + carried], inputs[fixed + carried :]
    # What the body reads of outside must be there before it.
    outside = []
    for value in inputs[:fixed]:
        if value.array is None:
            value = Value(value.shape, value.dtype, graph.read_whole(value))
        outside.append(value)
    body = Graph(graph.opset, graph)
    of_body = [Value(value.shape, value.dtype, body.make_name('inside')) for value in states]
    of_body += [Value(value.shape[1:], value.dtype, body.make_name('inside')) for value in rows]
    results = walk(body, traced, [*outside, *of_body])
    # A result must be a node's of the body, and no two may have one name.
    ends = [body.make_name('end') for _ in results]
    for name, value in zip(ends, results):
        body.nodes.append(helper.make_node('Identity', [body.read_whole(value)], [name]))
    begun, ended = [], []
    for value in of_body:
        begun.append(helper.make_tensor_value_info(value.name, onnx_type(value.dtype), None))
    for name, value in zip(ends, results):
        ended.append(helper.make_tensor_value_info(name, onnx_type(value.dtype), None))
    inner = helper.make_graph(body.nodes, graph.make_name('body'), begun, ended)
    back = int(params['reverse'])
    names = graph.add_node(
        'Scan', *map(graph.read_whole, (*states, *rows)), outputs=len(results), body=inner,
        num_scan_inputs=walked, scan_input_directions=[back] * walked,
        scan_output_directions=[back] * (len(results) - carried),
    )  # fmt: skip
    return list(map(Value, shapes, dtypes, names))


def _drop_unread(nodes: Sequence[Any], ends: Sequence[str]) -> tuple[list[Any], set[str]]:
    """Return (the nodes that some results need, the names that these read)."""
    used, kept = set(ends), []
    for node in reversed(nodes):
        if used & set(node.output):
            kept.append(node)
            used |= set(node.input)
            for attribute in node.attribute:
                for inner in attribute.g.node:  # of a loop's body
                    used |= set(inner.input)
    return kept[::-1], used


# Operations that change no number.
_SAME = SAME | {'broadcast_in_dim', 'reshape'}
_GELU = 20  # the opset that has it


def find_fused(graph: Graph, made: Made) -> str | None:
    """Return the name of what one node gives in place of an operation, if there is one."""
    end = Value((), np.dtype(np.float32), made=made)
    for formula, make in _FUSED.items():
        operations, inputs, result = _trace_formula(formula)
        values: dict[Any, Value] = {}
        if _is_made_as(operations, result, end, values):
            name = make(graph, *(values[variable] for variable in inputs))
            if name is not None:
                return name
    return None


@functools.cache
def _trace_formula(formula: Callable[..., Array]) -> tuple[dict[Any, Any], list[Any], Any]:
    """Return ({variable: the operation that gives it}, the inputs, the result) of a formula."""
    matrices = [jnp.zeros((2, 2))] * len(inspect.signature(formula).parameters)
    jaxpr = jax.make_jaxpr(formula)(*matrices).jaxpr
    operations = {equation.outvars[0]: equation for equation in jaxpr.eqns}
    return operations, jaxpr.invars, jaxpr.outvars[0]


def _is_made_as(
    operations: Mapping[Any, Any], atom: Any, value: Value, values: dict[Any, Value]
) -> bool:
    """Whether a value is made as `atom` of a formula is; `values` gets what its variables are."""
    if hasattr(atom, 'val'):
        number = _read_number(value)
        return number is not None and math.isclose(number, atom.val, rel_tol=1e-5)
    operation = operations.get(atom)
    if operation is not None and operation.primitive.name in _SAME:
        return _is_made_as(operations, operation.invars[0], value, values)
    value = value if operation is None else _strip_copies(value)
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
    if made.params.get('y') != operation.params.get('y'):
        return False
    pairs = zip(operation.invars, made.inputs)
    return all(_is_made_as(operations, part, of, values) for part, of in pairs)


def _strip_copies(value: Value) -> Value:
    """Return the value of which this one is a copy, broadcast or in another shape."""
    while value.made and value.made.name in _SAME:
        value = value.made.inputs[0]
    return value


def _read_number(value: Value) -> float | None:
    """Return the one number of a constant."""
    array = _strip_copies(value).array
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def _softmax(scores: Array, shift: Array) -> Array:
    powers = jnp.exp(scores - shift)
    return powers / powers.sum(-1, keepdims=True)


def _to_softmax(graph: Graph, scores: Value, shift: Value) -> str | None:
    # What is subtracted from all of a row leaves it as it is.
    is_same = shift.held[-1:] in ((), (1,))
    return graph.add_node('Softmax', graph.read_whole(scores), axis=-1) if is_same else None


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
    small, weights = _read_number(epsilon), []
    if small is None or not _read_number(n) == _read_number(m) == x.shape[-1]:
        return None
    for vector in vectors:
        # A constant that has an entry for each place of the last axis.
        if vector.array is None or vector.shape[-1:] != (vector.array.size,):
            return None
        weights.append(graph.add_weight(vector.array.reshape(-1), _strip_copies(vector).name))
    return graph.add_node(
        'LayerNormalization', graph.read_whole(x), *weights, epsilon=small, axis=-1
    )


def _gelu(x: Array) -> Array:
    return x * (0.5 * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _to_gelu(graph: Graph, x: Value) -> str:
    name = graph.read_whole(x)
    if graph.opset >= _GELU:
        return graph.add_node('Gelu', name, approximate='tanh')
    # In the form that engines know as one operation.
    number = lambda value: graph.add_weight(np.array(value, np.float32))
    cube = graph.add_node('Mul', number(0.044715), graph.add_node('Pow', name, number(3)))
    inner = graph.add_node('Mul', number(math.sqrt(2 / math.pi)), graph.add_node('Add', name, cube))
    outer = graph.add_node('Add', number(1), graph.add_node('Tanh', inner))
    return graph.add_node('Mul', graph.add_node('Mul', name, number(0.5)), outer)


# A formula, and what makes a node of its inputs, or finds that these are of another kind.
_FUSED: dict[Callable[..., Array], Callable[..., str | None]] = {
    _softmax: _to_softmax,
    _layer_norm: _to_layer_norm,
    _layer_norm_bias: _to_layer_norm,
    _gelu: _to_gelu,
}
