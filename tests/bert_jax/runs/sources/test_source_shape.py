"""A run that goes on from trained weights: the model is the source's, all else the run's own."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from bert_jax.configs.load import load
from bert_jax.configs.overrides import apply
from bert_jax.conversion import google, huggingface
from bert_jax.runs.sources import fitting, source
from bert_jax.runs.sources.fitting import list_shape_settings
from tests.helpers.pages import ROOT

GOLDEN = str(ROOT / 'tests/golden/huggingface')
SHORT = 'phases.0.seq_len=12'  # as many positions as the golden model has


@pytest.mark.parametrize('name', ['bert_mini', 'albert_base', 'roberta_base'])
def test_the_model_is_that_of_the_source_but_for_what_training_may_choose(caplog, name):
    preset, there = load(name), huggingface.read(GOLDEN).model.config
    with caplog.at_level('INFO'):
        settings = list_shape_settings(GOLDEN, [], None)
    config = apply(preset, [*settings, SHORT])
    free = {name: getattr(preset.model, name) for name in fitting.FREE}
    assert config.model == dataclasses.replace(there, **free) != preset.model
    assert dataclasses.replace(config, model=preset.model) == apply(preset, [SHORT])
    assert f'model.hidden_size={there.hidden_size}' in caplog.text


def test_tiling_leaves_the_sizes_to_the_configuration():
    there = huggingface.read(GOLDEN).model.config
    tiles = list_shape_settings(GOLDEN, [], None, 'tiling')
    left_out = {s for s in list_shape_settings(GOLDEN, [], None) if s not in tiles}
    assert left_out == {f'model.{name}={getattr(there, name)}' for name in fitting._SIZES['tiling']}


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
    shape = source.read_shape(where)
    free = {name: getattr(wanted, name) for name in fitting.FREE}
    assert dataclasses.replace(shape, **free) == wanted
