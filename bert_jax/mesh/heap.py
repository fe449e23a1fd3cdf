"""What the C library does with the memory that a step on a CPU gives back.

XLA takes memory from the C library again in every step. Large pieces glibc asks of the kernel each
time, which has to clear them page by page: of a small model's step that is a quarter.
This file knows nothing of models, and of jax only where it is going to compute.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import sys

# Of glibc's malloc.h. Other C libraries have no mallopt, or make nothing of these.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_GROW_BY = 64 << 20  # bytes asked of the kernel at once


def keep_freed_memory() -> bool:
    """Keep, from here on, what the process frees, for its next allocations.

    It changes speed and, by some hundred MB at the most, the size of the process; no results. To be
    called before there are threads, which numpy and jax start: a thread stays with the arena that
    it began with, and only the first arena keeps pieces beyond 64 MB. Returns whether the C library
    has taken the settings; where it has none nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None) if sys.platform == 'linux' else None
    if mallopt is None:
        return False
    # One arena for all threads; nothing straight from the kernel, nothing given back to it, and few
    # calls for more.
    settings = (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_MAX, 0),
        (_M_TRIM_THRESHOLD, -1),
        (_M_TOP_PAD, _GROW_BY),
    )
    taken = [mallopt(*setting) for setting in settings]
    return all(taken)


def will_compute_on_cpu() -> bool:
    """Tell whether jax is going to choose the CPU, without importing it.

    By what the user has set (JAX_PLATFORMS), else by whether anything for another device is
    installed. A machine with libtpu and no TPU counts as one with a TPU.
    """
    if platforms := os.environ.get('JAX_PLATFORMS'):
        return platforms.split(',')[0] == 'cpu'
    plugins = importlib.metadata.entry_points(group='jax_plugins')
    return not plugins and not any(map(importlib.util.find_spec, ('jax_plugins', 'libtpu')))
