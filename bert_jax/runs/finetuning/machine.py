"""What all fine-tuning runs of one process share of the machine they run on.

Owns how it is made ready before the first run. It must not know tasks or runs.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import jax
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.mesh import before_jax, construction, program_cache, sharding
from bert_jax.model import partition
from bert_jax.runs.supervision.signals import StopSignal
from bert_jax.runs.workdir.run_context import say_stopped

# Settings that all runs of a process have from the first.
_SHARED = ('data_parallel', 'fsdp', 'model_parallel', 'compilation_cache')


class Stopped(SystemExit):
    """A signal asked the process to save and stop, and it has; the exit code is 128 + signal.

    Attributes:
      signal: its number.
    """

    def __init__(self, signal_number: int, standing: str = 'stopped'):
        """Log what the run goes on from, in the words of `standing`."""
        self.signal = signal_number
        say_stopped(signal_number, standing)
        super().__init__(128 + signal_number)


class Machine(NamedTuple):
    """The devices of a process, its signal to stop, and what it has compiled.

    Attributes:
      runtime: the settings that the mesh was made with.
      mesh: the devices.
      signal: whether the process was asked to stop.
      compilations: how often each program (init, train, predict) was compiled.
    """

    runtime: RuntimeConfig
    mesh: jax.sharding.Mesh
    signal: StopSignal
    compilations: collections.Counter[str]

    def check(self, runtime: RuntimeConfig, batch_size: int, chunk_size: int | None) -> None:
        """Raise UserError where a run with such settings does not go with these devices."""
        # The mesh is made once: a run that asks for another cannot be had in this process.
        for name in _SHARED:
            value = getattr(runtime, name)
            if value != getattr(self.runtime, name):
                raise UserError(
                    f'runtime.{name}={value}: the runs of one command share it '
                    f'({getattr(self.runtime, name)}): give it to all of them, with --set'
                )
        sharding.check_divides(self.mesh, batch_size, runtime.accumulation, 'batch_size')
        if chunk_size:
            sharding.check_divides(self.mesh, chunk_size, 1, 'embedding.chunk_size')

    def heed(self) -> None:
        """Raise Stopped after a signal."""
        if self.signal.received is not None:
            raise Stopped(self.signal.received)


def prepare_machine(runtime: RuntimeConfig, model: ModelConfig) -> Machine:
    """Make this machine ready for runs with such settings; a signal no longer ends the process."""
    mesh = prepare_mesh(runtime, model)
    logging.info(before_jax.describe_determinism(jax.default_backend()))
    return Machine(runtime, mesh, StopSignal(), collections.Counter())


def prepare_mesh(runtime: RuntimeConfig, model: ModelConfig) -> jax.sharding.Mesh:
    """Make the mesh for runs with such settings; UserError where the devices cannot be had so."""
    # Before anything is compiled.
    program_cache.use(runtime.compilation_cache)
    mesh = construction.make_mesh(runtime)

    # What the mesh leaves whole is no mistake, but costs memory: logged once, not with each run.
    for warning in partition.list_unsplit(model, runtime):
        logging.warning(warning)
    return mesh
