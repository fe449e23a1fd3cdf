"""Studies: what is refused of one, and the shipped ones beside the paper."""

from __future__ import annotations

import pytest

from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig
from bert_jax.configs.studies.load_study import STUDIES, load_study
from bert_jax.configs.studies.study import Column, HeldOut, Row, Study
from tests.helpers.refusals import refused

BASE = PretrainConfig(
    model=ModelConfig(max_position=64),
    phases=(Phase(32, 10, 4), Phase(64, 10, 4)),
    optimizer=OptimizerConfig(warmup_steps=1),
)
TASK = Column('mrpc', 'MRPC')


def made(*rows: Row, **more) -> Study:
    """A study of these rows."""
    return Study('title', more.pop('columns', (TASK,)), rows, BASE, **more)


@pytest.mark.parametrize(
    ('rows', 'more', 'line'),
    [
        ((Row('a,b'),), {}, "'a,b': name each once, in words"),
        ((Row('a'), Row('a')), {}, "'a': name each once, in words"),
        (
            (Row('a', pretraining={'model.attentoin': 'left_to_right'}),),
            {},
            r"row 'a': .*no 'attentoin' \(did you mean attention\?\)",
        ),
        (
            (Row('a', finetuning={'bilstm': 3}),),
            {},
            "row 'a': .*bilstm=3: must be true or false",
        ),
        ((Row('a', checkpoints=(7,)),), {}, "row 'a': checkpoints: step 7 of 20 is not kept"),
        ((), {}, 'rows: name one or more'),
        ((Row('a'),), {'seeds': (1, 1)}, 'seeds: name one or more, each once'),
        ((Row('a', pretraining={'seed': 3}),), {}, 'pretraining: seed follows from the study'),
        ((Row('a', approach='last4'),), {}, "approach='last4' is none of finetune, "),
        (
            (Row('a'),),
            {'columns': (HeldOut('mlm_acuracy', 'MLM'),)},
            r"metric='mlm_acuracy' is none of .* \(did you mean mlm_accuracy\?\)",
        ),
        (
            (Row('a'),),
            {'columns': (HeldOut('mlm_perplexity', 'MLM', language='de'),)},
            'MLM: a language has mlm_loss and mlm_accuracy alone',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_refused_in_one_line(rows, more, line):
    with refused(line):
        made(*rows, **more)


@pytest.mark.parametrize(
    ('name', 'text', 'line'),
    [
        ('none.py', 'x = 1', 'defines no get_studies'),
        ('wrong.py', 'def get_studies():\n    return {}', 'must return'),
        ('broken.py', 'def get_studies():\n    return 1 / 0', 'broken.py:2: ZeroDivisionError'),
        (
            'older.py',
            'from bert_jax.configs.studies.study import Column\n'
            "def get_studies():\n    return Column('mrpc', 'M', examples=3)",
            "older.py:3: TypeError: .*unexpected keyword argument 'examples'",
        ),
        ('maskin', '', r'did you mean masking\?'),
    ],
)
def test_files_of_ones_own(tmp_path, monkeypatch, name, text, line):
    monkeypatch.chdir(tmp_path)
    if text:
        (tmp_path / name).write_text(text)
    with refused(line):
        load_study(name)


def test_every_shipped_study_of_the_paper_is_there_at_both_scales():
    papers = ['feature_based', 'masking', 'model_size', 'pretraining_tasks', 'steps']
    assert list(STUDIES) == sorted([*papers, 'modernbert', 'relatives', 'small_language'])
    assert all(set(load_study(name)) == {'cpu', 'paper'} for name in papers)


def test_every_configuration_of_the_shipped_studies_is_valid():
    for name in STUDIES:
        for made in load_study(name).values():
            for row in made.rows:
                config = made.config(row, made.seeds[0])
                assert config.seed == made.seeds[0] and config.total_steps > 0


@pytest.mark.parametrize('name', ['masking', 'steps'])
def test_the_paper_scale_is_the_papers(name):
    """Section 4, appendix A.2 and A.3."""
    made = load_study(name)['paper']
    for row in made.rows:
        config = made.config(row)
        phases = (Phase(128, 900_000, 256), Phase(512, 100_000, 256))
        assert config.phases == phases
        model, optimizer = config.model, config.optimizer
        assert (model.num_layers, model.hidden_size, model.num_heads) == (12, 768, 12)
        assert (optimizer.peak_lr, optimizer.warmup_steps) == (1e-4, 10_000)
        assert (optimizer.weight_decay, optimizer.b2, model.hidden_dropout) == (0.01, 0.999, 0.1)
    glue = [column for column in made.columns if column.task in ('mnli', 'qnli', 'mrpc', 'sst2')]
    assert all(sorted(column.learning_rates) == [2e-5, 3e-5, 4e-5, 5e-5] for column in glue)
