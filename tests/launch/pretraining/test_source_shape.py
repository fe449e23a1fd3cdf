"""A run that goes on from trained weights: the model is the source's, all else the run's own."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from bert_jax.interchange import google, huggingface
from configs.errors import UserError
from configs.load import load
from configs.schema import Phase
from launch.pretraining.source_shape import with_shape_of
from launch.workdir import source
from tests.helpers.pages import ROOT

GOLDEN = ROOT / 'tests/golden/huggingface'
CONFIG = dataclasses.replace(load('bert_mini'), phases=(Phase(12, 10_000, 8),))


def test_the_model_is_that_of_the_source_but_for_what_training_may_choose(tmp_path, caplog):
    there = source.shape_of(str(GOLDEN))
    assert there == huggingface.read(GOLDEN).model.config != CONFIG.model
    with caplog.at_level('INFO'):
        config = with_shape_of(str(GOLDEN), CONFIG, [], [], None)
    free = {name: getattr(CONFIG.model, name) for name in source.FREE}
    assert config.model == dataclasses.replace(there, **free)
    assert dataclasses.replace(config, model=CONFIG.model) == CONFIG
    assert f'hidden_size={there.hidden_size}' in caplog.text


def test_set_has_the_last_word():
    changes = ['model.num_layers=7', 'optimizer.peak_lr=1', 'model.hidden_dropout=0.3']
    config = with_shape_of(str(GOLDEN), CONFIG, changes, [], None)
    assert (config.model.num_layers, config.model.hidden_dropout) == (7, 0.3)
    assert config.optimizer == CONFIG.optimizer  # applied before, with the rest of --set


@pytest.mark.parametrize('kind', ['google', 'huggingface', 'workdir'])
def test_the_shape_of_each_kind_of_source_is_that_of_its_weights(kind, tmp_path, encoder):
    made = huggingface.read(GOLDEN).model
    where = str(tmp_path / 'source')
    if kind == 'google':
        known = dataclasses.replace(made.config, hidden_act='gelu_tanh', layer_norm_eps=1e-12)
        google.write(where, made._replace(config=known))
        wanted = known
    elif kind == 'huggingface':
        huggingface.write(where, made)
        wanted = made.config
    else:
        shutil.copytree(encoder, where)
        wanted = source.read_source(where).model
    shape = source.shape_of(where)
    free = {name: getattr(wanted, name) for name in source.FREE}
    assert dataclasses.replace(shape, **free) == wanted


def test_what_is_no_model_is_one_line(tmp_path):
    with pytest.raises(UserError, match='no config.json in it; expected a workdir'):
        with_shape_of(str(tmp_path), CONFIG, [], [], None)
