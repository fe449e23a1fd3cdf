"""Checkpoints of a run: saved whole, verified when they are read. The only importer of orbax.

Orbax makes a save atomic but does not notice flipped bits and does not fall back from a damaged step.
So a fingerprint of every leaf is taken on the devices before the save and compared after the restore,
and `restore` walks back to the newest step that verifies, saying what it skipped and why.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from bert_jax.sharding import path_of
from bert_jax.train_state import TrainState
from configs.errors import UserError

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def _fingerprint(leaf: jax.Array) -> jax.Array:
    """uint32 wrap-around sum of (bit pattern x odd weight of the place): the same on every mesh, changed by any one bit."""
    bits = jax.lax.bitcast_convert_type(leaf, _WORDS[leaf.dtype.itemsize]).astype(jnp.uint32)
    place = jnp.zeros(leaf.shape, jnp.uint32)
    for axis, size in enumerate(leaf.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
    return jnp.sum(bits * (place * jnp.uint32(2654435761 & ~1) + jnp.uint32(1)), dtype=jnp.uint32)


@jax.jit
def _fingerprints(tree: Any) -> Any:
    return jax.tree.map(_fingerprint, tree)


def fingerprints(tree: Any) -> dict[str, int]:
    """{path: fingerprint} of every leaf."""
    flat, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(_fingerprints(tree)))
    return {path_of(path): int(value) for path, value in flat}


class NoRoom(UserError):
    """A checkpoint could not be written because the disk is full; the ones before it are whole."""


class Checkpoints:
    """The `checkpoints/` folder of a workdir: params and the rest of the state as items of their own, by step."""

    def __init__(self, workdir: str | epath.PathLike, keep: int = 3, best_metric: str | None = None):
        """Keeps the newest `keep`, and the one with the lowest `best_metric` where that is given."""
        self._folder = epath.Path(workdir).absolute() / 'checkpoints'
        self._folder.mkdir(parents=True, exist_ok=True)
        newest = ocp.checkpoint_managers.LatestN(keep)
        policy = newest
        if best_metric:
            best = ocp.checkpoint_managers.BestN(get_metric_fn=lambda m: -m[best_metric], n=1, keep_checkpoints_without_metrics=False)
            policy = ocp.checkpoint_managers.AnyPreservationPolicy([newest, best])
        self._manager = ocp.CheckpointManager(
            self._folder,
            item_names=('params', 'rest', 'meta'),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policy,
                enable_async_checkpointing=True,
                cleanup_tmp_directories=True,
            ),
        )

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState, meta: dict[str, Any], metrics: dict[str, float] | None = None, must: bool = True) -> None:
        """Saves in the background. NoRoom where the disk is too full for it, or was for the save before; without `must` a warning."""
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        try:
            self._check_room(state)
            self._raise_errors(self._manager.check_for_errors)
        except NoRoom as error:
            if must:
                raise
            logging.warning('NOT SAVED at step %d, training goes on (runtime.on_full_disk=continue): %s', step, error)
            return
        record = {**meta, 'step': step, 'fingerprints': fingerprints(state)}
        params, rest = state.params, state._replace(params=None)
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(params), rest=ocp.args.StandardSave(rest._asdict()), meta=ocp.args.JsonSave(record)
            ),
            metrics=metrics,
            force=True,
        )

    def _check_room(self, state: TrainState) -> None:
        if '://' in str(self._folder):
            return
        need = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        free = shutil.disk_usage(Path(self._folder)).free
        if free < need * 1.1:
            raise NoRoom(
                f'{self._folder}: a checkpoint needs {need / 1e6:.0f} MB and {free / 1e6:.0f} MB are free: make room and start again'
            )

    def _raise_errors(self, ask: Callable[[], None]) -> None:
        """Calls `ask`, which raises what went wrong in the background; NoRoom where it was a full disk."""
        try:
            ask()
        except Exception as error:
            if 'No space left' in str(error) or 'RESOURCE_EXHAUSTED' in str(error) or getattr(error, 'errno', None) == errno.ENOSPC:
                raise NoRoom(f'{self._folder}: the disk was full when a checkpoint was written: make room and start again') from error
            raise

    def restore(self, target: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest state that verifies, in the shapes and shardings of `target`, and its meta; None where there is none.

        UserError where checkpoints exist but none of them verifies.
        """
        faults = []
        for step in reversed(self.steps()):
            try:
                state, meta = self._restore_step(step, target)
            except Exception as error:  # whatever damage raises: the next older one is tried
                faults.append(f'step {step}: {_first_line(error)}')
                logging.warning('checkpoint of step %d is damaged and skipped: %s', step, _first_line(error))
                continue
            for damaged in [s for s in self.steps() if s > step]:
                self._manager.delete(damaged)
            return state, meta
        if faults:
            raise UserError(f'{self._folder}: no checkpoint can be restored ({"; ".join(faults)}); use another --workdir')
        return None

    def _restore_step(self, step: int, target: TrainState) -> tuple[TrainState, dict[str, Any]]:
        rest = target._replace(params=None)._asdict()
        read = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(target.params), rest=ocp.args.StandardRestore(rest), meta=ocp.args.JsonRestore()
            ),
        )
        state = TrainState(**{**read['rest'], 'params': read['params']})
        state = jax.tree.unflatten(jax.tree.structure(target), jax.tree.leaves(state))
        found, promised = fingerprints(state), read['meta']['fingerprints']
        if wrong := [name for name in promised if found.get(name) != promised[name]]:
            raise ValueError(f'fingerprint of {wrong[0]} differs (and of {len(wrong) - 1} more)')
        return state, read['meta']

    def wait(self) -> None:
        """Blocks until the last save is on disk; raises what went wrong with it."""
        self._raise_errors(self._manager.wait_until_finished)
        self._raise_errors(self._manager.check_for_errors)

    def close(self) -> None:
        """Waits and releases the threads."""
        self.wait()
        self._manager.close()


