"""An ONNX graph while it is made: its nodes, weights, values and sizes.

Owns how values are named, when a broadcast is carried out, and how a symbolic size becomes numbers
of the graph. Must not know jax's operations: onnx_operations.py has those.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# What the arithmetic of sizes becomes, by the operators and functions of jax's symbolic shapes.
_SIZES = {ast.Add: 'Add', ast.Sub: 'Sub', ast.Mult: 'Mul'}
_FUNCTIONS = {'floordiv': 'Div', 'mod': 'Mod', 'max': 'Max', 'min': 'Min'}


@dataclass(frozen=True)
class Made:
    """Which operation made a value, of which values."""

    name: str
    inputs: tuple[Value, ...]
    params: Mapping[str, Any]


@dataclass(eq=False)
class Value:
    """An array of the graph.

    Attributes:
      shape: its axes; sizes may be symbolic.
      dtype: of its entries.
      name: in the graph; empty for a constant that nothing has used yet.
      held: its axes in the graph, where an axis may be 1 as long as nothing needs it broadcast;
        None: those of `shape`.
      array: a constant's numbers, of shape `held`; None for what is computed.
      made: the operation that it came from, if any.
    """

    shape: tuple[Any, ...]
    dtype: np.dtype
    name: str = ''
    held: Any = None
    array: np.ndarray | None = None
    made: Made | None = None

    def __post_init__(self):
        self.held = self.shape if self.held is None else tuple(self.held)

    def constant(self) -> np.ndarray:
        """Return all numbers of a constant whose sizes are known."""
        assert self.array is not None
        return np.broadcast_to(self.array, self.shape)


@dataclass
class Graph:
    """The nodes so far; a graph within another, such as a loop's body, has it as its `parent`."""

    opset: int
    parent: Graph | None = None
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    # Where a symbol of a size is read: {symbol: (input, axis)}.
    symbols: dict[str, tuple[str, int]] = field(default_factory=dict)
    _names: dict[Any, Any] = field(default_factory=dict)
    _count: int = 0

    @property
    def root(self) -> Graph:
        """The outermost graph, which holds the weights and the sizes."""
        return self if self.parent is None else self.parent.root

    def make_name(self, stem: str) -> str:
        """Return a name that no value has."""
        root = self.root
        root._count += 1
        return f'{stem}_{root._count}'

    def add_node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node, or find its like; return the name of its output, or a list of several."""
        from onnx import helper

        # The tables of rotary positions, and the mask, would be there once for each block.
        is_loop = 'body' in attributes
        key = 'node', op, inputs, is_loop or repr(sorted(attributes.items()))
        if key not in self._names or is_loop:
            names = self._names[key] = [self.make_name(op) for _ in range(outputs)]
            self.nodes.append(helper.make_node(op, inputs, names, names[0], **attributes))
        names = self._names[key]
        return names[0] if outputs == 1 else names

    def add_weight(self, array: np.ndarray, name: str = '') -> str:
        """Return the name of a constant; small ones of equal content are one."""
        root = self.root
        key = (array.dtype.str, array.shape, array.tobytes()) if array.size <= 64 else id(array)
        if key not in root._names:
            root._names[key] = (
                name if name and name not in root.weights else self.make_name('constant')
            )
            root.weights[root._names[key]] = array
        return root._names[key]

    def read_whole(self, value: Value) -> str:
        """Return the name of a value with every axis as long as its shape says."""
        name = self.read(value)
        if value.held == value.shape:
            return name
        return self.add_node('Expand', name, self.add_sizes(value.shape))

    def read(self, value: Value) -> str:
        """Return the name of a value as it is held."""
        return value.name if value.array is None else self.add_weight(value.array, value.name)

    def add_integers(self, *numbers: int) -> str:
        """Return the name of a constant of whole numbers [n]."""
        return self.add_weight(np.array(numbers, np.int64))

    def add_sizes(self, shape: Sequence[Any]) -> str:
        """Return the name of a shape as an int64 array [n]."""
        if all(isinstance(size, int | np.integer) for size in shape):
            return self.add_integers(*shape)
        return self.root.add_node('Concat', *map(self.add_size, shape), axis=0)

    def add_size(self, size: Any) -> str:
        """Return the name of one size, an int64 array [1]."""
        return self.root._add_term(ast.parse(str(size).replace('^', '**'), mode='eval').body)

    def _add_term(self, term: ast.expr) -> str:
        """Return the name of a size that is written as jax writes it, such as 2*t + -1."""
        match term:
            case ast.Constant(int(number)):
                return self.add_integers(number)
            case ast.Name(symbol):
                name, axis = self.symbols[symbol]
                return self.add_node('Shape', name, start=axis, end=axis + 1)
            case ast.UnaryOp(ast.USub(), operand):
                return self.add_node('Neg', self._add_term(operand))
            case ast.BinOp(base, ast.Pow(), ast.Constant(int(power))) if power > 1:
                product = factor = self._add_term(base)
                for _ in range(power - 1):
                    product = self.add_node('Mul', product, factor)
                return product
            case ast.BinOp(left, op, right) if type(op) in _SIZES:
                return self.add_node(_SIZES[type(op)], self._add_term(left), self._add_term(right))
            case ast.Call(ast.Name(function), [left, right]) if function in _FUNCTIONS:
                return self.add_node(
                    _FUNCTIONS[function], self._add_term(left), self._add_term(right)
                )
        raise NotImplementedError(ast.unparse(term))
