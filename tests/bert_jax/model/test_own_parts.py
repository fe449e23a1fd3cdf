"""Norm, positions, feed-forward and block of one's own, by name, and a folder that needs them."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.configs import options, schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.overrides import apply
from bert_jax.inference import Bert
from tests.helpers.tiny import tiny_config
from tests.helpers.tiny_models import tokenizer

FILE = """
import flax.linen as nn
import jax
import jax.numpy as jnp
import bert_jax
from bert_jax.model.blocks.block import Block
from bert_jax.model.blocks.feed_forward import FeedForward
from bert_jax.model.blocks.positions import RotaryPositions

class RMSNorm(nn.Module):
    epsilon: float
    use_bias: bool = False

    @nn.compact
    def __call__(self, x):
        scale = self.param('scale', nn.initializers.ones, (x.shape[-1],))
        mean = jnp.square(x.astype(jnp.float32)).mean(-1, keepdims=True)
        shape = (1,) * (x.ndim - 1) + (-1,)
        return (x * jax.lax.rsqrt(mean + self.epsilon) * scale.reshape(shape)).astype(x.dtype)

class SquaredRelu(FeedForward):
    def __call__(self, linear, x_BTH, rows, site, kernel):
        return linear('output', jnp.square(nn.relu(linear('intermediate', x_BTH))))

class Halved(Block):
    def _sublayer(self, part, x_BTH, *rest):
        return (x_BTH + super()._sublayer(part, x_BTH, *rest)) / 2

bert_jax.register_part('norm_class', 'rms', RMSNorm)
bert_jax.register_part('positions', 'my_rotary', RotaryPositions)
bert_jax.register_part('feed_forward', 'squared_relu', SquaredRelu)
bert_jax.register_part('block', 'halved', Halved)
"""
NAMES = {
    'norm_class': 'rms',
    'positions': 'my_rotary',
    'feed_forward': 'squared_relu',
    'block': 'halved',
}


@pytest.fixture
def nothing_registered(monkeypatch):
    for names in options._OWN.values():
        names.clear()
    monkeypatch.setattr(options, '_RUN', set())
    monkeypatch.delenv(options.PARTS_VARIABLE, raising=False)


@pytest.fixture
def file(tmp_path, nothing_registered, monkeypatch):
    path = tmp_path / 'my_parts.py'
    path.write_text(FILE)
    monkeypatch.setenv(options.PARTS_VARIABLE, str(path))
    return path


def test_each_part_is_in_the_model_by_its_name(file):
    entries = tokenizer()
    changes = [f'model.{setting}={name}' for setting, name in NAMES.items()]
    config = apply(schema.PretrainConfig(), changes)
    text = schema.dumps(config)
    assert NAMES.items() <= json.loads(text)['model'].items() and 'my_parts' not in text
    outputs = []
    for setting, name in [('vocab_size', entries.vocab_size), *NAMES.items()]:
        model = tiny_config(**{'num_layers': 1, 'vocab_size': entries.vocab_size, setting: name})
        bert = Bert.fresh(model, entries)
        outputs.append(bert(bert.tokenize('a good film')).hidden)
        paths = jax.tree_util.tree_flatten_with_path(bert.params['encoder'])[0]
        assert any('bias' in str(path) and 'norm' in str(path) for path, _ in paths) == (
            name != 'rms'
        )
    assert all(np.isfinite(hidden).all() for hidden in outputs)
    for hidden in outputs[1:]:
        assert np.abs(hidden - outputs[0]).max() > 1e-3


@pytest.mark.parametrize(('setting', 'name'), [('norm_class', 'rms'), ('block', 'halved')])
def test_whoever_lacks_the_class_is_told_so_in_a_line(nothing_registered, setting, name):
    message = f'model.{setting}={name} is none of ours.*PARTS=FILE; ours are'
    with pytest.raises(UserError, match=message):
        schema.ModelConfig(**{setting: name})
    with pytest.raises(UserError, match=f'model.{setting}={name} is none of ours'):
        apply(schema.PretrainConfig(), [f'model.{setting}={name}'])


def test_what_cannot_be_registered_is_a_line(nothing_registered, monkeypatch):
    with pytest.raises(UserError, match="'heads' is none of norm_class, positions"):
        bert_jax.register_part('heads', 'x', int)
    monkeypatch.setenv(options.PARTS_VARIABLE, 'nowhere.py')
    with pytest.raises(UserError, match='BERT_JAX_PARTS=nowhere.py: no such file'):
        schema.ModelConfig(norm_class='rms')
