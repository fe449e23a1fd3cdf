"""Output that grows record by record, and survives its process being killed.

Owns the hidden folder next to the output in which its files grow, and the note there of how far
they are whole: what a killed process wrote after its last note is cut off by the next one, so no
record is lost and none comes twice. Must not know what the files hold.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.store import list_changes, read_note, write_note
from bert_jax.runs.workdir.folder import lock

_NOTE = 'progress.json'
_MADE_FROM = '.made_from.json'  # in a folder that is written at once


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
        note = read_note(folder / _NOTE, f'remove {folder} to begin again')
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
        if self.records:
            logging.info(f'{folder}: goes on after {self.records} records')

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
        write_note(self.folder / _NOTE, note)

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
    with lock(str(folder), '--output'):
        files = GrowingOutput(output, folder, identity, names)
        try:
            yield files
        finally:
            files.close()


def was_made(output: str, inputs: Callable[[], Mapping[str, Any]]) -> bool:
    """Tell whether the folder `output` is there already, made from equal inputs.

    Args:
      output: the folder.
      inputs: gives what it is made from, as JSON values; called only where a folder says so.

    Raises:
      UserError: it was made from other inputs; the line says which.
    """
    note = read_note(epath.Path(output) / _MADE_FROM)
    if note is None:
        return False
    if names := list_changes(note, inputs()):
        raise UserError(
            f'--output={output} is there already, made from other inputs (other'
            f' {", ".join(names)}): name another folder, or remove it'
        )
    print(f'{output}: this is done already')
    return True


def note_inputs(output: str, inputs: Mapping[str, Any]) -> None:
    """Note in the folder `output` what it was made from, for `was_made`."""
    write_note(epath.Path(output) / _MADE_FROM, inputs, 1)


def was_finished(output: str, identity: dict[str, Any]) -> bool:
    """Tell whether this output is there already, made by the same `identity`.

    Raises:
      UserError: something else is there.
    """
    if not Path(output).exists():
        return False
    try:
        note = read_note(Path(f'{output}.json')) or {}
    except UserError:  # another program's
        note = {}
    before = note.get('identity')

    # The same settings made it: there is nothing to do.
    if before == identity:
        return True

    # Anything else is not overwritten; what differs is named where the description says it.
    names = list_changes(before, identity) if isinstance(before, dict) else []
    other = f' (other {", ".join(names)})' if names else ''
    raise UserError(
        f'--output={output} is there already, and not from these settings{other}: name another, or'
        ' remove it'
    )
