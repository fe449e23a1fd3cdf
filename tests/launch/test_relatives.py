"""A RoBERTa and a ModernBERT, each from its text to its export."""

from __future__ import annotations

import dataclasses
import pathlib
import types
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.configs.load import load
from bert_jax.conversion import google, huggingface
from bert_jax.costs import flops
from bert_jax.inference import Predictor, export
from bert_jax.inference.bert import MaskFiller
from bert_jax.input_pipeline.preprocess.job import preprocess
from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.input_pipeline.tokenizer import extension, vocabulary
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.runs.pretraining.records import check_model_reads
from bert_jax.runs.sources import fitting, source
from bert_jax.train.checkpoint import load_params
from tests.helpers import mood
from tests.helpers.files import read_json
from tests.helpers.mood import BAD, GOOD, PAIR, THINGS, answers_as_the_run_did, finetune
from tests.helpers.pretraining import pretrain
from tests.helpers.refusals import refused
from tests.helpers.tiny import tiny_config

pytestmark = pytest.mark.usefixtures('signal_handlers')
KINDS = {
    'roberta': types.SimpleNamespace(
        vocabulary=VocabularyOptions(300, 'byte_bpe'),
        records={
            'objective': 'full_sentences',
            'across_documents': True,
            'masking': 'dynamic',
            'mask_rule': 'roberta',
            'seq_len': 32,
        },
        model={
            'family': 'roberta',
            'type_vocab_size': 1,
            'layer_norm_eps': 1e-5,
            'hidden_act': 'gelu_erf',
        },
        optimizer={'algorithm': 'adamw', 'peak_lr': 1e-2, 'b2': 0.98, 'clip_norm': None},
    ),
    'modernbert': types.SimpleNamespace(
        vocabulary=VocabularyOptions(300, 'byte_bpe', layout='modernbert'),
        records={
            'objective': 'full_sentences',
            'cut_sentences': True,
            'packing': True,
            'short_seq_prob': 0.0,
            'masked_lm_prob': 0.3,
            'seq_len': 48,
        },
        model={
            'family': 'modernbert',
            'norm': 'pre',
            'use_bias': False,
            'positions': 'rotary',
            'local_window': 8,
            'initializer_range': 0.15,
            'feed_forward': 'geglu',
            'type_vocab_size': 0,
            'layer_norm_eps': 1e-5,
            'hidden_act': 'gelu_erf',
        },
        optimizer={'algorithm': 'stable_adamw', 'peak_lr': 1e-2, 'clip_norm': None},
    ),
}


def document(rng: np.random.Generator) -> str:
    """Sentences whose last words agree: good and liked, bad and left."""
    made = []
    for _ in range(5):
        liked = rng.random() < 0.5
        word, end = (GOOD if liked else BAD)[rng.integers(3)], 'liked' if liked else 'left'
        made.append(f'the {THINGS[rng.integers(4)]} was {word}, so we {end} it.')
    return '\n'.join(made)


def records_of(folder: pathlib.Path, name: str, kind: str, **changed: Any) -> Manifest:
    options = {'eval_fraction': 0, 'workers': 1, **KINDS[kind].records, **changed}
    text, out = str(folder / 'text.txt'), str(folder / name)
    where = {'input': text, 'tokenizer': str(folder / 'tokenizer'), 'output': out}
    preprocess(PreprocessOptions(**where, **options))
    return Manifest.load(out)


SLOW = pytest.param('roberta', marks=pytest.mark.slow)


@pytest.fixture(scope='module', params=[SLOW, 'modernbert'])
def folder(request, tmp_path_factory) -> pathlib.Path:
    """A folder with a tokenizer, records, and `pre`: 60 steps on them."""
    folder, rng = tmp_path_factory.mktemp(request.param), np.random.default_rng(0)
    documents = [document(rng) for _ in range(150)]
    (folder / 'text.txt').write_text('\n\n'.join(documents) + '\n')
    lines = [line for text in documents for line in text.splitlines()]
    tokenizer, _ = vocabulary.train(lines, KINDS[request.param].vocabulary)
    tokenizer.save(folder / 'tokenizer')
    manifest, kind = records_of(folder, 'records', request.param), KINDS[request.param]
    model = tiny_config(
        vocab_size=manifest.vocab_size,
        hidden_size=32,
        num_heads=4,
        intermediate_size=64,
        max_position=manifest.seq_len,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        **kind.model,
    )
    pretrain(folder, 'pre', model, 60, 32, kind.optimizer)
    return folder


@pytest.fixture(scope='module')
def tuned(folder) -> pathlib.Path:
    """`pre`, fine-tuned to tell good from bad."""
    mood.write(folder)
    assert finetune(folder, 'tuned', 'epochs=6')['metrics']['accuracy'] > 0.9
    return folder / 'tuned'


