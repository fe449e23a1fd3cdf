"""What the C library does with the memory that a step on a CPU gives back.

XLA takes the memory of a step anew from the C library in every step. Pieces of some hundred kB and
more glibc asks of the kernel each time, which has to clear them page by page: of a small model's
step that is a seventh. This file knows nothing of models and nothing of XLA.
"""

from __future__ import annotations

import ctypes
import sys

# Of glibc's malloc.h. Other C libraries have no mallopt, or make nothing of these.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_GROW_BY = 64 << 20  # bytes asked of the kernel at once


def keep_freed_memory() -> bool:
    """From here on the process keeps what it frees, for its next allocations.

    It changes speed and, by some hundred MB at the most, the size of the process; no results.
    Arrays beyond 64 MB that XLA's own threads take are still asked of the kernel. Returns whether
    the C library has taken the settings; where it has none nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None) if sys.platform == 'linux' else None
    if mallopt is None:
        return False
    # Nothing straight from the kernel, nothing given back to it, and few calls for more.
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, _GROW_BY))
    taken = [mallopt(*setting) for setting in settings]
    return all(taken)
