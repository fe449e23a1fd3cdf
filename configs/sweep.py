"""`--sweep="a.b=1,2;seed=0,1"`: a grid of settings, as configurations with names.

This file owns the spelling of a grid and the names of its points; what a setting may be is
`bert_jax.configs.overrides`'. The last setting named changes fastest.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar, get_args

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.tuning import Method
from bert_jax.configs.overrides import apply
from bert_jax.configs.section import Section

C = TypeVar('C', bound=Section)


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


def grid(config: C, text: str, change: Callable[..., C] = apply) -> list[Point[C]]:
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
