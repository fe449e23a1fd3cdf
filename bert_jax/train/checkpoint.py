"""Checkpoints of a run: saved whole, verified when they are read. The only importer of orbax.

Orbax makes a save atomic but does not notice flipped bits and does not fall back from a damaged
step. So a fingerprint of every leaf is taken on the devices before the save and compared after the
restore, and `restore` walks back to the newest step that verifies, saying what it skipped and why.
Only what is proven damaged is skipped (checkpoint_faults.py), and it is set aside, not deleted.
Orbax is imported when it is first needed: a new run makes its first steps before.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.experimental import multihost_utils

from bert_jax.configs.errors import UserError
from bert_jax.mesh.sharding import group_by_path
from bert_jax.model import layout
from bert_jax.train.checkpoint_faults import (
    Damaged,
    NoRoom,
    check_listed,
    compare,
    compute_checksum,
    describe,
    join_threads,
    quieten_orbax,
    read_meta,
    read_patiently,
    take_fingerprints,
    translate_write_error,
    try_to_read,
)
from bert_jax.train.state import TrainState, count_checkpoint_bytes

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

# Compared as a tuple: the first number decides, the next breaks ties.
Score = tuple[float, ...]


class _NewestAndBest:
    """Orbax's preservation policy: the newest `keep` steps, and the one with the highest score.

    With `every` the multiples of it too.
    """

    def __init__(self, keep: int, every: int | None, scores: dict[int, Score]):
        self._keep, self._every, self._scores = keep, every, scores

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        del context
        steps = [info.step for info in checkpoints]

        # `checkpoints` are ordered by step. Only steps saved with a score compete for the best.
        scored = [step for step in steps if step in self._scores]
        best = max(scored, key=self._scores.__getitem__, default=None)
        return [
            step in steps[-self._keep :]
            or step == best
            or (self._every is not None and step % self._every == 0)
            for step in steps
        ]


class Checkpoints:
    """The `checkpoints/` folder of a workdir: one train state for each saved step.

    Parameters, the rest of the state and `meta` are items of their own, so that parameters can be
    read alone. As a context it is closed at its end, however that comes: a save under way is then
    on the disk.
    """

    def __init__(self, workdir: epath.PathLike, keep: int = 3, keep_every: int | None = None):
        """Open the folder; keep the newest `keep`, and the best of those saved with a score.

        keep_every: steps that are a multiple of it are kept too.
        """
        self._folder, self._keep = epath.Path(workdir).absolute() / 'checkpoints', keep
        self._keep_every = keep_every
        self._folder.mkdir(parents=True, exist_ok=True)
        quieten_orbax()
        # The step of the last save, until it is known to be whole, and whether it must be.
        self._under_way: int | None = None
        self._required = True
        self._scores: dict[int, Score] = {}
        self.steps()  # a folder that cannot be read is told at once

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager:
        """Orbax's own view of the folder, opened when there is something in it."""
        return read_patiently(os.fspath(self._folder), self._open)

    def _open(self) -> ocp.CheckpointManager:
        import orbax.checkpoint as ocp

        # Scores of an earlier start of this run: what was the best must stay the best.
        for step in list_saved_steps(self._folder.parent):
            with contextlib.suppress(Damaged):  # a checkpoint is judged when it is restored
                score = rank_score(read_meta(self._folder / str(step)).get('score'))
                if score:
                    self._scores[step] = score
        return ocp.CheckpointManager(
            self._folder,
            item_names=('params', 'rest', 'meta'),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=_NewestAndBest(self._keep, self._keep_every, self._scores),
                enable_async_checkpointing=True,
                cleanup_tmp_directories=True,
            ),
        )

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first."""
        is_new = not self._is_open and not list_saved_steps(self._folder.parent)
        return [] if is_new else sorted(self._manager.all_steps())

    @property
    def _is_open(self) -> bool:
        return '_manager' in self.__dict__

    def is_best(self, score: Score | None) -> bool:
        """Whether a state of that score would be kept as the best; False for None, and for NaN.

        A checkpoint whose score is not known counts for nothing.
        """
        score = rank_score(score)
        return score is not None and all(score > other for other in self._scores.values())

    def save(
        self,
        state: TrainState,
        meta: dict[str, Any],
        score: Score | None = None,
        required: bool = True,
    ) -> None:
        """Save `state` in the background, once the save before is on the disk.

        meta: JSON values kept beside it; score: of the state, higher is better, kept too unless it
        is not a number. NoRoom
        where the disk is too full for it, or was for the save before; where a save need not be
        (`required`) a warning takes its place.
        """
        import orbax.checkpoint as ocp

        # One save at a time: what went wrong with the last one is told before the next begins.
        self.wait()
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        self._required, score = required, rank_score(score)

        # What is never trained is the source's, and stays there.
        state = state._replace(frozen=None)

        # Fingerprints are taken of the arrays on the devices, before anything can go wrong on their
        # way to the disk; a checksum over the rest of the record guards the fingerprints.
        record = {**meta, 'step': step, 'score': score, 'fingerprints': take_fingerprints(state)}
        # A copy: orbax writes it in a thread of its own, and the next step adds to `meta`'s sums.
        record = json.loads(json.dumps(record))
        record['checksum'] = compute_checksum(record)
        # Parameters are an item of their own: export and fine-tuning read nothing else.
        at_rest = layout.stack_blocks(state)
        params, others = at_rest.params, _take_beside_params(at_rest)
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params),
            rest=ocp.args.StandardSave(others),
            meta=ocp.args.JsonSave(record),
        )

        # A full disk is better found before the first byte than after half of them.
        try:
            self._check_room(count_checkpoint_bytes(state), 'a checkpoint needs')
        except NoRoom as error:
            self._unsaved(step, error)
            return
        # The score must be known when orbax decides, during the save, which steps to keep.
        if score is not None:
            self._scores[step] = score
        try:
            self._manager.save(step, args=items, force=True)
            self._under_way = step
        except Exception as error:
            self._failed(step, error)

    def wait(self) -> None:
        """Wait for the save under way; if the disk was full, raise or warn as it asked for."""
        step, self._under_way = self._under_way, None
        if step is None:
            return
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:
            self._failed(step, error)

    def _failed(self, step: int, error: Exception) -> None:
        """Forgets a save that failed and frees its room; raises what is not a full disk."""
        # Nobody may write there any more before the folder is removed.
        join_threads()
        # Only one process removes. What a failed save left on an object store orbax clears at the
        # next start (cleanup_tmp_directories).
        if jax.process_index() == 0 and '://' not in os.fspath(self._folder):
            for path in self._folder.glob(f'{step}.orbax-checkpoint-tmp*'):
                shutil.rmtree(path, ignore_errors=True)
        self._scores.pop(step, None)
        self._manager.reload()  # it has already forgotten the steps that it would have removed
        error = translate_write_error(self._folder, error)
        if not isinstance(error, NoRoom):
            raise error
        self._unsaved(step, error)

    def _unsaved(self, step: int, error: NoRoom) -> None:
        """Raise NoRoom where the save must be; else warn, and training goes on."""
        if self._required:
            raise NoRoom(f'{error}; {_describe_newest(self._folder.parent)}') from None
        logging.warning('NOT SAVED at step %d (runtime.on_full_disk=continue): %s', step, error)

    def check_room(self, state: TrainState, saves: int, required: bool = True) -> None:
        """Raise NoRoom, or warn unless `required`, if the disk is too small for `saves` more saves.

        What will be kept of them is the newest, the best, and one that is being written while the
        one it replaces is still there.
        """
        saved, size = len(self.steps()), count_checkpoint_bytes(state)
        # Keep + 2: the newest, the best if it is older, and the one that is being written. Where
        # some are kept for good all of them are counted: a bound, and such runs save seldom.
        kept_at_once = saved + saves if self._keep_every else self._keep + 2
        more = max(0, min(kept_at_once, saved + saves) - saved)
        what = (
            f'{more} more checkpoints of {size / 1e6:.0f} MB each'
            f' (runtime.keep_checkpoints={self._keep}, the best, one being written; {saved} are'
            ' there) need'
        )
        try:
            self._check_room(more * size, what)
        except NoRoom as error:
            if required:
                raise NoRoom(
                    f'{error}, or lower runtime.keep_checkpoints, or --set'
                    ' runtime.on_full_disk=continue'
                ) from None
            logging.warning('%s', error)

    def _check_room(self, need: int, what: str) -> None:
        """Raise NoRoom, telling `what`, unless `need` bytes and a tenth more are free."""
        if '://' in os.fspath(self._folder) or not need:
            return
        need = int(need * 1.1)  # the disk's own blocks and folders
        free = shutil.disk_usage(Path(self._folder)).free
        if free < need:  # in whole MB too, where one is rounded up and the other down
            raise NoRoom(
                f'{self._folder}: {what} {math.ceil(need / 1e6)} MB and {free // 1_000_000} MB are'
                ' free: make room and start again'
            )

    def restore(self, target: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """(state, meta) of the newest step that verifies; None where there is no checkpoint.

        The state has the shapes and shardings of `target`. Newer steps that are damaged are set
        aside as STEP.damaged. UserError where checkpoints exist but none of them verifies, or one
        cannot be read for another reason than damage: nothing is changed then.
        """
        # From the newest back to one that verifies. Only then are the damaged ones set aside: where
        # none verifies, the cause may be another than damage, and all stays as it is.
        faults: dict[int, str] = {}
        for step in reversed(self.steps()):
            read = functools.partial(self._restore_step, step, target)
            restored, fault = try_to_read(self._folder / str(step), read)
            if restored is None:
                faults[step] = fault
                continue
            for damaged, why in faults.items():
                self._set_aside(damaged, why)
            if faults:
                self._manager.reload()
            return restored
        if faults:
            skipped = '; '.join(f'step {step}: {fault}' for step, fault in faults.items())
            raise UserError(
                f'{self._folder}: no checkpoint can be restored ({skipped}); use another --workdir'
            )
        return None

    def params(self, step: int) -> dict[str, Any] | None:
        """Return the parameters of `step`, as numpy arrays; None, and set aside, if damaged."""
        path = self._folder / str(step)
        params, fault = try_to_read(path, functools.partial(_load_item, path, 'params'))
        if params is None:
            self._set_aside(step, fault)
            self._manager.reload()
        return params

    def _set_aside(self, step: int, fault: str) -> None:
        """Rename a damaged checkpoint, so that its step can be saved again; nothing is deleted."""
        # The first free name: a step that is damaged twice leaves two folders.
        names = itertools.chain(
            [f'{step}.damaged'], (f'{step}.damaged-{n}' for n in itertools.count(2))
        )
        new = next(path for path in map(self._folder.joinpath, names) if not path.exists())
        if jax.process_index() == 0:
            (self._folder / str(step)).rename(new)
        # No process may go on before the folder has its new name: it may save that step again.
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f'set aside {step}')
        self._scores.pop(step, None)
        logging.warning(
            'checkpoint of step %d is damaged and set aside as %s: %s', step, new, fault
        )

    def _restore_step(self, step: int, target: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """(state, meta) of that step; Damaged, or orbax's own error, if it does not verify."""
        frozen, goal = target.frozen, target._replace(frozen=None)
        target = jax.tree.map(_describe_leaf, goal)
        target = layout.stack_blocks(target)

        # What forbids looking is no damage, and orbax could not tell the two apart.
        check_listed(self._folder / str(step))
        # The names come first: another program's arrays would fail below as if they were damaged.
        meta = read_meta(self._folder / str(step))
        promised = meta['fingerprints']
        other = sorted(group_by_path(target).keys() ^ promised.keys())
        if other:
            raise UserError(
                f'{self._folder}/{step}: holds other arrays than this program trains ({other[0]},'
                f' {len(other)} in all): go on with the version that wrote it, or use another'
                ' --workdir'
            )

        import orbax.checkpoint as ocp

        # Read into arrays of the target's shapes and shardings, whatever mesh they were saved on.
        others = _take_beside_params(target)
        read = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(target.params),
                rest=ocp.args.StandardRestore(others),
            ),
        )
        state = TrainState(**{**read['rest'], 'params': read['params']})
        # Whatever containers orbax gives back, the leaves go into the target's own structure.
        state = jax.tree.unflatten(jax.tree.structure(target), jax.tree.leaves(state))
        # Last, on the devices where they will be used: what was read is what was saved, bit by bit.
        compare(take_fingerprints(state), promised)
        return layout.arrange_like(state, goal)._replace(frozen=frozen), meta

    def describe_standing(self, step: int) -> str:
        """Where a run that stops at `step` can go on from, in words, when saves are on disk."""
        return describe_standing(self._folder.parent, step)

    def close(self) -> None:
        """Wait for the save under way and release orbax's threads."""
        try:
            self.wait()
        finally:
            if self._is_open:
                self._manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        try:
            self.close()
        except Exception as fault:
            if error is None:
                raise
            logging.warning('%s', describe(fault))  # what ends the run is told last


