"""A model whose word vectors are computed, from its first step to its export."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil

import jax
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file

from bert_jax.inference import Predictor
from bert_jax.input_pipeline.records import shards
from bert_jax.input_pipeline.records.fields import RecordSpec
from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.input_pipeline.tokenizer import spelling
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.runs.pretraining import held_out
from bert_jax.runs.sources import fitting, source
from bert_jax.train.checkpoint import load_params
from tests.helpers import mood
from tests.helpers.numpy_bert import mlm_loss
from tests.helpers.pretraining import pretrain
from tests.helpers.processes import mistake, ok
from tests.helpers.records import encoded, example_columns
from tests.helpers.refusals import refused
from tests.helpers.tiny import tiny_config
from tests.helpers.vocabularies import SPECIAL, write_vocabulary

pytestmark = pytest.mark.usefixtures('signal_handlers')
WORDS = [
    'good', 'fine', 'great', 'bad', 'poor', 'dull',
    'film', 'book', 'the', 'was', '##ly', 'ooo', 'oooo', *'abcdefghijklmnopqrstuvwxyz',
    *(f'##{letter}' for letter in 'abcdefghijklmnopqrstuvwxyz'),
]  # fmt: skip
ENTRIES = [*SPECIAL, *WORDS]
MODEL = tiny_config(
    vocab_size=len(ENTRIES),
    hidden_size=24,
    num_layers=1,
    max_position=32,
    embedding='hashed',
    hidden_dropout=0.0,
    attention_dropout=0.0,
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
    """A folder with records, and `pre`: six steps of pre-training on them."""
    folder, spec = tmp_path_factory.mktemp('hashed'), RecordSpec(16, 4, 'static')
    tokenizer = Tokenizer.load(write_vocabulary(folder / 'vocabulary', WORDS))
    (folder / 'records').mkdir()
    infos = []
    for name, count in (('train-00000-of-00001', 96), ('eval-00000-of-00001', 24)):
        rows = encoded(spec, example_columns(spec, count, count, MODEL.vocab_size))
        infos.append(shards.write_shard(folder / f'records/{name}.tfrecord', rows))
    made = shards.Manifest(
        16, 4, 'static', 'nsp', MODEL.vocab_size, tokenizer.fingerprint, 0, {}, {}, tuple(infos)
    )
    made.save(folder / 'records')
    tokenizer.save(folder / 'records/tokenizer')
    pretrain(folder, 'pre', MODEL, 6)
    return folder


def test_held_out_loss_is_that_of_the_vectors_of_the_vocabulary(folder):
    """The forward pass in numpy, on vectors that are made of vocab.txt here."""
    report = held_out.evaluate(str(folder / 'pre'), str(folder / 'records'), 'eval')
    params, _ = load_params(folder / 'pre')
    assert 'word' not in params['encoder']['embeddings']  # not in a checkpoint
    rows = np.zeros((128, 24))
    rows[: len(ENTRIES)] = spelling.vectors(ENTRIES, 24)
    params['encoder']['embeddings']['word'] = rows

    batches = RecordStream(str(folder / 'records'), 'eval', 24, 0).evaluation()
    assert report['metrics']['mlm_loss'] == pytest.approx(
        mlm_loss(params, MODEL, batches), abs=1e-4
    )


def test_another_vocabulary_is_refused(folder, tmp_path):
    """Of the same size: all that tells is what it spells."""
    changed = tmp_path / 'pre'
    shutil.copytree(folder / 'pre', changed)
    shutil.rmtree(changed / 'tokenizer')
    write_vocabulary(changed / 'tokenizer', [*WORDS[:-1], '##é'])
    for use in (
        lambda: source.load_source(str(changed)),
        lambda: held_out.evaluate(str(changed), str(folder / 'records'), 'eval'),
    ):
        with refused('holds another than it was trained with: put that'):
            use()


@pytest.mark.slow
def test_pretraining_from_a_bert_takes_all_but_its_table(folder, tmp_path, caplog):
    """The table goes on as the decoder, where its head knows the words."""
    caplog.set_level('INFO', 'absl')
    plain = dataclasses.replace(MODEL, embedding='table')
    pretrain(folder, 'bert', plain, 3)
    bert, _ = load_params(folder / 'bert')
    tokenizer = Tokenizer.load(folder / 'vocabulary')
    start = fitting.read_for_pretraining(str(folder / 'bert'), tokenizer, MODEL, 0)
    assert 'its word vectors give way to computed ones' in caplog.text
    table = bert['encoder']['embeddings']['word']
    assert np.array_equal(start.params['mlm']['decoder'], table)
    found = start.params['encoder']['embeddings']['word']
    assert np.array_equal(found[: len(ENTRIES)], spelling.vectors(ENTRIES, 24))
    same = traverse_util.flatten_dict(start.params, sep='/')
    for path, leaf in traverse_util.flatten_dict(bert, sep='/').items():
        assert path == 'encoder/embeddings/word' or np.array_equal(same[path], leaf), path
    pretrain(folder, 'from_bert', MODEL, 3, init_from=str(folder / 'bert'))

    # The other way there is no table to take.
    with refused('leave those settings out, or give --set model.embedding'):
        fitting.read_for_pretraining(str(folder / 'pre'), tokenizer, plain, 0)


@pytest.fixture(scope='module')
def tuned(folder) -> pathlib.Path:
    """`pre`, fine-tuned to tell good from bad."""
    text = lambda rng, word: {'text': f'the {ENTRIES[11:13][rng.integers(2)]} was {word}'}
    mood.write(folder, text, ENTRIES[5:8], ENTRIES[8:11], (64, 24), 0)
    mood.finetune(folder, 'tuned', 'epochs=6', length=16)
    return folder / 'tuned'


def test_a_fine_tuned_model_is_small_and_whole_again_when_read(tuned):
    """The decoder is gone, the vectors come back, and the answers are the run's own."""
    params, _ = load_params(tuned)
    encoder = source.load_source(str(tuned))
    assert set(params) == {'encoder', 'classifier'}
    H, L = 24, 32
    block = 4 * (H * H + H) + 2 * H * L + L + H + 4 * H
    positions = (32 + 2) * H + 2 * H
    count = positions + block + H * H + H + 2 * H + 2
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count
    found = encoder.params['encoder']['embeddings']['word']
    assert np.array_equal(found[: len(ENTRIES)], spelling.vectors(ENTRIES, 24))

    mood.answers_as_the_run_did(tuned)


def test_elsewhere_it_is_a_bert_with_a_table(folder, tuned, tmp_path, binary):
    run = ok(binary('export', f'--workdir={tuned}', f'--output={tmp_path}/hf'))
    tensors = load_file(tmp_path / 'hf/model.safetensors')
    found = tensors['bert.embeddings.word_embeddings.weight']
    assert np.array_equal(found, spelling.vectors(ENTRIES, 24))
    read = Predictor.from_workdir(str(tmp_path / 'hf'))('the film was great')
    assert read['probabilities'] == pytest.approx(
        Predictor.from_workdir(str(tuned))('the film was great')['probabilities'], abs=1e-5
    )
    run = binary('export', f'--workdir={folder}/pre', f'--output={tmp_path}/pre')
    assert 'decoder of its own' in mistake(run)
