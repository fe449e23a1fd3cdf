"""MPNet and DeBERTa against transformers: the rows of distances, and files of the Hub."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig
from bert_jax.conversion import huggingface, trained_model
from bert_jax.model.blocks.positions import find_bias_buckets, find_distance_rows
from tests.parity.reference import torch, transformers
from tests.parity.test_encoders import pair


def test_rows_and_buckets_of_distances_are_transformers():
    """Up to 600 tokens away, to the left and to the right."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = torch.arange(-600, 601)
    for buckets, farthest in ((256, 512), (16, 64), (32, 600)):
        shape = ModelConfig(
            positions='disentangled', relative_buckets=buckets, relative_max=farthest,
            max_position=601,
        )  # fmt: skip
        wanted = make_log_bucket_position(distances, buckets, farthest).long() + buckets
        wanted = wanted.clamp(0, 2 * buckets - 1).numpy()
        np.testing.assert_array_equal(find_distance_rows(shape), wanted)
    encoder = transformers.models.mpnet.modeling_mpnet.MPNetEncoder
    wanted = encoder.relative_position_bucket(distances).numpy()
    np.testing.assert_array_equal(find_bias_buckets(600), wanted)


def test_a_file_of_the_hub_is_read_without_its_heads(tmp_path):
    """Half floats, without the name of a class, and with the head of another objective."""
    theirs, _ = pair('v3', 'Model', tmp_path)
    file = tmp_path / 'model.safetensors'
    held = {f'deberta.{name}': array for name, array in safetensors.numpy.load_file(file).items()}
    held['deberta.embeddings.position_embeddings.weight'] = np.zeros((322, 32), 'f')
    for name in ('lm_predictions.lm_head.dense.weight', 'mask_predictions.dense.weight'):
        held[name] = np.zeros((32, 32), 'f')
    halves = {name: array.astype(np.float16) for name, array in held.items()}
    safetensors.numpy.save_file(halves, file)
    settings = json.loads((tmp_path / 'config.json').read_text())
    del settings['architectures']
    (tmp_path / 'config.json').write_text(json.dumps(settings))
    reading = huggingface.read(tmp_path)
    assert reading.model.parts == () and len(reading.ignored) == 3
    assert any('float16' in remark for remark in reading.remarks)
    assert any('lm_predictions.lm_head.dense' in remark for remark in reading.remarks)
    table = theirs.embeddings.word_embeddings.weight.detach().half().float().numpy()
    np.testing.assert_array_equal(
        reading.model.params['encoder']['embeddings']['word'][:100], table
    )
    # no answer from a masked-LM head that is not there
    with pytest.raises(UserError, match='DebertaV2ForMaskedLM needs mlm, which this model does'):
        trained_model.check_parts(reading.model.under('masked_words'), 'v3', 'take another')
    name = 'deberta.encoder.rel_embeddings.weight'
    halves[name] = np.full_like(halves[name], np.inf)
    safetensors.numpy.save_file(halves, file)
    with pytest.raises(UserError, match=f'{name}: NaN or infinite'):
        huggingface.read(tmp_path)


def test_mpnet_is_not_written_for_another_padding(tmp_path):
    """transformers counts its positions from the token 1, whatever the settings say."""
    _, model = pair('mpnet', 'Model', tmp_path / 'theirs')
    with pytest.raises(UserError, match='pad_token_id=0 is not built here: only 1 is'):
        huggingface.write(tmp_path / 'ours', model, {'pad_token_id': 0})
