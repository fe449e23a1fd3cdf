"""Google's ALBERT checkpoints: names as its code gives them, in a folder as it was released."""

from __future__ import annotations

import json
import pathlib

import jax
import numpy as np
import pytest

from bert_jax.conversion import google, huggingface, tensor_bundle
from bert_jax.model import heads
from tests.helpers import google_names
from tests.helpers.google_names import ALBERT
from tests.helpers.numpy_bert import numpy_forward
from tests.helpers.refusals import refused
from tests.helpers.trees import assert_same

# Those of albert_base_v2's albert_config.json, in small; some of them no code reads.
SETTINGS = {
    'attention_probs_dropout_prob': 0,
    'hidden_act': 'gelu',
    'hidden_dropout_prob': 0,
    'embedding_size': 6,
    'hidden_size': 16,
    'initializer_range': 0.02,
    'intermediate_size': 24,
    'max_position_embeddings': 12,
    'num_attention_heads': 2,
    'num_hidden_layers': 4,
    'num_hidden_groups': 2,
    'net_structure_type': 0,
    'gap_size': 0,
    'num_memory_blocks': 0,
    'inner_group_num': 1,
    'down_scale_factor': 1,
    'type_vocab_size': 2,
    'vocab_size': 40,
}
VALUES = google_names.values(google_names.pretraining_shapes(ALBERT, 6))


@pytest.fixture
def released(tmp_path) -> pathlib.Path:
    """A folder as Google released them, its checkpoint written by us."""
    folder = tmp_path / 'albert_base'
    folder.mkdir()
    (folder / 'albert_config.json').write_text(json.dumps(SETTINGS))
    tensor_bundle.write(str(folder / 'model.ckpt-best'), VALUES)
    return folder


def test_a_released_folder_comes_in(released):
    read = google.read(str(released / 'model.ckpt-best')).model
    model = read.config
    assert read.architecture == 'AlbertForPreTraining'
    assert (model.family, model.embedding_size, model.num_groups) == ('albert', 6, 2)
    batch = google_names.batch()
    mlm, order = jax.jit(heads.Pretraining(model).apply)({'params': read.params}, batch)
    _, _, want_mlm, want_order = numpy_forward(google_names.tree(VALUES, ALBERT), model, batch)
    np.testing.assert_allclose(mlm[..., :40], want_mlm, atol=2e-5)
    np.testing.assert_allclose(order, want_order, atol=2e-5)


def test_without_a_narrow_table_there_is_no_layer_to_the_blocks(released):
    """google-research/albert has that layer only between two widths."""
    wide = google_names.values(google_names.pretraining_shapes(ALBERT, 16))
    tensor_bundle.write(str(released / 'model.ckpt-best'), wide)
    (released / 'albert_config.json').write_text(json.dumps(SETTINGS | {'embedding_size': 16}))
    model = google.read(str(released / 'model.ckpt-best')).model
    assert model.config.embedding_size is None
    # transformers' class always has it: the identity there, and none again on the way back.
    huggingface.write(released / 'hf', model)
    there = huggingface.read(released / 'hf').model
    assert (there.config.embedding_size, there.config.num_groups) == (16, 2)
    layer = there.params['encoder']['embeddings']['to_hidden']
    np.testing.assert_array_equal(layer['kernel'], np.eye(16))
    assert not layer['bias'].any()
    google.write(released / 'back', there)
    back = google.read(str(released / 'back/model.ckpt-best')).model
    assert back.config == model.config
    assert_same(back.params, model.params)
    layer['bias'][3] = 1
    with refused('as wide as the blocks'):
        google.write(released / 'no', there)


@pytest.mark.parametrize(
    ('changed', 'said'),
    [
        ({'inner_group_num': 2}, 'inner_group_num=2 is not built here: only 1 is'),
        ({'num_hidden_groups': 3}, 'num_groups=3: must be a divisor of num_layers=4'),
    ],
)
def test_settings_that_are_not_built_are_one_line(released, changed, said):
    (released / 'albert_config.json').write_text(json.dumps(SETTINGS | changed))
    with refused(said):
        google.read(str(released / 'model.ckpt-best'))
