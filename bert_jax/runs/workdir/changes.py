"""What differs between the run that a workdir holds and the one that would go on in it.

Owns which differences leave the past as it was (configs/schema.py has the kinds of settings). Must
not know where either run was read from.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NamedTuple

from bert_jax.configs import schema
from bert_jax.configs.options import NO_VALUE, describe_fields
from bert_jax.configs.schema import Config, PretrainConfig

# What data.json of older runs does not say. It follows from what else they say of their task.
_SAID_LATER = frozenset({'data.options.texts'})


class Change(NamedTuple):
    """One value, by its dotted name, that is another in the later run; None where there is none."""

    name: str
    before: Any
    after: Any
    refused: bool


def changes(
    before: tuple[Config, dict[str, Any]],
    after: tuple[Config, dict[str, Any]],
    done: int,
) -> list[Change]:
    """Return all that changes from the run that is there, sorted by name.

    What makes another run of it is `refused`.

    Args:
      before: the run that is there: its configuration, and what it reads (JSON values).
      after: the one that would go on.
      done: the steps of the first.
    """
    # Settings and data as flat names, so that one comparison covers both.
    kinds = schema.kinds(type(after[0]))
    old, new = (
        leaves({**dataclasses.asdict(config), 'data': data}) for config, data in (before, after)
    )

    # What may differ: always how it runs; how long it goes on only while the past is shared.
    free = {'runtime'}
    if _same_past(before[0], after[0], done):
        free.add('extendable')

    # A name that one side lacks counts as None there, so what is new or dropped shows too.
    return [
        Change(name, old.get(name), new.get(name), _kind(name, kinds) not in free)
        for name in sorted(old | new)
        if old.get(name) != new.get(name) and not (name in _SAID_LATER and name not in old)
    ]


def with_older_defaults(before: Any, after: Any) -> Any:
    """Return a section with the defaults of the run that is there, where newer ones are others.

    A default that came later does not change a run that was begun without it: the run keeps its
    value until another is named.
    """
    older = {
        field.name: field.option.later
        for field in describe_fields(type(after))
        if field.option
        and field.option.later not in (NO_VALUE, field.default)
        and getattr(before, field.name) == field.option.later
        and getattr(after, field.name) == field.default
    }
    return dataclasses.replace(after, **older)


def leaves(data: Any, prefix: str = '') -> dict[str, Any]:
    """Return {dotted name: value} of nested JSON data; of a list the length too."""
    # The length is a leaf of its own, so that a list which only grows shows as one change more.
    if isinstance(data, list | tuple):
        data = {**dict(enumerate(data)), 'length': len(data)}
    if isinstance(data, dict):
        return {
            k: v
            for name, value in data.items()
            for k, v in leaves(value, f'{prefix}{name}.').items()
        }
    return {prefix[:-1]: data}


def _kind(name: str, kinds: dict[str, str]) -> str:
    # phases.0.steps -> phases.steps, as schema.kinds names the fields of a list's items.
    plain = '.'.join(part for part in name.split('.') if not part.isdigit())

    # What is no setting (the records, the lengths of lists) decides the result, as identity does.
    return kinds.get(plain, 'identity')


def _same_past(before: Config, after: Config, done: int) -> bool:
    """Tell whether two runs that differ in steps have the first `done` steps in common.

    They do where those steps are of the same phases, and the schedule has not yet looked ahead:
    constant never does, warm-up-stable-decay where its decay begins.
    """
    # Fine-tuning's schedule always spans the whole run, so another length is another past.
    if not isinstance(before, PretrainConfig) or not isinstance(after, PretrainConfig):
        return False

    # The phases' ends, no further than the steps that are made: later borders may still move.
    borders = [
        [min(end, done) for end in itertools.accumulate(phase.steps for phase in config.phases)]
        for config in (before, after)
    ]
    if borders[0] != borders[1] or done > after.total_steps:
        return False

    # The learning rates of those steps: the same where the schedule did not depend on its end.
    end = 0
    for number, phase in enumerate(after.phases):
        if end < done and number < len(before.phases):
            end += phase.steps
            steps = [config.time_schedule(number)[1] for config in (before, after)]
            counted = min(done, end) - after.time_schedule(number)[0]
            optimizer = after.choose_optimizer(number)
            if steps[0] == steps[1] or optimizer.schedule == 'constant':
                continue
            # The decay is the last part; the shorter of both begins with it first. Linear and the
            # like fall towards the last step from the start, so another end changes all.
            decay = (1 - optimizer.decay_fraction) * min(steps)
            if optimizer.schedule != 'wsd' or counted > decay:
                return False
    return True
