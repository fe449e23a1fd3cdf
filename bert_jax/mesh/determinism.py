"""`--deterministic`: whether a run that is resumed ends with the same bits on a GPU too.

Owns the options of XLA that make it so, and what the log says of it. The bits of one program on one
CPU or TPU are always the same; on a GPU sums may be taken in any order, and kernels are chosen by
timing them.
"""

from __future__ import annotations

import os

HELP = (
    'on a GPU: only operations that give the same bits each time, so that a resumed run does too'
    ' (slower)'
)
# The first also keeps XLA from choosing kernels by their time; it implied the second when this was
# written.
_OPTIONS = ('--xla_gpu_deterministic_ops=true', '--xla_gpu_exclude_nondeterministic_ops=true')


def demand() -> None:
    """Ask XLA for equal bits; call it before jax is imported, in every process of a run."""
    flags = os.environ.get('XLA_FLAGS', '').split()
    # Ours come last, because of options that contradict each other the last holds.
    os.environ['XLA_FLAGS'] = ' '.join([*flags, *_OPTIONS])


def described(platform: str) -> str:
    """Return what the log says of a run on devices of this kind ('cpu', 'gpu' or 'tpu')."""
    # Only a GPU leaves it open: the log says what is true of this run, not what was asked for.
    same = 'a resumed run ends with the bits of an undisturbed one'
    if platform != 'gpu':
        return f'{same}: on a {platform.upper()} always, --deterministic changes nothing'
    flags = os.environ.get('XLA_FLAGS', '').split()
    if all(option in flags for option in _OPTIONS):
        return f'{same} (--deterministic)'
    return (
        'a resumed run equals an undisturbed one within rounding; bit for bit with --deterministic'
    )
