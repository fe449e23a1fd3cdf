"""A run's folder: who may write in it, and whether a resumed run is the same run.

Owns config.json, data.json, the lock and the tokenizer's copy (design: a workdir alone is enough to
fine-tune, evaluate or export). Must not know what a run does.
"""

from __future__ import annotations

import contextlib
import fcntl
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
        refused = [n for n in changed if _kind(n, kinds) == 'identity' or (_kind(n, kinds) == 'extendable' and not _extendable(config))]
        if refused:
            differences = ', '.join(f'{n}: {old.get(n)!r} -> {new.get(n)!r}' for n in refused)
            raise UserError(f'--workdir={workdir} holds another run ({differences}): use another folder, or the same settings to resume')
        for name in changed:
            logging.info('resuming with %s = %r (was %r)', name, new.get(name), old.get(name))
    write_whole(folder / 'data.json', json.dumps(data, indent=2) + '\n')
    write_whole(folder / 'config.json', schema.dumps(config))
    return known


def _extendable(config: schema.Config) -> bool:
    """Whether more steps leave the past unchanged: only under a schedule that does not look ahead."""
    return isinstance(config, schema.PretrainConfig) and config.optimizer.schedule == 'constant'
