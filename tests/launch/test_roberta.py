"""A RoBERTa from its text to its export: byte-level BPE, rows without pairs, a head of its own."""

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
from bert_jax.configs.load import load
from bert_jax.configs.presets.finetune import recipe
from bert_jax.conversion import google, huggingface
from bert_jax.costs import flops
from bert_jax.inference import Predictor, export
from bert_jax.inference.mask_filler import MaskFiller
from bert_jax.input_pipeline.preprocess.job import preprocess
from bert_jax.input_pipeline.preprocess.options import PreprocessOptions
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.input_pipeline.tokenizer import Tokenizer, extension, vocabulary
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.runs.pretraining import train
from bert_jax.runs.pretraining.records import check_model_reads, match_phases
from bert_jax.runs.sources import fitting, source
from bert_jax.train.checkpoint import load_params
from tests.helpers import mood
from tests.helpers.mood import BAD, GOOD, PAIR, THINGS, answers_as_the_run_did, finetune

pytestmark = pytest.mark.usefixtures('signal_handlers')


def sentence(rng: np.random.Generator) -> str:
    """A sentence whose last words agree: good and liked, bad and left."""
    liked = rng.random() < 0.5
    word = (GOOD if liked else BAD)[rng.integers(3)]
    return f'the {THINGS[rng.integers(4)]} was {word}, so we {"liked" if liked else "left"} it.'


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
    """A folder with a tokenizer, records across documents, and `pre`: 60 steps on them."""
    folder, rng = tmp_path_factory.mktemp('roberta'), np.random.default_rng(0)
    documents = [[sentence(rng) for _ in range(5)] for _ in range(100)]
    (folder / 'text.txt').write_text('\n\n'.join('\n'.join(lines) for lines in documents) + '\n')
    lines = [line for document in documents for line in document]
    tokenizer, _ = vocabulary.train(lines, VocabularyOptions(300, 'byte_bpe'))
    tokenizer.save(folder / 'tokenizer')
    make_records(folder, 'records')
    pretrain(folder, 'pre', 60)
    return folder


def make_records(folder: pathlib.Path, name: str, **changed) -> Manifest:
    options = {
        'objective': 'full_sentences',
        'across_documents': True,
        'masking': 'dynamic',
        'mask_rule': 'roberta',
        'seq_len': 32,
        'eval_fraction': 0.1,
        'workers': 1,
        **changed,
    }
    text, out = str(folder / 'text.txt'), str(folder / name)
    made = PreprocessOptions(text, str(folder / 'tokenizer'), out, **options)
    preprocess(made)
    return Manifest.load(out)


MODEL = schema.ModelConfig(
    vocab_size=300,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    intermediate_size=64,
    max_position=32,
    type_vocab_size=1,
    hidden_act='gelu_erf',
    layer_norm_eps=1e-5,
    family='roberta',
)


CONFIG = schema.PretrainConfig(
    model=MODEL,
    phases=(schema.Phase(32, 60, 32),),
    optimizer=schema.OptimizerConfig(
        'adamw', 1e-2, 'constant', warmup_steps=0, b2=0.98, clip_norm=None
    ),
    runtime=schema.RuntimeConfig(decoder='numpy', log_every=20, checkpoint_every=20, eval_every=60),
)


def pretrain(folder: pathlib.Path, name: str, steps: int) -> None:
    config = dataclasses.replace(CONFIG, phases=(schema.Phase(32, steps, 32),))
    records = match_phases(config, [str(folder / 'records')])
    assert train.pretrain(config, records, str(folder / name)).step == steps


def test_published_shapes_have_their_parameters():
    """Counts of transformers' RobertaModel with its pooler, and of RobertaForMaskedLM without."""
    for name, encoder, masked_lm in (
        ('roberta_base', 124_645_632, 124_697_433),
        ('roberta_large', 355_359_744, 355_412_057),
    ):
        parts = flops.parameters(load(name).model)
        assert flops.parameter_count(load(name).model, pretraining=False) == encoder
        assert sum(parts.values()) - parts['pooler'] == masked_lm