def rank_score(score: Sequence[float] | None) -> Score | None:
    """Return a score that competes for the best: None for none, and for one with a NaN in it."""
    return None if score is None or any(map(math.isnan, score)) else tuple(score)


def describe_standing(workdir: epath.PathLike, step: int) -> str:
    """Where a run that stops at `step` can go on from, in words, for its last line."""
    if not step:
        return 'stopped before the first step'
    if step in list_saved_steps(workdir):
        return f'saved at step {step}'
    return f'NOT saved at step {step}; {_describe_newest(workdir)}'


def _describe_newest(workdir: epath.PathLike) -> str:
    """Of which step the newest checkpoint is, in words."""
    steps = list_saved_steps(workdir)
    if not steps:
        return 'there is no checkpoint yet'
    return f'the newest checkpoint is of step {steps[-1]}'


def _take_beside_params(state: TrainState) -> dict[str, Any]:
    """Return what a checkpoint holds of a state besides its parameters."""
    # The entry for parameters stays, empty: older checkpoints have it.
    return {
        'params': None,
        'opt_state': state.opt_state,
        'step': state.step,
        'bad_steps': state.bad_steps,
    }


def _describe_leaf(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return an array's shape and place, without its numbers."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def list_saved_steps(workdir: epath.PathLike) -> list[int]:
    """Return the steps of which a workdir has a checkpoint, oldest first."""
    folder = epath.Path(workdir).absolute() / 'checkpoints'
    if not folder.exists():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if re.fullmatch(r'\d+', path.name))


