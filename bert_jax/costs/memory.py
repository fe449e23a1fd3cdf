"""What a compiled train step takes of one device's memory: for bert-plan, --dry_run and the log.

Owns the split of the compiler's totals, and the line that tells it. It must not know what was
compiled, or for where.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

MIB, GIB = 2**20, 2**30


def held(tree: Any) -> int:
    """Return the bytes that one device holds of a tree of arrays, by their shardings.

    An array of numpy has none: a single device holds it whole.
    """
    return sum(
        leaf.nbytes
        if isinstance(leaf, np.ndarray)
        else math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def of_step(program: jax.stages.Compiled, platform: str) -> dict[str, int]:
    """Return {use: bytes} on one device as the compiler counts; 'total' is the peak.

    platform: 'cpu', 'gpu' or 'tpu'. Outputs that are written over arguments count once. libtpu's
    sum of temporaries counts bytes that are used one after the other twice, by up to a sixth of all
    at the edge of a v5e's memory, and it refuses a step by its peak; of a CPU's the peak leaves
    temporaries out.
    """
    stats = program.memory_analysis()
    if stats is None:
        raise NotImplementedError(
            f'the compiler for {platform} does not tell what memory a program takes'
        )
    arguments, outputs = stats.argument_size_in_bytes, stats.output_size_in_bytes
    # What is written over an argument is among the outputs and the arguments: counted once.
    arrays = arguments + outputs - stats.alias_size_in_bytes
    # Of a TPU the peak is what counts: what the temporaries take of it is what the rest leaves.
    is_tpu = platform == 'tpu'
    temporary = stats.peak_memory_in_bytes - arrays if is_tpu else stats.temp_size_in_bytes
    program_size = stats.generated_code_size_in_bytes
    return {
        'arguments': arguments,
        'outputs': outputs,
        'outputs_in_place': stats.alias_size_in_bytes,
        'temporary': temporary,
        'program': program_size,
        'total': arrays + temporary + program_size,
    }


def line(program: jax.stages.Compiled, state: Any, batch: Any) -> str:
    """Return a log line on a step's memory on one device, with the device's total if known.

    state, batch: as given to the step.
    """
    # memory_stats is None on a CPU.
    used = of_step(program, jax.default_backend())
    limit = (jax.local_devices()[0].memory_stats() or {}).get('bytes_limit')
    params = held((state.params, state.frozen))
    return (
        f'on each of {jax.device_count()} device(s): parameters {size(params)},'
        f' optimizer {size(held(state.opt_state))}, batch {size(held(batch))}, activations and'
        f' workspace {size(used["temporary"])}: {size(used["total"])} in all'
        + (f' of {size(limit)}' if limit else '')
    )


def size(count: float) -> str:
    """Return a number of bytes in words: in MiB, or in GiB from a quarter of one on."""
    return f'{count / GIB:.2f} GiB' if abs(count) >= GIB / 4 else f'{count / MIB:.1f} MiB'
