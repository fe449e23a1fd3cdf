"""Results made once from the same inputs, and gone on with after a stop.

Owns the note of a result, which says what it is made from and how far it is whole. Three kinds have
one: a file or a folder that is written at once (`was_made`), files that grow record by record
(`growing`), and the folders of a `Store`. It must not know how a result is made. Standard library
only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.files.lock import lock_folder

_PROGRESS = 'progress.json'  # the note of files that grow, beside them
_MADE_FROM = '.made_from.json'  # the note of a folder that is written at once, in it


def digest(inputs: Any) -> str:
    """Return a hash of JSON values, which does not depend on the order of names in them."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the inputs that differ, in the order of `now`."""
    names = [*now, *(name for name in before if name not in now)]
    return [name for name in names if digest(before.get(name)) != digest(now.get(name))]


def read_note(path: Path, mend: str = 'it is damaged, or another file') -> dict[str, Any] | None:
    """Return the note in a file; None where there is none.

    Raises:
      UserError: the file holds something else; the line ends with `mend`.
    """
    return read_object(path, mend) if path.exists() else None


def write_note(path: Path, note: Mapping[str, Any], indent: int | None = None) -> None:
    """Write a note, whole or not at all: a result with half of one would be nobody's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps(note, indent=indent) + '\n')


def was_made(output: os.PathLike[str], inputs: Callable[[], Mapping[str, Any]]) -> bool:
    """Tell whether a file or a folder is there already, made from equal inputs.

    Args:
      output: where it is, as pathlib or etils.epath has it. Its note is in it, or in OUTPUT.json.
      inputs: gives what it is made from, as JSON values; called only where there is a note.

    Raises:
      UserError: it was made from other inputs, which the line names, or by another program.
    """
    path = cast(Path, output)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return False
    if path.is_dir() and (path / _MADE_FROM).exists():
        before = read_object(path / _MADE_FROM)
    else:
        before = None
        with contextlib.suppress(UserError):  # another program's
            before = (read_note(Path(f'{path}.json')) or {}).get('identity')

    why = 'and nothing says that it was made from these inputs'
    if isinstance(before, dict):
        names = list_changes(before, inputs())
        if not names:
            return True
        why = f'made from other inputs (other {", ".join(names)})'
    raise UserError(f'--output={path} is there already, {why}: name another, or remove it')


def note_inputs(output: os.PathLike[str], inputs: Mapping[str, Any]) -> None:
    """Note in the folder `output` what it was made from, for `was_made`."""
    write_note(cast(Path, output) / _MADE_FROM, inputs, 1)


class Result(NamedTuple):
    """A result that is whole.

    key: the digest of its inputs, which is an input of what is made from it. seconds: what it took.
    """

    folder: Path
    key: str
    seconds: float


class Store:
    """A folder with a folder for each result, and the notes of them in stages/.

    Attributes:
      path: the folder of all.
      results: those that `make` has made or found, by name, in their order.
    """

    def __init__(self, folder: str | os.PathLike[str], say: Callable[[str], None] = print):
        self.path = Path(folder)
        self.results: dict[str, Result] = {}
        self._say = say

    def of(self, name: str) -> Path:
        """Return the folder of a result."""
        return self.path / name

    def note(self, name: str) -> Path:
        """Return the file of a result's note."""
        return self.path / 'stages' / f'{name}.json'

    def done(self, name: str) -> bool:
        """Tell whether a result is there and whole."""
        note = read_note(self.note(name))
        return note is not None and note['done'] and self.of(name).exists()

    def make(self, name: str, inputs: Mapping[str, Any], fill: Callable[[Path], None]) -> Result:
        """Call `fill(folder)`, unless the folder is whole and was made from equal inputs.

        A result whose making was interrupted goes on in its folder; one that was made from other
        inputs is made again from nothing. What `fill` refuses (UserError) leaves nothing behind.

        Args:
          name: the folder.
          inputs: what it is made from, as JSON values.
          fill: what makes it.

        Raises:
          UserError: the folder holds what was not made here.
        """
        folder, path, key = self.of(name), self.note(name), digest(inputs)
        before, earlier = read_note(path), 0.0
        if before is None and folder.exists():
            raise UserError(
                f'{folder} exists, and was not made by this command: use another --workdir'
            )

        # The folder may have been deleted by hand.
        if before and before['key'] == key:
            earlier = before['seconds']
            if self.done(name):
                self._say(f'{name}: reused, made from the same inputs in {earlier:.0f} s')
                self.results[name] = Result(folder, key, earlier)
                return self.results[name]
            self._say(f'{name}: goes on where it was interrupted')
        else:
            names = ', '.join(list_changes(before.get('inputs', {}), inputs)) if before else ''
            self._say(f'{name}: made again, its inputs have changed ({names})' if before else name)
            shutil.rmtree(folder, ignore_errors=True)

        # The note first, so that a folder that is there after a crash is known as ours.
        facts: dict[str, Any] = {'key': key, 'done': False, 'seconds': earlier, 'inputs': inputs}
        new_folders = [parent for parent in path.parents if not parent.exists()]
        write_note(path, facts, 2)
        start = time.perf_counter()
        try:
            fill(folder)
            facts['done'] = True
        except UserError:
            shutil.rmtree(folder, ignore_errors=True)
            path.unlink()
            for parent in new_folders:
                parent.rmdir()
            raise
        finally:
            # The time counts after a crash or ^C too, and the next process goes on.
            if path.exists():
                facts['seconds'] = earlier + time.perf_counter() - start
                write_note(path, facts, 2)
        self._say(f'{name}: done in {facts["seconds"]:.0f} s')
        self.results[name] = Result(folder, key, facts['seconds'])
        return self.results[name]


