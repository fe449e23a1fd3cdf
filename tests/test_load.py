"""`--config`: presets, Python files and saved configurations."""

from __future__ import annotations

import pytest

from configs import schema
from configs.errors import UserError
from configs.load import load, presets

MODELS = ['bert_base', 'bert_large', 'bert_medium', 'bert_mini', 'bert_small', 'bert_tiny']


def test_presets():
    assert set(MODELS) <= set(presets()) and not {'load', 'schema', 'overrides'} & set(presets())
    for name in presets():
        config = load(name)
        assert config.name == name or name not in MODELS
        assert schema.loads(schema.dumps(config)) == config
    assert all(load(name).model.num_heads * 64 == load(name).model.hidden_size for name in MODELS)


def test_base_is_the_papers_recipe():
    """Appendix A.2 of the paper: batch 256, 1M steps, 90 % of them at 128; Adam 1e-4, 10,000 warm-up steps."""
    config = load('bert_base')
    assert config.phases == (schema.Phase(128, 900_000, 256), schema.Phase(512, 100_000, 256))
    assert (config.optimizer, config.model) == (schema.OptimizerConfig(), schema.ModelConfig())
    assert (config.optimizer.peak_lr, config.optimizer.warmup_steps, config.optimizer.schedule) == (1e-4, 10_000, 'bert')


def test_a_python_file(tmp_path):
    path = tmp_path / 'mine.py'
    lines = (
        'import dataclasses',
        'from configs import bert_tiny',
        'def get_config():',
        '    return dataclasses.replace(bert_tiny.get_config(), seed=5)',
    )
    path.write_text('\n'.join(lines))
    assert load(str(path)).seed == 5


def test_a_saved_configuration(tmp_path):
    path = tmp_path / 'config.json'
    for config in (load('bert_mini'), schema.FinetuneConfig(seed=3), schema.FeatureConfig(features='last')):
        path.write_text(schema.dumps(config))
        assert load(str(path)) == config


@pytest.mark.parametrize(
    ('name', 'text', 'message'),
    [
        ('a.py', 'x = 1\n', 'a.py: defines no get_config'),
        ('a.py', 'def get_config(:\n', 'a.py:1: '),
        ('a.py', 'import nothing_like_it\n', "a.py:1: ModuleNotFoundError: No module named 'nothing_like_it'"),
        ('a.py', '\n\ndef get_config():\n    return {}["k"]\n', "a.py:4: KeyError: 'k'"),
        ('a.py', 'def get_config():\n    return 3\n', 'returned int, not a PretrainConfig'),
        (
            'a.py',
            'from configs.schema import ModelConfig\ndef get_config():\n    return ModelConfig(num_heads=7)\n',
            'a.py:3: ModelConfig.num_heads=7: must be a divisor',
        ),
        ('a.json', '{', 'a.json: not a saved configuration'),
        ('a.json', '{"kind": "pretrain", "seed": 1}', 'missing settings'),
        ('a.yaml', '', 'expected a .py or .json file'),
    ],
)
def test_mistakes_are_named(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load(str(path))


def test_no_such_configuration():
    with pytest.raises(UserError, match='neither a file nor a preset; the presets are bert_base, bert_large'):
        load('bert_huge')
