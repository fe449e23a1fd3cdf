"""A larger model made of a smaller one, against the closed form of tiling, place by place."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.conversion.trained_model import Model
from bert_jax.mesh.sharding import group_by_path
from bert_jax.model import heads, layout
from bert_jax.runs.sources import fitting, source
from bert_jax.train.state import compute_parameter_shapes, init_params
from tests.helpers import tiny_models
from tests.helpers.refusals import refused
from tests.helpers.tiny import tiny_config

# ModernBERT-large's blocks, by the block of base that each is made of.
LARGE = [0, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 13, 13, 14, 15, 16, 16, 17, 18, 19, 20]
LARGE += [20, 21]


def closed_form(old: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """new[r, c] = old[(r - r0) mod R, (c - c0) mod C] with r0 = (R' - R) // 2, c0 likewise."""
    new = np.empty(shape, old.dtype)
    for at in np.ndindex(*shape):
        new[at] = old[
            tuple(
                (i - (after - before) // 2) % before
                for i, before, after in zip(at, old.shape, shape, strict=True)
            )
        ]
    return new


def test_a_student_takes_blocks_that_are_evenly_spread():
    """Of twelve blocks those of DistilBERT (extract_distilbert.py)."""
    config = tiny_config(num_layers=12)
    params = jax.device_get(jax.jit(lambda: init_params(heads.Pretraining(config), 0))())
    model = Model(config, layout.stack_blocks(params), 'BertForPreTraining')
    start = source.Source(model, tiny_models.tokenizer(), 'teacher', 7)
    small = dataclasses.replace(config, num_layers=6)
    made = fitting.resize(start, small, 'layers')
    assert made.model == small
    old, new = (traverse_util.flatten_dict(s.params, sep='/') for s in (start, made))
    for path, array in new.items():
        kept = old[path][[0, 2, 4, 7, 9, 11]] if '/layers/' in path else old[path]
        np.testing.assert_array_equal(array, kept, path)
    with refused('12 blocks of its own, and model.num_layers=13 asks'):
        fitting.resize(start, dataclasses.replace(config, num_layers=13), 'layers')


@pytest.mark.parametrize(
    'sizes',
    [
        {'hidden_size': 22, 'num_layers': 3, 'intermediate_size': 47},
        {'hidden_size': 40, 'num_layers': 5, 'num_heads': 4},
        {'hidden_size': 10, 'num_layers': 1},
    ],
    ids=str,
)
def test_each_place_is_that_of_the_closed_form(sizes):
    model = tiny_models.model('BertForPreTraining')
    start = source.Source(model, tiny_models.tokenizer(), 'small', 7)
    config = dataclasses.replace(model.config, **sizes)
    made = fitting.fit_for_pretraining(start, start.tokenizer, config, 0, 'tiling')
    assert made.model == config and made.step == 7
    old, new = (traverse_util.flatten_dict(s.params, sep='/') for s in (start, made))
    assert old.keys() == new.keys()
    depth = config.num_layers
    for path, array in new.items():
        if '/layers/' not in path:
            np.testing.assert_array_equal(array, closed_form(old[path], array.shape), path)
            continue
        assert len(array) == depth
        for i in range(depth):
            block = min(round(i * 2 / depth), 1)
            want = closed_form(old[path][block], array.shape[1:])
            np.testing.assert_array_equal(array[i], want, path)


def test_blocks_are_those_that_modernbert_has():
    assert fitting.repeat_blocks(22, 28) == LARGE
    # An array that the first block lacks.
    assert fitting._list_rows(LARGE, 1, 27) == [i - 1 for i in LARGE[1:]]


def test_what_is_no_size_must_be_the_sources(caplog):
    model = tiny_models.model('BertForPreTraining')
    start = source.Source(model, tiny_models.tokenizer(), 'small', 7)
    for change, said in (
        ({'hidden_size': 32, 'norm': 'pre'}, '--set model.norm=post$'),
        ({'hidden_size': 32, 'hidden_act': 'relu'}, 'model.hidden_act=gelu'),
    ):
        config = dataclasses.replace(model.config, **change)
        with refused(said):
            fitting.fit_for_pretraining(start, start.tokenizer, config, 0, 'tiling')
    lstm = start.changed(config=dataclasses.replace(model.config, bilstm=True))
    with refused('--init_by=tiling: small has a BiLSTM'):
        fitting.resize(lstm, lstm.model, 'tiling')


def test_a_run_may_set_another_base_of_its_rotary_positions(monkeypatch):
    """By another setting, which stands for those: the source's unless the run sets it."""
    monkeypatch.setattr(fitting, 'RESETTABLE', ('layer_norm_eps',))
    model = tiny_models.model('BertForPreTraining')
    start = source.Source(model, tiny_models.tokenizer(), 'small', 7)
    config = dataclasses.replace(model.config, layer_norm_eps=0.5)
    assert fitting.fit_for_pretraining(start, start.tokenizer, config, 0)


def test_the_norm_that_a_first_block_lacks_goes_and_comes():
    """ModernBERT's, of attention, in the tree of a student of one block and in a larger model."""
    two = tiny_config(
        num_layers=2, family='modernbert', norm='pre', positions='rotary', type_vocab_size=0
    )
    one = dataclasses.replace(two, num_layers=1)
    norms = [name for name in shapes_of(two) if name not in shapes_of(one)]
    assert norms and all('/attention_norm/' in name for name in norms)
    for old, new, way in ((two, one, 'layers'), (two, one, 'tiling'), (one, two, 'tiling')):
        params = jax.device_get(jax.jit(lambda c=old: init_params(heads.Pretraining(c), 0))())
        model = Model(old, layout.stack_blocks(params), 'BertForPreTraining')
        start = source.Source(model, tiny_models.tokenizer(), 'small', 7)
        made = traverse_util.flatten_dict(fitting.resize(start, new, way).params, sep='/')
        assert {name: leaf.shape for name, leaf in made.items()} == shapes_of(new)
    scales = [made[name] for name in norms if name.endswith('scale')]
    assert scales and all((scale == 1).all() for scale in scales)


def shapes_of(config):
    shapes = group_by_path(compute_parameter_shapes(heads.Pretraining(config)))
    return {name: leaf.shape for name, leaf in shapes.items()}
