"""Checkpoints: whole round trips, another mesh, one flipped bit, nothing left."""

from __future__ import annotations

import asyncio
import errno
import functools
import math
import os
import pathlib
import shutil
import threading

import jax
import numpy as np
import pytest
from orbax.checkpoint import JsonCheckpointHandler

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import OptimizerConfig, RuntimeConfig
from bert_jax.mesh import construction
from bert_jax.model import heads, partition
from bert_jax.train import checkpoint_faults
from bert_jax.train.checkpoint import (
    Checkpoints,
    NoRoom,
    _load_item,
    describe_standing,
    list_saved_steps,
    load_params,
    take_fingerprints,
)
from bert_jax.train.checkpoint_faults import Unreadable
from bert_jax.train.state import load_params_into, make_state
from tests.helpers.full_disk import files_of_at_most
from tests.helpers.numpy_bert import noisy_params
from tests.helpers.tiny import tiny_config
from tests.helpers.trees import assert_same

MODEL = heads.Pretraining(tiny_config(num_layers=1))


@functools.cache
def make(seed: int = 1, **runtime):
    """A state on a mesh of eight devices."""
    mesh = construction.make_mesh(RuntimeConfig(**runtime))
    state = make_state(noisy_params(MODEL, seed), OptimizerConfig())
    return jax.device_put(state, partition.choose_shardings(state, mesh))


def at(step: int):
    """The state of `make()` as it would be after so many steps."""
    return make()._replace(step=make().step + step)


def saved(folder: pathlib.Path, steps=(1, 2), keep: int = 3):
    """Checkpoints of one state at several steps, with its fingerprints."""
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(at(step), {'kind': 'pretrain'}, (0.0, -float(step)))
    checkpoints.wait()
    return make(), checkpoints


def array_files(folder: pathlib.Path, step: int) -> list[pathlib.Path]:
    """The files that hold a step's parameters.

    Some hold what a later one of them holds again, so tests damage all.
    """
    return [
        p
        for p in (folder / 'checkpoints' / str(step) / 'params').rglob('*')
        if p.is_file() and p.parent.name == 'd'
    ]


@pytest.mark.oldest
def test_restores_the_same_bits_on_another_mesh(tmp_path):
    state, checkpoints = saved(tmp_path)
    target = make(seed=2, fsdp=2, model_parallel=2)
    restored, meta = checkpoints.restore(target)
    assert meta['step'] == 2 == int(restored.step)
    assert_same(restored.params, state.params)
    assert (
        restored.params['encoder']['embeddings']['word'].sharding
        == target.params['encoder']['embeddings']['word'].sharding
    )


def test_what_is_saved_is_what_was_there_when_the_save_began(tmp_path, monkeypatch):
    # The file of `meta` is written late: training has added to its sums by then.
    write = JsonCheckpointHandler._save_fn

    async def late(handler, record, folder):
        await asyncio.to_thread(added.wait, 30)
        await write(handler, record, folder)

    monkeypatch.setattr(JsonCheckpointHandler, '_save_fn', late)
    added, sums = threading.Event(), {'loss': [1.0, 2.0]}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(at(1), {'meter': {'sums': sums}})
        sums['loss'][0] += 1.0
        sums['accuracy'] = [0.5, 1.0]
        added.set()
    with Checkpoints(tmp_path) as checkpoints:
        _, meta = checkpoints.restore(make())
    assert meta['meter'] == {'sums': {'loss': [1.0, 2.0]}}


