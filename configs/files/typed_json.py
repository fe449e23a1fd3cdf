"""Values as JSON, and back by their declared types: configurations, manifests, kept results.

Nothing in the text says what is made of it: `load` makes what its caller declares (dataclasses,
containers, numbers, strings and arrays of numbers) and refuses anything else, so a text from a
stranger's hand can be wrong, but runs nothing. It must not know what the values mean. A class with
a method `from_json(data, path)` makes itself, as the sections of a configuration do.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import types
import typing
from collections import Counter
from typing import Any

from bert_jax.configs.files.json_object import parse
from bert_jax.configs.options import describe_fields, is_section

_PLAIN = (int, float, str, bool, types.NoneType)  # their own form in JSON, and only that one
# numpy's names of numbers: byte order, kind, bytes of one
_NUMBER = re.compile('[<>|][iuf]([1248])')


def dump(value: Any) -> str:
    """Return a value as JSON. Raises TypeError for what has no form there."""
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}

    # Base64 of the bytes, not a list of digits: exact for floats, and a fraction of the time. The
    # dtype names the byte order.
    if _is_array(type(value)) and value.ndim == 1 and _NUMBER.fullmatch(value.dtype.str):
        return {'dtype': value.dtype.str, 'base64': base64.b64encode(value.tobytes()).decode()}
    raise TypeError(f'{type(value).__name__} has no form in JSON')


def _is_array(kind: Any) -> bool:
    """Tell whether a type is numpy's array; numpy itself is not imported here."""
    return getattr(kind, '__module__', '') == 'numpy' and kind.__name__ == 'ndarray'


def load(kind: Any, text: str | bytes) -> Any:
    """Return what `dump` made of a value of the type `kind`.

    Raises ValueError where it is no such thing.
    """
    return make(kind, parse(text))


def make(kind: Any, data: Any, path: str = '') -> Any:
    """Return a value of the type `kind` from parsed JSON.

    Args:
      kind: the declared type.
      data: the parsed JSON.
      path: what the data is called in messages of a class that makes itself.

    Raises:
      ValueError: where it is no such thing.
    """
    # Wrong data fails as whatever touches it first (no such key, no such attribute, nested too
    # deep): for the caller it is all one, data of another form.
    try:
        return _make(kind, data, path)
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f'not of the form that is expected: {error}') from error


def _make(kind: Any, data: Any, path: str = '') -> Any:
    # Leaves: a number, text, truth value or null, of this very type (True is no int here).
    if kind in _PLAIN:
        return _require(kind, data)
    if kind is Any:
        return data

    # A dataclass, from the object of its fields; unknown and missing names are the constructor's
    # TypeError.
    if is_section(kind):
        if hasattr(kind, 'from_json'):
            return kind.from_json(data, path)
        fields = {field.name: field.type for field in describe_fields(kind)}
        values = _require(dict, data).items()
        return kind(**{name: _make(fields[name], value) for name, value in values})
    if _is_array(kind):
        return _array(kind, data)

    # list[int] -> (list, (int,)); both are empty for what is not generic.
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if data not in inner:
            raise TypeError(f'{data!r} in place of one of {inner}')
        return data

    # `X | None`: null can only be None, and anything else only the other one.
    if origin in (types.UnionType, typing.Union):
        fits = [each for each in inner if (data is None) == (each is types.NoneType)]
        return _make(fits[0], data)

    # Containers, by the types of what they hold. JSON has text keys only, so keys are made too.
    if origin in (Counter, dict):
        value_type = int if origin is Counter else inner[1]
        return origin({_make(inner[0], key): _make(value_type, v) for key, v in data.items()})
    if origin is list:
        return [_make(inner[0], value) for value in _require(list, data)]

    # tuple[X, ...] has any length; tuple[X, Y] has one of each, in this order.
    if origin is tuple and inner[-1] is ...:
        if inner[0] in _PLAIN and set(map(type, data)) <= {inner[0]}:  # long lists of numbers
            return tuple(_require(list, data))
        return tuple(_make(inner[0], value) for value in _require(list, data))
    if origin is tuple:
        values = zip(inner, _require(list, data), strict=True)
        return tuple(_make(item, value) for item, value in values)
    raise TypeError(f'{kind} has no form in JSON')


def _array(kind: Any, data: Any) -> Any:
    """Return an array of one dimension over the bytes that `_plain` has written."""
    # Plain numbers alone: any other dtype could name a layout of the writer's choice.
    content, dtype = base64.b64decode(data['base64'], validate=True), _require(str, data['dtype'])
    number = _NUMBER.fullmatch(dtype)
    if not number or len(content) % int(number[1]):
        raise TypeError(f'an array of {dtype} in {len(content)} bytes')
    return kind((len(content) // int(number[1]),), dtype, content)


def _require(kind: type, data: Any) -> Any:
    """Return the data, which must be of this type itself."""
    if type(data) is not kind:
        raise TypeError(f'{type(data).__name__} in place of {kind.__name__}')
    return data
