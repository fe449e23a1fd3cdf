"""The parts of a block by name, and what they say of themselves."""

from __future__ import annotations

import dataclasses

import pytest

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.conversion import huggingface
from bert_jax.costs import flops
from bert_jax.model import heads
from bert_jax.model.blocks.block import make_parts
from bert_jax.model.partition import RULES
from tests.helpers.numpy_bert import noisy_params
from tests.helpers.tiny import tiny_config

PRE = tiny_config(norm='pre', use_bias=False, positions='none')


def test_a_part_names_all_matrices_of_its_block():
    layers = noisy_params(heads.Pretraining(PRE))['encoder']['layers']
    shapes = {name: shape for part in make_parts(PRE) for name, shape in part.shapes().items()}
    assert {k: v['kernel'].shape[1:] for k, v in layers.items() if 'kernel' in v} == shapes
    assert not any('bias' in leaves for leaves in layers.values())
    assert {'final_norm', 'embeddings', 'layers', 'pooler'} == flops.count_by_part(PRE).keys() - {
        'mlm_head',
        'nsp_head',
    }
    assert any('query|key|value|intermediate' in pattern for pattern, _ in RULES)


def test_settings_that_files_lack_are_not_written(tmp_path):
    plain = tiny_config()
    assert not {'norm', 'use_bias', 'positions'} & schema.to_dict(plain).keys()
    model = huggingface.Model(dataclasses.replace(plain, norm='pre'), {}, 'BertModel')
    with pytest.raises(UserError, match='model.norm=pre has no place in'):
        huggingface.write(tmp_path / 'out', model)
    with pytest.raises(UserError, match='bitfit trains biases, and this encoder has none'):
        PRE.tuned(TuningConfig('bitfit'))
