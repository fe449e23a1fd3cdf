"""Left-to-right attention and the BiLSTM on top (paper section 5.1).

What sees what is told by gradients, and numbers are compared with numpy's.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.conversion import google, huggingface
from bert_jax.mesh import construction, sharding
from bert_jax.model import heads, partition
from bert_jax.model.encoder import Packing
from tests.helpers.numpy_bert import make_batch, noisy_params, numpy_forward
from tests.helpers.tiny import tiny_config

PLAIN = tiny_config(vocab_size=60)
LEFT = dataclasses.replace(PLAIN, attention='left_to_right')
BILSTM = dataclasses.replace(PLAIN, bilstm=True)
BOTH = dataclasses.replace(LEFT, bilstm=True)
LENGTHS = np.array([8, 5])


def reach(config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """Largest gradients with respect to the word at position s.

    Of the hidden states [B, T, s], and of the pooled output [B, s].
    """
    params = noisy_params(heads.Pretraining(config))['encoder']
    mask = (np.arange(8) < LENGTHS[:, None]).astype(np.int32)
    # All different, so that a row of the table is a position.
    ids = 1 + np.arange(16, dtype=np.int32).reshape(2, 8)
    # Random, because a plain sum would not move: layer norm keeps it.
    weights = np.random.RandomState(0).normal(size=16).astype(np.float32)

    def outputs(word):
        with_word = {**params, 'embeddings': {**params['embeddings'], 'word': word}}
        hidden, pooled, _ = heads.Encoder(config).apply(
            {'params': with_word}, ids, mask, np.zeros_like(ids)
        )
        return jnp.concatenate([hidden @ weights, (pooled @ weights)[:, None]], 1)

    # [B, T + 1, V]
    slopes = np.abs(jax.jit(jax.jacrev(outputs))(params['embeddings']['word'])).max(-1)
    slopes = np.stack([slopes[b][:, ids[b]] for b in range(2)])
    return slopes[:, :-1], slopes[:, -1]


@pytest.mark.parametrize(
    'config', [PLAIN, LEFT, BILSTM, BOTH], ids=['plain', 'left to right', 'bilstm', 'both']
)
def test_who_sees_whom(config):
    """Exactly zero where nothing may be seen, and not where something must be.

    No real position sees padding.
    """
    hidden, pooled = reach(config)
    for row, length in enumerate(LENGTHS):
        found = hidden[row, :length, :length]
        seen = np.tri(length, dtype=bool) if config == LEFT else np.ones((length, length), bool)
        assert (found[seen] > 1e-6).all() and (found[~seen] == 0).all()
        assert (hidden[row, :length, length:] == 0).all() and (pooled[row, length:] == 0).all()
        # The token that stands for the row sees all of it.
        assert (pooled[row, :length] > 1e-6).all()


@pytest.mark.parametrize('config', [LEFT, BOTH], ids=['left to right', 'both'])
def test_numbers_equal_numpy(config):
    batch = make_batch(config, rows=4, length=10)
    params = noisy_params(heads.Pretraining(config))
    mlm, nsp = jax.jit(heads.Pretraining(config).apply)({'params': params}, batch)
    _, _, want_mlm, want_nsp = numpy_forward(params, config, batch)
    np.testing.assert_allclose(mlm[..., : config.vocab_size], want_mlm, atol=5e-5)
    np.testing.assert_allclose(nsp, want_nsp, atol=2e-5)


def test_on_a_mesh():
    """The numbers of one device on a mesh that splits the BiLSTM's kernels too."""
    runtime = RuntimeConfig(fsdp=4, model_parallel=2)
    mesh, model, batch = (
        construction.make_mesh(runtime),
        heads.Pretraining(BOTH),
        make_batch(BOTH, 4, 10),
    )
    params = noisy_params(model)
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, partition.shardings(params, mesh))
        _, nsp = jax.jit(model.apply)({'params': placed}, sharding.place(batch, mesh, 4))
    np.testing.assert_allclose(nsp, numpy_forward(params, BOTH, batch)[3], atol=2e-5)
    kernel = placed['encoder']['bilstm']['forward']['ii']['kernel']
    assert kernel.sharding.shard_shape(kernel.shape) == (16 // 4, 8)


@pytest.mark.parametrize('program', [huggingface, google])
@pytest.mark.parametrize(
    ('config', 'name'), [(LEFT, 'attention=left_to_right'), (BILSTM, 'bilstm=True')]
)
def test_formats_without_a_place_for_them_refuse_them_by_name(tmp_path, config, name, program):
    model = huggingface.Model(config, {'encoder': {'pooler': {}}}, 'BertModel')
    with pytest.raises(UserError, match=f'model.{name} has no place in'):
        program.write(tmp_path / 'out', model)
    assert not (tmp_path / 'out').exists()


def test_packed_records_are_refused():
    batch = {
        name: np.zeros((1, 4), np.int32) for name in ('input_ids', 'input_mask', 'segment_ids')
    }
    for config in (LEFT, BILSTM):
        with pytest.raises(
            UserError,
            match='packed records are for an encoder of bidirectional attention without a BiLSTM',
        ):
            jax.eval_shape(
                heads.Encoder(config).init,
                jax.random.key(0),
                *batch.values(),
                None,
                Packing(*batch.values()),
            )
