"""The output directory of the offline job, which appears whole or not at all.

This file owns what is refused there, the scratch folder inside it, and the moment when the
finished files get their names. It must not know how records are made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from typing import Any

from etils import epath

from configs.errors import UserError
from input_pipeline.shards import MANIFEST, Manifest
from input_pipeline.tokenizer import Tokenizer

_PATHS = {'input', 'eval_input', 'tokenizer'}  # options that may differ: the same text and vocabulary may lie elsewhere


def finished(output: epath.Path, options: dict[str, Any]) -> Manifest | None:
    """The manifest, where the job with these options is finished in `output`; None where nothing is there. Refuses another job's."""
    if output.exists() and not output.is_dir():
        raise UserError(f'--output={output}: is a file, and must be a folder')
    if not (output / MANIFEST).exists():
        strange = sorted(path.name for path in output.glob('*.tfrecord'))
        if strange:
            raise UserError(f'--output={output}: holds {strange[0]} but no {MANIFEST}: choose another folder, or give --overwrite to replace it')
        return None
    manifest = Manifest.load(output)
    held = manifest.options
    other = [name for name in {**options, **held} if name not in _PATHS and options.get(name) != held.get(name)]
    if other:
        name = other[0]
        raise UserError(
            f'--output={output}: holds the output of another job ({name} is {held.get(name)!r} there and {options.get(name)!r} here): '
            'choose another folder, or give --overwrite to replace it'
        )
    return manifest


@contextlib.contextmanager
def scratch(output: epath.Path) -> Iterator[epath.Path]:
    """OUTPUT/.tmp, emptied before and removed after, held by one process at a time (on gs:// that is the user's to see to)."""
    folder, remote = output / '.tmp', '://' in str(output)
    made = [] if remote else [path for path in (output, *output.parents) if not path.exists()]
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'--output={output}: cannot be made ({error.strerror})') from error
    lock = None if remote else open(output / '.lock', 'w')  # noqa: SIM115 - held as long as the job
    if lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise UserError(f'--output={output}: another process is writing there: wait for it, or choose another folder') from None
    try:
        _remove(folder)
        (folder / 'final').mkdir(parents=True)
        yield folder
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f'--output={output}: disk full: nothing was written; the job needs about twice the size of its records while it runs: '
                'free some space and run the same command again'
            ) from error
        raise
    finally:
        _remove(folder)
        if lock:
            (output / '.lock').unlink(missing_ok=True)
            lock.close()
        for path in made:  # a failed job leaves no empty folders behind
            with contextlib.suppress(OSError):
                os.rmdir(path)


def _remove(folder: epath.Path) -> None:
    """Removes a folder with all in it, where there is one."""
    with contextlib.suppress(OSError):
        epath.Path(folder).rmtree(missing_ok=True)


def publish(final: epath.Path, output: epath.Path, tokenizer: Tokenizer, manifest: Manifest) -> None:
    """Moves the finished files to their names, the manifest last; what another job left there goes first."""
    (output / MANIFEST).unlink(missing_ok=True)
    for path in output.glob('*.tfrecord'):
        path.unlink()
    _remove(output / 'tokenizer')
    for path in sorted(final.iterdir()):
        path.replace(output / path.name)
    tokenizer.save(output / 'tokenizer')
    manifest.save(output)
