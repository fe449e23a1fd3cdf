"""Output that grows record by record, and survives its process being killed.

Owns the hidden folder beside the output in which its files grow, and the note there of how far they are whole:
what a killed process wrote after its last note is cut off by the next one, so no record is lost and none comes
twice. Must not know what the files hold.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging
from etils import epath

from configs.errors import UserError
from launch.workdir import lock, write_whole

_NOTE = 'progress.json'


class GrowingOutput:
    """Files that are appended to; see `growing`.

    Attributes:
      records: how many records are in them.
      folder: where they are.
    """

    def __init__(self, output: str, folder: Path, identity: dict[str, Any], names: Sequence[str]):
        self.folder, self._output, self._identity = folder, output, identity
        note = json.loads((folder / _NOTE).read_text()) if (folder / _NOTE).exists() else None
        if note and note['identity'] != identity:
            changed = [name for name in identity if note['identity'].get(name) != identity[name]]
            raise UserError(
                f'{folder} holds the beginning of another run (other {", ".join(changed)}): remove it, or use the same settings to go on'
            )
        self.records: int = note['records'] if note else 0
        sizes = note['bytes'] if note else {}
        self._files = {}
        for name in names:
            file = self._files[name] = open(folder / name, 'ab')  # noqa: SIM115 - closed by `close`
            file.truncate(sizes.get(name, 0))
            file.seek(0, os.SEEK_END)
        if self.records:
            logging.info('%s: goes on after %d records', folder, self.records)

    def append(self, records: int, contents: Mapping[str, bytes]) -> None:
        """Adds what `records` more records came to; they are safe when this returns."""
        for name, content in contents.items():
            self._files[name].write(content)
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.records += records
        note = {'identity': self._identity, 'records': self.records, 'bytes': {name: file.tell() for name, file in self._files.items()}}
        write_whole(epath.Path(self.folder / _NOTE), json.dumps(note) + '\n')

    def finish(self, facts: dict[str, Any], move: Callable[[], None]) -> None:
        """Notes beside the output what made it (OUTPUT.json), has `move` put the files where they belong, and removes the folder."""
        self.close()
        about = {**facts, 'records': self.records, 'identity': self._identity}
        write_whole(epath.Path(f'{self._output}.json'), json.dumps(about, indent=1) + '\n')
        move()
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()


@contextlib.contextmanager
def growing(output: str, identity: dict[str, Any], names: Sequence[str]) -> Iterator[GrowingOutput]:
    """The files `names` of the output, grown as far as an earlier process of the same `identity` (JSON values) brought them.

    The caller ends with `finish`. UserError where another identity, or another process, has them, or the output
    is not local.
    """
    if '://' in output:
        raise UserError(f'--output={output}: output grows by appending, which remote storage cannot: write locally and copy it')
    target = Path(output)
    if not target.parent.is_dir():
        raise UserError(f'--output={output}: no folder {target.parent}')
    folder = target.parent / f'.{target.name}.partial'
    with lock(str(folder), '--output'):
        files = GrowingOutput(output, folder, identity, names)
        try:
            yield files
        finally:
            files.close()


def was_finished(output: str, identity: dict[str, Any]) -> bool:
    """Whether this output is there already, made by the same `identity`. UserError where something else is there."""
    target, about = Path(output), Path(f'{output}.json')
    if not target.exists():
        return False
    if about.exists() and json.loads(about.read_text()).get('identity') == identity:
        return True
    raise UserError(f'--output={output} is there already, and not from these settings: name another, or remove it')
