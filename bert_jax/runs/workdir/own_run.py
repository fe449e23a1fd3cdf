"""A run of your own: a workdir around a training that no command here makes (docs/extending.md).

Owns the order in which a folder is claimed, resumed and opened around any state. It must not know
what is trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from bert_jax.configs.schema import PretrainConfig
from bert_jax.input_pipeline.tokenizer import Tokenizer
from bert_jax.mesh import program_cache, sharding
from bert_jax.runs.supervision.signals import handlers_restored
from bert_jax.runs.workdir import running
from bert_jax.train import loop
from bert_jax.train.state import TrainState


@contextlib.contextmanager
def own_run(
    workdir: str,
    config: PretrainConfig,
    fresh: TrainState,
    mesh: jax.sharding.Mesh,
    tokenizer: Tokenizer,
    reads: Mapping[str, Any],
    *,
    writers: Callable[[int], Sequence[loop.Writer]] = lambda step: (),
    profile_steps: int = 0,
) -> Iterator[tuple[loop.Run, TrainState]]:
    """Open `workdir` for a run; yield what loop.train takes, and the state to go on from.

    Inside it the mesh is set, SIGTERM and SIGINT ask the loop to save and stop, and other processes
    are kept out of the folder. What --init_from takes from the folder afterwards is the encoder of
    shape config.model under params['encoder'], where there is one, and the tokenizer. Of several
    processes (jax.distributed.initialize comes before) each makes the same call.

    Args:
      workdir: its folder, which all processes share.
      config: the settings, which a resumed run must have alike but for those that the schema lets
        change; of the phases the batch sizes are checked and the steps are counted.
      fresh: the state that the run begins with, on the mesh, where there is no checkpoint.
      mesh: the devices of the run.
      tokenizer: kept in the folder.
      reads: what the run is besides (its objective, its records), JSON values that a resumed run
        must have alike.
      writers: makes more writers of metrics, given the step that the run goes on from (0: the
        first); called in the first process alone, and closed at the end.
      profile_steps: see loop.Run.

    Raises:
      UserError: the folder holds another run or is in use, or a batch does not divide.
    """
    for number, phase in enumerate(config.phases):
        setting = f'phases.{number}.batch_size'
        sharding.check_divides(mesh, phase.batch_size, config.runtime.accumulation, setting)
    program_cache.use(config.runtime.compilation_cache)
    with running.locked(workdir) as folder:
        config = running.claim(folder, config, tokenizer, reads)
        checkpoints = running.checkpoints_of(workdir, config.runtime)
        resumed = running.resumed(workdir, checkpoints, fresh, config.total_steps)
        state, meter_state = resumed or (fresh, None)
        # A command keeps its handlers to the end: a signal that comes twice is one request.
        with (
            handlers_restored(),
            running.opened_for_phases(
                workdir, checkpoints, state, config, mesh, meter_state, profile_steps, writers
            ) as run,
        ):
            yield run, state
