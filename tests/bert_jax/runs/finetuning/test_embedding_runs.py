"""Runs that train a sentence encoder: what they learn, resume and refuse, and what is done then."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import PCA

from bert_jax.configs.model.late_interaction import LateInteractionConfig
from bert_jax.configs.model.sentence import EmbeddingConfig
from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import choose_recipe
from bert_jax.inference import Bert, Predictor
from bert_jax.inference.semantic_search import SemanticSearch
from bert_jax.input_pipeline.text.record_files import Reader
from bert_jax.runs.finetuning import encoder_cache, evaluation
from bert_jax.runs.sources import source
from bert_jax.train.losses.settings import LossSettings
from tests.helpers import finetuning, tiny_models
from tests.helpers.encoder import ENCODER_WORDS
from tests.helpers.files import read_json, read_jsonl, write_jsonl, write_lines
from tests.helpers.refusals import refused

pytestmark = pytest.mark.usefixtures('signal_handlers')
KINDS, COLOURS = ENCODER_WORDS[:6], ENCODER_WORDS[-6:]
SETTINGS = (
    'batch_size=4 max_seq_length=16 steps=30 optimizer.peak_lr=3e-3 optimizer.algorithm=adamw'
    ' runtime.log_every=10 runtime.model_parallel=2 hidden_dropout=0 attention_dropout=0'
).split()
LATE = (
    'steps=100 late_interaction.width=8 late_interaction.query_expansion=fixed'
    ' late_interaction.expansion_length=9 late_interaction.skip=a'
).split()


@pytest.fixture
def folder(tmp_path):
    """Tasks in which each word has a colour that is its own: pairs of each kind, plain texts."""
    rng = np.random.default_rng(0)
    files = {'train': 'train.jsonl', 'dev': 'dev.jsonl'}
    for split, count in {'train': 40, 'dev': 12}.items():
        rows = []
        for _ in range(count):
            number = rng.integers(6)
            alike = {'query': f'the {KINDS[number]}', 'colour': COLOURS[number]}
            rows.append(alike | {'score': int(rng.integers(6))})
        write_jsonl(tmp_path / files[split], rows)
    pairs = {
        'kind': 'embedding',
        'files': files,
        'columns': {'anchor': 'query', 'positive': 'colour'},
        'prompts': {'query': 'who is ', 'document': 'a '},
    }
    scored = {'text_a': 'query', 'text_b': 'colour', 'score': 'score'}
    texts = {split: {'file': name, 'columns': {'text': 'query'}} for split, name in files.items()}
    tasks = {
        'pairs': {},
        'scored': {'columns': scored, 'score_range': [0, 5], 'prompts': {}},
        'texts': {'files': texts | {'dev': files['dev']}},
        'sparse': {'kind': 'sparse_embedding'},
        'late': {'kind': 'late_interaction'},
    }
    for name, entries in tasks.items():
        (tmp_path / f'{name}.json').write_text(json.dumps(pairs | entries))
    return tmp_path


def configuration(*changes):
    return apply(choose_recipe('alike', 'embedding'), [*SETTINGS, *changes])


def tuner_of(task_file, encoder):
    return finetuning.tuner_of(task_file, encoder, configuration().runtime)


def train(folder, encoder, name, *changes):
    """Train by a task, and return what did it, the result, the model, and its vectors.

    Of any kind it learns, is scored the same again, and finds each word's colour.
    """
    run, tuner = str(folder / 'run'), tuner_of(folder / f'{name}.json', encoder)
    result, _ = tuner.run(configuration(*changes), run)
    assert result['metrics']['accuracy'] > 0.9 and not result['failed']
    assert evaluation.evaluate(run)['metrics'] == result['metrics']

    write_lines(folder / 'colours.txt', COLOURS)
    search = SemanticSearch.of_file(run, Reader(str(folder / 'colours.txt'), ('text',), (), {}))
    queries, bert = [f'the {word}' for word in KINDS], Bert.load(run, 'float32')
    found = [search.nearest(query, 6) for query in queries]
    assert [nearest[0].text for nearest in found] == COLOURS
    ranked = [one['score'] for one in bert.rank(queries[4], COLOURS)]
    assert ranked == pytest.approx([one.score for one in found[4]], rel=1e-5)
    vectors = bert.embed(queries, prompt='query'), bert.embed(COLOURS, prompt='document')
    return tuner, result, bert, vectors


def test_a_run_learns_and_is_used(folder, encoder):
    changes = (
        'steps=60',
        'embedding.matryoshka=32,8',
        'embedding.pooling=weighted_mean',
        'embedding.normalize=true',
    )
    _, result, _, (queries, _) = train(folder, encoder, 'pairs', *changes)
    assert result['chance_loss'] == pytest.approx(2 * np.log(4)) and result['train_loss'] < 1
    # Another task with the same head, without prompts of its own, is asked with the model's.
    scored = evaluation.evaluate(str(folder / 'run'), str(folder / 'scored.json'))
    assert set(scored['metrics']) == {'spearman', 'pearson'}
    assert queries.shape == (6, 32)
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, rtol=1e-5)
    with refused('gives vectors and no answers: .*bert-nearest'):
        Predictor.from_workdir(str(folder / 'run'))


def test_a_run_of_sparse_vectors(folder, encoder):
    changes = 'steps=60', 'sparse.document_weight=0.01'
    tuner, result, bert, (queries, _) = train(folder, encoder, 'sparse', *changes)
    assert result['chance_loss'] == pytest.approx(np.log(4))
    first, *_, last = read_jsonl(folder / 'run/metrics.jsonl')
    assert first['base_loss'] > 2 * last['base_loss'] and 'document_flops' in last
    assert last['query_active_dims'] < first['query_active_dims']

    assert isinstance(queries, sparse.csr_array) and queries.shape == (6, bert.config.vocab_size)
    with refused('vectors of 3 entries: this vocabulary has'):
        bert.decode_sparse(queries[:, :3])
    for top in (-1, 1.5):
        with refused(f'top={top} must be a whole number from 1'):
            bert.decode_sparse(queries, top)
    assert bert.decode_sparse(queries[0], 2) == bert.decode_sparse(queries, 2)[:1]
    # The head of a run began with that of its source.
    tuner.run(configuration('steps=60', 'optimizer.peak_lr=1e-30'), str(folder / 'at_rest'))
    began, at_rest, trained = (
        source.read_source(str(name)).params['mlm']['transform']['kernel']
        for name in (encoder, folder / 'at_rest', folder / 'run')
    )
    np.testing.assert_array_equal(at_rest, began)
    assert np.abs(trained - began).max() > 1e-2
    # The same weights still fill in masks and give states.
    assert bert.fill_mask('the [MASK]') and bert(bert.tokenize('the')).hidden.shape[-1] == 32


def test_a_run_of_late_interaction(folder, encoder):
    tuner, result, bert, (queries, documents) = train(folder, encoder, 'late', *LATE)
    assert [vectors.shape for vectors in queries] == [(9, 8)] * 6
    # [CLS], the colour and [SEP]: the prompt is skipped.
    assert [vectors.shape for vectors in documents] == [(3, 8)] * 6
    np.testing.assert_allclose(np.linalg.norm(queries[0], axis=1), 1, rtol=1e-5)

    # A string is one text; what is of one dense vector is refused.
    assert [vectors.shape for vectors in bert.embed(COLOURS[0], prompt='document')] == [(3, 8)]
    assert bert.embed([]) == []
    with refused('pool and truncate_dim are of models that give a text one dense vector'):
        bert.embed(COLOURS, pool='mean')
    with refused('gives a text no single dense vector: take another, or its scores'):
        tuner.approach.identify(EmbeddingConfig(loss='mse', teacher=str(folder / 'run')))
    # Training goes on with the layer of the run.
    settings = configuration(*LATE, 'steps=2', 'optimizer.peak_lr=1e-9')
    again = tuner_of(folder / 'late.json', str(folder / 'run'))
    more, _ = again.run(settings, str(folder / 'on'))
    assert more['metrics']['mrr'] == pytest.approx(result['metrics']['mrr'])


def test_a_model_without_its_layer_gives_no_vectors():
    model = tiny_models.model('BertModel')._replace(sentence=LateInteractionConfig())
    with refused('it lacks projection, from which its vectors are made: train it first'):
        Bert(source.Source(model, tiny_models.tokenizer(), 'it', 0)).embed(['paris'])


@pytest.mark.parametrize('name', ['pairs', 'sparse'])
def test_a_run_learns_the_scores_of_a_teacher(folder, encoder, name):
    """The colour of a word is 4 above another."""
    rows = []
    for number in range(40):
        kind, other = number % 6, (number + 1 + number // 6 % 5) % 6
        texts = {'q': KINDS[kind], 'p': COLOURS[kind], 'n': COLOURS[other]}
        rows.append(texts | {'s': [9.0, 5]})
    write_jsonl(folder / 'train.jsonl', rows)
    columns = {'anchor': 'q', 'positive': 'p', 'negatives': 'n', 'scores': 's'}
    files = {'train': {'file': 'train.jsonl', 'columns': columns}, 'dev': 'dev.jsonl'}
    task = changed(folder / f'{name}.json', files=files)
    changes = 'steps=100', 'embedding.loss=margin_mse', 'batch_size=8'
    run, _ = tuner_of(task, encoder).run(configuration(*changes), str(folder / 'run'))
    assert run['chance_loss'] == pytest.approx(16) and run['train_loss'] < 8


def changed(task_file, **entries):
    """A task file, with other entries now."""
    task_file.write_text(json.dumps(read_json(task_file) | entries))
    return task_file


def test_what_sparse_vectors_lack(folder, encoder):
    whole = source.read_source(encoder)
    bare = whole.changed(params={'encoder': whole.params['encoder']})
    without = finetuning.tuner_of(folder / 'sparse.json', bare, configuration().runtime)
    with refused('trains the masked-LM head of its source, and .* has none'):
        without.resolve(configuration())
    assert without.resolve(configuration('init=random'))
    negatives = {'anchor': 'query', 'positive': 'colour', 'negatives': 'query'}
    triplets = tuner_of(changed(folder / 'sparse.json', columns=negatives), encoder)
    with refused("distill_kl learns a teacher's scores, and .* has none: name their column"):
        triplets.resolve(configuration('embedding.loss=distill_kl'))


def test_a_student_copies_a_teacher(folder, encoder, monkeypatch):
    teaching = (
        'embedding.loss=mse', f'embedding.teacher={encoder}', 'embedding.pooling=max',
        'batch_size=8', 'runtime.accumulation=2',
    )  # fmt: skip
    tuner = tuner_of(folder / 'texts.json', encoder)
    tuner.data.cache = str(folder / 'kept')
    tuner.run(configuration(*teaching), str(folder / 'run'))
    features, _ = tuner.approach.make_features(tuner.resolve(configuration(*teaching)))
    # A plain text is there once, and has what the teacher gives of it, under its own prompts.
    texts = [example.texts[0] for example in tuner.data.train]
    teacher = Bert.load(encoder)
    wanted = teacher.embed(texts)
    before, after = teacher.embed(texts, pool='max'), Bert.load(str(folder / 'run')).embed(texts)
    assert np.square(after - wanted).mean() < np.square(before - wanted).mean() / 5
    assert features['input_ids'].shape[:2] == (40, 1)
    np.testing.assert_allclose(features['teacher_vectors'][:, 0, :, 0], wanted, atol=1e-5)

    # Kept for the next run, of another width too, whose vectors are projected.
    (file,) = (folder / 'kept').iterdir()
    assert np.load(file).shape == (6, 32)
    monkeypatch.setattr(encoder_cache.serving, 'make_forward', None)
    again = tuner_of(folder / 'texts.json', encoder)
    again.data.cache = str(folder / 'kept')
    narrow = again.resolve(configuration(*teaching, 'embedding.truncate_dim=3'))
    vectors = again.approach.make_features(narrow)[0]['teacher_vectors'][:, 0, :, 0]
    axes = PCA(3).fit(np.load(file)).components_
    theirs = wanted @ axes.T
    np.testing.assert_allclose(vectors @ vectors.T, theirs @ theirs.T, rtol=1e-3, atol=1e-3)
    identity = again.approach.identify(narrow.losses.embedding)
    assert identity == tuner.approach.identify(narrow.losses.embedding) != {}
    assert not again.approach.identify(configuration().embedding)

    # What an engine that was killed might leave is made again.
    monkeypatch.undo()
    file.write_bytes(file.read_bytes()[:300])
    source_of = source.read_source(encoder)
    made = encoder_cache.compute_text_vectors(
        str(folder / 'kept'), source_of, list(dict.fromkeys(texts)), tuner._machine.mesh, list
    )
    np.testing.assert_array_equal(made, np.load(file))


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'embedding.truncate_dim': 33}, 'gives vectors of 32 numbers, and the student gives 33'),
        ({'embedding.teacher': 'nowhere'}, 'nowhere'),
    ],
)
def test_a_teacher_that_cannot_be(folder, encoder, changes, message):
    teaching = {'embedding.loss': 'mse', 'embedding.teacher': encoder} | changes
    tuner = tuner_of(folder / 'pairs.json', encoder)
    embedding = configuration(*(f'{name}={value}' for name, value in teaching.items())).embedding
    losses = LossSettings(embedding=embedding)
    setup = dataclasses.replace(tuner.resolve(configuration()), losses=losses)
    with refused(message):
        tuner.approach.make_features(setup)


@pytest.mark.parametrize(
    'task, changes, message',
    [
        (
            'pairs',
            ['embedding.loss=cosent'],
            'reads scored pairs, and .* pairs has pairs: take mul.* or mse',
        ),
        ('scored', [], 'reads pairs and triplets, and .*scored pairs: take cosent or cosine'),
        ('texts', [], 'reads pairs and triplets, and .* has texts: take simcse or mse'),
        (
            'texts',
            ['embedding.loss=simcse'],
            'two draws of dropout, and the encoder has none: set hidden_dropout',
        ),
        ('pairs', ['batch_size=1'], 'batch_size=1: embedding.loss=mult.* raise it'),
        ('pairs', ['runtime.accumulation=2'], 'accumulation=2 cuts .*: set embedding.chunk_size'),
        ('pairs', ['embedding.truncate_dim=64'], 'truncate_dim=64 is beyond the 32 numbers'),
        ('pairs', ['sparse.query_weight=1'], 'sparse: it is for tasks of kind sparse_embedding, '),
        ('sparse', ['embedding.pooling=max'], 'pooling=max is for tasks of kind embedding, and '),
        ('sparse', ['embedding.loss=margin_mse'], 'margin_mse reads triplets, and .* pairs'),
        (
            'sparse',
            ['embedding.loss=margin_mse', 'runtime.accumulation=2', 'batch_size=8'],
            'accumulation=2 cuts .*: set embedding.chunk_size',
        ),
        ('late', ['embedding.truncate_dim=4'], 'truncate_dim=4 is for tasks of kind embedding'),
        ('sparse', ['embedding.loss=cosine'], 'loss=cosine brings cosines to labels, .*=cosent'),
        (
            'late',
            ['late_interaction.document_length=17'],
            'rows of 17 tokens, and max_seq_length=16',
        ),
        (
            'late',
            [*LATE, 'late_interaction.query_length=8'],
            'query_length=8 is below expansion_length=9',
        ),
    ],
)
def test_what_cannot_be_trained(folder, encoder, task, changes, message):
    config = configuration(*changes, 'runtime.model_parallel=8')
    tuner = finetuning.tuner_of(folder / f'{task}.json', encoder, config.runtime)
    with refused(message):
        tuner.resolve(config)