def test_steps_that_are_chosen_are_kept_for_good(tmp_path):
    with Checkpoints(tmp_path, keep=1, keep_every=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(at(step), {'kind': 'pretrain'})
    assert list_saved_steps(tmp_path) == [2, 3]
    assert load_params(tmp_path, 2)[1] == 2


def test_a_flipped_bit_is_never_restored(tmp_path):
    """Whatever bit is flipped, the step before is restored, or the bit was of no use to it."""
    state, checkpoints = saved(tmp_path)
    checkpoints.close()
    want, used = take_fingerprints(state.params), []
    whole = {path: path.read_bytes() for path in array_files(tmp_path, 2)}
    for share in np.linspace(0.05, 0.95, 4):
        for path, content in whole.items():
            damaged = bytearray(content)
            damaged[int(share * len(content))] ^= 1
            path.write_bytes(damaged)
        params, step = load_params(tmp_path)
        assert take_fingerprints(params) == want
        used.append(step)
    assert 1 in used
    restored, meta = Checkpoints(tmp_path).restore(make(seed=2))  # the last damage still stands
    assert meta['step'] == used[-1] == int(restored.step)
    assert_same(restored.params, state.params)


def test_a_workdir_without_a_good_checkpoint(tmp_path):
    assert Checkpoints(tmp_path / 'new').restore(make()) is None
    with pytest.raises(UserError, match='no checkpoint that can be read'):
        load_params(tmp_path / 'none')
    _, checkpoints = saved(tmp_path / 'damaged', steps=(1,))
    for path in array_files(tmp_path / 'damaged', 1):
        os.truncate(path, 10)
    with pytest.raises(UserError, match='no checkpoint can be restored .step 1: '):
        checkpoints.restore(make())


def test_graft_takes_the_encoder_and_names_what_does_not_fit():
    params, source = make(seed=1).params, jax.device_get(make(seed=2).params)
    mixed = load_params_into(params, source, 'there', 'encoder')
    np.testing.assert_array_equal(
        mixed['encoder']['embeddings']['word'], source['encoder']['embeddings']['word']
    )
    np.testing.assert_array_equal(mixed['nsp']['kernel'], params['nsp']['kernel'])
    source['encoder']['embeddings']['position'] = source['encoder']['embeddings']['position'][:10]
    with pytest.raises(UserError, match=r'position: \(10, 16\) there, \(64, 16\) here'):
        load_params_into(params, source, 'there', 'encoder')


def test_no_room_is_said_before_anything_is_written_and_training_may_go_on(tmp_path, monkeypatch):
    checkpoints, full = Checkpoints(tmp_path), [True]
    usage = shutil.disk_usage
    monkeypatch.setattr(
        shutil,
        'disk_usage',
        lambda path: usage(path)._replace(free=1000) if full[0] else usage(path),
    )
    with pytest.raises(NoRoom, match='a checkpoint needs .* MB and 0 MB are free'):
        checkpoints.save(at(1), {'kind': 'pretrain'})
    checkpoints.save(at(1), {'kind': 'pretrain'}, required=False)
    full[0] = False
    checkpoints.save(at(2), {'kind': 'pretrain'}, required=False)
    checkpoints.close()
    assert checkpoints.steps() == [2]


def test_a_disk_that_fills_up_within_a_checkpoint_is_one_line_and_training_may_go_on(
    tmp_path, caplog, capfd
):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2):
        checkpoints.save(at(step), {'kind': 'pretrain'})
    checkpoints.wait()
    with files_of_at_most(4000):
        for step in (3, 4):
            checkpoints.save(at(step), {'kind': 'pretrain'}, required=False)
        checkpoints.wait()
        assert (
            describe_standing(tmp_path, 4)
            == 'NOT saved at step 4; the newest checkpoint is of step 2'
        )
        said = r'limit on the size of files.*ulimit -f.*the newest checkpoint is of step 2'
        with pytest.raises(NoRoom, match=said):
            checkpoints.save(at(5), {'kind': 'pretrain'})
            checkpoints.wait()
    assert [record.getMessage()[:21] for record in caplog.records] == [
        'NOT SAVED at step 3 (',
        'NOT SAVED at step 4 (',
    ]
    # Nothing half written takes up room.
    assert sorted(os.listdir(tmp_path / 'checkpoints')) == ['1', '2']
    checkpoints.save(at(6), {'kind': 'pretrain'}, required=False)
    checkpoints.close()
    assert list_saved_steps(tmp_path) == [2, 6] == checkpoints.steps()
    assert describe_standing(tmp_path, 6) == 'saved at step 6'
    assert 'Event loop is closed' not in capfd.readouterr().err