def load_params(workdir: epath.PathLike, step: int | None = None) -> tuple[dict[str, Any], int]:
    """(parameters, step) of a workdir's newest step that verifies, or of `step`, as numpy arrays.

    Only reads: damaged checkpoints are passed over with a warning. UserError where none verifies.
    """
    return _load_newest_whole(workdir, step, 'params')


def load_opt_state(workdir: epath.PathLike, step: int) -> dict[str, Any]:
    """Return the optimizer's state of a workdir's `step` as numpy arrays, by path.

    Read as `load_params` reads.
    """
    others, _ = _load_newest_whole(workdir, step, 'rest')
    return group_by_path(others['opt_state'])


def _load_newest_whole(
    workdir: epath.PathLike, step: int | None, item: str
) -> tuple[dict[str, Any], int]:
    """Return an item of the newest step that verifies, or of `step`, and that step."""
    # From the newest back, as in Checkpoints.restore, but nothing is set aside: the folder may be
    # somebody else's, or of a run that goes on. That removes a step when it has saved another, so
    # where the steps have changed meanwhile they are read again.
    folder = epath.Path(workdir).absolute() / 'checkpoints'
    quieten_orbax()
    for _ in range(10):
        steps, faults = list_saved_steps(workdir), []
        for candidate in [s for s in reversed(steps) if step is None or s == step]:
            path = folder / str(candidate)
            loaded, fault = try_to_read(path, functools.partial(_load_item, path, item))
            if loaded is not None:
                return loaded, candidate
            if list_saved_steps(workdir) != steps:
                break
            faults.append(f'step {candidate}: {fault}')
            logging.warning('%s is damaged and skipped: %s', path, fault)
        else:
            break
    raise UserError(
        f'{folder}: no checkpoint that can be read ({"; ".join(faults) or "none there"}); is this a'
        ' workdir of pretrain or finetune?'
    )


def _load_item(folder: epath.Path, item: str) -> dict[str, Any]:
    """Return 'params' or 'rest' of a checkpoint as numpy arrays; Damaged if it does not verify."""
    import orbax.checkpoint as ocp

    check_listed(folder)
    promised = read_meta(folder)['fingerprints']

    # Shapes come from the checkpoint itself: whoever reads an item alone has no state to compare
    # with.
    reader = ocp.StandardCheckpointHandler()
    shapes = reader.metadata(folder / item).tree
    empty = jax.tree.map(lambda m: np.empty(m.shape, m.dtype), shapes)
    read = reader.restore(folder / item, args=ocp.args.StandardRestore(empty))
    # The fingerprints were taken of the whole state: compare those of what was read.
    of_item = {'params': read} if item == 'params' else {'opt_state': read['opt_state']}
    compare(
        take_fingerprints(of_item),
        {name: value for name, value in promised.items() if name.split('/')[0] in of_item},
    )
    return read
