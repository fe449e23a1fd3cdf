"""Options as flags: `define` makes the flags of a dataclass, `read` makes an instance of them.

Owns which kind of flag a type becomes; what a field means and may be is written at the field
(configs/options.py). `app.run(main, Options)` does both; a command whose flags are of several
classes defines them where it is imported, in the order of its help, and reads them in `main`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from absl import flags

from bert_jax.configs.errors import UserError
from bert_jax.configs.options import (
    Described,
    described,
    is_section,
    item_type,
    without_none,
)

T = TypeVar('T')

# Of the command that calls `define`, and not of this file: where --help lists them.
flags.disclaim_key_flags()


def define(options: type, *, only: Sequence[str] = (), without: Sequence[str] = ()) -> None:
    """Define a flag for each field that has a help, in their order.

    `only` for these fields, or for all `without` those. A field that is a dataclass means its
    own fields; one without a default is a required flag.
    """
    for field in described(options):
        if (only and field.name not in only) or field.name in without:
            continue

        # Options that several commands share are a field, in whose place their flags are.
        if is_section(field.type):
            define(field.type)
        elif field.option:
            _define(field)


def read(options: type[T], **given: Any) -> T:
    """Return the options that the flags say; what is `given` is taken as it is, without a flag.

    Raises UserError where they do not go together, or a list holds what is no number.
    """
    # The mirror of `define`, field by field.
    values = dict(given)
    for field in described(options):
        if field.name in given:
            continue
        if is_section(field.type):
            values[field.name] = read(field.type)
        elif field.option:
            values[field.name] = _value(field)
    return options(**values)


def present(*names: str) -> list[str]:
    """Return those of the flags that are on the command line, with their dashes."""
    return [f'--{name}' for name in names if flags.FLAGS[name].present]


def _define(field: Described) -> None:
    """Define the flag of a field, and the one of its switch after it."""
    # A field without a default is a required flag, which absl then asks for.
    name, hint, default, option = field
    assert option, f'{name} has no help'
    help, kinds = option.help, without_none(hint)
    required = default is dataclasses.MISSING
    default = None if required else default

    # Bounds are told by absl, with the flag's name, before main begins.
    low, high = typing.cast(tuple[Any, Any], option.bounds)  # ints or floats, as the field's type
    common: dict[str, Any] = {'required': required}
    # Given twice, the last would win without a word; only flags for several values may be.
    once = common | {'allow_overwrite': False}

    # By the kind of the field, the more special first.
    if item := _item(kinds):  # before the others: the type may also name str
        default = default if default is None else [str(value) for value in default]
        if option.commas:
            flags.DEFINE_list(name, default, help, **once)
        elif item is int:
            flags.DEFINE_multi_integer(name, default, help, **common)
        else:
            flags.DEFINE_multi_string(name, default, help, **common)
    elif typing.get_origin(kinds[0]) is Literal:
        flags.DEFINE_enum(name, default, typing.get_args(kinds[0]), help, **once)
    elif kinds == [bool]:
        flags.DEFINE_bool(name, default, help, **once)
    elif kinds == [int]:
        flags.DEFINE_integer(name, default, help, low, high, **once)
    elif kinds == [float]:
        flags.DEFINE_float(name, default, help, low, high, **once)
    else:
        assert kinds == [str], f'{name}: no flag is of the type {hint}'
        flags.DEFINE_string(name, default, help, **once)

    # A second flag that is short for a value of the first.
    if option.switch:
        switch, value = option.switch
        flags.DEFINE_bool(switch, False, f'the same as --{name}={value}', allow_overwrite=False)


def _value(field: Described) -> Any:
    """Return what a flag says; of a str or a tuple, one value is the str."""
    # The switch wins, as the shorter and so the more deliberate of both.
    switch = field.option.switch if field.option else None
    if switch and flags.FLAGS[switch[0]].value:
        return switch[1]

    # absl has read all but lists: of them, strings are left.
    value, kinds = flags.FLAGS[field.name].value, without_none(field.type)
    item = _item(kinds)
    if item is None or value is None:
        return value
    try:
        items = tuple(item(text) for text in value)
    except ValueError:  # with commas; absl looks at what is given once for each
        numbers = 'whole numbers' if item is int else 'numbers'
        default = field.default or ()
        example = ','.join(map(str, default if len(default) > 1 else (item('0'), item('1'))))
        raise UserError(
            f'--{field.name}={",".join(value)}: must be {numbers} with commas between, as in'
            f' --{field.name}={example}'
        ) from None
    return items[0] if len(items) == 1 and str in kinds else items


def _item(kinds: list[Any]) -> Any:
    """Return the type of a tuple's items; None where no tuple is among the types."""
    return next((item for kind in kinds if (item := item_type(kind))), None)
