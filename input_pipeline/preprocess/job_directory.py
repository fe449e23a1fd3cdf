"""The output directory of the offline job, which appears whole or not at all.

This file owns what is refused there, the scratch folder inside it, which an interrupted job
leaves for the same command to go on with, and the moment when the finished files get their
names. In the scratch folder lie the results of tasks, so that none is done twice; one is kept after
the files that its task writes, which all appear whole. It must not know how records are made.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files import typed_json
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import parse_object
from bert_jax.configs.files.lock import lock_folder
from bert_jax.input_pipeline.preprocess import sorted_runs
from bert_jax.input_pipeline.records.shards import MANIFEST, Manifest
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

COPY = '.copy'  # ends the names of folders in it, of text of a bucket that is being read
RUNS = 'runs'  # the folder of the files between the stages, in the scratch folder
_SCRATCH, _JOB, _FINAL, _RESULTS = '.tmp', 'job.json', 'final', 'results'
_FAILED = '.failed'  # ends the name of the result of a task that failed
_READERS = 32  # results read at once: a bucket in the cloud takes its time for each
_REFUSED = 'refused'  # a file that says that a line or a file of the text ended the job
# What may differ: the same text and vocabulary may lie elsewhere, and whether it is the same is
# checked separately.
_MAY_DIFFER = {'input', 'eval_input', 'tokenizer', 'input_times', 'input_contents'}
_OTHER_TEXT = 'the input files have changed'
_WORDS = {'input_digest': _OTHER_TEXT, 'program': 'the program has changed'}
_FULL = {
    errno.ENOSPC: 'disk full',
    errno.EDQUOT: 'disk quota used up',
    errno.EFBIG: 'a file grew beyond the limit of the disk or of ulimit -f',
}


class Interrupted(UserError):
    """What ended the job from outside.

    The work that it has finished stays, and the same command goes on from there.
    """


class Refused(UserError):
    """A mistake in a line or a file of the text, which ended the job while it was read.

    What was read stays, and the mended job goes on from there.
    """


def refuse_strange(output: epath.Path, tokenizer: Tokenizer) -> None:
    """Raise UserError where a name that the job writes is taken by what it did not make.

    What a job has made is known by its manifest, or by the note in its scratch folder.
    """
    scratch, strange = output / _SCRATCH, ''
    if scratch.exists() and not _is_ours(scratch):
        strange = scratch.name
    elif not ((output / MANIFEST).exists() or (scratch / MANIFEST).exists()):
        try:
            tokenizer.is_saved(
                output / 'tokenizer'
            )  # the very same one stays, whoever put it there
        except UserError:
            strange = 'tokenizer'
    if strange:
        raise UserError(
            f'--output={output}: holds {strange}, which this command did not make and would'
            ' replace: choose another folder, or give --overwrite'
        )


def _is_ours(folder: epath.Path) -> bool:
    """Tell whether a scratch folder is ours: it has a job's note, or only empty folders."""
    # The note comes first of all; what was killed while it wrote has left its temporary name.
    return folder.is_dir() and (
        (folder / _JOB).exists()
        or not any(
            path.name not in (_FINAL, RUNS) or any(path.iterdir())
            for path in folder.iterdir()
            if not path.name.startswith(f'.{_JOB}.')
        )
    )


