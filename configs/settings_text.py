"""Every setting of a configuration in words: its name for --set, default, type, interval, meaning.

Owns that text, which --help_settings prints. What the settings are is configs/schema.py's.
"""

from __future__ import annotations

import dataclasses
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from bert_jax.configs.errors import UserError, did_you_mean
from bert_jax.configs.schema import FinetuneConfig
from bert_jax.configs.section import Section

_TYPES = {bool: 'true|false', int: 'whole number', float: 'number', str: 'text'}


class Setting(NamedTuple):
    """A setting: its dotted name (N: a place from 0), and what is said of it."""

    name: str
    default: Any
    type: str
    within: str | None
    help: str


def described(cls: type[Section], about: str = '') -> str:
    """The settings of a configuration class, or those of the section or of the name `about`.

    Defaults are those of the class; presets have their own. UserError for an unknown section.
    """
    config = cls()
    settings = list(_settings(config))
    unread = config.unused() if isinstance(config, FinetuneConfig) else {}
    unread = {f'runtime.{name}': why for name, why in unread.items()}
    chosen = [one for one in settings if not about or f'{one.name}.'.startswith(f'{about}.')]
    if not chosen:
        sections = dict.fromkeys(one.name.split('.')[0] for one in settings if '.' in one.name)
        known = [*sections, *(one.name for one in settings)]
        raise UserError(
            f'--help_settings={about}: no such section; they are'
            f' {", ".join(sections)}{did_you_mean(about, known)}'
        )
    lines = ['# --set NAME=VALUE changes a setting; what a preset makes of them: --print_config']
    for one in chosen:
        value = 'none' if one.default is None else str(one.default)
        value = value.lower() if isinstance(one.default, bool) else value
        numbers = f' in {one.within}' if one.within else ''
        lines.append(f'{one.name}={value}')
        about_it = f'{one.type}{numbers}: {one.help}'
        if one.name in unread:
            about_it += f'. To be left alone in these runs: {unread[one.name]}'
        lines.append(textwrap.fill(about_it, 100, initial_indent='    ', subsequent_indent='    '))
    return '\n'.join(lines)


def _settings(config: Section, prefix: str = '') -> Iterator[Setting]:
    """The settings of an instance, sections inside it included, in their order."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        hint, value, name = hints[field.name], getattr(config, field.name), prefix + field.name
        if isinstance(value, Section):
            yield from _settings(value, f'{name}.')
        elif typing.get_origin(hint) is tuple:  # of sections, which are all alike
            yield from _settings(typing.get_args(hint)[0](), f'{name}.N.')
        else:
            about = field.metadata
            yield Setting(name, value, _type(hint), about['within'], about['help'])


def _type(hint: Any) -> str:
    """A type as a user writes its values: 'whole number or none', 'last|best'."""
    if typing.get_origin(hint) is Literal:
        return '|'.join(typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [one for one in typing.get_args(hint) if one is not type(None)]
        return f'{_type(kinds[0])} or none'
    return _TYPES[hint]
