"""Where compiled programs are kept between runs: jax's persistent cache, switched on and bounded.

Owns the folder that is taken where none is named, and how large it may become. What a program is
known by (its text, the compiler, its flags, the devices) is jax's affair; a file of it that cannot
be read costs a compilation and a warning. It must not know which programs there are.
"""

from __future__ import annotations

import os
import pathlib
import platform
import tempfile
import zlib

import jax
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.mesh import before_jax

# Of all programs in the user's cache; beyond it those go first that were used last the longest ago.
_MOST_BYTES = 10 << 30
# A program that took less to compile is not kept. Of jax's own second a small model's start has
# several: its first weights, its evaluation, the fingerprints of a checkpoint.
_LEAST = 'jax_persistent_cache_min_compile_time_secs'
_LEAST_OF_JAX, _LEAST_SECONDS = 1.0, 0.1


def use(folder: str | None) -> None:
    """Keep compiled programs in `folder` and takes them from there; call it before compiling.

    'auto': what jax's own JAX_COMPILATION_CACHE_DIR names, else the user's cache, which all runs
    share; it is not for a run of several processes, which may not see the same files. None: nothing
    is kept. UserError where a named folder cannot be made.
    """
    if folder is None:
        jax.config.update('jax_enable_compilation_cache', False)
        return
    if jax.config.values[_LEAST] == _LEAST_OF_JAX:
        jax.config.update(_LEAST, _LEAST_SECONDS)
    if folder != 'auto':
        if '://' not in folder:  # one in an object store needs no making
            try:
                pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f'runtime.compilation_cache={folder}: {error.strerror}: name a folder that can'
                    ' be written, or none'
                ) from error
        jax.config.update('jax_compilation_cache_dir', folder)
    # A program that one process has and another must compile could leave them waiting for each
    # other: on GPUs they share out the timing of kernels.
    elif jax.process_count() == 1 and jax.config.values['jax_compilation_cache_dir'] is None:
        _use_own()


def _use_own() -> None:
    """Switch on the user's own cache; a line and nothing where it cannot be written."""
    base = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache').expanduser()
    folder = base / 'bert_jax' / 'programs' / _name_kind_of_host()
    try:
        # What lies there is run: nobody else may write it.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        logging.info('compiled programs are not kept: %s: %s', folder, error.strerror)
        return
    jax.config.update('jax_compilation_cache_dir', str(folder))
    if jax.config.values['jax_compilation_cache_max_size'] == -1:
        jax.config.update('jax_compilation_cache_max_size', _MOST_BYTES)


def _name_kind_of_host() -> str:
    """Return a name for machines whose processors run the same instructions.

    A home may be shared by several machines, and what XLA compiles for one CPU can end a process on
    another.
    """
    features = ' '.join(sorted(before_jax.read_processor_flags()))
    return f'{platform.machine()}-{zlib.crc32(features.encode()):08x}'
