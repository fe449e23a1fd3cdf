"""`--set a.b=c` changes settings, `--sweep="a.b=1,2"` makes a grid, `--help_settings` explains.

This file owns the spelling of names and values on a command line, and the settings in words; what
settings exist and which values contradict each other is configs/schema.py's. All changes are
applied before the result is checked as a whole, so that two that only fit together may come in any
order. A grid is a configuration for each point, and the last setting named changes fastest.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import math
import operator
import textwrap
import typing
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from bert_jax.configs.errors import UserError, suggest
from bert_jax.configs.model.tuning_config import Method
from bert_jax.configs.options import (
    describe_fields,
    drop_none,
    explain_unknown,
    find_item_type,
    is_outside,
    is_registered,
    is_section,
)
from bert_jax.configs.schema import FinetuneConfig
from bert_jax.configs.section import Section, names, settings

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
    """Return a copy of `config` with each 'name=value' of `changes` made, the last one winning.

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
                _put(data, type(config), name, text)
            except UserError as error:
                raise UserError(f'--{flag} {error}') from error
    return type(config).from_json(data)


def _find_meant(key: str, siblings: list[str], root: type) -> str:
    """Return what a refusal of the unknown name `key` ends with: ' (did you mean ...?)', or ''.

    `siblings` are the names of its section, and `root` is the configuration's class. First that
    name elsewhere in the configuration, then names that look like it.
    """
    all_names = [name.replace('.N.', '.0.') for name in names(root)]
    # The surest guess first: the very name, or ours for another program's, in any section; then
    # what is spelled alike in this section, then anywhere.
    guesses = (key, _ELSEWHERE.get(key.lower()))
    meant = [name for name in all_names if name.rpartition('.')[2] in guesses]
    # What a phase may have in place of the run's is not meant first.
    meant = [name for name in meant if not name.startswith('phases.')] or meant
    if not meant:
        meant = difflib.get_close_matches(key, siblings, n=1)
    if not meant:
        leaves = [name.rpartition('.')[2] for name in all_names]
        # One name that is spelled alike, and every section that has it.
        close = difflib.get_close_matches(key, leaves, n=1)
        meant = [name for name, leaf in zip(all_names, leaves) if leaf in close]
    return f' (did you mean {" or ".join(meant)}?)' if meant else ''


def _put(data: Any, root: type[Section], name: str, text: str) -> None:
    """Parse `text` and write it into `data`, the JSON data of a `root`, at a dotted name."""
    # Down the name, step by step: what stands at `key` of `inside` is of the type `hint`.
    inside: Any = {'': data}
    key: Any = ''
    hint: Any = root
    for step in name.split('.'):
        inside, option = inside[key], None
        item = find_item_type(hint)
        if item:
            if not step.isdecimal() or int(step) >= len(inside):
                raise UserError(
                    f'{name}: {step!r} is no place in it; the places are 0 to {len(inside) - 1}'
                )
            key, hint = int(step), item
        elif is_section(hint):
            fields = {field.name: field for field in describe_fields(hint)}
            if step in hint.removed:
                raise UserError(f'{name} was removed ({hint.removed[step]}): leave it out')
            if (step, text) in hint.replaced:
                instead, reason = hint.replaced[step, text]
                raise UserError(f'{name}={text} was removed ({reason}): use {instead}')
            if step not in fields:
                meant = _find_meant(step, list(fields), root)
                raise UserError(
                    f'{name}: {hint.__name__} has no {step!r}{meant}; it has {", ".join(fields)}'
                )
            key, hint, _, option = fields[step]
        else:
            raise UserError(f'{name}: {key!r} has no settings inside it')
    # A section has no value of its own.
    if is_section(hint):
        raise UserError(f'{name}: set one of {", ".join(f"{name}.{n}" for n in names(hint))}')
    value = _parse(text, hint, name)
    if option and is_outside(value, option):
        raise UserError(f'{name}={text}: must be in {option.within}')
    inside[key] = value


def _parse(text: str, hint: Any, name: str) -> Any:
    """Return the value of type `hint` that `text` spells, or raise UserError with the name."""
    # `none` first, where it is allowed, or as JSON has it; what is left is one type.
    kind = drop_none(hint)[0]
    or_none = ' or none' if type(None) in typing.get_args(hint) else ''
    if or_none and text.lower() in ('none', 'null'):
        return None
    if kind is str:
        return text
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        setting = name.rpartition('.')[2]
        if text in choices or is_registered(setting, text):
            return text
        line = explain_unknown(setting, text)
        if line:
            raise UserError(f'{line}; ours are {", ".join(choices)}')
        raise UserError(f'{name}={text}: must be one of {", ".join(choices)}{or_none}')

    # Whatever has no parser of its own is a tuple of sections, which is written as JSON.
    parse, expected = _PARSERS.get(kind) or (_read_items, 'a JSON list of objects')
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f'{name}={text}: must be {expected}{or_none}') from error


def _read_items(text: str) -> list[dict[str, Any]]:
    items = json.loads(text)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError(text)
    return items


