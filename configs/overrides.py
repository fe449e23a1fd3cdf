"""`--set a.b=c`: changes single settings of a configuration, with their types checked.

This file owns the spelling of names and values on a command line; what settings exist and
which values contradict each other is configs/schema.py's. All changes are applied before the result
is checked as a whole, so that two that only fit together may come in any order.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from bert_jax.configs.errors import UserError
from bert_jax.configs.section import Section, from_dict, inside

C = TypeVar('C', bound=Section)

# Names that users of other programs try, and ours for them.
_ELSEWHERE = {
    'lr': 'peak_lr',
    'learning_rate': 'peak_lr',
    'warmup': 'warmup_steps',
    'warmup_ratio': 'warmup_fraction',
    'warmup_proportion': 'warmup_fraction',
    'num_warmup_steps': 'warmup_steps',
    'train_batch_size': 'batch_size',
    'num_train_steps': 'steps',
    'max_steps': 'steps',
    'num_train_epochs': 'epochs',
    'num_epochs': 'epochs',
    'max_seq_len': 'seq_len',
    'max_seq_length': 'seq_len',
    'max_position_embeddings': 'max_position',
    'num_hidden_layers': 'num_layers',
    'num_hidden_groups': 'num_groups',
    'num_attention_heads': 'num_heads',
    'hidden_dropout_prob': 'hidden_dropout',
    'attention_probs_dropout_prob': 'attention_dropout',
    'gradient_accumulation_steps': 'accumulation',
    'max_grad_norm': 'clip_norm',
    'dtype': 'compute_dtype',
    'save_steps': 'checkpoint_every',
    'eval_steps': 'eval_every',
    'logging_steps': 'log_every',
}


def apply(config: C, changes: Iterable[str] = (), **of_other_flags: Iterable[str]) -> C:
    """A copy of `config` with each 'name=value' of `changes` made, the last one winning.

    Names are dotted, items of a tuple are named by their place from 0 (`phases.0.steps=100`);
    a tuple as a whole is given as JSON. `changes` are --set's; those of another flag, made after
    them, are given by its name. Raises UserError, naming the flag, for an unknown name and a value
    of the wrong type or outside of its interval, and for settings that contradict each other
    afterwards.
    """
    # Changes are made to plain data: what only fits together is checked once, at the end.
    data = dataclasses.asdict(config)
    for flag, its_changes in {'set': changes, **of_other_flags}.items():
        for change in its_changes:
            name, equals, text = (part.strip() for part in change.partition('='))
            if not equals or not name:
                raise UserError(f'--{flag} {change}: expected NAME=VALUE, as in --{flag} seed=1')
            # strip, above: "a = b" is one argument in quotes, and meant as a=b.
            try:
                _put(data, type(config), name.split('.'), text, name, type(config))
            except UserError as error:
                raise UserError(f'--{flag} {error}') from error
    return from_dict(type(config), data)


def names(cls: type, prefix: str = '') -> list[str]:
    """The dotted names of all settings of a class; N stands for an index of a tuple."""
    dotted = []

    # Nested sections and tuples of sections have names inside them; whatever else is a setting.
    for name, hint in typing.get_type_hints(cls).items():
        if typing.get_origin(hint) is tuple:
            dotted += names(typing.get_args(hint)[0], f'{prefix}{name}.N.')
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            dotted += names(hint, f'{prefix}{name}.')
        else:
            dotted.append(prefix + name)
    return dotted


def _meant(key: str, section: type, root: type) -> str:
    """What a refusal of an unknown name ends with: ' (did you mean ...?)', or ''.

    `key` is the unknown name in `section`, a class within the configuration class `root`. First
    that name elsewhere in the configuration, then names that look like it.
    """
    all_names = [name.replace('.N.', '.0.') for name in names(root)]
    # The surest guess first: the very name, or ours for another program's, in any section; then
    # what is spelled alike in this section, then anywhere.
    known = (key, _ELSEWHERE.get(key.lower()))
    meant = [name for name in all_names if name.rpartition('.')[2] in known]
    if not meant:
        meant = difflib.get_close_matches(key, typing.get_type_hints(section), n=1)
    if not meant:
        leaves = [name.rpartition('.')[2] for name in all_names]
        # One name that is spelled alike, and every place where it stands.
        close = difflib.get_close_matches(key, leaves, n=1)
        meant = [name for name, leaf in zip(all_names, leaves, strict=True) if leaf in close]
    return f' (did you mean {" or ".join(meant)}?)' if meant else ''


def _put(data: Any, hint: Any, path: list[str], text: str, name: str, root: type) -> None:
    """Parses `text` and writes it into `data`, in place, at the dotted name `path`.

    `data` is plain JSON data of a value of type `hint`; `name` and `root`, the whole name and the
    configuration's class, are for the messages of UserError.
    """
    # One step down the name: `key` into `data`, and the type `inner` of what stands there.
    key: Any = path[0]
    if typing.get_origin(hint) is tuple:
        if not key.isdecimal() or int(key) >= len(data):
            raise UserError(
                f'{name}: {key!r} is no place in it; the places are 0 to {len(data) - 1}'
            )
        key, inner = int(key), typing.get_args(hint)[0]
        if len(path) == 1:
            raise UserError(f'{name}: set one of {", ".join(f"{name}.{n}" for n in names(inner))}')
    else:
        hints = typing.get_type_hints(hint)
        if key in hint.removed:
            raise UserError(f'{name} was removed ({hint.removed[key]}): leave it out')
        if key not in hints:
            meant = _meant(key, hint, root)
            raise UserError(
                f'{name}: {hint.__name__} has no {key!r}{meant}; it has {", ".join(hints)}'
            )
        inner = hints[key]
    # Then the rest of the name, or the value; a section has no value of its own.
    if len(path) > 1:
        if not (dataclasses.is_dataclass(inner) or typing.get_origin(inner) is tuple):
            raise UserError(f'{name}: {key!r} has no settings inside it')
        _put(data[key], inner, path[1:], text, name, root)
    elif isinstance(inner, type) and dataclasses.is_dataclass(inner):
        raise UserError(f'{name}: set one of {", ".join(f"{name}.{n}" for n in names(inner))}')
    else:
        value = _parse(text, inner, name)
        interval = next(f for f in dataclasses.fields(hint) if f.name == key).metadata.get('within')
        if interval and value is not None and not inside(value, interval):
            raise UserError(f'{name}={text}: must be in {interval}')
        data[key] = value


def _parse(text: str, hint: Any, name: str) -> Any:
    """The value of type `hint` that `text` spells; UserError, naming the setting, if none."""
    # `none` first, where it is allowed; what is left is one type.
    options = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if text.lower() == 'none' and type(None) in options:
            return None
        hint = next(o for o in options if o is not type(None))
    if hint is str:
        return text
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if text in choices:
            return text
        also = ' or none' if type(None) in options else ''
        raise UserError(f'{name}={text}: must be one of {", ".join(choices)}{also}')

    # Whatever has no parser of its own is a tuple of sections, which is written as JSON.
    parse, expected = _PARSERS.get(hint) or (_items, 'a JSON list of objects')
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f'{name}={text}: must be {expected}{" or none" if type(None) in options else ""}'
        ) from error


def _items(text: str) -> list[dict[str, Any]]:
    items = json.loads(text)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError(text)
    return items


def _bool(text: str) -> bool:
    if text.lower() not in ('true', 'false', '1', '0'):
        raise ValueError(text)
    return text.lower() in ('true', '1')


def _int(text: str) -> int:
    """The integer that `text` spells: also 1_000, and 1e6 where it is whole; else ValueError."""
    try:
        # int first: a float has not all the digits of a large number.
        return int(text)
    except ValueError:
        number = _float(text)
        if not number.is_integer():
            raise
        return int(number)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


_PARSERS = {
    bool: (_bool, 'true or false'),
    int: (_int, 'a whole number'),
    float: (_float, 'a number'),
}