def test_rows_are_filled_across_documents(folder):
    tokenizer = Tokenizer.load(folder / 'tokenizer')
    stream = RecordStream(str(folder / 'records'), 'train', 16, 0, 'numpy')
    batch = next(iter(stream.batches(0)))
    ids, real = batch['input_ids'], batch['input_mask'] > 0
    assert (ids[~real] == tokenizer.pad_id).all() and real.mean() > 0.7
    inside = (ids[:, 1:-1] == tokenizer.sep_id) & real[:, 2:]
    assert inside.any() and not batch['word_starts'][:, 1:-1][inside].any()
    words = tokenizer.decode(ids[0][real[0]][1:-1]).replace('</s>', '')
    assert words.count('the') and words.count('was')


@pytest.mark.slow
def test_a_run_that_goes_on_ends_with_the_same_bits(folder):
    pretrain(folder, 'cut', 20)
    pretrain(folder, 'cut', 60)
    whole, cut = load_params(folder / 'pre')[0], load_params(folder / 'cut')[0]
    assert jax.tree.all(jax.tree.map(np.array_equal, whole, cut))


def test_masks_are_filled_with_words_and_their_spaces(folder):
    bert = MaskFiller(source.read_source(str(folder / 'pre')), 3)
    answer = bert('the film was good, so we [MASK] it.')
    words = [found['token'] for found in answer['masks'][0]]
    # One of the two that stand there, in whole or in part, with its space; never a half of a
    # character.
    verbs = (' liked', ' left')
    assert any(word.strip() and verb.startswith(word) for word in words for verb in verbs), words
    assert bert('the film was good, so we <mask> it.')['masks'] == answer['masks']


@pytest.fixture(scope='module')
def tuned(folder) -> pathlib.Path:
    """`pre`, fine-tuned to tell good from bad."""
    mood.write(folder)
    assert finetune(folder, 'tuned', 'epochs=6')['metrics']['accuracy'] > 0.9
    return folder / 'tuned'


@pytest.mark.slow
def test_each_task_begins_with_a_pooler_of_its_own(folder, tuned):
    """At a rate of almost nothing the pooler stays as it was made: not as the source has it."""
    finetune(folder, 'still', 'epochs=0.1', 'optimizer.peak_lr=1e-30')
    before, after = load_params(folder / 'pre')[0], load_params(folder / 'still')[0]
    same = jax.tree.map(np.array_equal, before['encoder'], after['encoder'])
    assert not same.pop('pooler')['kernel'] and jax.tree.all(same)


def test_a_fresh_pooler_must_be_trained(folder, tuned):
    with pytest.raises(UserError, match=r'--set tuning\.pooler=trained'):
        finetune(folder, 'frozen', 'tuning.method=bitfit')


def test_the_export_answers_alike_and_is_read_again(folder, tuned, tmp_path):
    whole = source.read_source(str(tuned))
    export.write(whole.bert, whole.tokenizer, 'huggingface', str(tmp_path / 'hf'))
    tensors = load_file(tmp_path / 'hf/model.safetensors')
    assert {'classifier.dense.weight', 'classifier.out_proj.weight'} < set(tensors)
    assert tensors['roberta.embeddings.position_embeddings.weight'].shape == (34, 32)
    config = json.loads((tmp_path / 'hf/config.json').read_text())
    assert (config['model_type'], config['max_position_embeddings']) == ('roberta', 34)
    there = Predictor.from_workdir(str(tmp_path / 'hf'))(PAIR)['probabilities']
    assert answers_as_the_run_did(tuned)(PAIR)['probabilities'] == pytest.approx(there, abs=1e-6)

    pre = source.read_source(str(folder / 'pre'))
    left_out = export.write(pre.bert, pre.tokenizer, 'huggingface', str(tmp_path / 'pre'))[1]
    assert left_out == ('pooler',)
    assert source.read_source(str(tmp_path / 'pre')).bert.architecture == 'RobertaForMaskedLM'


