"""What a setting is: a typed field with its meaning, its kind and its interval.

Owns the base class of every configuration dataclass, which checks types and intervals, and the way
from such dataclasses to plain JSON data and back. It must not know which settings there are:
configs/schema.py has them.

Each field says what changing it does to a run that is resumed (`kind`):
  identity    it changes the result: resuming with another value is refused;
  extendable  it may change while that leaves the past as it was: more steps, under a schedule that
              has not looked ahead;
  runtime     it changes speed, memory or logging only: resuming logs the change.
Each field that is a number says which numbers it may be (`within`), as an interval.
A section or setting that came later than files that lack it (`later`) has a value that those files
mean, by default its default; it is written only where it has another, and read as that where it is
absent.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import reprlib
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

from bert_jax.configs.errors import UserError

# Intervals that many settings share. float32 bounds keep a value from becoming 0 or infinite on the
# device.
SEED = '[0, 4294967295]'  # what a uint32 holds
COUNT = '[1, 2147483647]'  # what an int32 holds
COUNT_OR_0 = '[0, 2147483647]'
ABOVE_0 = '[1e-37, 1e37]'  # what a float32 holds
FROM_0 = '[0, 1e37]'
RATE = '[0, 1)'
SHARE = '(0, 1]'


def setting(
    default: Any,
    help: str,
    kind: str = 'identity',
    within: str | None = None,
    is_later: bool = False,
    before: Any = None,
) -> Any:
    """A dataclass field with its one-line meaning, its kind and its interval.

    kind: 'identity', 'extendable' or 'runtime', as the head of this file has them; within: such as
    '[0, 1)', or None for what is no number; is_later: whether older files lack it. A later setting
    is not in `repr` either, of which fingerprints of older runs are made. before: the value that
    older files mean, where the default has changed since.
    """
    metadata: dict[str, Any] = {'help': help, 'kind': kind, 'within': within}
    if is_later:
        metadata |= {'later': default if before is None else before}
    return dataclasses.field(default=default, metadata=metadata, repr=not is_later)


def later(section: type[Section]) -> Any:
    """A dataclass field that holds a section which older files lack (see the head of this file)."""
    return dataclasses.field(default_factory=section, metadata={'later': section()})


def inside(number: float, interval: str) -> bool:
    """Whether a number lies in an interval such as '[0, 1)'; NaN lies in none."""
    # The ends as floats: 'inf' is one; the brackets say whether the ends belong to it.
    low, high = map(float, interval[1:-1].split(','))
    above = low < number or (low == number and interval[0] == '[')
    return above and (number < high or (number == high and interval[-1] == ']'))


def _matches(value: Any, annotation: Any) -> bool:
    """Whether `value` has the declared type; ints are accepted as floats, bools never as ints."""
    # The annotations that settings have: Literal, X | None, tuple[X, ...], int, float, bool, str,
    # and sections. bool is an int in Python and must not pass as one, nor must True be 1.0.
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return value in typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, a) for a in typing.get_args(annotation))
    if origin is tuple:
        return isinstance(value, tuple) and all(
            _matches(v, typing.get_args(annotation)[0]) for v in value
        )
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is type(None):
        return value is None
    return isinstance(value, annotation)


@dataclass(frozen=True)
class Section:
    """Base of every configuration dataclass: checks the type and the interval of each field."""

    # {a former setting: why it was removed}. Saved files may have it and are read without it. No
    # annotation, or it would be a setting.
    removed = types.MappingProxyType[str, str]({})

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value, hint = getattr(self, field.name), hints[field.name]
            # The type before the interval, which only numbers have; contradictions last, because
            # `check` may then rely on every field.
            if not _matches(value, hint):
                is_choice = typing.get_origin(hint) is Literal
                allowed = typing.get_args(hint) if is_choice else field.type
                raise UserError(
                    f'{type(self).__name__}.{field.name}={reprlib.repr(value)}: expected {allowed}'
                )
            interval = field.metadata.get('within')
            if interval and value is not None:
                self._require(inside(value, interval), field.name, f'in {interval}')
        self.check()

    def check(self) -> None:
        """Raises UserError where the fields contradict each other."""

    def _require(self, ok: bool, name: str, rule: str) -> None:
        if not ok:
            value = reprlib.repr(getattr(self, name))
            raise UserError(f'{type(self).__name__}.{name}={value}: must be {rule}')


def to_dict(config: Section) -> dict[str, Any]:
    """The configuration as plain JSON data: nested dictionaries and lists by field name."""
    data = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if 'later' in field.metadata and value == field.metadata['later']:
            continue
        data[field.name] = _plain(value)
    return data


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return to_dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def from_dict(cls: type, data: dict[str, Any], where: str = '') -> Any:
    """A configuration of type `cls` from JSON data; UserError for unknown and missing names.

    where: what the data is called in messages; by default the class.
    """
    if not isinstance(data, dict):
        raise UserError(
            f'{where or cls.__name__}: expected settings by name, not {reprlib.repr(data)}'
        )
    removed = getattr(cls, 'removed', {})
    for name in data.keys() & removed:
        if data[name]:
            _log_removed(f'{where or cls.__name__}.{name}={data[name]}', removed[name])
    data = {name: value for name, value in data.items() if name not in removed}

    # All names before any value, so that a file of another version is told as such.
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    known, must = {f.name for f in fields}, {f.name for f in fields if 'later' not in f.metadata}
    unknown, missing = sorted(set(data) - known), sorted(must - set(data))
    if unknown or missing:
        faults = [
            f'{what} settings {", ".join(those)}'
            for what, those in (('unknown', unknown), ('missing', missing))
            if those
        ]
        raise UserError(f'{where or cls.__name__}: {"; ".join(faults)}')
    # Sections inside are built first: each checks itself, and `cls` checks them together.
    values = {f.name: f.metadata['later'] for f in fields if 'later' in f.metadata}
    for name, value in data.items():
        hint = hints[name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            value = from_dict(hint, value, f'{where}.{name}' if where else name)
        elif typing.get_origin(hint) is tuple:
            item = typing.get_args(hint)[0]
            nested = isinstance(item, type) and dataclasses.is_dataclass(item)
            if not isinstance(value, list | tuple):
                shown = reprlib.repr(value)
                raise UserError(f'{where or cls.__name__}.{name}={shown}: expected a list')
            value = tuple(
                from_dict(item, v, f'{name}.{i}') if nested else v for i, v in enumerate(value)
            )
        values[name] = value
    return cls(**values)


@functools.cache  # a command may read the same file several times
def _log_removed(assignment: str, reason: str) -> None:
    logging.getLogger(__name__).warning('%s has no effect any more: %s', assignment, reason)


def kinds(cls: type, prefix: str = '') -> dict[str, str]:
    """{dotted name of a setting: its kind}; items of a tuple count as one name."""
    # By the type of a field: a section has settings inside, under its name; a tuple of sections has
    # one entry for all its items, because a resumed run may have more of them.
    kind_of: dict[str, str] = {}
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        item = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        if isinstance(item, type) and dataclasses.is_dataclass(item):
            kind_of |= kinds(item, f'{prefix}{field.name}.')
        else:
            kind_of[prefix + field.name] = field.metadata['kind']
    return kind_of
