"""What all fine-tuning runs of one process share of the machine they run on.

Owns how it is made ready before the first run. It must not know tasks or runs.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import jax
from absl import logging

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.mesh import determinism, processes, program_cache, sharding
from bert_jax.model import partition

# Settings that all runs of a process have from the first.
_SHARED = ('data_parallel', 'fsdp', 'model_parallel', 'compilation_cache')


class Stopped(Exception):
    """A signal asked the process to save and stop, and it has; `said`: what it can go on from."""

    def __init__(self, signal_number: int, said: str = 'stopped'):
        super().__init__(signal_number, said)
        self.signal_number, self.said = signal_number, said


class Machine(NamedTuple):
    """The devices of a process, its signal to stop, and what it has compiled.

    runtime: the settings that the mesh was made with; compilations: how often of each program
    (init, train, predict).
    """

    runtime: schema.RuntimeConfig
    mesh: jax.sharding.Mesh
    signal: processes.StopSignal
    compilations: collections.Counter[str]

    def check(self, config: schema.FinetuneConfig) -> None:
        """Raises UserError where a run of `config` does not go with these devices."""
        # The mesh is made once: a run that asks for another cannot be had in this process.
        for name in _SHARED:
            if (value := getattr(config.runtime, name)) != getattr(self.runtime, name):
                raise UserError(
                    f'runtime.{name}={value}: the runs of one command share it '
                    f'({getattr(self.runtime, name)}): give it to all of them, with --set'
                )
        sharding.check_divides(
            self.mesh, config.batch_size, config.runtime.accumulation, 'batch_size'
        )

    def heed(self) -> None:
        """Raises Stopped after a signal."""
        if self.signal.received is not None:
            raise Stopped(self.signal.received)


def ready(runtime: schema.RuntimeConfig, model: schema.ModelConfig) -> Machine:
    """This machine for runs with such settings; from here on a signal is not the process's end."""
    mesh = mesh_of(runtime, model)
    logging.info('%s', determinism.described(jax.default_backend()))
    return Machine(runtime, mesh, processes.StopSignal(), collections.Counter())


def mesh_of(runtime: schema.RuntimeConfig, model: schema.ModelConfig) -> jax.sharding.Mesh:
    """The mesh for runs with such settings; UserError where the devices cannot be had so."""
    # Before anything is compiled.
    program_cache.use(runtime.compilation_cache)
    mesh = sharding.make_mesh(runtime)

    # What the mesh leaves whole is no mistake, but costs memory: said once, not with each run.
    for warning in partition.left_whole(model, runtime):
        logging.warning('%s', warning)
    return mesh