def test_the_export_answers_alike_and_is_read_again(folder, tuned, tmp_path):
    whole = source.read_source(str(tuned))
    export.write(whole.bert, whole.tokenizer, 'huggingface', str(tmp_path / 'hf'))
    shapes = {n: leaf.shape for n, leaf in load_file(tmp_path / 'hf/model.safetensors').items()}
    settings = read_json(tmp_path / 'hf/config.json')
    if whole.model.family == 'roberta':
        assert {'classifier.dense.weight', 'classifier.out_proj.weight'} < set(shapes)
        assert settings['max_position_embeddings'] == 34
    else:
        assert shapes['model.layers.1.attn.Wqkv.weight'] == (96, 32)
        assert 'model.layers.0.attn_norm.weight' not in shapes and 'head.dense.weight' in shapes
        assert settings['sep_token_id'] == whole.tokenizer.sep_id
    there = Predictor.from_workdir(str(tmp_path / 'hf'))(PAIR)['probabilities']
    assert answers_as_the_run_did(tuned)(PAIR)['probabilities'] == pytest.approx(there, abs=1e-6)

    # Into pre-training again: of a RoBERTa all but the pooler, which no loss of it reads.
    pre = source.read_source(str(folder / 'pre'))
    export.write(pre.bert, pre.tokenizer, 'huggingface', str(tmp_path / 'pre'))
    start = fitting.read_for_pretraining(str(tmp_path / 'pre'), pre.tokenizer, pre.model, 0)
    same = jax.tree.map(np.array_equal, start.params, pre.params)
    if whole.model.family == 'roberta':
        same['encoder'].pop('pooler')
    assert start.params.keys() == pre.params.keys() and jax.tree.all(same)


def test_what_a_relative_has_no_place_for_is_one_line(folder, tmp_path):
    pre = source.read_source(str(folder / 'pre'))
    other = pre.bert._replace(architecture='BertForMaskedLM')
    refusals = [
        (lambda: huggingface.write(tmp_path / 'a', other), 'is none of the classes'),
        (lambda: pre.model.check_reads('words', 'records'), 'its tokenizer has whole words, and'),
    ]
    if pre.model.family == 'roberta':
        pairs = dataclasses.replace(Manifest.load(folder / 'records'), objective='nsp')
        nsp = {'objective': 'nsp', 'across_documents': False, 'mask_rule': 'bert'}
        refusals += [
            (lambda: records_of(folder, 'b', 'roberta', **nsp), 'add --objective=full_sentences'),
            (lambda: check_model_reads(pre.model, pairs, 'r'), 'is not trained to tell apart'),
            (lambda: extension.extend(pre.tokenizer, ['word']), 'byte-level BPE merges pairs'),
            (lambda: google.write(tmp_path / 'c', pre.bert), 'google-research/bert has no RoBERTa'),
            (
                lambda: finetune(folder, 'frozen', 'tuning.method=bitfit'),
                r'--set tuning\.pooler=trained',
            ),
        ]
        mood.write(folder)
    for asked, message in refusals:
        with refused(message):
            asked()


def test_published_robertas_have_their_parameters():
    """Counts of transformers' RobertaModel with its pooler, and of RobertaForMaskedLM without.

    So of XLMRobertaModel and CamembertModel; their masked-LM heads have other numbers of words.
    """
    for name, encoder, masked_lm in (
        ('roberta_base', 124_645_632, 124_697_433),
        ('roberta_large', 355_359_744, 355_412_057),
        ('xlmr_base', 278_043_648, 278_295_186),
        ('xlmr_large', 559_890_432, 560_142_482),
        ('bge_m3', 567_754_752, 568_006_802),
        ('camembert_base', 110_621_952, 110_655_493),
        ('camembert_large', 336_661_504, 336_695_557),
    ):
        parts = flops.count_by_part(load(name).model)
        assert flops.count_parameters(load(name).model, pretraining=False) == encoder
        assert sum(parts.values()) - parts['pooler'] == masked_lm


@pytest.mark.parametrize('folder', [SLOW], indirect=True)
def test_a_robertas_rows_go_on_across_documents_and_its_words_have_spaces(folder):
    tokenizer = Tokenizer.load(folder / 'tokenizer')
    stream = RecordStream(str(folder / 'records'), 'train', 16, 0)
    batch = next(iter(stream.batches(0)))
    ids, real = batch['input_ids'], batch['input_mask'] > 0
    assert (ids[~real] == tokenizer.pad_id).all() and real.mean() > 0.7
    inside = (ids[:, 1:-1] == tokenizer.sep_id) & real[:, 2:]
    assert inside.any() and not batch['word_starts'][:, 1:-1][inside].any()

    bert = MaskFiller(source.read_source(str(folder / 'pre')), 3)
    answer = bert('the film was good, so we [MASK] it.')
    words = [word['token'] for word in answer['masks'][0]]
    # One of the two that stand there, in whole or in part; never a half of a character.
    verbs = (' liked', ' left')
    assert any(word.strip() and verb.startswith(word) for word in words for verb in verbs), words
    assert bert('the film was good, so we <mask> it.')['masks'] == answer['masks']


@pytest.mark.slow
@pytest.mark.parametrize('folder', [SLOW], indirect=True)
def test_each_task_begins_with_a_pooler_of_its_own(folder):
    """At a rate of almost nothing the pooler stays as it was made: not as the source has it."""
    mood.write(folder)
    finetune(folder, 'still', 'epochs=0.1', 'optimizer.peak_lr=1e-30')
    before, after = load_params(folder / 'pre')[0], load_params(folder / 'still')[0]
    same = jax.tree.map(np.array_equal, before['encoder'], after['encoder'])
    assert not same.pop('pooler')['kernel'] and jax.tree.all(same)
