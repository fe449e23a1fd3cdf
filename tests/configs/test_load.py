"""`--config`: presets, Python files and saved configurations."""

from __future__ import annotations

import json
import math
import pathlib
import re

import pytest

from bert_jax.configs import options, schema, section
from bert_jax.configs.load import list_presets, load
from bert_jax.configs.options import drop_none
from bert_jax.configs.overrides import apply
from tests.helpers.refusals import refused

MODELS = ['bert_base', 'bert_large', 'bert_medium', 'bert_mini', 'bert_small', 'bert_tiny']


def test_presets():
    assert set(MODELS) <= set(list_presets())
    for name in list_presets():
        config = load(name)
        assert config.name == name or name not in MODELS
        assert schema.loads(schema.dumps(config)) == config
    assert all(load(name).model.num_heads * 64 == load(name).model.hidden_size for name in MODELS)


def test_a_python_file(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(
        'import copy\nfrom bert_jax.configs.presets.bert import bert_tiny\n'
        'def get_config():\n    return copy.copy(bert_tiny())\n'
    )
    assert load(str(path)) == load('bert_tiny')


@pytest.mark.parametrize(
    ('name', 'text', 'message'),
    [
        ('a.py', 'x = 1\n', 'a.py: defines no get_config'),
        ('a.py', 'def get_config(:\n', 'a.py:1: '),
        (
            'a.py',
            'import nothing_like_it\n',
            "a.py:1: ModuleNotFoundError: No module named 'nothing_like_it'",
        ),
        ('a.py', 'def get_config():\n    return 3\n', 'returned int, not a PretrainConfig'),
        (
            'a.py',
            'from bert_jax.configs.presets.bert_tiny import get_config\n',
            'a.py:1: .*a preset is had by its name now',
        ),
        (
            'a.py',
            'from bert_jax.configs.presets import bert_base\n',
            'a.py:1: .*a preset is had by its name now',
        ),
        (
            'a.py',
            (
                'from bert_jax.configs.schema import ModelConfig\ndef get_config():\n    return'
                ' ModelConfig(num_heads=7)\n'
            ),
            'a.py:3: ModelConfig.num_heads=7: must be a divisor',
        ),
        ('a.json', '[1]', 'a.json: not a saved configuration .its "kind" is none of "pretrain"'),
        ('a.json', '{"kind": "pretrain", "seed": 1}', 'missing settings'),
        ('a.yaml', '', 'expected a .py or .json file'),
    ],
)
def test_mistakes_are_named(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with refused(message) as caught:
        load(str(path))
    assert len(str(caught.value)) < 400


# Of every kind of setting one, with what a file may hold in its place.
WRONG = [
    ('seed', '4294967296'), ('seed', 'true'), ('seed', '1.0'), ('model.hidden_dropout', 'NaN'),
    ('model.hidden_act', '["relu"]'), ('model', '[]'), ('phases', '{}'), ('phases', '[]'),
]  # fmt: skip


@pytest.mark.parametrize(('name', 'value'), WRONG)
def test_a_value_that_no_run_can_have_is_refused_by_name_in_a_saved_file(tmp_path, name, value):
    data = json.loads(schema.dumps(schema.PretrainConfig()))
    *sections, leaf = name.split('.')
    section = data
    for part in sections:
        section = section[part]
    section[leaf] = json.loads(value)
    path = tmp_path / 'config.json'
    path.write_text(json.dumps(data))
    with refused(f'config.json: .*{leaf}'):
        load(str(path))


@pytest.mark.parametrize('cls', schema._KINDS.values())
def test_every_number_has_an_interval_without_infinity(cls):
    for name, _, field in section.settings(cls()):
        if {int, float} & {*drop_none(field.type)}:
            assert field.option.within, name
            assert not options.is_inside(math.nan, field.option.within)
            assert not options.is_inside(math.inf, field.option.within)


def test_presets_of_a_kind_are_offered_and_the_nearest_is_suggested():
    assert set(list_presets(schema.FinetuneConfig)) == {'finetune', 'quickstart_finetune'}
    by_kind = [list_presets(kind) for kind in (schema.PretrainConfig, schema.FinetuneConfig)]
    assert sorted(by_kind[0] + by_kind[1]) == list_presets()
    with refused(r'are finetune, quickstart_finetune \(did you mean finetune'):
        load('fintune', schema.FinetuneConfig)
    offered = r'retvec_tiny, roberta_base, .*uno_eelbert.* \(did you mean bert_tiny\?\)$'
    with refused(offered):
        load('BERT_tny', schema.PretrainConfig)


@pytest.mark.parametrize('kind', ['pretrain', 'finetune', 'feature_based'])
def test_the_files_of_older_versions_are_read_and_written_as_they_are(kind):
    """Else nobody could go on with a run, nor read its checkpoints, after an update.

    The golden files were written by the version of November 2026, and never change. A setting that
    is new since then is `newer` or `later`; one that is gone or has another name needs a way of its
    own.
    """
    text = (pathlib.Path(__file__).parents[1] / 'golden' / 'configs' / f'{kind}.json').read_text()
    without = re.sub(r'\n *"decoder": "\w+",', '', text)  # which is gone since
    assert schema.dumps(schema.loads(text)) == without


GONE = {
    # setting: (value in an older file, the line of it, what a new `--set` of it is told)
    'decoding_processes': (4, 'has no effect any more: one thread', 'one thread .*: leave it out$'),
    'attention': ('tpu_fused', 'is read as xla: its kernel is gone', 'kernel is gone.*: use xla$'),
    'decoder': ('tfdata', 'has no effect any more: records are read', ': leave it out$'),
    'gradient_exchange': ('all_to_all', 'has no effect any more: gradients', ': leave it out$'),
}


@pytest.mark.parametrize('name', GONE)
def test_what_left_is_read_as_what_stands_for_it_and_refused_where_it_is_typed(
    tmp_path, caplog, name
):
    """With a line in the log, once; a value that had no effect has none."""
    section._log_line.cache_clear()
    value, line, mend = GONE[name]
    plain = apply(load('bert_tiny'), ['runtime.attention=xla'])
    saved = json.loads(schema.dumps(plain))
    saved['runtime'][name] = value
    (tmp_path / 'config.json').write_text(json.dumps(saved))
    for _ in range(2):
        assert load(str(tmp_path / 'config.json')) == plain
    (said,) = caplog.messages
    assert said.startswith(f'runtime.{name}={value} {line}')
    with refused(rf'{name}\S* was removed \(.*{mend}'):
        apply(plain, [f'runtime.{name}={value}'])


def test_a_removed_setting_that_had_no_effect_is_dropped_without_a_line(tmp_path, caplog):
    section._log_line.cache_clear()
    saved = json.loads(schema.dumps(load('bert_tiny')))
    saved['runtime'] |= {'decoding_processes': 0, 'decoder': 'auto'}
    (tmp_path / 'config.json').write_text(json.dumps(saved))
    assert load(str(tmp_path / 'config.json')) == load('bert_tiny')
    assert not caplog.messages


def test_files_from_before_there_was_a_choice_mean_what_was_done_then():
    """A new run has the new default, and says so; an older file stays as it is, byte by byte."""
    new = load('bert_tiny')
    saved = json.loads(schema.dumps(new))
    assert (new.record_order, new.runtime.matmul_dtype) == ('spread', 'auto')
    assert saved.pop('record_order') == 'spread'
    assert saved['runtime'].pop('matmul_dtype') == 'auto'
    assert schema.loads(schema.dumps(new)) == new
    older = json.dumps(saved, indent=2) + '\n'
    read = schema.loads(older)
    assert (read.record_order, read.runtime.matmul_dtype) == ('blocks', None)
    assert schema.dumps(read) == older
