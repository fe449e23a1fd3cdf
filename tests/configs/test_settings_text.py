"""--help_settings: every setting with its meaning, type, default and interval."""

from __future__ import annotations

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.overrides import apply, describe_settings
from bert_jax.configs.schema import FeatureConfig, FinetuneConfig, PretrainConfig
from bert_jax.configs.section import names


@pytest.mark.parametrize('cls', [PretrainConfig, FinetuneConfig, FeatureConfig])
def test_every_setting_is_there_with_a_default_that_set_takes(cls):
    lines = [
        line for line in describe_settings(cls).splitlines() if not line.startswith((' ', '#'))
    ]
    assert [line.partition('=')[0] for line in lines] == names(cls)
    ours = [line for line in lines if '.N.' not in line]
    assert apply(cls(), ours) == cls()


def test_a_setting_has_its_type_interval_and_meaning():
    text = describe_settings(PretrainConfig, 'optimizer')
    assert 'optimizer.peak_lr=0.0001\n    number in [1e-37, 1e37]: learning rate at the' in text
    assert 'optimizer.clip_norm=1.0\n    number or none in [1e-37, 1e37]: gradients' in text
    assert 'optimizer.freeze_embeddings=false\n    true|false: the' in text
    assert 'model.' not in text and max(map(len, text.splitlines())) <= 100


def test_an_unknown_section_is_refused_with_what_is_meant():
    with pytest.raises(
        UserError,
        match=r'they are model, phases, optimizer, runtime, tuning, distillation \(did you mean',
    ):
        describe_settings(PretrainConfig, 'optimiser')
