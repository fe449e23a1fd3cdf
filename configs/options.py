"""A described field: what a setting of a configuration and an option of a command have in common.

Owns the description of a field of a frozen dataclass: its help, the interval it must lie in,
what changing it does to a resumed run, how it is written on a command line. It must not know any
option: those are where they are used, in files that import nothing heavy, because `--help` reads
them. configs/section.py checks the settings of configurations, bert_jax/cli/flags.py makes flags.

The help of a setting stands at the setting. That of an option of a command stands once too, in the
docstring of the command's dataclass:

  @dataclass(frozen=True, kw_only=True)
  class CountRows:
      '''Count the rows of a file.

Attributes:
        input: file to read.
        rows: how many of them at most.
      '''

      input: str
      rows: int = option(128, within='[1, 1024]')

Each setting says what changing it does to a run that is resumed (`kind`):
  identity    it changes the result: resuming with another value is refused;
  extendable  it may change while that leaves the past as it was: more steps, under a schedule that
              has not looked ahead;
  runtime     it changes speed, memory or logging only: resuming logs the change.
A setting that came later than files that lack it (`later`) has a value that those files mean, by
default its default; it is written only where it has another, and read as that where it is absent.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import os
import pathlib
import re
import runpy
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

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

T = TypeVar('T')
_KEY = 'option'  # of a field's metadata
NO_VALUE: Any = object()  # in place of a value, for None is one


@dataclasses.dataclass(frozen=True)
class Option:
    """The description of a field.

    Attributes:
      help: its meaning, in a line.
      within: the numbers that it may be, as the interval '[0, 1)'; `check_intervals` looks.
      kind: what changing it does to a run that is resumed.
      later: of a setting that older files lack: the value that they mean; else NO_VALUE.
      bounds: the least and the most that the command line takes, for options that do not look.
      commas: of a tuple: whether its items are one word with commas between; else the flag is given
        once for each.
      switch: (name, value): a flag --name that means this value.
      flag: the name of its flag, where that is not the field's.
      words: of what is given after the flags and not as one: how the help shows it.
      texts: whether these words are texts, in which an address is nothing to be read.
      settings: of the option --set: the class of the configuration whose settings it changes.
    """

    help: str = ''
    within: str | None = None
    kind: Literal['identity', 'extendable', 'runtime'] = 'identity'
    later: Any = NO_VALUE
    bounds: tuple[float | None, float | None] = (None, None)
    commas: bool = False
    switch: tuple[str, str] | None = None
    flag: str = ''
    words: str = ''
    texts: bool = False
    settings: Any = None


class Described(NamedTuple):
    """A field with its type (not the text of it) and its description, if it has one."""

    name: str
    type: Any
    default: Any  # dataclasses.MISSING where there is none
    option: Option | None

    @property
    def is_required(self) -> bool:
        """Tell whether the field may not be left out, for it has no default."""
        return self.default is dataclasses.MISSING


def option(default: Any, help: str = '', **describe_fields: Any) -> Any:
    """Return a field that may be left out; `describe_fields`: the other attributes of `Option`."""
    return dataclasses.field(default=default, metadata={_KEY: Option(help, **describe_fields)})


def newer(default: Any, help: str, before: Any = NO_VALUE, **describe_fields: Any) -> Any:
    """Return a field that older files lack; `before`: what they mean, if it is not the default.

    It is left out of `repr` too, of which fingerprints of older runs are made.
    """
    describe_fields['later'] = default if before is NO_VALUE else before
    metadata = {_KEY: Option(help, **describe_fields)}
    return dataclasses.field(default=default, metadata=metadata, repr=False)


def required(help: str = '', **describe_fields: Any) -> Any:
    """Return a field without a default; `describe_fields` is as of `option`."""
    return option(dataclasses.MISSING, help, **describe_fields)


def later(section: Callable[[], Any]) -> Any:
    """Return a field that holds a section which older files lack."""
    metadata = {_KEY: Option('', later=section())}
    return dataclasses.field(default_factory=section, metadata=metadata)


# asked for once a class, because annotations are strings that have to be evaluated
_hints = functools.cache(typing.get_type_hints)


def describe_fields(cls: Any) -> list[Described]:
    """Return the fields of a dataclass, each with its description."""
    return [
        Described(field.name, _hints(cls)[field.name], field.default, field.metadata.get(_KEY))
        for field in dataclasses.fields(cls)
    ]


def read_attributes(cls: type) -> dict[str, str]:
    """Return what the docstring of a class says of each of its attributes, in its own section."""
    section = re.search(
        r'^Attributes:\n((?:  .*\n?|\n)*)', inspect.cleandoc(cls.__doc__ or ''), re.M
    )
    if section is None:
        return {}
    entries = re.findall(r'^  (\w+): (.*(?:\n    .*)*)', section[1], re.M)
    return {name: ' '.join(text.split()).removesuffix('.') for name, text in entries}


@functools.cache
def list_command_options(action: type) -> dict[str, Described]:
    """Return the options of a command by the names of their flags: its own, then those it shares.

    A field is one where the docstring of the class that has it says what it means.

    Args:
      action: the dataclass of what the command does (bert_jax/cli/flags.py).
    """
    given = {field.name for field in dataclasses.fields(action) if field.init}
    fields = {field.name: field for field in describe_fields(action) if field.name in given}
    options: dict[str, Described] = {}
    for cls in action.__mro__:
        texts = read_attributes(cls)
        for name in vars(cls).get('__annotations__', {}):
            if name in fields and name in texts:
                field = fields.pop(name)
                told = dataclasses.replace(field.option or Option(), help=texts[name])
                options[told.flag or name] = field._replace(option=told)
    return options


def select_options(options: Any, cls: type[T], **changed: Any) -> T:
    """Return the options of class `cls` alone, of a command that has others too.

    Args:
      options: the command's, which have all fields of `cls`.
      cls: the dataclass of the options that are wanted.
      **changed: values in place of the command's.
    """
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**values | changed)


def is_inside(number: float, interval: str) -> bool:
    """Tell whether a number lies in an interval such as '[0, 1)'; NaN lies in none."""
    # The ends as floats: 'inf' is one; the brackets say whether the ends belong to it.
    low, high = map(float, interval[1:-1].split(','))
    above = low < number or (low == number and interval[0] == '[')
    return above and (number < high or (number == high and interval[-1] == ']'))


def is_outside(value: Any, option: Option | None) -> bool:
    """Tell whether a value lies outside of the interval of its field; None never does."""
    within = option and option.within
    return bool(within and value is not None and not is_inside(value, within))


def check_intervals(options: Any) -> None:
    """Raise UserError, naming the flag, for the first number outside of its interval."""
    for name, _, _, option in describe_fields(type(options)):
        value = getattr(options, name)
        if option and is_outside(value, option):
            raise UserError(f'--{name}={value}: must be {_describe_interval(str(option.within))}')


def _describe_interval(interval: str) -> str:
    """Word an interval as a rule: 'from 1 to 8' for '[1, 8]', 'at least 0' for '[0, inf)'."""
    # '[1, 8]' -> low '1', high '8'; brackets that close include the end, as in mathematics.
    low, high = interval[1:-1].split(', ')
    if interval[0] == '[' and interval[-1] == ']':
        return f'from {low} to {high}'
    lower = f'{"at least" if interval[0] == "[" else "more than"} {low}'
    upper = f'{"at most" if interval[-1] == "]" else "less than"} {high}'
    return lower if high == 'inf' else f'{lower} and {upper}'


# ---- what a type says


def drop_none(hint: Any) -> list[Any]:
    """Return the types that a hint names, without None."""
    # int | None and Optional[int] are two types to Python.
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [kind for kind in (typing.get_args(hint) if union else [hint]) if kind is not type(None)]


def find_item_type(hint: Any) -> Any:
    """Return the type of the items of a tuple or sequence, or None for what is neither."""
    if typing.get_origin(hint) in (tuple, collections.abc.Sequence):
        return typing.get_args(hint)[0]
    return None


def is_section(hint: Any) -> bool:
    """Tell whether a type is a dataclass, which has fields of its own."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


