"""A run of your own: a workdir around a training that no command here makes (docs/extending.md).

Owns what bert-pretrain does around any state: the folder's lock and claim, the state to go on
from, signals, the watchdog, metrics and plots. It must not know what is trained.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from bert_jax.configs.schema import PretrainConfig
from bert_jax.input_pipeline.tokenizer import Tokenizer
from bert_jax.mesh import processes, program_cache, sharding
from bert_jax.runs.workdir import running, word_vectors
from bert_jax.runs.workdir.workdir import Workdir
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
    """Opens `workdir` for a run; yields (what loop.train takes, the state to go on from).

    Inside it the mesh is set, SIGTERM and SIGINT ask the loop to save and stop, and other processes
    are kept out of the folder. What --init_from takes from the folder afterwards is the encoder of
    shape config.model under params['encoder'], where there is one, and the tokenizer.

    Args:
      config: the settings, which a resumed run must have alike but for those that the schema lets
      change; of the phases the batch sizes are checked and the steps are counted.
      fresh: the state that the run begins with, on the mesh; the newest checkpoint's takes its
      place.
      reads: what the run is besides (its objective, its records), JSON values that a resumed run
      must have alike.
      writers: makes writers of metrics of your own, given the step that the run goes on from (0:
      the first); called in the first process alone, and closed at the end.
      profile_steps: see loop.Run.

    Of several processes (jax.distributed.initialize comes before) each makes the same call, for a
    folder that all of them share.

    UserError where the folder holds another run or is in use, or a batch does not divide.
    """
    for number, phase in enumerate(config.phases):
        setting = f'phases.{number}.batch_size'
        sharding.check_divides(mesh, phase.batch_size, config.runtime.accumulation, setting)
    program_cache.use(config.runtime.compilation_cache)
    folder, leads = Workdir(workdir), processes.is_lead_process()
    with folder.lock() if leads else contextlib.nullcontext():
        # The claim comes first: from here on the folder is this run's or the call has failed.
        identity = dict(reads) | word_vectors.identity(config.model, tokenizer)
        processes.broadcast_from_lead(lambda: folder.create_or_resume(config, identity))
        if leads:
            tokenizer.save(folder.tokenizer_folder)
        checkpoints = running.checkpoints_of(workdir, config.runtime)
        resumed = running.resumed(workdir, checkpoints, fresh, config.total_steps)
        state, meter_state = resumed or (fresh, None)
        with (
            _handlers_put_back(),
            running.opened_for_phases(
                workdir,
                checkpoints,
                state,
                config,
                mesh,
                meter_state=meter_state,
                profile_steps=profile_steps,
                writers=writers,
            ) as run,
        ):
            yield run, state


@contextlib.contextmanager
def _handlers_put_back() -> Iterator[None]:
    """Gives SIGTERM and SIGINT back to the program or notebook that the run was a part of."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
