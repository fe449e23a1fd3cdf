"""Published figures of the accelerators that a run can be planned for, and their topologies' names.

Owns nothing but numbers, each with its public source, and names. Knows no model and imports no jax.
A chip is what the provider rents and what jax shows as one device (two cores of v4 and v5p act as
one).
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

from bert_jax.configs.errors import UserError

_GIB = 2**30
_DOCS = 'cloud.google.com/tpu/docs'
_SHEET = 'nvidia.com data sheet'


@dataclass(frozen=True)
class Chip:
    """The published figures of one kind of chip.

    kind: what jax's device_kind of it looks like.
    peak_flops: FLOP/s in bfloat16, dense; jax multiplies float32 so on TPU too unless asked
    otherwise.
    hbm: bytes of memory as published. hbm_usable: of a TPU, what libtpu 0.0.42 allows (it says so
    when it refuses a program); of a GPU, the 75 % of it that jax takes unless
    XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.
    hbm_bandwidth: bytes/s. ici: bytes/s that a chip can send to the others over all its links
    together (one direction).
    shapes: the topologies that exist, as far as they can be listed.
    """

    name: str
    kind: str
    peak_flops: float
    hbm: float
    hbm_usable: float
    hbm_bandwidth: float
    ici: float
    source: str
    shapes: tuple[str, ...]
    platform: str = 'tpu'

    @property
    def cubes(self) -> bool:
        """Tell whether larger topologies, of cubes of 4x4x4 chips, exist too."""
        return self.shapes == _CUBIC


# Topologies by their wiring: v5e and v6e are meshes of two dimensions, v4 and v5p of three.
_SQUARE = ('1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
_CUBIC = ('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8')
_V4 = f'{_DOCS}/v4 (links: a pod reduces 1.1 PB/s)'
_TPUS = (
    # name, kind, peak_flops, hbm, hbm_usable, hbm_bandwidth, ici, source, shapes
    ('v4', r'TPU v4$', 275e12, 32 * _GIB, 30.75 * _GIB, 1200e9, 268e9, _V4, _CUBIC),
    (
        'v5e', r'TPU v5 ?(lite|e)', 197e12, 16e9, 15.75 * _GIB, 819e9, 200e9,
        f'{_DOCS}/v5e (links: 1600 Gb/s)', _SQUARE,
    ),
    (
        'v5p', r'TPU v5p?$', 459e12, 95e9, 95.74 * _GIB, 2765e9, 600e9,
        f'{_DOCS}/v5p (links: 4800 Gb/s)', _CUBIC,
    ),
    (
        'v6e', r'TPU v6 ?(lite|e)', 918e12, 32e9, 31.25 * _GIB, 1638e9, 400e9,
        f'{_DOCS}/v6e (links: half of 800 GB/s, both ways)', _SQUARE,
    ),
)  # fmt: skip
_GPUS = (
    # name, kind, peak_flops, hbm, hbm_bandwidth, links to others, source
    # Not the PCIe card, whose figures are lower; so below with H200 NVL.
    ('h100', r'\bH100\b(?!.*PCIe)', 989e12, 80e9, 3350e9, 450e9, 'H100 SXM (NVLink: half of 900'),
    ('h200', r'\bH200\b(?!.*NVL)', 989e12, 141e9, 4800e9, 450e9, 'H200 SXM (NVLink: half of 900'),
    ('a100', r'\bA100\b', 312e12, 80e9, 2039e9, 300e9, 'A100 80GB SXM (NVLink: half of 600'),
    ('l4', r'\bL4\b', 121e12, 24e9, 300e9, 32e9, 'L4 (PCIe: half of 64'),
)
# Of GPUs the topologies are those of one machine: 1, 2, 4 or 8, each linked to all others.
_OF_ONE_MACHINE = ('1', '2', '4', '8')
CHIPS = {row[0]: Chip(*row) for row in _TPUS} | {
    # jax takes 75 % of a GPU's memory.
    name: Chip(
        name, kind, peak, hbm, 0.75 * hbm, bandwidth, links,
        f'{_SHEET}, {source} GB/s, both ways)', _OF_ONE_MACHINE, platform='gpu',
    )
    for name, kind, peak, hbm, bandwidth, links, source in _GPUS
}  # fmt: skip


@dataclass(frozen=True)
class Topology:
    """Chips of one kind and how they are wired.

    shape: of a TPU the torus or mesh of its chips; of a GPU the number in one machine.
    """

    chip: Chip
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """Return what the command line and libtpu call it: 'v5e:16x16', 'h100:8'."""
        return f'{self.chip.name}:{"x".join(map(str, self.shape))}'

    @property
    def chips(self) -> int:
        """Return the number of chips."""
        return math.prod(self.shape)

    @property
    def chips_per_host(self) -> int:
        """Return chips of one machine, where it is of the usual kind.

        GPUs are those of one machine. Of v5e and v6e up to 8 chips are one host; else a host has 4
        (cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus).
        """
        if self.chip.platform == 'gpu' or (len(self.shape) == 2 and self.chips <= 8):
            return self.chips
        return 4

    @property
    def gcloud(self) -> str | None:
        """Return the flags that name it to `gcloud compute tpus tpu-vm create`; None of GPUs.

        An accelerator type where that means this shape ('--accelerator-type=v5litepod-16'; of
        v4 and v5p its figure counts cores, two a chip), else generation and shape.
        """
        chip = self.chip
        if chip.platform == 'gpu':
            return None
        if min(_list_shapes(chip, self.chips), key=sum) != self.shape:
            return f'--type={chip.name} --topology={"x".join(map(str, self.shape))}'
        name = 'v5litepod' if chip.name == 'v5e' else chip.name
        return f'--accelerator-type={name}-{self.chips * (2 if chip.cubes else 1)}'


def parse_topology(name: str) -> Topology:
    """Return the topology called 'v5e:16x16', 'h100:8' or the like; UserError for any other.

    Sides may stand in any order (v5p:8x4x4 is v5p:4x4x8), and gcloud's names are understood:
    'v5litepod-16' is v5e:4x4. Of chips that v4 or v5p can be wired in several ways a name of gcloud
    means the shape nearest to a cube.
    """
    # A name is a chip and a shape, or a chip and a number.
    match = re.fullmatch(r'(\w+):(\d+(?:x\d+)*)', name)
    if match and match[1] in CHIPS:
        chip, shape = CHIPS[match[1]], tuple(map(int, match[2].split('x')))
        for sides in _list_shapes(chip, math.prod(shape)):
            if sorted(sides) == sorted(shape):
                return Topology(chip, sides)
    elif match := re.fullmatch(r'(v4|v5e|v5litepod|v5p|v6e)-(\d{1,6})', name):
        chip = CHIPS['v5e' if match[1] == 'v5litepod' else match[1]]
        count, odd = divmod(int(match[2]), 2 if chip.cubes else 1)
        wired = _list_shapes(chip, count)
        if wired and not odd:
            return Topology(chip, min(wired, key=sum))

    # No such topology: list all there are, chips of the same shapes together.
    lists = []
    for shapes in dict.fromkeys(chip.shapes for chip in CHIPS.values()):
        alike = [chip for chip in CHIPS.values() if chip.shapes == shapes]
        larger = ' and larger multiples of 4 in ascending order' if alike[0].cubes else ''
        lists.append(f'{" or ".join(chip.name for chip in alike)} with {", ".join(shapes)}{larger}')
    raise UserError(
        f'--topology={name}: there is no such topology; there are {"; ".join(lists)} (as in'
        ' v5e:16x16 or h100:8; v5litepod-256 and other names of gcloud are understood)'
    )


def _list_shapes(chip: Chip, count: int) -> list[tuple[int, ...]]:
    """Return the shapes of all topologies of `count` chips, sides in the provider's order."""
    # Listed shapes exist, and of v4 and v5p whatever is built of whole cubes, its sides ascending.
    listed = [tuple(map(int, shape.split('x'))) for shape in chip.shapes]
    shapes = [sides for sides in listed if math.prod(sides) == count]
    if chip.cubes:
        sides = range(4, count // 16 + 1, 4)
        for a, b in itertools.combinations_with_replacement(sides, 2):
            c = count // (a * b)
            if a * b * c == count and b <= c and c % 4 == 0:
                shapes.append((a, b, c))
    return shapes


def find_peak_flops(device_kind: str) -> float | None:
    """Return FLOP/s in bfloat16 of a device, by jax's device_kind; None for an unlisted chip."""
    for chip in CHIPS.values():
        if re.search(chip.kind, device_kind):
            return chip.peak_flops
    return None
