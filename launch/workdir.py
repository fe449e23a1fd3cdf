"""A run's folder: who may write in it, and whether a resumed run is the same run.

Owns config.json, data.json, the lock and the tokenizer's copy (design: a workdir alone is enough to
fine-tune, evaluate or export). Must not know what a run does.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import logging
from etils import epath

from configs import schema
from configs.errors import UserError
from input_pipeline.whole_file import write_whole


@contextlib.contextmanager
def lock(workdir: str, flag: str = '--workdir') -> Iterator[None]:
    """Keeps a second process out of a local folder; the lock dies with the process. UserError, naming `flag`, where it is taken."""
    if '://' in workdir:  # an object store has no locks
        yield
        return
    Path(workdir).mkdir(parents=True, exist_ok=True)
    with open(Path(workdir) / '.lock', 'a+') as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            owner = handle.read().strip() or 'unknown'
            raise UserError(f'{flag}={workdir}: another process ({owner}) is writing in it: stop that one, or use another folder') from None
        handle.truncate(0)
        handle.write(f'pid {os.getpid()}')
        handle.flush()
        yield


def _leaves(data: Any, prefix: str = '') -> dict[str, Any]:
    if isinstance(data, dict):
        return {k: v for name, value in data.items() for k, v in _leaves(value, f'{prefix}{name}.').items()}
    if isinstance(data, (list, tuple)):
        return {k: v for i, value in enumerate(data) for k, v in _leaves(value, f'{prefix}{i}.').items()} | {prefix + 'length': len(data)}
    return {prefix[:-1]: data}


def _kind(name: str, kinds: dict[str, str]) -> str:
    plain = '.'.join(part for part in name.split('.') if not part.isdigit())
    return kinds.get(plain, 'identity')


def settle(workdir: str, config: schema.Config, data: dict[str, Any]) -> bool:
    """Writes config.json and data.json into a new workdir, or checks that an old one holds the same run.

    `data` identifies what the run reads (JSON values). Returns whether the workdir held a run before.
    UserError where a setting that decides the result differs; changes of runtime settings are logged.
    """
    folder = epath.Path(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    known = (folder / 'config.json').exists()
    if known:
        kinds = schema.kinds(type(config))
        before = schema.loads((folder / 'config.json').read_text(), str(folder / 'config.json'))
        if type(before) is not type(config):
            raise UserError(f'--workdir={workdir} holds a run of another kind ({type(before).__name__}): use another folder')
        old, new = _leaves(schema.to_dict(before)), _leaves(schema.to_dict(config))
        old_data = json.loads((folder / 'data.json').read_text())
        old |= _leaves({'data': old_data})
        new |= _leaves({'data': data})
        changed = [n for n in sorted(old | new) if old.get(n) != new.get(n)]
        free = {'runtime', 'extendable'} if _same_past(before, config, newest_step(workdir)) else {'runtime'}
        refused = [n for n in changed if _kind(n, kinds) not in free]
        if refused:
            differences = ', '.join(f'{n}: {old.get(n)!r} -> {new.get(n)!r}' for n in refused)
            raise UserError(f'--workdir={workdir} holds another run ({differences}): use another folder, or the same settings to resume')
        for name in changed:
            logging.info('resuming with %s = %r (was %r)', name, new.get(name), old.get(name))
    write_whole(folder / 'data.json', json.dumps(data, indent=2) + '\n')
    write_whole(folder / 'config.json', schema.dumps(config))
    return known


def newest_step(workdir: str) -> int:
    """Steps that a workdir's newest checkpoint has behind it, 0 without one."""
    from bert_jax.checkpoint import saved_steps

    return max(saved_steps(workdir), default=0)


def _same_past(before: schema.Config, after: schema.Config, done: int) -> bool:
    """Whether two runs that differ in the steps of their phases have the first `done` steps in common.

    They do where those steps are of the same phases, and the schedule has not yet looked ahead: constant never
    does, warm-up-stable-decay where its decay begins.
    """
    if not isinstance(before, schema.PretrainConfig) or not isinstance(after, schema.PretrainConfig):
        return False
    borders = [[min(end, done) for end in itertools.accumulate(phase.steps for phase in config.phases)] for config in (before, after)]
    if borders[0] != borders[1] or done > after.total_steps:
        return False
    match after.optimizer.schedule:
        case 'constant':
            return True
        case 'wsd':
            decay = after.optimizer.decay_fraction
            return done <= (1 - decay) * min(before.total_steps, after.total_steps)
    return False
