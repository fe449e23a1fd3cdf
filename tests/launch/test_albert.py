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
from bert_jax.inference import Bert, Predictor, export
from bert_jax.inference.mask_filler import MaskFiller
from bert_jax.input_pipeline.preprocess.job import preprocess
from bert_jax.input_pipeline.preprocess.options import PreprocessOptions
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.runs.pretraining import held_out, train
from bert_jax.runs.pretraining.records import match_phases
from bert_jax.runs.sources import fitting, source
from bert_jax.train.checkpoint import load_params
from tests.helpers import finetuning
from tests.helpers.serving import serves_itself

pytestmark = pytest.mark.usefixtures('signal_handlers')
GOOD, BAD = ('good', 'fine', 'great'), ('bad', 'poor', 'dull')
THINGS = ('film', 'book', 'play', 'song')
PAIR = {'text': 'the film', 'text_b': 'it was good'}


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
    make_records(folder, 'packed', packing=True, max_packs=3)
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
    assert train.run(config, matched, train.Options(str(folder / name))) == 0


def test_what_is_trained_is_one_block(folder):
    params, _ = load_params(folder / 'pre')
    config = source.read_source(str(folder / 'pre')).model
    padded = (128 - config.vocab_size) * (16 + 1)  # rows that no word has
    assert set(params) == {'encoder', 'mlm', 'nsp'}
    assert params['encoder']['layers']['query']['kernel'].shape == (1, 32, 32)
    count = sum(leaf.size for leaf in jax.tree.leaves(params)) - padded
    assert count == flops.parameter_count(config)


def test_it_learns_and_its_held_out_loss_says_so(folder):
    found = held_out.evaluate(str(folder / 'pre'), str(folder / 'records'), 'eval')['metrics']
    # Uniform over 90 entries is 4.5 nats.
    assert found['mlm_loss'] < 2.8 and np.isfinite(found['nsp_loss'])


@pytest.mark.slow
def test_a_run_that_goes_on_ends_with_the_same_bits(folder):
    pretrain(folder, 'cut', 20)
    pretrain(folder, 'cut', 60)
    whole, cut = load_params(folder / 'pre')[0], load_params(folder / 'cut')[0]
    assert jax.tree.all(jax.tree.map(np.array_equal, whole, cut))


@pytest.mark.slow
def test_packed_rows_train_too(folder):
    pretrain(folder, 'of_packed', 20, 'packed')
    found = held_out.evaluate(str(folder / 'of_packed'), str(folder / 'packed'), 'eval')
    assert found['metrics']['mlm_loss'] < 4.5


def test_masks_are_filled(folder):
    answer = MaskFiller(source.read_source(str(folder / 'pre')), 3)('first the [MASK] it was good.')
    assert len(answer['masks'][0]) == 3


def write_task(folder: pathlib.Path) -> None:
    """A task of pairs: whether a word is a good one."""
    rng = np.random.default_rng(1)
    for split, rows in (('train', 192), ('dev', 32)):
        lines = []
        for _ in range(rows):
            word = (*GOOD, *BAD)[rng.integers(6)]
            texts = {'text': f'the {THINGS[rng.integers(4)]}', 'text_b': f'it was {word}'}
            lines.append(texts | {'label': 'good' if word in GOOD else 'bad'})
        (folder / f'{split}.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in lines))
    task = {
        'kind': 'pair',
        'files': {split: f'{split}.jsonl' for split in ('train', 'dev')},
        'columns': {'text': 'text', 'text_b': 'text_b', 'label': 'label'},
        'labels': ['bad', 'good'],
    }
    (folder / 'mood.json').write_text(json.dumps(task))


def finetune(folder: pathlib.Path, name: str, *changes: str) -> dict:
    settings = [
        'batch_size=16', 'max_seq_length=24', 'optimizer.peak_lr=3e-3', 'optimizer.algorithm=adamw'
    ]  # fmt: skip
    task, workdir = folder / 'mood.json', folder / name
    return finetuning.finetune(folder / 'pre', task, workdir, *settings, *changes)


@pytest.fixture(scope='module')
def tuned(folder) -> pathlib.Path:
    """`pre`, fine-tuned to tell good from bad."""
    write_task(folder)
    assert finetune(folder, 'tuned', 'epochs=6')['metrics']['accuracy'] > 0.9
    return folder / 'tuned'


def test_a_tuned_model_answers_as_the_run_did(tuned):
    own = [
        line.split('\t')[1]
        for line in (tuned / 'predictions/dev/predictions.tsv').read_text().splitlines()[1:]
    ]
    rows = [json.loads(line) for line in (tuned.parent / 'dev.jsonl').read_text().splitlines()]
    predict = Predictor.from_workdir(str(tuned))
    assert [predict({'text': row['text'], 'text_b': row['text_b']})['label'] for row in rows] == own


@pytest.mark.slow
@pytest.mark.parametrize('method', ['lora', 'bitfit', 'houlsby', 'ia3', 'adamix'])
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
    answers = [
        Predictor.from_workdir(str(where))(PAIR)['probabilities']
        for where in (tuned, tmp_path / 'hf')
    ]
    assert answers[0] == pytest.approx(answers[1], abs=1e-6)

    pre = source.read_source(str(folder / 'pre'))
    export.write(pre.bert, pre.tokenizer, 'huggingface', str(tmp_path / 'pre'))
    start = fitting.for_pretraining(str(tmp_path / 'pre'), pre.tokenizer, pre.model, 0)
    assert start.bert.architecture == 'AlbertForPreTraining'
    assert jax.tree.all(jax.tree.map(np.array_equal, start.params, pre.params))


def test_a_stablehlo_folder_serves_itself(tuned, tmp_path):
    serves_itself(tuned, tmp_path / 'out', *PAIR.values())


def test_features_are_the_encoders(folder):
    bert = Bert.load(str(folder / 'pre'))
    text = 'the film was good'
    rows = bert.tokenize([text])
    np.testing.assert_allclose(bert.embed([text])[0], bert(rows).hidden[0].mean(0), atol=1e-5)


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
        ({'num_hidden_groups': 3}, 'num_groups=3: must be a divisor of num_layers=2'),
        ({'model_type': 'bert'}, 'which is not BERT: only model_type'),
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