def test_the_room_for_all_that_will_be_kept_is_asked_for_before(tmp_path, monkeypatch, caplog):
    state, checkpoints = saved(tmp_path, steps=(1,), keep=3)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    usage = shutil.disk_usage
    monkeypatch.setattr(
        shutil, 'disk_usage', lambda path: usage(path)._replace(free=int(3.5 * size))
    )
    checkpoints.check_room(state, saves=3)
    with pytest.raises(
        NoRoom,
        match=(
            r'4 more checkpoints of \d+ MB each \(runtime.keep_checkpoints=3, the best, one being'
        ),
    ):
        checkpoints.check_room(state, saves=100)
    checkpoints.check_room(state, saves=100, required=False)
    assert 'are free' in caplog.text


def test_the_best_is_kept_whenever_it_was_and_over_a_restart(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    scores = {1: (0.0, -3.0), 2: (0.0, -2.0), 3: (0.0, -2.5)}
    found = []
    for step, score in scores.items():
        found.append(checkpoints.is_best(score))
        checkpoints.save(at(step), {}, score)
    assert found == [True, True, False]
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert not checkpoints.is_best((0.0, -2.2))
    assert checkpoints.is_best((0.0, -1.9))
    assert not checkpoints.is_best(None) and not checkpoints.is_best((math.nan, 9.0))
    checkpoints.save(at(4), {})
    checkpoints.close()
    assert list_saved_steps(tmp_path) == [2, 4]
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.is_best((1.0, -9.0))  # of the next phase, whose losses are others
    checkpoints.save(at(5), {}, (1.0, -9.0))
    checkpoints.close()
    assert list_saved_steps(tmp_path) == [5]


def cut(folder):
    for path in folder.rglob('*'):
        if path.parent.name == 'd':
            os.truncate(path, path.stat().st_size // 2)


def other_names(folder):
    """One flipped bit in a name in the list of fingerprints."""
    path = folder / 'meta' / 'metadata'
    path.write_text(path.read_text().replace('bad_steps', 'bad_stepr'))


def other_arrays(folder):
    """Whole files, of another model's numbers: the fingerprints alone tell."""
    other, state = folder.parents[1] / 'other', make(seed=2)
    with Checkpoints(other) as checkpoints:
        checkpoints.save(state._replace(step=state.step + 2), {'kind': 'pretrain'})
    shutil.rmtree(folder / 'params')
    shutil.copytree(other / 'checkpoints' / '2' / 'params', folder / 'params')


@pytest.mark.parametrize('damage', [cut, other_names, other_arrays])
def test_a_damaged_checkpoint_is_set_aside_in_one_line(tmp_path, damage, caplog, capfd):
    saved(tmp_path)[1].close()
    damage(tmp_path / 'checkpoints' / '2')
    files = sorted(path.name for path in (tmp_path / 'checkpoints' / '2').rglob('*'))
    checkpoints = Checkpoints(tmp_path)
    restored, _ = checkpoints.restore(make(seed=2))
    assert int(restored.step) == 1 and checkpoints.steps() == [1] == list_saved_steps(tmp_path)
    aside = tmp_path / 'checkpoints' / '2.damaged'
    assert sorted(path.name for path in aside.rglob('*')) == files
    (line,) = caplog.messages
    assert line.startswith(f'checkpoint of step 2 is damaged and set aside as {aside}: ')
    assert capfd.readouterr().err.count('Event loop is closed') == 0
    checkpoints.save(at(2), {'kind': 'pretrain'})
    checkpoints.close()
    assert Checkpoints(tmp_path).steps() == [1, 2] and aside.exists()


FAULTS = [
    OSError(5, 'Input/output error'),
    MemoryError(),
    ValueError('DEADLINE_EXCEEDED: no answer from the store'),
    ValueError('UNKNOWN: reading local file "d/0": Input/output error [os_error_code=\'5\']'),
]


@pytest.mark.parametrize('fault', FAULTS, ids=lambda fault: str(fault)[:18])
def test_a_fault_that_may_pass_is_no_damage(fault):
    wrapped = Exception('Encountered error while reading an array')
    wrapped.__cause__ = fault
    for error in (fault, wrapped):
        assert checkpoint_faults.may_pass(error) and not checkpoint_faults.is_damage(error)


def test_a_fault_that_may_pass_is_waited_for_and_no_checkpoint_is_touched(
    tmp_path, monkeypatch, caplog
):
    _, checkpoints = saved(tmp_path)
    times = [2]

    def failing(read):
        def attempt(*arguments):
            if times[0]:
                times[0] -= 1
                raise FAULTS[times[0] % len(FAULTS)]
            return read(*arguments)

        return attempt

    monkeypatch.setattr(checkpoint_faults, 'PAUSES', (0.0, 0.0, 0.0))
    monkeypatch.setattr(Checkpoints, '_restore_step', failing(Checkpoints._restore_step))
    monkeypatch.setattr('bert_jax.train.checkpoint._load_item', failing(_load_item))
    restored, _ = checkpoints.restore(make(seed=2))
    assert int(restored.step) == 2 and caplog.text.count('trying again in') == 2
    times[0] = 2
    assert load_params(tmp_path)[1] == 2
    for read in (lambda: checkpoints.restore(make(seed=2)), lambda: load_params(tmp_path)):
        times[0] = 99
        with pytest.raises(
            Unreadable, match=r'checkpoints/2: cannot be read now .*proves no damage'
        ) as told:
            read()
        assert told.value.exit_code == 75 and '\n' not in str(told.value)
    checkpoints.close()
    assert sorted(os.listdir(tmp_path / 'checkpoints')) == ['1', '2']


def test_a_folder_that_may_not_be_looked_into_is_no_damage(tmp_path, monkeypatch):
    """Such a folder is told by orbax as one that is not there."""
    _, checkpoints = saved(tmp_path)
    closed, scandir = tmp_path / 'checkpoints/2/params', os.scandir

    def permitted(path):
        if pathlib.Path(path) == closed:
            raise PermissionError(errno.EACCES, 'Permission denied', str(path))
        return scandir(path)

    monkeypatch.setattr(checkpoint_faults, 'PAUSES', (0.0,))
    monkeypatch.setattr(os, 'scandir', permitted)  # a chmod would not stop a root
    for read in (lambda: checkpoints.restore(make(seed=2)), lambda: load_params(tmp_path)):
        with pytest.raises(Unreadable, match='2/params.*proves no damage'):
            read()
    checkpoints.close()
    assert list_saved_steps(tmp_path) == [1, 2]


def test_a_checkpoint_of_another_program_is_no_damage(tmp_path):
    state, checkpoints = saved(tmp_path)
    target = make(seed=2)
    with pytest.raises(
        UserError, match=r'checkpoints/2: holds other arrays than this program trains'
    ):
        checkpoints.restore(target._replace(params={'more': state.step, **target.params}))
    checkpoints.close()
    assert list_saved_steps(tmp_path) == [1, 2]


def test_whatever_ends_a_run_the_save_under_way_is_on_the_disk(tmp_path):
    with pytest.raises(UserError, match='non-finite'), Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(at(7), {'kind': 'pretrain'})
        raise UserError('3 steps in a row had a non-finite loss')
    assert list_saved_steps(tmp_path) == [7] and load_params(tmp_path)[1] == 7


def test_a_step_that_a_running_run_removes_while_it_is_read_is_not_missed(tmp_path, monkeypatch):
    """The run saves a newer one first, which is read in its place."""
    saved(tmp_path, steps=(1,))[1].close()
    folder = tmp_path / 'checkpoints'

    def overtaken(path, item):
        if path.name == '1' and not (folder / '2').exists():
            (folder / '1').rename(folder / '2')
        return _load_item(path, item)

    monkeypatch.setattr('bert_jax.train.checkpoint._load_item', overtaken)
    assert load_params(tmp_path)[1] == 2
    with pytest.raises(UserError, match='none there'):
        load_params(tmp_path, 1)
