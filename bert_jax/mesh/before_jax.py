"""What every binary that trains says before numpy and jax are imported, and cannot say later."""

from __future__ import annotations

from bert_jax.mesh import determinism, heap


def set_up(deterministic: bool = False) -> None:
    """Set XLA's flags, where equal bits are asked for, and on a CPU the C library's memory."""
    if heap.will_compute_on_cpu():
        heap.keep_freed_memory()
    if deterministic:
        determinism.demand()
