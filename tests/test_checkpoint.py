"""Checkpoints: whole round trips, another mesh, one flipped bit, nothing left."""

from __future__ import annotations

import gc
import os
import pathlib
import shutil

import jax
import numpy as np
import pytest

from bert_jax import heads, sharding
from bert_jax.checkpoint import Checkpoints, NoRoom, fingerprints, load_params
from bert_jax.train_state import create_state, graft
from configs.errors import UserError
from configs.schema import ModelConfig, OptimizerConfig, RuntimeConfig

# Where one read of a damaged step fails, orbax leaves the errors of its sister tasks unread; asyncio warns when they are collected.
pytestmark = pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')

CONFIG = ModelConfig(vocab_size=300, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=64, max_position=24)
MODEL = heads.Pretraining(CONFIG)


@pytest.fixture(autouse=True)
def collected():
    """Collects those tasks here, not in the middle of another file's test."""
    yield
    gc.collect()


def make(seed: int = 1, **runtime):
    """A fresh state on a mesh of eight devices."""
    return create_state(MODEL, seed, OptimizerConfig(), sharding.make_mesh(RuntimeConfig(**runtime)))


def saved(folder: pathlib.Path, steps=(1, 2), keep: int = 3):
    """Checkpoints of one state at several steps, with its fingerprints."""
    state, checkpoints = make(), Checkpoints(folder, keep, best_metric='mlm_loss')
    for step in steps:
        checkpoints.save(state._replace(step=state.step + step), {'kind': 'pretrain'}, {'mlm_loss': float(step)})
    checkpoints.wait()
    return state, checkpoints


def array_files(folder: pathlib.Path, step: int) -> list[pathlib.Path]:
    """The files that hold a step's parameters; some hold what a later one of them holds again, so tests damage all."""
    return [p for p in (folder / 'checkpoints' / str(step) / 'params').rglob('*') if p.is_file() and p.parent.name == 'd']


def test_restores_the_same_bits_on_another_mesh(tmp_path):
    state, checkpoints = saved(tmp_path)
    target = make(seed=2, fsdp=2, model_parallel=2)
    restored, meta = checkpoints.restore(target)
    assert meta['step'] == 2 == int(restored.step)
    jax.tree.map(np.testing.assert_array_equal, restored.params, state.params)
    assert restored.params['encoder']['embeddings']['word'].sharding == target.params['encoder']['embeddings']['word'].sharding


def test_keeps_the_newest_and_the_best(tmp_path):
    _, checkpoints = saved(tmp_path, steps=(1, 2, 3, 4, 5), keep=2)
    assert checkpoints.steps() == [1, 4, 5]  # step 1 has the lowest loss


def test_a_flipped_bit_is_never_restored(tmp_path):
    """Whatever bit is flipped: the damaged step is passed over for the one before, or the bit was of no use to it."""
    state, checkpoints = saved(tmp_path)
    checkpoints.close()
    want, used = fingerprints(state.params), []
    whole = {path: path.read_bytes() for path in array_files(tmp_path, 2)}
    for share in np.linspace(0.05, 0.95, 12):
        for path, content in whole.items():
            damaged = bytearray(content)
            damaged[int(share * len(content))] ^= 1
            path.write_bytes(damaged)
        params, step = load_params(tmp_path)
        assert fingerprints(params) == want
        used.append(step)
    assert 1 in used
    restored, meta = Checkpoints(tmp_path).restore(make(seed=2))  # the last damage still stands
    assert meta['step'] == used[-1] == int(restored.step)
    jax.tree.map(np.testing.assert_array_equal, restored.params, state.params)


def test_a_workdir_without_a_good_checkpoint(tmp_path):
    assert Checkpoints(tmp_path / 'new').restore(make()) is None
    with pytest.raises(UserError, match='no checkpoint that can be read'):
        load_params(tmp_path / 'none')
    _, checkpoints = saved(tmp_path / 'damaged', steps=(1,))
    for path in array_files(tmp_path / 'damaged', 1):
        os.truncate(path, 10)
    with pytest.raises(UserError, match='no checkpoint can be restored .step 1: '):
        checkpoints.restore(make())


def test_fingerprint_changes_with_any_bit():
    x = np.random.RandomState(0).normal(size=(7, 5)).astype(np.float32)
    want = fingerprints({'x': x})
    for place in range(x.size):
        for bit in (0, 13, 31):
            other = x.copy()
            other.reshape(-1).view(np.uint32)[place] ^= np.uint32(1 << bit)
            assert fingerprints({'x': other}) != want
    assert fingerprints({'x': x[::-1].copy()}) != want


def test_graft_takes_the_encoder_and_names_what_does_not_fit():
    params, source = make(seed=1).params, jax.device_get(make(seed=2).params)
    mixed = graft(params, source, 'there', 'encoder')
    np.testing.assert_array_equal(mixed['encoder']['embeddings']['word'], source['encoder']['embeddings']['word'])
    np.testing.assert_array_equal(mixed['nsp']['kernel'], params['nsp']['kernel'])
    source['encoder']['embeddings']['position'] = source['encoder']['embeddings']['position'][:10]
    with pytest.raises(UserError, match=r'position: \(10, 32\) there, \(24, 32\) here'):
        graft(params, source, 'there', 'encoder')


def test_no_room_is_said_before_anything_is_written_and_training_may_go_on(tmp_path, monkeypatch):
    state, checkpoints = make(), Checkpoints(tmp_path)
    full = [True]
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage(path)._replace(free=1000) if full[0] else usage(path))
    with pytest.raises(NoRoom, match='a checkpoint needs .* MB and 0 MB are free'):
        checkpoints.save(state._replace(step=state.step + 1), {'kind': 'pretrain'})
    checkpoints.save(state._replace(step=state.step + 1), {'kind': 'pretrain'}, must=False)
    full[0] = False
    checkpoints.save(state._replace(step=state.step + 2), {'kind': 'pretrain'}, must=False)
    checkpoints.close()
    assert checkpoints.steps() == [2]
