"""Values as JSON, and back by their declared types.

Nothing in the text says what is made of it: `load` makes what its caller declares (dataclasses,
containers, numbers, strings and arrays of numbers) and refuses anything else, so a text from a
stranger's hand can be wrong, but runs nothing. It must not know what the values mean.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import types
import typing
from collections import Counter
from typing import Any

import numpy as np

from bert_jax.configs.files.json_object import parse

_PLAIN = (int, float, str, bool, types.NoneType)  # their own form in JSON, and only that one


def dump(value: Any) -> str:
    """A value as JSON. Raises TypeError for what has no form there."""
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}

    # Base64 of the bytes, not a list of digits: exact for floats, and a fraction of the time. The
    # dtype names the byte order.
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in 'iuf':
        return {'dtype': value.dtype.str, 'base64': base64.b64encode(value.tobytes()).decode()}
    raise TypeError(f'{type(value).__name__} has no form in JSON')


def load(kind: Any, text: str | bytes) -> Any:
    """What `dump` made of a value of the type `kind`.

    Raises ValueError where it is no such thing.
    """
    return make(kind, parse(text))


def make(kind: Any, data: Any) -> Any:
    """A value of the type `kind` from parsed JSON. Raises ValueError where it is no such thing."""
    # Wrong data fails as whatever touches it first (no such key, no such attribute, nested too
    # deep): for the caller it is all one, data of another form.
    try:
        return _make(kind, data)
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f'not of the form that is expected: {error}') from error


# asked for once a class, because annotations are strings that have to be evaluated
_hints = functools.cache(typing.get_type_hints)


def _make(kind: Any, data: Any) -> Any:
    """A value of this type."""
    # Leaves: a number, text, truth value or null, of this very type (True is no int here).
    if kind in _PLAIN:
        return _of(kind, data)

    # list[int] -> (list, (int,)); both are empty for what is not generic.
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data

    # A dataclass, from the object of its fields; unknown and missing names are the constructor's
    # TypeError.
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(
            **{name: _make(_hints(kind)[name], value) for name, value in _of(dict, data).items()}
        )

    # One of the words that are listed.
    if origin is typing.Literal:
        if data not in inner:
            raise TypeError(f'{data!r} in place of one of {inner}')
        return data

    # Of one dimension and of plain numbers alone: any other dtype could name a layout of the
    # writer's choice.
    if kind is np.ndarray:
        return np.frombuffer(
            base64.b64decode(data['base64'], validate=True), _number(data['dtype'])
        )

    # `X | None`: null can only be None, and anything else only the other one.
    if origin in (types.UnionType, typing.Union):
        fits = [each for each in inner if (data is None) == (each is types.NoneType)]
        return _make(fits[0], data)

    # Containers, by the types of what they hold. JSON has text keys only, so keys are made too.
    if origin is Counter:
        return Counter({_make(inner[0], name): _of(int, count) for name, count in data.items()})
    if origin is dict:
        return {_make(inner[0], name): _make(inner[1], value) for name, value in data.items()}
    if origin is list:
        return [_make(inner[0], value) for value in _of(list, data)]

    # tuple[X, ...] has any length; tuple[X, Y] has one of each, in this order.
    if origin is tuple and inner[-1] is ...:
        if inner[0] in _PLAIN and set(map(type, data)) <= {inner[0]}:  # long lists of numbers
            return tuple(_of(list, data))
        return tuple(_make(inner[0], value) for value in _of(list, data))
    if origin is tuple:
        return tuple(_make(one, value) for one, value in zip(inner, _of(list, data), strict=True))
    raise TypeError(f'{kind} has no form in JSON')


def _number(name: str) -> np.dtype:
    dtype = np.dtype(_of(str, name))
    if dtype.kind not in 'iuf':
        raise TypeError(f'an array of {dtype}')
    return dtype


def _of(kind: type, data: Any) -> Any:
    """The data, which must be of this type itself."""
    if type(data) is not kind:
        raise TypeError(f'{type(data).__name__} in place of {kind.__name__}')
    return data
