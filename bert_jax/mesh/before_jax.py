"""What a program that trains finds out and says before numpy and jax are imported.

Three things cannot be said later: XLA's flags for equal bits (`--deterministic`), what the C
library does with freed memory, and, by the processor's instructions, whether products of bfloat16
gain. Must not import jax or numpy, nor know models or settings.

The C library: XLA takes memory from it again in every step. Large pieces glibc asks of the kernel
each time, which has to clear them page by page: of a small model's step that is a quarter.

`--deterministic`: the bits of one program on one CPU or TPU are always the same; on a GPU sums may
be taken in any order, and kernels are chosen by timing them.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

# The first also keeps XLA from choosing kernels by their time; it implied the second when this was
# written.
_DETERMINISTIC = (
    '--xla_gpu_deterministic_ops=true',
    '--xla_gpu_exclude_nondeterministic_ops=true',
)
# Of glibc's malloc.h. Other C libraries have no mallopt, or make nothing of these.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_GROW_BY = 64 << 20  # bytes asked of the kernel at once
# XLA multiplies bfloat16 by instructions of its own with these alone; without them it converts to
# float32 first. Both are Linux's names. Apple's processors from M2 on have FEAT_BF16: whether XLA
# gains by it is not known, so it is read and not in this list.
_FAST = frozenset({'amx_bf16', 'avx512_bf16'})


def set_up(deterministic: bool = False) -> None:
    """Set XLA's flags, where equal bits are asked for, and on a CPU the C library's memory."""
    if will_compute_on_cpu():
        keep_freed_memory()
    if deterministic:
        # Ours come last, because of options that contradict each other the last holds.
        flags = os.environ.get('XLA_FLAGS', '').split()
        os.environ['XLA_FLAGS'] = ' '.join([*flags, *_DETERMINISTIC])


def describe_determinism(platform: str) -> str:
    """Return what the log says of a run on devices of this kind ('cpu', 'gpu' or 'tpu')."""
    # Only a GPU leaves it open: the log says what is true of this run, not what was asked for.
    same = 'a resumed run ends with the bits of an undisturbed one'
    if platform != 'gpu':
        return f'{same}: on a {platform.upper()} always, --deterministic changes nothing'
    flags = os.environ.get('XLA_FLAGS', '').split()
    if all(option in flags for option in _DETERMINISTIC):
        return f'{same} (--deterministic)'
    return (
        'a resumed run equals an undisturbed one within rounding; bit for bit with --deterministic'
    )


def keep_freed_memory() -> bool:
    """Keep, from here on, what the process frees, for its next allocations.

    It changes speed and, by some hundred MB at the most, the size of the process; no results. To be
    called before there are threads, which numpy and jax start: a thread stays with the arena that
    it began with, and only the first arena keeps pieces beyond 64 MB. Returns whether the C library
    has taken the settings; where it has none nothing changes.
    """
    if sys.platform != 'linux':
        return False
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
    if mallopt is None:
        return False
    # One arena for all threads; nothing straight from the kernel, nothing given back to it, and few
    # calls for more.
    taken = [
        mallopt(_M_ARENA_MAX, 1),
        mallopt(_M_MMAP_MAX, 0),
        mallopt(_M_TRIM_THRESHOLD, -1),
        mallopt(_M_TOP_PAD, _GROW_BY),
    ]
    return all(taken)


def will_compute_on_cpu() -> bool:
    """Tell whether jax is going to choose the CPU, without importing it.

    By what the user has set (JAX_PLATFORMS), else by whether anything for another device is
    installed. A machine with libtpu and no TPU counts as one with a TPU.
    """
    platforms = os.environ.get('JAX_PLATFORMS')
    if platforms:
        return platforms.split(',')[0] == 'cpu'
    if importlib.metadata.entry_points(group='jax_plugins'):
        return False
    return not any(map(importlib.util.find_spec, ('jax_plugins', 'libtpu')))


def read_processor_flags() -> frozenset[str]:
    """Return the names of the instructions in lower case; none where nothing lists them.

    Linux lists them in /proc/cpuinfo, macOS by sysctl.
    """
    try:
        if sys.platform == 'darwin':
            # `feat_bf16` of the line 'hw.optional.arm.FEAT_BF16: 1'.
            command = ['sysctl', 'hw.optional']
            text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            return frozenset(re.findall(r'(\w+): 1$', text.lower(), re.MULTILINE))
        text = pathlib.Path('/proc/cpuinfo').read_text()
    except OSError:  # there is no such file or program
        return frozenset()
    listed = re.findall(r'^(?:flags|Features).*?:(.*)', text, re.MULTILINE)
    return frozenset(' '.join(listed).lower().split())


def multiplies_bfloat16() -> bool:
    """Tell whether products of bfloat16 are faster than those of float32 on this processor."""
    return not _FAST.isdisjoint(read_processor_flags())