class GrowingOutput:
    """Files that are appended to; see `growing`.

    Attributes:
      records: how many records are in them.
      bad: how many of those could not be read or answered.
      folder: where they are.
    """

    def __init__(self, output: str, folder: Path, identity: dict[str, Any], names: Sequence[str]):
        self.folder, self._output, self._identity = folder, output, identity

        # The note is the truth: files without one are what a killed process left.
        note = read_note(folder / _PROGRESS, f'remove {folder} to begin again')
        if note and (names_changed := list_changes(note['identity'], identity)):
            raise UserError(
                f'{folder} holds the beginning of another run (other {", ".join(names_changed)}):'
                ' remove it, or use the same settings to go on'
            )

        # Files may be longer than noted (cut below), never shorter: then the disk lost something.
        note = note or {'records': 0, 'bad': 0, 'bytes': {}}
        self.records, self.bad, sizes = note['records'], note['bad'], note['bytes']
        for name, size in sizes.items():
            if not (folder / name).exists() or (folder / name).stat().st_size < size:
                raise UserError(
                    f'{folder / name} is shorter than it was: remove {folder} to begin again'
                )

        # Cut back to the note: what comes after it is half a record or one that comes again.
        self._files = {}
        for name in names:
            file = self._files[name] = open(folder / name, 'ab')  # noqa: SIM115 - closed by `close`
            file.truncate(sizes.get(name, 0))
            file.seek(0, os.SEEK_END)

    def append(self, records: int, contents: Mapping[str, bytes], bad: int = 0) -> None:
        """Add what `records` more records came to, which are safe when this returns.

        Args:
          records: their number.
          contents: what is added to each file.
          bad: how many of the records could not be read or answered.

        Raises:
          UserError: the disk takes no more.
        """
        # First the contents, down to the disk; the note after them may then promise them.
        try:
            for name, content in contents.items():
                self._files[name].write(content)
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f'--output={self._output}: {error.strerror or error}: mend that, and the same'
                f' command goes on after {self.records} records'
            ) from error

        # Then the note, at once whole or not at all: from here on these records are safe.
        self.records, self.bad = self.records + records, self.bad + bad
        note = {
            'identity': self._identity,
            'records': self.records,
            'bad': self.bad,
            'bytes': {name: file.tell() for name, file in self._files.items()},
        }
        write_note(self.folder / _PROGRESS, note)

    def finish(self, facts: dict[str, Any], move: Callable[[], object]) -> None:
        """Note in OUTPUT.json what made it, call `move` for the files, and remove the folder."""
        # The description before the move: an output that is there without one is another program's.
        self.close()
        counts = {'records': self.records, 'bad_records': self.bad}
        note = {**facts, **counts, 'identity': self._identity}
        write_note(Path(f'{self._output}.json'), note, 1)

        # The folder last: until the files are in place it is what a next process goes on from.
        move()
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            with contextlib.suppress(OSError):  # what is not noted counts for nothing
                file.close()


@contextlib.contextmanager
def growing(output: str, identity: dict[str, Any], names: Sequence[str]) -> Iterator[GrowingOutput]:
    """Open the files of an output, grown as far as an earlier process brought them.

    The caller ends with `finish`.

    Args:
      output: the output's path.
      identity: what it is made from, as JSON values.
      names: of the files.

    Raises:
      UserError: another identity, or another process, has them, or the output is not local.
    """
    # All that can be refused is refused before the first record is worked on.
    if '://' in output:
        raise UserError(
            f'--output={output}: output grows by appending, which remote storage cannot: write'
            ' locally and copy it'
        )
    target = Path(output)
    if not target.parent.is_dir():
        raise UserError(f'--output={output}: no folder {target.parent}')
    if not os.access(target.parent, os.W_OK):
        raise UserError(
            f'--output={output}: {target.parent} cannot be written to: name another folder'
        )

    # Beside the output, so on the same disk: `move` can link and rename.
    folder = target.parent / f'.{target.name}.partial'

    # Two processes that append to the same files would mix their records.
    with lock_folder(str(folder), '--output'):
        files = GrowingOutput(output, folder, identity, names)
        try:
            yield files
        finally:
            files.close()
