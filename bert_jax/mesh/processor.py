"""Which instructions the processor of this machine has, and whether bfloat16 products gain by them.

Owns the one reading of the processor's flags. It must not know jax, models or settings.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

# XLA multiplies bfloat16 by instructions of its own with these alone; without them it converts to
# float32 first. Both are Linux's names. Apple's processors from M2 on have FEAT_BF16: whether XLA
# gains by it is not known, so it is read and not in this list.
_FAST = frozenset({'amx_bf16', 'avx512_bf16'})


def flags() -> frozenset[str]:
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
    return not _FAST.isdisjoint(flags())
