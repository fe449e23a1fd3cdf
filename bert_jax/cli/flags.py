"""Actions as flags: `define` makes the flags of a command's actions, `read` the action asked for.

An action is a frozen dataclass that does one thing when it is called. Its fields are the flags of
the command and the keywords of the Python function, and its docstring has their help
(configs/options.py). A command may have several: the options that are given say which is meant.

Owns which kind of flag a type becomes, and the choice between actions.
"""

from __future__ import annotations

import shlex
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from absl import flags

from bert_jax.cli.commands import name_as_typed
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import (
    Described,
    Option,
    drop_none,
    find_item_type,
    list_command_options,
)

# Of the command that calls `define`, and not of this file: where --help lists them.
flags.disclaim_key_flags()


def define(actions: Sequence[type]) -> None:
    """Define a flag for each option of the actions, in their order; what they share once."""
    defined: dict[str, Described] = {}
    for action in actions:
        for name, field in list_command_options(action).items():
            if _describe(field).words:
                continue
            if name not in defined:
                _define(name, field, _list_choices(actions, name))
                defined[name] = field
            # absl reads a flag in one way, whichever action is meant.
            same = _find_item(defined[name]) is _find_item(field)
            assert same, f'--{name} is of two types in {action.__name__} and another'


def read(actions: Sequence[type], words: Sequence[str] = ()) -> Any:
    """Return the action that the flags and the words after them ask for.

    Raises:
      UserError: they do not go together, a required option is not there, or a list holds what is
        no number.
    """
    names = dict.fromkeys(name for action in actions for name in list_command_options(action))
    given = {name: flags.FLAGS[name].value for name in names if _is_present(name)}
    for action in actions:
        for name, field in list_command_options(action).items():
            # A switch wins, as the shorter and so the more deliberate of both.
            switch = _describe(field).switch
            if switch and flags.FLAGS[switch[0]].value:
                given[name] = switch[1]
            elif _describe(field).words and words:
                given[name] = words
    action = choose(actions, given)
    options = list_command_options(action)
    return action(**{options[n].name: _convert(n, options[n], given[n]) for n in given})


def choose(actions: Sequence[Any], given: Mapping[str, Any]) -> Any:
    """Return the action that has all the options that are `given`, by their names.

    Raises:
      UserError: no action has all of them, or what one requires is not there.
    """
    # What fewest actions have says most about what is meant.
    named = sorted(given, key=lambda name: sum(name in list_command_options(a) for a in actions))
    fitting = list(actions)
    for name in named:
        fitting = [action for action in fitting if _takes(action, name, given[name])]
        if not fitting:
            raise UserError(_say_stranger(name, given, actions))
    missing = {action: _find_missing(action, given) for action in fitting}
    for action in fitting:
        if not missing[action]:
            return action

    # Of several, those that lack least may be what is meant.
    least = min(map(len, missing.values()))
    if least == 1:
        names = dict.fromkeys(missing[action][0] for action in fitting if len(missing[action]) == 1)
        raise UserError(f'{_enumerate(list(names), "or")} is required (see --help)')
    lacking = next(names for names in missing.values() if len(names) == least)
    raise UserError(f'{_enumerate(lacking, "and")} are required (see --help)')


def format_command(name: str, options: Mapping[str, Any]) -> str:
    """Return the line that a user would type for a command with these options.

    Args:
      name: the file of the command in launch, as 'train_vocab'.
      options: values by the names of flags; a sequence or mapping gives its flag once for each.
    """
    words = []
    for flag, value in options.items():
        if isinstance(value, bool):
            words.append(f'--{flag}' if value else f'--no{flag}')
            continue
        several = [value]
        if isinstance(value, Mapping):
            several = [f'{key}={item}' for key, item in value.items()]
        elif isinstance(value, list | tuple):
            several = list(value)
        words += [f'--{flag}={item}' for item in several]
    return shlex.join([*name_as_typed(name).split(), *words])


def _describe(field: Described) -> Option:
    assert field.option, f'{field.name} has no help'
    return field.option


def _is_present(name: str) -> bool:
    return name in flags.FLAGS and bool(flags.FLAGS[name].present)


def _takes(action: type, name: str, value: Any) -> bool:
    """Tell whether an action has the option, and the option the value."""
    field = list_command_options(action).get(name)
    if field is None:
        return False
    choices = find_choices(field)
    return not choices or value in choices


def _find_missing(action: type, given: Mapping[str, Any]) -> list[str]:
    options = list_command_options(action)
    missing = [name for name in options if options[name].is_required and name not in given]
    return [_describe(options[name]).words or _show(name, options[name]) for name in missing]


def _show(name: str, field: Described) -> str:
    """Return an option as it is typed; with its value where there is only one."""
    choices = find_choices(field)
    if len(choices) == 1 and isinstance(choices[0], str):
        return f'--{name}={choices[0]}'
    return f'--{name}'


