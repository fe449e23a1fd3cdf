"""Has libtpu write down the code that it makes for a TPU, counts it, and sets it beside prices.

Owns the flags by which it does, and the grammar of what it writes, as far as counting needs it. A
TPU issues a bundle of operations a cycle, so that bundles, those of a loop by its turns, are the
cycles of code that never waits: for the memory, for another chip or for a unit that is still busy.
libtpu 0.0.42; neither its flags nor its notation are documented.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax.costs import hlo, prices
from bert_jax.costs.chips import Topology

# A bundle is a line, with a '>' for each loop that it stands in: "  0x11 LB: >> { %s1 = ... }".
# One that issues nothing, "  0x12   :  {}", has no such marks, and stands where the last one does.
_BUNDLE = re.compile(r'^\s*(?:0x[0-9a-f]+|0)\s+(LB)?[A-Z]*\s*:\s*(>*)\s*(\{\})?')
_LAST_TURN = re.compile(r'scmp\.ge\.s32\.totalorder (%\S+), (\d+) /\* loop exit test')
# A loop that fetches and stores beside its work has so many turns more, in which it does not work.
_STAGES = re.compile(r'iteration index, stage = (\d+)')
_COLUMNS = ('libtpu', 'code', 'bytes', 'longer', 'both', 'low', 'high')
_FILLING = 2  # those of the loop over a kernel's programs


@contextlib.contextmanager
def code_folder() -> Iterator[pathlib.Path]:
    """A folder into which libtpu writes the code of each program that it compiles.

    libtpu reads its flags when it is loaded: to be asked for before that, and once.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ['JAX_PLATFORMS'] = 'cpu'
        os.environ['LIBTPU_INIT_ARGS'] = (
            f'--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true'
            ' --xla_jf_dump_llo_pass_label_regex=.*final_bundles.*'
        )
        yield pathlib.Path(folder)


def written(folder: pathlib.Path) -> dict[str, str]:
    """{instruction: its code} of the program that was compiled last; empties the folder.

    Of instructions that have the same code libtpu writes down one.
    """
    found = {}
    for file in folder.iterdir():
        name = re.fullmatch(r'\d+-(.+)-\d+-final_bundles\.txt', file.name)
        if name:
            found[name[1]] = file.read_text()
        file.unlink()
    return found


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
        if turns := _turns(line, text):
            if depth == 1:
                programs = turns - _FILLING
            else:
                inner.append((inner.pop()[0], turns))
    return programs, outer + sum(bundles * turns for bundles, turns in inner)


@dataclass
class _Loop:
    """A loop, or all of a code: its bundles, with those of loops in it by their turns."""

    bundles: int = 0
    turns: int | None = None
    idle: int = 0  # turns in which it does not work


def of_instruction(text: str) -> int | None:
    """Cycles of the code of an instruction of XLA's; None where a loop does not tell its turns."""
    open_loops = [_Loop(turns=1)]  # the outermost first

    def close() -> bool:
        loop = open_loops.pop()
        if loop.turns is None:
            return False
        open_loops[-1].bundles += loop.bundles * max(loop.turns - loop.idle, 1)
        return True

    for line in text.splitlines():
        if not (bundle := _BUNDLE.match(line)):
            continue
        begins, marks, is_empty = bundle.groups()
        depth = len(open_loops) - 1 if is_empty else len(marks)

        # Loops end where the marks do, or where another begins at the same depth.
        while len(open_loops) - 1 > depth - bool(begins):
            if not close():
                return None
        while len(open_loops) - 1 < depth:
            open_loops.append(_Loop())
        loop = open_loops[-1]
        loop.bundles += 1
        if begins:
            loop.idle = max(map(int, _STAGES.findall(line)), default=0)
        loop.turns = _turns(line, text) or loop.turns
    while len(open_loops) > 1:
        if not close():
            return None
    return open_loops[0].bundles


def beside_prices(text: str, code: Mapping[str, str], where: Topology) -> list[dict[str, Any]]:
    """A row for each instruction of the program that libtpu has an estimate for, in seconds.

    code: of `written`; rows without `code` are of instructions whose code is not there, or
    does not tell the turns of its loops.
    """
    rows = []
    for i, computation, _ in hlo.scheduled(text):
        price = prices.price(text, i, computation, where.chip)
        if price is None or not price.libtpu:
            continue
        row = {
            'name': i.name,
            'shape': hlo.plain(i.shape),
            'origin': i.origin,
            'basis': price.basis,
            'libtpu': price.libtpu,
            'low': price.low,
            'high': price.high,
            'bytes': hlo.touched(text, i, computation) / where.chip.hbm_bandwidth,
        }
        cycles = of_instruction(code[i.name]) if i.name in code else None
        if cycles is not None:
            row['code'] = cycles / where.chip.clock
            row['longer'] = max(row['code'], row['bytes'])
            row['both'] = row['code'] + row['bytes']
        rows.append(row)
    return rows


def summed(basis: str, rows: Sequence[dict[str, Any]]) -> str:
    """What the instructions of one basis come to, in microseconds."""
    read = [row for row in rows if 'code' in row]
    us = {name: 1e6 * sum(row[name] for row in read) for name in _COLUMNS}
    return (
        f'{basis}: code of {len(read)} of {len(rows)} instructions read, us:'
        f' {us["libtpu"]:.0f} by libtpu, {us["code"]:.0f} of code, {us["bytes"]:.0f} of bytes,'
        f' {us["longer"]:.0f} by the longer one, {us["both"]:.0f} one after the other; priced at'
        f' {us["low"]:.0f} to {us["high"]:.0f}'
    )


def _turns(line: str, text: str) -> int | None:
    """The turns of the loop whose end is tested in this line of a code; None if none is."""
    last = _LAST_TURN.search(line)
    if not last:
        return None
    # The counter grows by a constant, by more than 1 where turns are done at once.
    step = re.search(rf'{re.escape(last[1])} = sadd\.s32 (\d+), ', text)
    return int(last[2]) // int(step[1] if step else 1)
