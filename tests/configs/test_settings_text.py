"""--help_settings: every setting with its meaning, type, default and interval."""

from __future__ import annotations

import pytest

from bert_jax.configs.overrides import apply, describe_settings
from bert_jax.configs.schema import FeatureConfig, FinetuneConfig, PretrainConfig
from bert_jax.configs.section import names
from tests.helpers.refusals import refused


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
    assert 'optimizer.clip_norm=1.0\n    number or none in [1e-37, 1e37]: gradients' in text
    assert 'model.' not in text and max(map(len, text.splitlines())) <= 100


def test_an_unknown_section_is_refused_with_what_is_meant():
    with refused(r'they are model, phases, optimizer, .*\(did you mean optimizer'):
        describe_settings(PretrainConfig, 'optimiser')
