"""Which files match a pattern, with their names and sizes.

Owns globs, local or on gs://, and what lies there and is not taken. A corpus may have millions of
files: a file is a string and a number here, found in one pass. Must not know what is in them.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import re
import stat
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError, reading
from bert_jax.input_pipeline.text.encodings import well_formed

_Found = tuple[str, tuple[int, int]]  # a file's name, its bytes and when they were written
_ASKED_AT_ONCE = 32  # a bucket in the cloud takes its time for each question


@dataclass(frozen=True)
class Listing:
    """Files, sorted by name: `sizes[i]` are the bytes of the one called `names[i]` below `root`.

    The names are the same on every machine, wherever the corpus lies. `times[i]` says when it was
    written, as text/files.py has it.
    """

    root: str  # '' for the current folder
    names: list[str]
    sizes: array[int]
    times: array[int]

    def paths(self) -> Iterator[str]:
        """Yield the path of each."""
        return (join_below(self.root, name) for name in self.names)


def join_below(root: str, name: str) -> str:
    """Return the path of a file of a listing."""
    path = os.path.join(root, name)
    return f'gs://{path[4:]}' if path.startswith('/gs/') else path


def matching(patterns: str | Sequence[str], left_out: list[str] | None = None) -> Listing:
    """List all files that match.

    Args:
      patterns: one or more, each a file, a folder (all files below it, or on gs:// in it), a glob
        (`**` for any depth), or several with commas between.
      left_out: what lies there and is not taken, because it is hidden, a link to a folder or no
        file, is added to it as 'PATH (why)'.

    Raises:
      UserError: a pattern matches nothing, or what it matches cannot be reached.
    """
    # All patterns, one after the other, each with the folder that its names are relative to.
    left_out = [] if left_out is None else left_out
    matches: list[tuple[str, list[_Found]]] = []
    for part in _split_patterns(patterns):
        with reading(part):
            find = _find_remote if '://' in part else _find_local
            top, files = find(part, left_out)
            matches.append((_posix(top), list(files)))
        if not matches[-1][1]:
            hint = 'check the path, and put a glob in quotes'
            if left_out:
                hint += f'; left out: {", ".join(left_out[:5])}'
            raise UserError(f'no file matches {part!r}: {hint}')

    # Names are relative to what all patterns have in common. That needs all paths absolute, or
    # none.
    roots = [root for root, _ in matches]
    if len({root.startswith('/') for root in roots}) > 1:
        roots = list(map(os.path.abspath, roots))
    common = os.path.commonpath(roots)

    # A file that two patterns match is there once.
    states: dict[str, tuple[int, int]] = {}
    for root, (_, listed) in zip(roots, matches):
        prefix = PurePosixPath(root).relative_to(common).as_posix()
        for name, state in listed:
            states[name if prefix == '.' else f'{prefix}/{name}'] = state

    # A name goes into keys and into the manifest, so it must be text.
    names = sorted(states)
    for name in names:
        if not well_formed(name):
            shown = name.encode(errors='backslashreplace').decode()
            raise UserError(f"{shown}: the file's name is not UTF-8: give it another")
    sizes = array('q', (states[name][0] for name in names))
    times = array('q', (states[name][1] for name in names))
    return Listing(common, names, sizes, times)


def refuse_inside(
    flag: str, output: str, patterns: str | Sequence[str], made: Sequence[str]
) -> None:
    """Raise UserError where the patterns would take what a command writes into its output.

    `made`: the names of such files below `output`, which --`flag` names. The next reading would
    find them, and take them for text.
    """
    folder = Path(output).expanduser().resolve()
    for part in _split_patterns(patterns):
        # a data set of the Hub may be a folder here
        path = Path(re.sub('^hf:([^:]*):.*', r'\1', part)).expanduser()
        if '://' in part or '://' in output or part.startswith('tfds:'):
            continue
        root, steps = path, ['**']
        if not path.is_dir():
            root, glob = _split_at_wildcard(path)
            steps = glob.split('/')
        root = root.resolve()
        if not folder.is_relative_to(root):
            continue
        for name in made:
            if _matches(steps, (folder / name).relative_to(root).parts):
                raise UserError(
                    f'--{flag}={output}: lies inside of {part}, so what is written there would be'
                    ' read as text: name a folder elsewhere'
                )


def _matches(steps: Sequence[str], names: Sequence[str]) -> bool:
    """Tell whether the names of a path are those of a glob, step by step."""
    if not steps or not names:
        return not steps and not names
    if steps[0] == '**':
        return len(steps) == 1 or any(_matches(steps[1:], names[i:]) for i in range(len(names)))
    return fnmatch.fnmatchcase(names[0], steps[0]) and _matches(steps[1:], names[1:])


def _posix(path: Any) -> str:
    """Return a path as text, gs://a as /gs/a, which epath takes for the same."""
    return path.as_posix().replace('gs://', '/gs/', 1)


def _split_patterns(patterns: str | Sequence[str]) -> list[str]:
    """Split patterns at commas, but for names of files that have some."""
    all_parts = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        # A file whose own name has commas is meant as a whole.
        is_path = os.path.exists(os.path.expanduser(pattern))
        parts = [pattern] if is_path else [part for part in pattern.split(',') if part.strip()]
        if not parts:
            raise UserError(f'{pattern!r} names no file')
        all_parts += parts
    return all_parts


def _find_remote(part: str, left_out: list[str]) -> tuple[epath.Path, Iterator[_Found]]:
    """Find the root of a pattern on remote storage, and its files, with their names below that."""
    if not part.startswith('gs://'):
        raise UserError(
            f'{part}: cannot be read from there: give a local path (download it first) or gs://'
        )

    # A walk through all of a bucket could take hours, and costs money.
    if '**' in part:
        raise UserError(f'{part}: ** is for local folders: on remote storage name each level (*/*)')

    # A folder, a file, or a glob, in this order, because a name may hold wildcard characters.
    path = epath.Path(part)
    if path.is_dir():
        root, matches = path, [match for match in path.glob('*') if not match.name.startswith('.')]
    elif path.exists():
        root, matches = path.parent, [path]
    else:
        root, glob = _split_at_wildcard(path)
        matches = list(root.glob(glob)) if root.is_dir() else []
    if not matches:
        # To a bucket that is not reached, both questions above say no: this one says why.
        with contextlib.suppress(FileNotFoundError):
            root.stat()

    def files() -> Iterator[_Found]:
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            stats = pool.map(lambda match: match.stat(), matches)
            for match, listed in zip(matches, stats):
                if listed.is_directory:
                    left_out.append(f'{match} (a folder: give it too)')
                else:
                    yield (
                        PurePosixPath(_posix(match)).relative_to(_posix(root)).as_posix(),
                        (listed.length, int(listed.mtime)),
                    )

    return root, files()


def _find_local(part: str, left_out: list[str]) -> tuple[Path, Iterator[_Found]]:
    """Find the root of a pattern among the files here, and its files, with their names below that.

    A glob matches as in pathlib, which passes over folders that it may not read and links to
    folders without a word; here the first are refused and the others named.
    """
    # What is there by this very name is no glob, even with a bracket in its name.
    path = Path(part).expanduser()
    try:
        path.lstat()  # of a link to nothing, too, which `_read_state` refuses by name
        is_name = True
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise
        is_name = False
    if os.path.isdir(path):
        return path, _walk(path, ['**'], left_out, glob=False)
    if is_name:
        state = _read_state(str(path), path.stat, left_out)
        return path.parent, iter([(path.name, state)] if state else [])
    root, glob = _split_at_wildcard(path)
    return root, _walk(root, glob.split('/'), left_out) if root.is_dir() else iter(())


def _split_at_wildcard(path: Any) -> tuple[Any, str]:
    """Return the part of a path before its first wildcard, and the rest."""
    steps = path.parts

    # Without any wildcard the last step is the rest: the file that is not there.
    wild = 0
    while wild < len(steps) - 1 and not re.search(r'[*?\[]', steps[wild]):
        wild += 1
    return type(path)(*steps[:wild]), '/'.join(steps[wild:])


def _walk(root: Path, steps: list[str], left_out: list[str], glob: bool = True) -> Iterator[_Found]:
    """Yield the files below a folder whose names the steps of a glob match.

    OSError for a folder that cannot be read. `glob`: hidden files match too, and folders that the
    user may have meant are named.
    """
    # Of each folder what may match in it: `**` is any number of folders, and all their files.
    folders: list[tuple[str, list[list[str]]]] = [('', [steps])]
    while folders:
        inner, open_steps = folders.pop()
        for step, *further in open_steps:
            if step == '**' and further:
                open_steps.append(further)
        deep = [each for each in open_steps if each[0] == '**']
        with os.scandir(root / inner) as entries:
            for entry in entries:
                name = f'{inner}/{entry.name}' if inner else entry.name
                matches = []  # what is left of the globs whose first step this entry matches
                for step, *further in open_steps:
                    if step != '**' and fnmatch.fnmatchcase(entry.name, step):
                        matches.append(further)

                if not entry.is_dir():
                    if [] not in matches and ['**'] not in open_steps:
                        continue
                    if not glob and entry.name.startswith('.'):
                        left_out.append(f'{root / name} (hidden)')
                        continue
                    state = _read_state(entry.path, entry.stat, left_out)
                    if state:
                        yield name, state
                    continue

                inside = [further for further in matches if further]
                if deep and entry.is_symlink():
                    left_out.append(f'{root / name} (a link to a folder: give it too)')
                else:
                    inside += deep
                if inside:
                    folders.append((name, inside))
                elif [] in matches and '**' not in steps:
                    # Below `**` its files match by themselves; here the user may have meant it.
                    left_out.append(f'{root / name} (a folder: give it too)')


def _read_state(
    path: str, ask: Callable[[], os.stat_result], left_out: list[str]
) -> tuple[int, int] | None:
    """Return (bytes, when written) of a file that matches; None for no file, which is left out.

    `ask` asks the file system for it. UserError for a link to nothing.
    """
    try:
        status = ask()
    except FileNotFoundError:
        if not os.path.islink(path):
            raise
        target = os.readlink(path)
        raise UserError(
            f'{path}: cannot be read (a link to {target}, which is not there)'
        ) from None
    if stat.S_ISREG(status.st_mode):
        return status.st_size, status.st_mtime_ns
    left_out.append(f'{path} (no regular file)')
    return None