def finished(
    output: epath.Path, options: dict[str, Any], same_text: Callable[[dict[str, Any]], bool]
) -> Manifest | None:
    """Return the manifest, where the job with these options is finished in `output`; else None.

    `same_text` says whether the text is what a job with those options has read. Refuses another
    job's.
    """
    choose = 'choose another folder, or give --overwrite to replace it'
    if not (output / MANIFEST).exists():
        strange = sorted(path.name for path in output.glob('*.tfrecord'))
        # else the job was interrupted while its files got their names
        if strange and not (output / _SCRATCH / MANIFEST).exists():
            raise UserError(f'--output={output}: holds {strange[0]} but no {MANIFEST}: {choose}')
        return None

    # The cheap comparisons first: the text is read only where all else is the same.
    try:
        manifest = Manifest.load(output)
    except UserError:
        raise UserError(
            f'--output={output}: holds a {MANIFEST} that is broken, or that this command did not'
            f' make: {choose}'
        ) from None
    difference = _difference(manifest.options, options)
    if not difference and not manifest.options.keys() >= _MAY_DIFFER:
        difference = 'an earlier version made it, which kept no checksum of the text'
    if not difference and not same_text(manifest.options):
        difference = _OTHER_TEXT
    if difference:
        raise UserError(
            f'--output={output}: holds the output of another job ({difference}): {choose}'
        )
    return manifest


def _difference(there: dict[str, Any], here: dict[str, Any]) -> str | None:
    """Return the first option that makes another job of it, in words."""
    for name in {**here, **there}:
        before, now = there.get(name), here.get(name)
        if name not in _MAY_DIFFER and before != now:
            return _WORDS.get(name) or f'{name} is {before!r} there and {now!r} here'
    return None


@contextlib.contextmanager
def scratch(
    output: epath.Path,
    job: dict[str, Any],
    overwrite: bool,
    same_text: Callable[[epath.Path], bool],
    keep_same: Callable[[epath.Path], int] = lambda folder: 0,
) -> Iterator[epath.Path]:
    """Yield OUTPUT/.tmp, held by one process at a time, with what this very job has done before.

    On gs:// the user sees to it that there is one. `job`: all that its bytes depend on, but for the
    version of this package and the text; `same_text` says whether that is what the job which left
    its work in the folder has read of it. The folder goes when the block ends well or by a mistake
    of the user's, and stays when it is interrupted, or when its text is refused: then `keep_same`
    leaves of what was read what is as it was, and says how much. Raises UserError where another
    job was interrupted, unless `overwrite`.
    """
    folder, job = output / _SCRATCH, json.loads(json.dumps({'program': _program()} | job))
    # Of a failed job no empty folder is left.
    with lock_folder(os.fspath(output), '--output'), _kept_unless_mistaken(folder):
        _begin(folder, job, overwrite, same_text, keep_same)
        yield folder
        _remove(folder)


@contextlib.contextmanager
def _kept_unless_mistaken(folder: epath.Path) -> Iterator[None]:
    """Decide by what ended the job whether its work in the folder stays.

    It stays after what may pass (a kill, a full disk, a dead worker), and goes after a mistake,
    which another command will mend.
    """
    try:
        yield
    except Interrupted:  # a UserError too, so it comes first
        raise
    except Refused as error:
        # Nothing read yet is nothing to keep.
        if not any((folder / _RESULTS).glob('*/*')):
            _remove(folder)
            raise
        atomic_write(folder / _REFUSED, f'{error}\n')
        raise Refused(
            f'{error}; what was read stays: once this is mended, the job goes on from there'
        ) from error
    except UserError:
        _remove(folder)
        raise
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise Interrupted(
            f'--output={folder.parent}: {_FULL[error.errno]}: no records were written; '
            'the job needs about twice their size while it runs: '
            f'free some space and run the same command again, which goes on from {folder}'
        ) from error


