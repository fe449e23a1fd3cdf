"""What went wrong with a checkpoint: damage, a fault that may pass, or a full disk.

Owns the fingerprints by which damage is found and the record that holds them, the words in which
orbax and tensorstore name a fault, and how to read in spite of what may pass. It must not know
where checkpoints are, or when they are read.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import json
import os
import re
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError, is_disk_full, iterate_causes
from bert_jax.configs.files.json_object import parse_object
from bert_jax.model import layout
from bert_jax.model.dropout import number_elements

T = TypeVar('T')

PAUSES = (1.0, 4.0, 15.0)  # seconds before what may pass is read again

# Parts that are not there, or are not what they should be, are damage; any other error of the
# operating system says nothing of what is on the disk.
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_PASSING = re.compile(
    r'\b(RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED|UNAVAILABLE|ABORTED|CANCELLED|INTERNAL|UNKNOWN'
    r'|PERMISSION_DENIED|UNAUTHENTICATED): '
)
_OS_ERROR = re.compile(r"os_error_code='(\d+)'")  # tensorstore has no OSError

# Bytes of an element -> the unsigned type that holds its bits.
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


class NoRoom(UserError):
    """A checkpoint could not be written because the disk is full; the ones before it are whole."""


class Unreadable(UserError):
    """A checkpoint cannot be read now, but is not proven damaged: a restart may mend it."""

    exit_code = 75  # EX_TEMPFAIL: bert-jax supervise starts the command again


class Damaged(Exception):
    """A checkpoint is proven not to hold what was saved."""


def _take_fingerprint(leaf: jax.Array, number: int) -> jax.Array:
    """Return the uint32 sum of each element's bits x an odd weight of its index in its leaf.

    The sum wraps around. It is the same on every mesh; any one flipped bit changes it. number: that
    of the slice of a stack which `leaf` is.
    """
    # The multiplier is even and 1 is added: an odd weight, so that any flipped bit changes the sum.
    bits = jax.lax.bitcast_convert_type(leaf, _WORDS[leaf.dtype.itemsize]).astype(jnp.uint32)
    index = number_elements(leaf.shape, number)
    # 2654435761 is Knuth's multiplicative constant (2**32 over the golden ratio): near indices get
    # weights far apart, and elements that change places change the sum.
    return jnp.sum(bits * (index * jnp.uint32(2654435761 & ~1) + jnp.uint32(1)), dtype=jnp.uint32)


@jax.jit
def _take_all_fingerprints(tree: Any) -> list[jax.Array]:
    numbers = [number for _, number in layout.find_origins(tree)]
    return list(map(_take_fingerprint, jax.tree.leaves(tree), numbers))


def take_fingerprints(tree: Any) -> dict[str, int]:
    """Return {path: uint32 fingerprint} of every leaf at rest, computed on its devices."""
    of_leaves: collections.Counter[str] = collections.Counter()
    for (path, _), value in zip(
        layout.find_origins(tree), jax.device_get(_take_all_fingerprints(tree)), strict=True
    ):
        of_leaves[path] += int(value)
    return {path: value % 2**32 for path, value in of_leaves.items()}


def read_meta(folder: epath.Path) -> dict[str, Any]:
    """Return what was saved with the arrays, as JSON values; Damaged where it is not whole."""
    try:
        meta = parse_object((folder / 'meta' / 'metadata').read_bytes())
    except (ValueError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise Damaged(f'meta/metadata cannot be read ({describe(error)})') from None
    if not isinstance(meta.get('fingerprints'), dict):
        raise Damaged('meta/metadata has no fingerprints')
    if 'checksum' in meta and meta['checksum'] != compute_checksum(
        meta
    ):  # older versions wrote none
        raise Damaged('the checksum of meta/metadata differs')
    return meta


def compute_checksum(meta: dict[str, Any]) -> int:
    """crc32 of the JSON of all of `meta` but its own checksum."""
    others = {name: value for name, value in meta.items() if name != 'checksum'}
    return zlib.crc32(json.dumps(others, sort_keys=True).encode())


def compare(read: dict[str, int], promised: dict[str, int]) -> None:
    """Raise Damaged unless what was read has the fingerprints that were saved with it."""
    wrong = [name for name in promised if read.get(name) != promised[name]]
    if wrong:
        raise Damaged(f'fingerprint of {wrong[0]} differs (and of {len(wrong) - 1} more)')


def describe(error: BaseException) -> str:
    """Return the first cause of an error in at most 200 characters, without long details."""
    # tensorstore appends the whole specification of the array, thousands of characters: cut there.
    cause = list(iterate_causes(error))[-1]
    details = r' \[(?:tensorstore_spec|source locations|os_error_code)'
    text = re.split(details, str(cause).strip())[0]
    text = (text.splitlines() or [''])[0]
    # Of tensorstore's text only its code and the file are told, not the way there, array by array.
    failure = re.match(r'([A-Z_]+: ).*(local file .*)', text)
    if failure:
        text = failure[1] + failure[2]
    elif not isinstance(cause, Damaged):
        text = f'{type(cause).__name__}: {text}' if text else type(cause).__name__
    return text[:200]


def may_pass(error: BaseException) -> bool:
    """Tell whether an error is a time-out, lack of memory, a failing disk or network: no damage."""
    # Any error in the chain may be the one that tells: orbax wraps what tensorstore raises.
    for cause in iterate_causes(error):
        if isinstance(cause, MemoryError | TimeoutError | ConnectionError):
            return True
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno not in _MISSING:
            return True
        # tensorstore has its own error type and writes errno into the text.
        if any(int(code) not in _MISSING for code in _OS_ERROR.findall(str(cause))):
            return True
        # Its status codes stand at the beginning; the same words later on may be of a file's name.
        if _PASSING.search(str(cause)[:200]):
            return True
    return False


def check_listed(folder: Any) -> None:
    """Raise the operating system's error if `folder`, or a folder below it, cannot be listed.

    Orbax reports a folder that it may not enter as missing, just like a lost part.
    """
    if '://' in os.fspath(folder):
        return

    def refused(error: OSError) -> None:
        raise error

    # os.walk by itself is silent about folders that it may not list. One that may be listed but
    # not entered shows only when a file in it is asked for.
    for path, _, files in os.walk(folder, onerror=refused):
        for name in files:
            os.stat(os.path.join(path, name))


def is_damage(error: BaseException) -> bool:
    """Tell whether reading failed because saved data is missing, changed or not decodable."""
    # What may pass comes first: a time-out can leave a ValueError behind it, which alone would read
    # as damage.
    if may_pass(error):
        return False
    missing = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
    kinds = (Damaged, ValueError, LookupError, TypeError, AttributeError, *missing)
    return any(isinstance(cause, kinds) for cause in iterate_causes(error))


def read_patiently(what: str, read: Callable[[], T]) -> T:
    """Call `read`, and try again after each of PAUSES while its failure may pass.

    Raises:
      Unreadable: it still fails after the last pause; the message names `what`.
    """
    for pause in (*PAUSES, None):
        try:
            return read()
        except Exception as error:
            if not may_pass(error):
                raise
            if pause is None:
                raise Unreadable(
                    f'{what}: cannot be read now ({describe(error)}), which proves no damage:'
                    ' nothing was changed; run the same command again when the fault is gone'
                ) from error
            logging.warning('%s: %s; trying again in %g s', what, describe(error), pause)
            time.sleep(pause)
    raise AssertionError('the last pause is none')


def try_to_read(folder: Any, read: Callable[[], T]) -> tuple[T | None, str]:
    """Return (what `read` gives of a checkpoint's folder, ''), or (None, the damage in words)."""
    try:
        return read_patiently(os.fspath(folder), read), ''
    except Exception as error:
        if not is_damage(error):
            raise
        return None, describe(error)


def translate_write_error(folder: Any, error: Exception) -> Exception:
    """Return what to raise for an error of writing below `folder`: NoRoom for a full disk."""
    # A limit of the shell (ulimit -f) raises another errno than a full disk, and needs other
    # advice.
    if not is_disk_full(error):
        return error
    limit = any('File too large' in str(cause) for cause in iterate_causes(error))
    why = 'a limit on the size of files was reached (ulimit -f)' if limit else 'the disk was full'
    mend = 'raise it' if limit else 'make room'
    return NoRoom(f'{folder}: {why} when a checkpoint was written: {mend} and start again')


def quieten_orbax() -> None:
    """Reduce a failure of orbax to the one error that we raise.

    Orbax reads and writes all arrays at once in its own event loops, and closes such a loop at the
    first failure: every other array then prints "Event loop is closed" when it is done, or that
    nobody asked for its failure. From here on a loop closes after its tasks have ended, only the
    first failure is reported, and orbax's own log lines appear with --verbosity=1 only.
    """
    if not isinstance(asyncio.get_event_loop_policy(), _Policy):
        asyncio.set_event_loop_policy(_Policy())
    logging.get_absl_logger().addFilter(_is_ours)  # once, however often it is called


class _Loop(asyncio.SelectorEventLoop):
    # Ends what other arrays are still doing, so that none of them finds its loop closed.
    def close(self) -> None:
        while not self.is_closed() and (tasks := asyncio.all_tasks(self)):
            self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        super().close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if 'never retrieved' not in context['message']:  # the first failure is raised
            super().call_exception_handler(context)

    def call_soon_threadsafe(  # type: ignore[override]  # None, where asyncio has a Handle
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
            return None  # done after all, and nobody waits for it any more


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _Loop()


def _is_ours(record: Any) -> bool:
    return '/orbax/' not in record.pathname or logging.level_debug()


def join_threads() -> None:
    """Wait for the items that orbax still writes after another item of a checkpoint has failed."""
    for thread in threading.enumerate():
        if (
            type(thread).__module__.startswith('orbax.')
            and thread is not threading.current_thread()
        ):
            with contextlib.suppress(Exception):  # raised already, by the item that was first
                thread.join(timeout=60)
