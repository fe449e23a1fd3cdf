"""bert-export from workdirs of pre-training and fine-tuning.

The same weights under transformers' names, the right class and labels.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.configs import schema
from bert_jax.conversion import huggingface
from bert_jax.inference import export
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.model import heads
from bert_jax.runs.sources.source import read_source
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import checkpoint
from bert_jax.train.state import TrainState
from tests.helpers.files import read_json
from tests.helpers.numpy_bert import noisy_params
from tests.helpers.processes import ok
from tests.helpers.refusals import refused
from tests.helpers.tiny import tiny_config
from tests.helpers.trees import equal
from tests.helpers.vocabularies import write_vocabulary

MODEL = tiny_config(vocab_size=25, max_position=20, hidden_act='relu')


@pytest.fixture
def make(tmp_path):
    """make(module, config, data) -> a workdir such as launch leaves, and its parameters."""

    def make(module, config, data):
        folder = tmp_path / 'workdir'
        vocabulary = write_vocabulary(tmp_path / 'vocabulary', (f'word{i}' for i in range(20)))
        Workdir(folder).create_or_resume(config, data)
        Tokenizer.load(vocabulary).save(folder / 'tokenizer')
        params = noisy_params(module)
        with checkpoint.Checkpoints(folder) as checkpoints:
            checkpoints.save(TrainState(params, {}, np.int32(3), np.int32(0)), {})
        return folder, params

    return make


def pretrained(make):
    config = schema.PretrainConfig(
        model=MODEL,
        phases=(schema.Phase(16, 10, 8),),
        optimizer=schema.OptimizerConfig(warmup_steps=0),
    )
    return make(heads.Pretraining(MODEL), config, {})


def finetuned(make, module, head, labels):
    return make(
        module,
        schema.FinetuneConfig(head_dropout=0.2),
        {'head': head, 'labels': labels, 'model': schema.to_dict(MODEL)},
    )


def test_a_pretraining_workdir_through_the_command_line(make, tmp_path, binary):
    folder, params = pretrained(make)
    run = ok(binary('export', f'--workdir={folder}', f'--output={tmp_path}/out', '--print_map'))
    assert (
        'bert.encoder.layer.1.attention.self.query.weight  encoder/layers/query/kernel[1]'
        in run.stdout.splitlines()
    )
    assert run.stdout.splitlines()[-1] == f'{tmp_path}/out: BertForPreTraining'
    tensors = load_file(tmp_path / 'out' / 'model.safetensors')
    np.testing.assert_array_equal(
        tensors['bert.encoder.layer.1.output.dense.weight'],
        params['encoder']['layers']['output']['kernel'][1].T,
    )
    np.testing.assert_array_equal(tensors['cls.predictions.bias'], params['mlm']['bias'][:25])
    np.testing.assert_array_equal(tensors['cls.seq_relationship.weight'], params['nsp']['kernel'].T)
    settings = read_json(tmp_path / 'out' / 'config.json')
    assert (settings['hidden_act'], settings['vocab_size'], settings['architectures']) == (
        'relu',
        25,
        ['BertForPreTraining'],
    )
    assert read_json(tmp_path / 'out' / 'tokenizer_config.json')['model_max_length'] == 20
    assert (
        Tokenizer.load(tmp_path / 'out').fingerprint
        == Tokenizer.load(folder / 'tokenizer').fingerprint
    )

    run = binary('export', f'--workdir={folder}', f'--output={tmp_path}/out')
    assert run.returncode == 0 and run.stdout.endswith('out: this is done already\n')
    run = binary(
        'export',
        f'--init_from={tmp_path}/out',
        f'--output={tmp_path}/encoder',
        '--architecture=BertModel',
    )
    assert run.returncode == 0 and 'BertModel has no place for: mlm, nsp' in run.stderr
    again = huggingface.read(tmp_path / 'encoder').model
    assert again.parts == ('pooler',) and again.config == MODEL
    assert equal(again.params['encoder'], params['encoder'])


@pytest.mark.parametrize(
    'head, labels, module, architecture, wanted',
    [
        (
            'classifier',
            ['no', 'yes', 'maybe'],
            heads.Classifier(MODEL, outputs=3),
            'BertForSequenceClassification',
            ('no', 'yes', 'maybe'),
        ),
        (
            'regressor',
            [],
            heads.Classifier(MODEL, outputs=1),
            'BertForSequenceClassification',
            ('LABEL_0',),
        ),
        ('span', [], heads.Span(MODEL), 'BertForQuestionAnswering', ()),
        (
            'tokens',
            ['O', 'B-X', 'I-X'],
            heads.Tokens(MODEL, outputs=3),
            'BertForTokenClassification',
            ('O', 'B-X', 'I-X'),
        ),
        ('choice', [], heads.Choice(MODEL), 'BertForMultipleChoice', ()),
    ],
)
def test_a_finetuned_workdir(make, tmp_path, head, labels, module, architecture, wanted):
    folder, params = finetuned(make, module, head, labels)
    source = read_source(str(folder))
    _, left_out = export.write(source.bert, source.tokenizer, 'huggingface', str(tmp_path / 'out'))
    assert left_out == (('pooler',) if head in ('span', 'tokens') else ())
    found = huggingface.read(tmp_path / 'out').model
    assert (found.architecture, found.labels, found.config) == (architecture, wanted, MODEL)
    assert found.problem_type == ('regression' if head == 'regressor' else None)
    assert found.head_dropout == 0.2
    if left_out:
        del params['encoder']['pooler']
    assert jax.tree.structure(found.params) == jax.tree.structure(params)
    assert equal(found.params, params)


def test_nothing_is_left_of_an_export_that_fails(make, tmp_path):
    folder, _ = pretrained(make)
    source = read_source(str(folder))
    source.params['nsp']['bias'] = np.array([0, np.nan], np.float32)
    before = sorted(p.name for p in tmp_path.iterdir())
    out = str(tmp_path / 'out')
    with refused('^runs/mini: cls.seq_relationship.bias: NaN'):
        export.write(
            source.bert, source.tokenizer, 'huggingface', out, export.Extras(named='runs/mini')
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize('form', ['huggingface', 'google'])
def test_a_refused_export_names_the_model_and_not_the_hidden_folder(make, tmp_path, form):
    folder, _ = pretrained(make)
    source = read_source(str(folder))
    narrow = source.bert._replace(config=dataclasses.replace(MODEL, embedding_size=8))
    headless = source.bert._replace(architecture='BertForQuestionAnswering')
    out = str(tmp_path / 'out')
    for model, message in (
        (narrow, r'model\.embedding_size=8 has no place .*; --format=stablehlo writes it'),
        (headless, 'BertForQuestionAnswering needs span'),
    ):
        with refused(f'^runs/mini: {message}'):
            export.write(model, source.tokenizer, form, out, export.Extras(named='runs/mini'))


@pytest.mark.parametrize('form', ['huggingface', 'google', 'stablehlo'])
def test_a_class_of_another_family_is_refused_in_one_line(make, tmp_path, form):
    source = read_source(str(pretrained(make)[0]))
    other = source.bert._replace(architecture='RobertaForTokenClassification')
    with refused('RobertaForTokenClassification is none of the classes that can be written: Bert'):
        export.write(other, source.tokenizer, form, str(tmp_path / 'out'))