def _begin(
    folder: epath.Path,
    job: dict[str, Any],
    overwrite: bool,
    same_text: Callable[[epath.Path], bool],
    keep_same: Callable[[epath.Path], int],
) -> None:
    """Empty the scratch folder, unless what lies there is this job's."""
    # Whose work is it? job.json is written first of all, so where it is missing or no JSON nothing
    # is lost by a new beginning (what is no job's at all was refused before).
    held = None
    with contextlib.suppress(OSError, ValueError):
        held = parse_object((folder / _JOB).read_bytes())
    if held is not None:
        # The program's digest is among the options: what another version has left, in whatever
        # form, is not even read.
        refused = (folder / _REFUSED).exists()
        difference = _difference(_mended(held, job) if refused else held, job)
        if difference is None and not refused and not same_text(folder):
            difference = _OTHER_TEXT

        # This job's: it goes on, after what its end may have left half done.
        if difference is None:
            for half in Path(folder).rglob('.*.tmp'):  # none where the folder is remote
                half.unlink(missing_ok=True)
            _check(folder)
            if refused:
                kept = keep_same(folder)
                print(f'{folder.parent}: goes on, with {kept:,} part(s) of the text read')
                atomic_write(folder / _JOB, json.dumps(job, indent=1) + '\n')
                (folder / _REFUSED).unlink()
            else:
                print(f'{folder.parent}: goes on with the job that was interrupted', flush=True)
            return

        # Another's: hours of work perhaps, which only --overwrite throws away.
        # Where its text was refused, the mistake may as well have been in an option.
        if (folder / _RESULTS).exists() and not (overwrite or refused):
            raise Interrupted(
                f'--output={folder.parent}: holds the unfinished work of another job'
                f' ({difference}): finish it with its own command, choose another folder, or give'
                ' --overwrite to begin anew'
            )

    _remove(folder)
    for name in (_FINAL, RUNS):
        (folder / name).mkdir(parents=True)
    atomic_write(folder / _JOB, json.dumps(job, indent=1) + '\n')


