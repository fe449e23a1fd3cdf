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
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import logging
from etils import epath

from configs import schema
from configs.errors import UserError
from input_pipeline.atomic import atomic_write


@contextlib.contextmanager
def lock(workdir: str, flag: str = '--workdir') -> Iterator[None]:
    """Keeps a second process out of a folder, which is made where there is none; the lock dies with
    the process.

    A folder that was made here and of which nothing came, because what followed was refused, is
    taken away again. UserError, naming `flag`, where it is taken or cannot be written in.
    """
    if not workdir:
        raise UserError(f'{flag}= is empty: name a folder')
    if '://' in workdir:  # an object store has no locks
        _reach(workdir, flag)
        yield
        return
    folder = Path(workdir)
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / '.lock', 'a+')  # noqa: SIM115 - `with handle` is below
    except OSError as error:
        why = 'it is a file' if isinstance(error, FileExistsError) else error.strerror
        raise UserError(
            f'{flag}={workdir}: nothing can be written there ({why}): name another folder'
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            owner = handle.read().strip() or 'unknown'
            raise UserError(
                f'{flag}={workdir}: another process ({owner}) is writing in it: stop that one, or'
                ' use another folder'
            ) from None
        try:
            handle.truncate(0)
            handle.write(f'pid {os.getpid()}')
            handle.flush()
        except OSError as error:
            with contextlib.suppress(OSError):
                handle.close()  # it tries to write once more
            raise UserError(
                f'{flag}={workdir}: nothing can be written there ({error.strerror}): make room'
            ) from error
        try:
            yield
        except BaseException as error:
            nothing = not any(map(_is_result, folder.rglob('*'))) if made else False
            if nothing and (isinstance(error, UserError) or os.listdir(folder) == ['.lock']):
                shutil.rmtree(folder)
                for path in made[1:]:
                    with contextlib.suppress(OSError):  # another's, by now
                        path.rmdir()
            raise


def _is_result(path: Path) -> bool:
    """Whether `path` is more than what a run writes before its first log line and its first
    checkpoint.
    """
    claim = ('.lock', 'config.json', 'data.json')
    return (
        path.is_file()
        and path.name not in claim
        and path.parent.name != 'tokenizer'
        and not path.name.startswith('events.out.tfevents')
        and path.stat().st_size > 0
    )


def _reach(workdir: str, flag: str) -> None:
    """UserError where a folder that is no local one cannot be asked for."""
    try:
        epath.Path(workdir).exists()
    except Exception as error:
        # each store has errors of its own, and a name like xx:// is a KeyError
        known = isinstance(error, KeyError)
        why = (
            'no such kind of path is known'
            if known
            else (str(error).strip().splitlines() or [''])[0][:200]
        )
        raise UserError(
            f'{flag}={workdir}: cannot be reached ({why}): a local folder, or gs:// with a network'
        ) from error


def read_object(path: epath.Path, what: str) -> dict[str, Any]:
    """A JSON object that a run keeps in its folder. UserError, calling it `what`, where it is gone
    or damaged.
    """
    mend = 'put it back from a copy, or use another --workdir'
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise UserError(
            f'{path}: {what} cannot be read ({error.strerror or error}): {mend}'
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f'{path}: {what} is damaged ({error}): {mend}') from error
    if not isinstance(found, dict):
        raise UserError(f'{path}: {what} is no JSON object: {mend}')
    return found


def leaves(data: Any, prefix: str = '') -> dict[str, Any]:
    """{dotted name: value} of nested JSON data; of a list the length too."""
    if isinstance(data, dict):
        return {
            k: v
            for name, value in data.items()
            for k, v in leaves(value, f'{prefix}{name}.').items()
        }
    if isinstance(data, (list, tuple)):
        return {
            k: v for i, value in enumerate(data) for k, v in leaves(value, f'{prefix}{i}.').items()
        } | {prefix + 'length': len(data)}
    return {prefix[:-1]: data}


def _kind(name: str, kinds: dict[str, str]) -> str:
    plain = '.'.join(part for part in name.split('.') if not part.isdigit())
    return kinds.get(plain, 'identity')


def create_or_resume(workdir: str, config: schema.Config, data: dict[str, Any]) -> bool:
    """Writes config.json and data.json into a new workdir, or checks that an old one holds the same
    run.

    `data` identifies what the run reads (JSON values). Returns whether the workdir held this run
    before. UserError where a setting that decides the result differs; changes of runtime settings
    are logged. A run that ended before its first checkpoint left nothing to go on from, so another
    may take its folder.
    """
    folder = epath.Path(workdir)
    known = (folder / 'config.json').exists()
    if not known and (done := newest_step(workdir)):
        raise UserError(
            f'--workdir={workdir} holds a checkpoint of step {done} and no config.json, so nothing'
            ' says of which run: put it back from a copy, or use another folder'
        )
    if known:
        kinds = schema.kinds(type(config))
        saved = read_object(folder / 'config.json', "the run's configuration")
        before = schema.from_saved(saved, str(folder / 'config.json'))
        begun = newest_step(workdir) > 0 or (folder / 'eval').exists()
        if begun and type(before) is not type(config):
            raise UserError(
                f'--workdir={workdir} holds a run of another kind ({type(before).__name__}): use'
                ' another folder'
            )
        old, new = leaves(schema.to_dict(before)), leaves(schema.to_dict(config))
        old_data = read_object(folder / 'data.json', 'what the run reads')
        old |= leaves({'data': old_data})
        new |= leaves({'data': data})
        changed = [n for n in sorted(old | new) if old.get(n) != new.get(n)]
        free = (
            {'runtime', 'extendable'}
            if _same_past(before, config, newest_step(workdir))
            else {'runtime'}
        )
        refused = [n for n in changed if _kind(n, kinds) not in free]
        if refused and not begun:
            logging.info(
                '%s: a run with other settings (%s) ended there before its first checkpoint; this'
                ' one takes its place',
                workdir,
                ', '.join(refused),
            )
            known, changed = False, []
            if (tokenizer := folder / 'tokenizer').exists():
                tokenizer.rmtree()
        elif refused:
            differences = ', '.join(f'{n}: {old.get(n)!r} -> {new.get(n)!r}' for n in refused)
            raise UserError(
                f'--workdir={workdir} holds another run ({differences}): use another folder, or the'
                ' same settings to resume'
            )
        for name in changed:
            logging.info('resuming with %s = %r (was %r)', name, new.get(name), old.get(name))
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / 'data.json', json.dumps(data, indent=2) + '\n')
    atomic_write(folder / 'config.json', schema.dumps(config))
    return known


def newest_step(workdir: str) -> int:
    """Steps that a workdir's newest checkpoint has behind it, 0 without one."""
    from bert_jax.train.checkpoint import saved_steps

    return max(saved_steps(workdir), default=0)


def _same_past(before: schema.Config, after: schema.Config, done: int) -> bool:
    """Whether two runs that differ in the steps of their phases have the first `done` steps in
    common.

    They do where those steps are of the same phases, and the schedule has not yet looked ahead:
    constant never does, warm-up-stable-decay where its decay begins.
    """
    if not isinstance(before, schema.PretrainConfig) or not isinstance(
        after, schema.PretrainConfig
    ):
        return False
    borders = [
        [min(end, done) for end in itertools.accumulate(phase.steps for phase in config.phases)]
        for config in (before, after)
    ]
    if borders[0] != borders[1] or done > after.total_steps:
        return False
    match after.optimizer.schedule:
        case 'constant':
            return True
        case 'wsd':
            decay = after.optimizer.decay_fraction
            return done <= (1 - decay) * min(before.total_steps, after.total_steps)
    return False
