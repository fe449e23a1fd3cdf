"""An ALBERT from its text to its export: shared blocks, a narrow table, pairs and their order."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.conversion import huggingface
from bert_jax.costs import flops
from bert_jax.inference import Predictor, export
from bert_jax.input_pipeline.preprocess.job import preprocess
from bert_jax.input_pipeline.preprocess.options import PreprocessOptions
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.runs.pretraining import train
from bert_jax.runs.pretraining.records import match_phases
from bert_jax.runs.sources import fitting, source
from bert_jax.train.checkpoint import load_params
from tests.helpers import mood
from tests.helpers.mood import BAD, GOOD, PAIR, THINGS, answers_as_the_run_did, finetune

pytestmark = pytest.mark.usefixtures('signal_handlers')


def document(rng: np.random.Generator) -> str:
    """Sentences that tell their order: the first word counts them.

    Words stand with signs and without: a unigram model makes no piece of what it has seen once.
    """
    counted = ('first', 'second', 'third', 'fourth', 'fifth', 'last')
    sign = lambda: ('', ',', '!')[rng.integers(3)]
    return '\n'.join(
        f'{number}{sign()} the {THINGS[rng.integers(4)]}{sign()} it{sign()} was{sign()}'
        f' {(*GOOD, *BAD)[rng.integers(6)]}{sign()}'
        for number in counted
    )


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
    """A folder with a tokenizer, records of ordered pairs, and `pre`: 60 steps on them."""
    folder, rng = tmp_path_factory.mktemp('albert'), np.random.default_rng(0)
    documents = [document(rng) for _ in range(200)]
    (folder / 'text.txt').write_text('\n\n'.join(documents) + '\n')
    lines = [line for text in documents for line in text.splitlines()]
    tokenizer, _ = vocabulary.train(lines, VocabularyOptions(90, 'unigram'))
    tokenizer.save(folder / 'tokenizer')
    make_records(folder, 'records')
    pretrain(folder, 'pre', 60)
    return folder


def make_records(folder: pathlib.Path, name: str, **changed) -> None:
    options = {
        'objective': 'sop',
        'ngram': 3,
        'seq_len': 48,
        'eval_fraction': 0.1,
        'dupe_factor': 2,
        'workers': 1,
        **changed,
    }
    text, out = str(folder / 'text.txt'), str(folder / name)
    preprocess(PreprocessOptions(text, str(folder / 'tokenizer'), out, **options))


MODEL = schema.ModelConfig(
    vocab_size=90,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    intermediate_size=64,
    max_position=48,
    family='albert',
    embedding_size=16,
    num_groups=1,
)
CONFIG = schema.PretrainConfig(
    model=MODEL,
    phases=(schema.Phase(48, 60, 32),),
    optimizer=schema.OptimizerConfig('adamw', 5e-3, 'constant', warmup_steps=0),
    runtime=schema.RuntimeConfig(decoder='numpy', log_every=20, checkpoint_every=20, eval_every=60),
)


def pretrain(folder: pathlib.Path, name: str, steps: int, records: str = 'records') -> None:
    vocab_size = Manifest.load(folder / records).vocab_size
    model = dataclasses.replace(MODEL, vocab_size=vocab_size)
    config = dataclasses.replace(CONFIG, model=model, phases=(schema.Phase(48, steps, 32),))
    matched = match_phases(config, [str(folder / records)])
    assert train.pretrain(config, matched, str(folder / name)).step == steps


def test_what_is_trained_is_one_block(folder):
    params, _ = load_params(folder / 'pre')
    config = source.read_source(str(folder / 'pre')).model
    padded = (128 - config.vocab_size) * (16 + 1)  # rows that no word has
    assert set(params) == {'encoder', 'mlm', 'nsp'}
    assert params['encoder']['layers']['query']['kernel'].shape == (1, 32, 32)
    count = sum(leaf.size for leaf in jax.tree.leaves(params)) - padded
    assert count == flops.parameter_count(config)


@pytest.fixture(scope='module')
def tuned(folder) -> pathlib.Path:
    """`pre`, fine-tuned to tell good from bad."""
    mood.write(folder)
    assert finetune(folder, 'tuned', 'epochs=6')['metrics']['accuracy'] > 0.9
    return folder / 'tuned'


@pytest.mark.slow
@pytest.mark.parametrize('method', ['lora', 'adamix'])
def test_methods_of_tuning_share_what_they_add(folder, tuned, method):
    """One block has it, whatever the depth; frozen blocks and depths of SPAFIT are refused."""
    pooler = 'tuning.pooler=trained'
    result = finetune(folder, method, f'tuning.method={method}', 'epochs=2', pooler)
    assert 0 <= result['metrics']['accuracy'] <= 1
    trained, _ = load_params(folder / method)
    stacked = {leaf.shape[0] for leaf in jax.tree.leaves(trained['encoder']['layers'])}
    assert stacked == {1}
    answer = Predictor.from_workdir(str(folder / method))(PAIR)
    assert sum(answer['probabilities'].values()) == pytest.approx(1, abs=1e-5)


def test_what_tells_blocks_apart_is_one_line(folder, tuned):
    for change in ('optimizer.layer_decay=0.9', 'optimizer.freeze_layers=1'):
        with pytest.raises(UserError, match='tell blocks apart, and here they share'):
            finetune(folder, 'a', change)
    with pytest.raises(UserError, match='tell blocks apart, and here they share'):
        finetune(folder, 'a', 'tuning.method=lora', 'tuning.frozen_layers=1')


def test_the_export_answers_alike_and_is_read_again(folder, tuned, tmp_path):
    whole = source.read_source(str(tuned))
    export.write(whole.bert, whole.tokenizer, 'huggingface', str(tmp_path / 'hf'))
    tensors = load_file(tmp_path / 'hf/model.safetensors')
    group = 'albert.encoder.albert_layer_groups.0.albert_layers.0'
    assert tensors[f'{group}.ffn.weight'].shape == (64, 32)
    assert tensors['albert.encoder.embedding_hidden_mapping_in.weight'].shape == (32, 16)
    config = json.loads((tmp_path / 'hf/config.json').read_text())
    assert (config['model_type'], config['num_hidden_groups']) == ('albert', 1)
    assert config['classifier_dropout_prob'] == 0.1
    there = Predictor.from_workdir(str(tmp_path / 'hf'))(PAIR)['probabilities']
    assert answers_as_the_run_did(tuned)(PAIR)['probabilities'] == pytest.approx(there, abs=1e-6)

    pre = source.read_source(str(folder / 'pre'))
    export.write(pre.bert, pre.tokenizer, 'huggingface', str(tmp_path / 'pre'))
    start = fitting.for_pretraining(str(tmp_path / 'pre'), pre.tokenizer, pre.model, 0)
    assert start.bert.architecture == 'AlbertForPreTraining'
    assert jax.tree.all(jax.tree.map(np.array_equal, start.params, pre.params))


def test_what_an_albert_has_no_place_for_is_one_line(folder, tmp_path):
    pre = source.read_source(str(folder / 'pre')).bert
    with pytest.raises(UserError, match='AlbertForNextSentencePrediction is none of the classes'):
        huggingface.write(
            tmp_path / 'a', pre._replace(architecture='AlbertForNextSentencePrediction')
        )
    with pytest.raises(UserError, match='tokenizer is SentencePiece, and google-research/bert'):
        whole = source.read_source(str(folder / 'pre'))
        export.write(whole.bert, whole.tokenizer, 'google', str(tmp_path / 'b'))
    with pytest.raises(UserError, match='is of kind byte_bpe, and this ALBERT .* reads wordpiece'):
        pre.config.check_reads('byte_bpe', 'records')


@pytest.mark.parametrize(
    ('changed', 'said'),
    [
        ({'inner_group_num': 2}, 'inner_group_num=2 is not built here: only 1 is'),
        ({'model_type': 'roberta'}, 'which is not BERT: only model_type'),
    ],
)
def test_settings_that_are_not_built_are_one_line(folder, tmp_path, changed, said):
    pre = source.read_source(str(folder / 'pre'))
    export.write(pre.bert, pre.tokenizer, 'huggingface', str(tmp_path / 'hf'))
    file = tmp_path / 'hf/config.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(UserError, match=said) as caught:
        huggingface.read(tmp_path / 'hf')
    assert '\n' not in str(caught.value)