def test_going_on_from_weights_elsewhere(folder, tmp_path):
    """All weights but the pooler's, which no loss of pre-training reads."""
    pre = source.read_source(str(folder / 'pre'))
    export.write(pre.bert, pre.tokenizer, 'huggingface', str(tmp_path / 'hf'))
    start = fitting.for_pretraining(str(tmp_path / 'hf'), pre.tokenizer, MODEL, 0)
    same = jax.tree.map(np.array_equal, start.params, pre.params)
    same['encoder'].pop('pooler')
    assert set(start.params) == {'encoder', 'mlm'} and jax.tree.all(same)


def write_wordpiece(folder: pathlib.Path) -> None:
    folder.mkdir()
    words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(f'word{c}' for c in 'abc')]
    (folder / 'vocab.txt').write_text('\n'.join(words) + '\n')
    (folder / 'tokenizer_config.json').write_text('{"do_lower_case": true}')


def test_a_tokenizer_of_the_other_family_is_one_line(folder, tmp_path):
    """Records and directories, RoBERTa's for BERT and the reverse."""
    bert = dataclasses.replace(CONFIG, model=schema.ModelConfig(vocab_size=300))
    with pytest.raises(
        UserError, match='tokenizer is of kind byte_bpe, and this BERT .* reads'
    ) as said:
        match_phases(bert, [str(folder / 'records')])
    assert '\n' not in str(said.value)

    pre = source.read_source(str(folder / 'pre'))
    export.write(pre.bert, pre.tokenizer, 'huggingface', str(tmp_path / 'hf'))
    for file in ('vocab.json', 'merges.txt', 'tokenizer.json', 'tokenizer_config.json'):
        (tmp_path / 'hf' / file).unlink()
    write_wordpiece(tmp_path / 'words')
    for file in (tmp_path / 'words').iterdir():
        file.rename(tmp_path / 'hf' / file.name)
    with pytest.raises(UserError, match='is of kind wordpiece, and this RoBERTa .* reads byte_bpe'):
        source.read_source(str(tmp_path / 'hf'))


def test_what_a_roberta_has_no_place_for_is_one_line(folder, tmp_path):
    with pytest.raises(UserError, match='and no pair to be told apart: add --objective=full_sen'):
        make_records(folder, 'a', objective='nsp', across_documents=False, mask_rule='bert')
    pairs = dataclasses.replace(Manifest.load(folder / 'records'), objective='nsp')
    with pytest.raises(UserError, match='a RoBERTa is not trained to tell apart: make the records'):
        check_model_reads(MODEL, pairs, 'records')
    with pytest.raises(UserError, match='byte-level BPE merges pairs in the order'):
        extension.extend(Tokenizer.load(folder / 'tokenizer'), ['word'])
    pre = source.read_source(str(folder / 'pre')).bert
    with pytest.raises(UserError, match='BertForMaskedLM is none of the classes'):
        huggingface.write(tmp_path / 'a', pre._replace(architecture='BertForMaskedLM'))
    with pytest.raises(UserError, match='google-research/bert has no RoBERTa'):
        google.write(tmp_path / 'b', pre)


@pytest.mark.parametrize(
    ('changed', 'said'),
    [
        ({'pad_token_id': 0}, 'pad_token_id=0 is not built here: only 1 is'),
        (
            {'model_type': 'deberta'},
            'which is not BERT: only model_type "bert", "albert", "roberta"',
        ),
        ({'max_position_embeddings': 2}, 'max_position=0: must be in'),
    ],
)
def test_settings_that_are_not_built_are_one_line(folder, tmp_path, changed, said):
    pre = source.read_source(str(folder / 'pre'))
    export.write(pre.bert, pre.tokenizer, 'huggingface', str(tmp_path / 'hf'))
    file = tmp_path / 'hf/config.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(UserError, match=said):
        huggingface.read(tmp_path / 'hf')


def test_the_recipe_for_glue_is_fairseqs():
    found = recipe('qqp', 'pair', 'roberta')
    # README.glue.md: 28,318 of 113,272 steps warm up
    assert (found.batch_size, found.epochs, found.warmup_fraction) == (32, 10, 0.25)
    o = found.optimizer
    assert (o.peak_lr, o.weight_decay, o.b2, o.clip_norm) == (1e-5, 0.1, 0.98, None)