def _mended(held: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Return what a job whose text was refused may become without being another job.

    Its text may be mended in the files, or by options that let it pass.
    """
    # From a strict value to another: what was read under it holds nothing to be treated otherwise.
    mends = {'input_digest'}
    if held.get('on_bad_record', 'stop') == 'stop':
        mends |= {'on_bad_record'} | ({'on_bad_utf8'} if held['on_bad_utf8'] == 'error' else set())
    unchanged = {name: value for name, value in held.items() if name not in mends}
    return unchanged | {name: job[name] for name in mends if name in job}


def _check(folder: epath.Path) -> None:
    """Raise UserError where a file between the stages is not whole.

    A machine that lost its power may have left holes in it. A bucket in the cloud leaves none.
    """
    # What a worker that was killed had fetched of a bucket.
    for path in Path(folder, RUNS).glob(f'*{COPY}'):
        shutil.rmtree(path)

    # Threads are enough: zlib and reading both let the others run meanwhile.
    with ThreadPoolExecutor() as pool:
        list(pool.map(sorted_runs.check, map(str, Path(folder, RUNS).glob('*'))))


def _program() -> str:
    """Return a digest of our source: an interrupted job does not go on with another version."""
    sources = sorted(Path(__file__).parents[1].rglob('*.py'))
    return hashlib.sha256(b''.join(path.read_bytes() for path in sources)).hexdigest()


def results(folder: epath.Path, stage: str) -> str:
    """Return where the results of a stage's tasks are kept."""
    return str(folder / _RESULTS / stage)


def tidy(output: epath.Path) -> None:
    """Remove the scratch folder of a finished job.

    It was stopped between its last file and this.
    """
    if (output / _SCRATCH / MANIFEST).exists():
        with contextlib.suppress(UserError), lock_folder(os.fspath(output), '--output'):
            _remove(output / _SCRATCH)


def _remove(folder: epath.Path) -> None:
    """Remove a folder with all in it, where there is one, or a file of this name."""
    with contextlib.suppress(OSError):
        if folder.is_file():
            folder.unlink()
        else:
            folder.rmtree(missing_ok=True)


def unpublished(folder: epath.Path) -> Manifest | None:
    """Return the manifest of a job that was interrupted in `publish`, which alone is left to do."""
    return Manifest.load(folder) if (folder / MANIFEST).exists() else None


def publish(
    folder: epath.Path, output: epath.Path, tokenizer: Tokenizer, manifest: Manifest
) -> None:
    """Move the finished files to their names, the manifest last.

    What another job left there goes first. Can be done again when interrupted.
    """
    # The manifest into the scratch folder first: from here on the job is one that only lacks names.
    # The old one goes before any file does, so the folder is never taken for a finished one.
    manifest.save(folder)
    (output / MANIFEST).unlink(missing_ok=True)
    names = {shard.file for shard in manifest.files}
    for path in output.glob('*.tfrecord'):
        if path.name not in names:
            path.unlink()

    # Files that have their names already were moved before an interruption.
    try:
        tokenizer.is_saved(output / 'tokenizer')
    except UserError:
        _remove(output / 'tokenizer')
    for name in sorted(names):
        if (folder / _FINAL / name).exists():
            (folder / _FINAL / name).replace(output / name)

    # The manifest makes a folder of records of it: last, when all that it names is there.
    tokenizer.save(output / 'tokenizer')
    manifest.save(output)


# ---- what the tasks of a stage have done


@dataclass(frozen=True)
class KeptResults:
    """The results of one stage, in a folder that every worker sees."""

    folder: str
    names: tuple[str, ...]  # of the stage's tasks, by their numbers

    @classmethod
    def numbered(cls, folder: str, tasks: int) -> KeptResults:
        """Return the results of tasks that have no other names than their numbers."""
        return cls(folder, tuple(f'{number:06}' for number in range(tasks)))

    def load(self, function: Callable) -> dict[int, Any]:
        """Return the results of `function` that are there, by the numbers of their tasks.

        They are what its annotation says that it returns. Raises UserError for a file that is
        something else.
        """
        # Other files are failures, or of tasks that are no more, or their writer was killed.
        files = {path.name: path for path in self._files()}
        paths = {i: files[name] for i, name in enumerate(self.names) if name in files}

        # The type comes from our code, never from the file: what a file says is only values.
        kind = typing.get_type_hints(function)['return'] if paths else None
        with ThreadPoolExecutor(_READERS) as pool:
            return dict(zip(paths, pool.map(lambda path: _read_result(path, kind), paths.values())))

    def _files(self) -> list[epath.Path]:
        folder = epath.Path(self.folder)
        return list(folder.iterdir()) if folder.exists() else []

    def run(self, number: int, function: Callable, task: tuple) -> Any:
        """Return `function(*task)`, and keep it as the result of task `number`."""
        result = function(*task)
        self._write(self.names[number], typed_json.dump(result))
        return result

    def _write(self, name: str, text: str) -> None:
        folder = epath.Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        with sorted_runs.sealed_file(str(folder / name)) as file:
            file.write(text.encode())

    def remove(self, number: int) -> None:
        """Remove the result of a task."""
        (epath.Path(self.folder) / self.names[number]).unlink()

    def fail(self, number: int, error: UserError | OSError) -> None:
        """Keep the error that ended task `number`, for another process to raise."""
        # Number and words apart: a full disk has to be an OSError again where it is raised, for
        # the work stays in place then.
        code = error.errno if isinstance(error, OSError) else None
        message = error.strerror if isinstance(error, OSError) else str(error)
        self._write(f'{self.names[number]}{_FAILED}', json.dumps([code, message]))

    def raise_failure(self) -> None:
        """Raise the first error that is kept, if any, and forget all of them."""
        paths = sorted(path for path in self._files() if path.name.endswith(_FAILED))
        failures = [_read_result(path, tuple[int | None, str]) for path in paths]

        # Forgotten before the first is raised: the next attempt shall fail for its own reasons.
        for path in paths:
            path.unlink(missing_ok=True)

        for code, message in failures:
            raise UserError(message) if code is None else OSError(code, message)


def _read_result(path: epath.Path, kind: Any) -> Any:
    try:
        return typed_json.load(kind, sorted_runs.unsealed(path.read_bytes()))
    except ValueError as error:
        raise UserError(
            f'{path}: is not what this job wrote there ({error}): run the same command again, which'
            ' begins anew'
        ) from error
