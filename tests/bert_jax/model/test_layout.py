"""Stacked and separate blocks are one model: its numbers, its files, and its fresh weights."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.configs.schema import OptimizerConfig, RuntimeConfig
from bert_jax.mesh.construction import make_mesh
from bert_jax.model import heads, layout
from bert_jax.train.checkpoint import Checkpoints, load_params, take_fingerprints
from bert_jax.train.state import create_state, split_frozen
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.tiny import tiny_config
from tests.helpers.trees import assert_same

CONFIG = tiny_config()
SPAFIT = tiny_config(num_layers=4).tuned(
    TuningConfig('spafit', rank=2, frozen_layers=1, bias_layers=1)
)


@pytest.mark.parametrize('scan', [False, True])
def test_a_model_reads_either_layout(scan):
    model, batch = heads.EncoderOnly(CONFIG, scan=scan), make_batch(CONFIG)
    params = noisy_params(heads.Pretraining(CONFIG))
    apply = jax.jit(model.apply)
    want = apply({'params': params}, batch)
    separate = layout.separate_blocks(params)
    assert separate['encoder']['layers'].keys() == {'0', '1'}
    for got, of_stack in zip(apply({'params': separate}, batch), want, strict=True):
        np.testing.assert_allclose(got, of_stack, atol=1e-6)
    assert_same(layout.stack_blocks(separate), params)


def test_what_some_blocks_lack_is_stacked_of_the_others():
    """As tuning by depth has it, whose trained trees are a part of the blocks' leaves."""
    params = noisy_params(heads.Pretraining(SPAFIT))
    of_stacks, of_blocks = (
        split_frozen(params, SPAFIT),
        split_frozen(layout.separate_blocks(params), SPAFIT),
    )
    for stacks, blocks in zip(of_stacks, of_blocks, strict=True):
        assert_same(layout.stack_blocks(blocks), stacks)
        assert_same(layout.arrange_like(stacks, blocks), blocks)
    names = traverse_util.flatten_dict(of_blocks[0]['encoder']['layers'], sep='/')
    assert '0/query_lora_a/kernel' not in names and '1/query_lora_a/kernel' in names
    assert ('encoder/layers/query_lora_a/kernel', 1) in layout.find_origins(of_blocks[0])


def test_a_checkpoint_of_one_layout_is_one_of_the_other(tmp_path):
    """Fresh weights, moments in bfloat16, their take_fingerprints and files; split over a mesh."""
    runtime, optimizer = RuntimeConfig(fsdp=4), OptimizerConfig(moments='bfloat16')
    mesh = make_mesh(runtime)
    states = [
        create_state(heads.Pretraining(CONFIG, scan=scan), 3, optimizer, mesh, True, CONFIG)
        for scan in (False, True)
    ]
    separate, stacked = states
    assert_same(layout.stack_blocks(separate), stacked)
    assert take_fingerprints(separate) == take_fingerprints(stacked)
    for number, (saved, read) in enumerate([states, states[::-1]]):
        with Checkpoints(tmp_path / str(number)) as checkpoints:
            checkpoints.save(saved, {})
            checkpoints.wait()
            restored, _ = checkpoints.restore(read)
        assert_same(restored, read)
        assert jax.tree.map(lambda leaf: leaf.sharding, restored) == jax.tree.map(
            lambda leaf: leaf.sharding, read
        )
        assert_same(load_params(tmp_path / str(number))[0], jax.device_get(stacked.params))
