"""What a run takes besides its train steps: hosts that read, room on the disk, saves, evaluations.

Owns that arithmetic. Sizes and rates of reading follow from the configuration; the time of an
evaluation and of a save rests on a guess each, which is named. It must not know how a step is made
or priced: it takes the seconds of a step as they are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.configs.schema import PretrainConfig
from bert_jax.costs.chips import Topology

# An evaluation has no backward pass, which is two thirds of a train step: a guess.
EVALUATION = 1 / 3
# Seconds: saves that follow each other faster than the first are too many, the second is advised.
OFTEN, ADVISED = 60, 600
# From which share of the steps' time on evaluations are too many.
MUCH = 0.1


def reading(
    phase: Mapping[str, Any], topology: Topology, mesh: Mapping[str, int], step_s: float
) -> dict[str, float]:
    """Return what each host reads at most: 'rows_per_s' and 'bytes_per_s'.

    phase: as of plan.analytic, with 'bytes_read_per_step'. mesh: {axis: chips}; hosts whose chips
    split layers over `model` need the same rows. Records are read by blocks of 256, which lie over
    the rows of all hosts, so each may read them all.
    """
    hosts = topology.chips // topology.chips_per_host
    share = max(1 / hosts, 1 / (mesh['data'] * mesh['fsdp']))
    return {
        'step_s': step_s,
        'rows_per_s': phase['batch_size'] * share / step_s,
        'bytes_per_s': phase['bytes_read_per_step'] / step_s,
    }


def checkpoints(
    config: PretrainConfig,
    phases: Sequence[Mapping[str, Any]],
    hosts: int,
    write_rate: float,
    step_s: Sequence[float] | None,
) -> dict[str, Any]:
    """Return sizes of the checkpoints, in bytes, and how long a save takes.

    write_rate: bytes/s of a host; step_s: seconds of a step, phase by phase, None where not known.
    kept: the newest, the best, and one that is being written, which is what the disk must have room
    for. between_s: time from a save to the next, in the phase where that is shortest. Training goes
    on during a save, but not into a second one. advised: a checkpoint_every for one save in ten
    minutes, or twice the time of a save; None where saves are not too often, or it is not known.
    """
    every, size = config.runtime.checkpoint_every, phases[0]['checkpoint_bytes']
    count, save_s = sum(phase['steps'] for phase in phases) // every, size / (hosts * write_rate)
    between_s, advised = every * min(step_s) if step_s else None, None
    if step_s and count > 1 and between_s < max(OFTEN, save_s):
        advised = int(float(f'{max(ADVISED, 2 * save_s) / min(step_s):.0e}'))  # one digit
    return {
        'bytes': size,
        'kept': size * (config.runtime.keep_checkpoints + 2),
        'count': count,
        'write_rate': write_rate,
        'save_s': save_s,
        'between_s': between_s,
        'advised': advised,
    }


def evaluations(
    config: PretrainConfig, phases: Sequence[Mapping[str, Any]], step_s: Sequence[float]
) -> dict[str, float]:
    """Return the 'count' of evaluations on held-out records, their 'batches' and 'hours'.

    share: of the time of the steps. One each eval_every steps and after the last of a phase.
    Batches are 0, and hours too, where all held-out records are read, however many there are.
    """
    runtime = config.runtime
    counts = [-(-phase['steps'] // runtime.eval_every) for phase in phases]
    hours = sum(
        count * runtime.eval_batches * EVALUATION * seconds / 3600
        for count, seconds in zip(counts, step_s, strict=True)
    )
    steps_hours = sum(
        phase['steps'] * seconds / 3600 for phase, seconds in zip(phases, step_s, strict=True)
    )
    return {
        'count': sum(counts),
        'batches': runtime.eval_batches,
        'hours': hours,
        'share': hours / steps_hours,
    }