# Parts of one's own: a program adds names to those that a setting of the model may have.
# config.json has the name alone, since what is read back from disk is data and is never run. A
# program imports the file that registers it; for a command this variable names that file.
PARTS_VARIABLE = 'BERT_JAX_PARTS'
# {setting of ModelConfig: {name: class}}, filled by `register_part`.
_OWN: dict[str, dict[str, Any]] = {
    'norm_class': {}, 'positions': {}, 'feed_forward': {}, 'block': {},
}  # fmt: skip
_RUN: set[str] = set()  # files that were run


def register_part(setting: str, name: str, part: type) -> None:
    """Make a class of your own a value of a setting of the model, by a name.

    Settings are saved with the name. Whoever opens the folder needs the class: a program calls this
    first, and a command is told of the file that does by BERT_JAX_PARTS=FILE, which is run.

    Args:
      setting: norm_class, a module as `LayerNorm`; positions, a `Positions`; feed_forward, a `Part`
        as `FeedForward`; or block, a `Block`.
      name: the value, as in --set model.feed_forward=NAME.
      part: the class.

    Raises:
      UserError: there is no such setting.
    """
    if setting not in _OWN:
        raise UserError(f'register_part: {setting!r} is none of {", ".join(_OWN)}')
    _OWN[setting][name] = part


def is_registered(setting: str, name: object) -> bool:
    """Tell whether `name` is a registered value of a setting; the user's file is run before."""
    if setting not in _OWN:
        return False
    file = os.environ.get(PARTS_VARIABLE, '')
    if file and file not in _RUN:
        _RUN.add(file)
        if not pathlib.Path(file).is_file():
            raise UserError(f'{PARTS_VARIABLE}={file}: no such file')
        runpy.run_path(file)
    return name in _OWN[setting]


def find_class(setting: str, name: str, ours: Mapping[str, Any]) -> Any:
    """Return the class that a setting names: one of `ours`, or a registered one."""
    return ours[name] if name in ours else _OWN[setting][name]


def explain_unknown(setting: str, name: object) -> str:
    """Return how a name of nobody's is told where parts of one's own may be; '' elsewhere."""
    if setting not in _OWN or not isinstance(name, str):
        return ''
    return (
        f'model.{setting}={name} is none of ours: where it is a part of your own, import the file'
        f' that calls register_part for it, or name that file in {PARTS_VARIABLE}=FILE'
    )