def saved_steps(workdir: str | epath.PathLike) -> list[int]:
    """Steps that a workdir has a checkpoint of, oldest first."""
    folder = epath.Path(workdir).absolute() / 'checkpoints'
    return sorted(int(p.name) for p in folder.iterdir() if re.fullmatch(r'\d+', p.name)) if folder.exists() else []


def load_params(workdir: str | epath.PathLike, step: int | None = None) -> tuple[dict[str, Any], int]:
    """Parameters alone of a workdir's newest (or given) step that verifies, as numpy arrays, and that step.

    UserError where the workdir has no checkpoint that verifies.
    """
    folder = epath.Path(workdir).absolute() / 'checkpoints'
    found = [s for s in reversed(saved_steps(workdir)) if step is None or s == step]
    faults = []
    reader = ocp.StandardCheckpointHandler()
    for candidate in found:
        try:
            path = folder / str(candidate)
            shapes = reader.metadata(path / 'params').tree
            params = reader.restore(
                path / 'params', args=ocp.args.StandardRestore(jax.tree.map(lambda m: np.empty(m.shape, m.dtype), shapes))
            )
            meta = json.loads((path / 'meta' / 'metadata').read_text())
            promised = {k.removeprefix('params/'): v for k, v in meta['fingerprints'].items() if k.startswith('params/')}
            if fingerprints(params) != promised:
                raise ValueError('fingerprints differ')
            return params, candidate
        except Exception as error:
            faults.append(f'step {candidate}: {_first_line(error)}')
            logging.warning('checkpoint of step %d in %s is damaged and skipped: %s', candidate, workdir, _first_line(error))
    raise UserError(
        f'{folder}: no checkpoint that can be read ({"; ".join(faults) or "none there"}); is this a workdir of pretrain or finetune?'
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [''])[0][:200] or type(error).__name__
