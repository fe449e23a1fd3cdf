"""Figures of the accelerators that a run can be planned for, each with its public source, and the names of their topologies.

Owns nothing but published numbers and names. Knows no model and imports no jax. A chip is what the
provider rents and what jax shows as one device (two cores of v4 and v5p act as one).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from configs.errors import UserError

_GIB = 2**30
_DOCS = 'cloud.google.com/tpu/docs'


@dataclass(frozen=True)
class Chip:
    """One kind of chip.

    peak_flops: FLOP/s in bfloat16, in which jax multiplies float32 on TPU too unless told otherwise.
    hbm, hbm_usable: bytes of memory as published, and as libtpu 0.0.42 allows (it says so when it refuses a program).
    hbm_bandwidth: bytes/s. ici: bytes/s that a chip can send over all its links together (one direction).
    shapes: the topologies that exist, as far as they can be listed; `cubes`: so do larger ones of 4x4x4 cubes.
    """

    name: str
    peak_flops: float
    hbm: float
    hbm_usable: float
    hbm_bandwidth: float
    ici: float
    source: str
    shapes: tuple[str, ...]
    cubes: bool = False


_SQUARE = ('1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
_CUBIC = ('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8')
CHIPS = {
    chip.name: chip
    for chip in (
        Chip('v4', 275e12, 32 * _GIB, 30.75 * _GIB, 1200e9, 268e9, f'{_DOCS}/v4 (links: a pod reduces 1.1 PB/s)', _CUBIC, cubes=True),
        Chip('v5e', 197e12, 16e9, 15.75 * _GIB, 819e9, 200e9, f'{_DOCS}/v5e (links: 1600 Gbit/s)', _SQUARE),
        Chip('v5p', 459e12, 95e9, 95.74 * _GIB, 2765e9, 600e9, f'{_DOCS}/v5p (links: 4800 Gbit/s)', _CUBIC, cubes=True),
        Chip('v6e', 918e12, 32e9, 31.25 * _GIB, 1638e9, 400e9, f'{_DOCS}/v6e (links: half of 800 GB/s, both ways)', _SQUARE),
    )
}


@dataclass(frozen=True)
class Topology:
    """Chips of one kind, wired as a torus or mesh of `shape`."""

    chip: Chip
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """As it is given on the command line and to libtpu: 'v5e:16x16'."""
        return f'{self.chip.name}:{"x".join(map(str, self.shape))}'

    @property
    def chips(self) -> int:
        """How many chips that is."""
        return math.prod(self.shape)


def topology(name: str) -> Topology:
    """The topology called 'v5e:16x16' or the like. UserError with the names that exist for any other."""
    match = re.fullmatch(r'(\w+):(\d+(?:x\d+)+)', name)
    if match and match[1] in CHIPS:
        chip, shape = CHIPS[match[1]], tuple(map(int, match[2].split('x')))
        of_cubes = chip.cubes and len(shape) == 3 and list(shape) == sorted(shape) and not any(n % 4 or n == 0 for n in shape)
        if match[2] in chip.shapes or of_cubes:
            return Topology(chip, shape)
    shapes = {shapes: [c.name for c in CHIPS.values() if c.shapes == shapes] for shapes in (_SQUARE, _CUBIC)}
    lists = '; '.join(f'{" or ".join(names)} with {", ".join(shape)}' for shape, names in shapes.items())
    raise UserError(f'--topology={name}: there is no such topology; there are {lists} and larger multiples of 4 in ascending order')


# jax's device_kind of what a run can stand on -> dense bfloat16 peak, FLOP/s. GPUs: NVIDIA's data sheets, SXM modules, without sparsity.
_KINDS = (
    (r'TPU v4$', CHIPS['v4'].peak_flops),
    (r'TPU v5 ?(lite|e)', CHIPS['v5e'].peak_flops),
    (r'TPU v5p?$', CHIPS['v5p'].peak_flops),
    (r'TPU v6 ?(lite|e)', CHIPS['v6e'].peak_flops),
    (r'\bH[12]00\b(?!.*PCIe)', 989e12),
    (r'\bA100\b', 312e12),
    (r'\bL4\b', 121e12),
)


def peak_flops(device_kind: str) -> float | None:
    """The bfloat16 peak of one device, by jax's name for it; None for a CPU and for what is not in the table."""
    return next((peak for pattern, peak in _KINDS if re.search(pattern, device_kind)), None)
