"""Counts the code that libtpu makes of a kernel, as it writes it down (kernel_code.py).

libtpu 0.0.42; its notation is not documented.
"""

from __future__ import annotations

import re

# A bundle is a line, with a '>' for each loop that it stands in: "  0x11 LB: >> { %s1 = ... }".
# One that issues nothing, "  0x12   :  {}", has no such marks.
_BUNDLE = re.compile(r'^\s*(?:0x[0-9a-f]+|0)\s+(LB)?[A-Z]*\s*:\s*(>*)\s*(\{\})?')
_LAST_TURN = re.compile(r'scmp\.ge\.s32\.totalorder (%\S+), (\d+) /\* loop exit test')
_FILLING = 2  # turns of the loop over programs in which arrays come or go, and nothing is computed


def of_kernel(text: str) -> tuple[int, int]:
    """(programs, bundles of a program) of a kernel's code.

    Its outer loop goes over the programs; loops in that one stand side by side.
    """
    outer, programs, depth = 0, 1, 0
    inner: list[tuple[int, int]] = []  # bundles and turns of each
    for line in text.splitlines():
        if not (bundle := _BUNDLE.match(line)):
            continue
        begins, marks, is_empty = bundle.groups()
        depth = depth if is_empty else len(marks)
        if depth == 1:
            outer += 1
        elif depth == 2:
            bundles, turns = (0, 1) if begins else inner.pop()
            inner.append((bundles + 1, turns))
        if last := _LAST_TURN.search(line):
            # The counter grows by a constant, by more than 1 where turns are done at once.
            step = re.search(rf'{re.escape(last[1])} = sadd\.s32 (\d+), ', text)
            turns = int(last[2]) // int(step[1] if step else 1)
            if depth == 1:
                programs = turns - _FILLING
            else:
                inner.append((inner.pop()[0], turns))
    return programs, outer + sum(bundles * turns for bundles, turns in inner)