def _say_stranger(name: str, given: Mapping[str, Any], actions: Sequence[type]) -> str:
    """Return the line for an option that no action has beside the others that are given."""
    owners = [action for action in actions if _takes(action, name, given[name])]
    for other in given:
        others = [action for action in actions if _takes(action, other, given[other])]
        if not set(owners) & set(others):
            shown = [_describe_use(n, given, actions) for n in given if n in (name, other)]
            return f'{" and ".join(shown)} do not go together: leave one out (see --help)'
    uses = [_describe_use(each, given, actions) for each in given]
    return f'{", ".join(uses)} do not go together: leave one out (see --help)'


def _describe_use(name: str, given: Mapping[str, Any], actions: Sequence[type]) -> str:
    """Return an option with the actions that have it: '--top (of FindNearest)'."""
    owners = [action.__name__ for action in actions if _takes(action, name, given[name])]
    if len(owners) > 3:
        owners = [*owners[:2], 'others']
    shown = f'--{name}'
    if any(find_choices(a[name]) for a in map(list_command_options, actions) if name in a):
        shown = f'--{name}={given[name]}'
    return f'{shown} (of {_enumerate(owners, "or")})'


def _enumerate(names: Sequence[str], word: str) -> str:
    """Return 'a, b or c'."""
    if len(names) == 1:
        return names[0]
    return f'{", ".join(names[:-1])} {word} {names[-1]}'


def _list_choices(actions: Sequence[type], name: str) -> list[str]:
    """Return the values that any of the actions takes for an option; none where all are taken."""
    choices: dict[str, None] = {}
    for action in actions:
        if name in list_command_options(action):
            choices |= dict.fromkeys(find_choices(list_command_options(action)[name]))
    return list(choices)


def find_choices(field: Described) -> tuple[str, ...]:
    """Return the values that an option may have; none where it may have any."""
    kinds = drop_none(field.type)
    if typing.get_origin(kinds[0]) is Literal:
        return typing.get_args(kinds[0])
    return ()


def _find_item(field: Described) -> Any:
    """Return the type of the items of a field that takes several; None for any other."""
    # Whichever stands first: the type may also name one item by itself.
    items = [find_item_type(kind) for kind in drop_none(field.type)]
    return next((_flatten(item) for item in items if item), None)


def _flatten(kind: Any) -> Any:
    """Return `str` for a path, which is a str too, and any other type as it is."""
    return str if str in drop_none(kind) else kind


def _define(name: str, field: Described, choices: Sequence[str]) -> None:
    """Define the flag of an option, and the one of its switch after it."""
    # Without a default: the dataclass has it, and what is not given is not asked for.
    option = _describe(field)
    kinds = drop_none(field.type)
    # Bounds are told by absl, with the flag's name, before the command begins.
    low, high = typing.cast(tuple[Any, Any], option.bounds)  # ints or floats, as the field's type
    # Given twice, the last would win without a word; only flags for several values may be.
    once: dict[str, Any] = {'allow_overwrite': False}

    # By the kind of the field, the more special first.
    item = _find_item(field)
    if item:
        if option.commas:
            flags.DEFINE_list(name, None, option.help, **once)
        elif item is int:
            flags.DEFINE_multi_integer(name, None, option.help)
        else:
            flags.DEFINE_multi_string(name, None, option.help)
    elif choices:
        flags.DEFINE_enum(name, None, choices, option.help, **once)
    elif kinds == [bool]:
        flags.DEFINE_bool(name, None, option.help, **once)
    elif kinds == [int]:
        flags.DEFINE_integer(name, None, option.help, low, high, **once)
    elif kinds == [float]:
        flags.DEFINE_float(name, None, option.help, low, high, **once)
    else:
        assert str in kinds, f'{name}: no flag is of the type {field.type}'
        flags.DEFINE_string(name, None, option.help, **once)

    # A second flag that is short for a value of the first.
    if option.switch:
        switch, value = option.switch
        flags.DEFINE_bool(switch, None, f'the same as --{name}={value}', **once)


def _convert(name: str, field: Described, value: Any) -> Any:
    """Return the value of a flag in the type of its field; of a str or several, one is the str."""
    # absl has read all but lists: of them, strings are left.
    kinds, item = drop_none(field.type), _find_item(field)
    if _describe(field).words and item is None:
        if len(value) != 1:
            shown = _describe(field).words
            raise UserError(f'name one {shown}, not {len(value)}: {" ".join(value)}')
        return value[0]
    if item is None:
        return value
    try:
        items = tuple(item(text) for text in value)
    except ValueError:  # with commas; absl looks at what is given once for each
        numbers = 'whole numbers' if item is int else 'numbers'
        default = field.default if isinstance(field.default, tuple) else ()
        if len(default) < 2:
            default = (item('0'), item('1'))
        raise UserError(
            f'--{name}={",".join(value)}: must be {numbers} with commas between, as in'
            f' --{name}={",".join(map(str, default))}'
        ) from None
    return items[0] if len(items) == 1 and str in kinds else items
