"""Checkpoints of tests in which they are no more than a file to go on from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope='module', autouse=True)
def whole_arrays() -> Iterator[None]:
    """One device writes an array, as on GPUs.

    Cut over the fake devices, as on TPUs, every shape of an array would compile its cuts.
    """
    import jax
    from orbax.checkpoint import type_handlers

    kept = type_handlers.get_type_handler(jax.Array)
    whole = type_handlers.ArrayHandler(use_replica_parallel=False)
    type_handlers.register_type_handler(jax.Array, whole, override=True)
    yield
    type_handlers.register_type_handler(jax.Array, kept, override=True)