def _read_bool(text: str) -> bool:
    try:
        return {'true': True, '1': True, 'false': False, '0': False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _read_int(text: str) -> int:
    """Return the integer that `text` spells: also 1_000, and 1e6 where it is whole."""
    try:
        # int first: a float has not all the digits of a large number.
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _read_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


_PARSERS = {
    bool: (_read_bool, 'true or false'),
    int: (_read_int, 'a whole number'),
    float: (_read_float, 'a number'),
}


# ---- --sweep: a grid of settings, as configurations with names

# Grids by name: of the section 4.1 and the appendix A.3 of the paper, and of the README of
# google-research/bert for its smaller models; and every method of tuning beside full fine-tuning.
# Seeds go behind one: --sweep="glue;seed=0,1,2".
GRIDS = {
    'glue': 'optimizer.peak_lr=5e-5,4e-5,3e-5,2e-5',
    'appendix': 'batch_size=16,32;optimizer.peak_lr=5e-5,3e-5,2e-5;epochs=2,3,4',
    'miniatures': 'epochs=4;batch_size=8,16,32,64,128;optimizer.peak_lr=3e-4,1e-4,5e-5,3e-5',
    'methods': f'tuning.method={",".join(get_args(Method))}',
}


class Point(NamedTuple, Generic[C]):
    """One run of a sweep: its configuration, its settings by dotted name, a name made of them."""

    name: str
    settings: dict[str, object]
    config: C


def make_grid(config: C, text: str, change: Callable[..., C] = apply) -> list[Point[C]]:
    """Return every combination of the settings in `text`, applied to `config`, as points.

    A name of GRIDS in `text` stands for its settings. change: what applies them, as
    change(config, sweep=...).

    Raises:
      UserError: the text is malformed, a setting is unknown, a value bad, or two are equal.
    """
    # A grid's name becomes its settings, so that from here on there are settings alone.
    spelled_out = ';'.join(GRIDS.get(item.strip(), item) for item in text.split(';'))
    axes: dict[str, list[str]] = {}
    for axis in filter(None, (item.strip() for item in spelled_out.split(';'))):
        name, _, values = (part.strip() for part in axis.partition('='))
        choices = [value.strip() for value in values.split(',')]
        if not all(choices):
            raise UserError(
                f'--sweep: {axis!r}: expected NAME=VALUE,VALUE as in'
                f' "optimizer.peak_lr=2e-5,3e-5;seed=0,1,2", or one of {", ".join(GRIDS)}'
            )
        if name in axes:
            # One value per setting and point: two lists of one setting would contradict each other.
            raise UserError(f'--sweep: {name!r} is named twice')
        axes[name] = choices
    if not axes:
        raise UserError('--sweep is empty: name a setting and its values, as in "seed=0,1,2"')
    # A point is named by its settings as they were parsed: 1e-5 and 0.00001 are the same value.
    points = {}

    # The product of all lists, the last changing fastest.
    for values_of_point in itertools.product(*axes.values()):
        pairs = zip(axes, values_of_point)
        changed = change(config, sweep=[f'{name}={value}' for name, value in pairs])
        settings = {name: operator.attrgetter(name)(changed) for name in axes}
        name = ','.join(f'{name}={value}' for name, value in settings.items())
        # The same value twice would be two runs in one folder.
        if name in points:
            raise UserError(f'--sweep="{text}": the same value comes twice')
        points[name] = Point(name, settings, changed)
    return list(points.values())


# ---- --help_settings: every setting in words

_TYPES = {bool: 'true|false', int: 'whole number', float: 'number', str: 'text'}


def describe_settings(cls: type[Section], prefix: str = '') -> str:
    """Return the settings of a configuration class in words.

    Args:
      cls: the class; defaults are its own, and presets have theirs.
      prefix: a section or a name, whose settings alone are wanted; '' for all.

    Raises:
      UserError: for an unknown section.
    """
    config = cls()
    all_settings = list(settings(config))
    unread = config.unused() if isinstance(config, FinetuneConfig) else {}
    chosen = [each for each in all_settings if not prefix or f'{each[0]}.'.startswith(f'{prefix}.')]
    if not chosen:
        names = [name for name, _, _ in all_settings]
        sections = list(dict.fromkeys(name.split('.')[0] for name in names if '.' in name))
        raise UserError(
            f'--help_settings={prefix}: no such section; they are'
            f' {", ".join(sections)}{suggest(prefix, sections + names)}'
        )
    lines = ['# --set NAME=VALUE changes a setting; what a preset makes of them: --print_config']
    for name, default, field in chosen:
        value = 'none' if default is None else str(default)
        lines.append(f'{name}={value.lower() if isinstance(default, bool) else value}')
        if not field.option:
            continue
        numbers = f' in {field.option.within}' if field.option.within else ''
        meaning = f'{_type(field.type)}{numbers}: {field.option.help}'
        why = unread.get(name.removeprefix('runtime.'))
        if why:
            meaning += f'. To be left alone in these runs: {why}'
        lines.append(textwrap.fill(meaning, 100, initial_indent='    ', subsequent_indent='    '))
    return '\n'.join(lines)


def _type(hint: Any) -> str:
    """Word a type as a user writes its values: 'whole number or none', 'last|best'."""
    kind = drop_none(hint)[0]
    literal = typing.get_origin(kind) is Literal
    text = '|'.join(typing.get_args(kind)) if literal else _TYPES[kind]
    return text if kind is hint else f'{text} or none'
