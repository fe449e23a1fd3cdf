"""The one exception that means "the user can mend this", and what other errors say.

Every package raises `UserError` for a bad flag, a missing file, data that do not fit
the configuration and the like; `bert_jax/cli/app.py` prints it as one line and exits with 2.
An exception of any other kind is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib.util
import numbers
import os
import pathlib
import stat
from collections.abc import Iterable, Iterator

# What a shell puts in the place of a file: `<(...)` and `-`.
_OF_THE_SHELL = ('/dev/fd/', '/dev/stdin', '/proc/self/fd/')


class UserError(Exception):
    """A mistake the user can mend: the message says what, where and how, in one line."""

    exit_code = 2  # of the process; 1 is a defect of ours

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: IPython asks for it by this name."""
        return [f'{type(self).__name__}: {self}']


def check_count(name: str, value: object) -> None:
    """Raise UserError where an argument is neither None nor a whole number from 1."""
    if value is not None and (not isinstance(value, numbers.Integral) or value < 1):
        raise UserError(f'{name}={value!r} must be a whole number from 1, or None')


def suggest(name: str, names: Iterable[str]) -> str:
    """Return what a refusal of an unknown name ends with: ' (did you mean X?)', or ''.

    `names` are the right ones. Capitals are no difference.
    """
    by_small_letters = {right.lower(): right for right in names}
    close = difflib.get_close_matches(name.lower(), by_small_letters, n=1)
    return f' (did you mean {by_small_letters[close[0]]}?)' if close else ''


def require_extra(what: str, extra: str, module: str, instead: str = '') -> None:
    """Raise UserError where `module`, which the extra `extra` brings, is not installed.

    what: the flag or setting that asks for it, with which the line begins; instead: what else the
    user may do, with which it ends.
    """
    if importlib.util.find_spec(module) is None:
        raise UserError(
            f'{what}: {module} is not installed: pip install -c constraints.txt'
            f" '.[{extra}]'{instead}"
        )


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise UserError where there is something that is neither a file nor a folder, nor a link.

    A link counts as what it leads to. What a shell passes as a file, and what is remote, is taken.
    """
    name = os.fspath(path)
    if '://' in name or name.startswith(_OF_THE_SHELL):
        return
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError):  # absent, or a name that cannot be: whoever reads it says so
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f'{name}: is no file but a pipe, a socket or a device: copy it again')


def check_regular_files(folder: str | os.PathLike[str]) -> None:
    """Raise UserError where something in a folder is no regular file, folder or link to one."""
    name = os.fspath(folder)
    if '://' not in name and os.path.isdir(name):
        for path in pathlib.Path(name).iterdir():
            check_regular(path)


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], mend: str = '') -> Iterator[None]:
    """Turn what a file system says, while the path that the user named is read, into UserError.

    A local one raises OSError, which may name a file below the path, and so does the line then; a
    remote one (gs://...) errors of its library's own kinds. The line ends with `mend`.
    """
    path = os.fspath(path)
    remote = '://' in path
    try:
        yield
    # Already in words for the user.
    except UserError:
        raise
    except Exception as error:
        if not remote and not isinstance(error, OSError):
            raise

        # The first line of the message, for some libraries append a whole response; of the
        # operating system's errors its own words, which are shorter.
        reason = f'{type(error).__name__}: {(str(error).strip().splitlines() or [""])[0][:200]}'
        name = path
        if isinstance(error, OSError):
            reason = error.strerror or reason
            # of a pattern or a folder the one file that it was
            if isinstance(error.filename, str) and error.filename not in path:
                name = error.filename
        if isinstance(error, KeyError):  # etils.epath, of a scheme
            reason = 'no such kind of address is known'

        # The remedy that the caller knows, else a general one.
        absent = isinstance(error, FileNotFoundError)
        here = 'correct the name' if absent else 'make it readable, or copy it'
        mend = mend or ('correct the address, or copy it here' if remote else here)
        raise UserError(f'{name}: cannot be read ({reason}): {mend}') from error


def iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, what caused it, and so on."""
    # Explicit causes before what merely happened on the way; a loop of causes ends it.
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def is_disk_full(error: BaseException) -> bool:
    """Tell whether something could not be written because a disk is full.

    So are a quota, and a limit on the size of files, that are reached.
    """
    # By errno where there is one, else by the words of libraries that have their own errors.
    for cause in iterate_causes(error):
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        if any(words in str(cause) for words in ('No space left on device', 'File too large')):
            return True  # as tensorstore words it, whose errors are no OSError
    return False
