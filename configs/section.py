"""The base class of every configuration dataclass: checked when made, read from JSON and back.

Owns the check of types and intervals, and the way from configurations to plain JSON data and back.
The description of a field is configs/options.py's. It must not know which settings there are:
configs/schema.py has them.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import reprlib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from bert_jax.configs.errors import UserError
from bert_jax.configs.files import typed_json
from bert_jax.configs.options import (
    NO_VALUE,
    Described,
    describe_fields,
    explain_unknown,
    find_item_type,
    is_outside,
    is_registered,
    is_section,
)


def _matches(value: Any, annotation: Any) -> bool:
    """Tell whether `value` has the declared type; an int is a float too, a bool never an int."""
    # The annotations that settings have: Literal, X | None, tuple[X, ...], int, float, bool, str,
    # and sections. bool is an int in Python and must not pass as one, nor must True be 1.0.
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return value in inner
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, kind) for kind in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_matches(item, inner[0]) for item in value)
    if annotation in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if annotation is float else annotation)


@dataclass(frozen=True)
class Section:
    """Base of every configuration dataclass: checks the type and the interval of each field."""

    # {a former setting: why it was removed}. Saved files may have it and are read without it. No
    # annotation, or it would be a setting.
    removed = types.MappingProxyType[str, str]({})
    # {(setting, a former value): (what is read in its place, why)}; neither annotated.
    replaced = types.MappingProxyType[tuple[str, str], tuple[str, str]]({})

    def __post_init__(self) -> None:
        for field in describe_fields(type(self)):
            value, hint = getattr(self, field.name), field.type
            # The type before the interval, which only numbers have; contradictions last, because
            # `check` may then rely on every field.
            if not _matches(value, hint) and not is_registered(field.name, value):
                line = explain_unknown(field.name, value)
                if line:
                    choices = ', '.join(map(str, typing.get_args(hint)))
                    raise UserError(f'{line}; ours are {choices}')
                is_choice = typing.get_origin(hint) is Literal
                declared = type(self).__dataclass_fields__[field.name].type
                allowed = typing.get_args(hint) if is_choice else declared
                raise UserError(
                    f'{type(self).__name__}.{field.name}={reprlib.repr(value)}: expected {allowed}'
                )
            if field.option and is_outside(value, field.option):
                self._require(False, field.name, f'in {field.option.within}')
        self.check()

    def __str__(self) -> str:
        """Return the settings that are not the defaults; `repr` has all, and names older files."""
        changed = []
        for field in dataclasses.fields(self):
            value, factory = getattr(self, field.name), field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            if value != default:
                several = isinstance(value, tuple)
                text = ', '.join(map(str, value)) if several else value
                text = text if isinstance(value, Section) or several else repr(value)
                changed.append(f'{field.name}={f"({text})" if several else text}')
        return f'{type(self).__name__}({", ".join(changed)})'

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the same in a notebook."""
        del cycle
        printer.text(str(self))

    def check(self) -> None:
        """Raise UserError where the fields contradict each other."""

    def _require(self, ok: bool, name: str, rule: str) -> None:
        if not ok:
            value = reprlib.repr(getattr(self, name))
            raise UserError(f'{type(self).__name__}.{name}={value}: must be {rule}')

    @classmethod
    def from_json(cls, data: Mapping[str, Any], path: str = '') -> Self:
        """Return a configuration of this class from parsed JSON.

        Args:
          data: its settings by name.
          path: what the data is called in messages; by default the class.

        Raises:
          UserError: for unknown and missing names, and for what the class itself refuses.
        """
        title = path or cls.__name__
        if not isinstance(data, dict):
            raise UserError(f'{title}: expected settings by name, not {reprlib.repr(data)}')
        for name in data.keys() & cls.removed:
            if data[name] and data[name] != 'auto':  # else it had no effect either
                _log_line(
                    f'{title}.{name}={data[name]} has no effect any more: {cls.removed[name]}'
                )
        data = {name: value for name, value in data.items() if name not in cls.removed}
        for (name, former), (value, reason) in cls.replaced.items():
            if data.get(name) == former:
                _log_line(f'{title}.{name}={former} is read as {value}: {reason}')
                data[name] = value

        # All names before any value, so that a file of another version is named as such.
        fields = {field.name: field for field in describe_fields(cls)}
        absent = {
            name: field.option.later
            for name, field in fields.items()
            if field.option and field.option.later is not NO_VALUE
        }
        unknown, missing = data.keys() - fields, fields.keys() - data - absent.keys()
        if unknown or missing:
            faults = [
                f'{fault} settings {", ".join(sorted(names))}'
                for fault, names in (('unknown', unknown), ('missing', missing))
                if names
            ]
            raise UserError(f'{title}: {"; ".join(faults)}')
        # Sections inside are built first: each checks itself, and this class checks them together.
        values = {name: _read(fields[name], value, path, title) for name, value in data.items()}
        return cls(**(absent | values))


def _read(field: Described, value: Any, path: str, title: str) -> Any:
    """Return a setting from parsed JSON: sections as such, what else there is unchecked."""
    if is_section(field.type):
        return typed_json.make(field.type, value, f'{path}.{field.name}' if path else field.name)
    item = find_item_type(field.type)
    if item is None:
        return value
    if not isinstance(value, list | tuple):
        raise UserError(f'{title}.{field.name}={reprlib.repr(value)}: expected a list')
    return tuple(typed_json.make(item, v, f'{field.name}.{i}') for i, v in enumerate(value))


def to_dict(config: Section) -> dict[str, Any]:
    """Return the configuration as plain JSON data: nested dictionaries and lists by field name."""
    values = {}
    for name, _, _, option in describe_fields(type(config)):
        value = getattr(config, name)
        if option and value == option.later:
            continue
        if isinstance(value, Section):
            value = to_dict(value)
        elif isinstance(value, tuple):
            value = [to_dict(item) if isinstance(item, Section) else item for item in value]
        values[name] = value
    return values


@functools.cache  # a command may read the same file several times
def _log_line(line: str) -> None:
    logging.getLogger(__name__).warning(line)


def settings(config: Section, prefix: str = '') -> Iterator[tuple[str, Any, Described]]:
    """Yield (dotted name, value, field) of each setting, those of sections inside included.

    Items of a tuple are one entry each, with N in place of the index and the defaults of the class.
    """
    for field in describe_fields(type(config)):
        name, value = prefix + field.name, getattr(config, field.name)
        if isinstance(value, Section):
            yield from settings(value, f'{name}.')
        elif item := find_item_type(field.type):
            yield from settings(item(), f'{name}.N.')
        else:
            yield name, value, field


def names(cls: type[Section]) -> list[str]:
    """Return the dotted names of all settings of a class; N is the index of a tuple's item."""
    return [name for name, _, _ in settings(cls())]


def kinds(cls: type[Section]) -> dict[str, str]:
    """Return {dotted name of a setting: its kind}; items of a tuple count as one name."""
    # One entry for all items, because a resumed run may have more of them.
    return {
        name.replace('.N.', '.'): field.option.kind
        for name, _, field in settings(cls())
        if field.option
    }
