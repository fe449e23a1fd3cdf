"""Runs that train a sentence encoder: what they learn, resume and refuse, and what is done then."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import PCA

from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import choose_recipe
from bert_jax.inference import Bert, Predictor
from bert_jax.runs.finetuning import encoder_cache, evaluation
from bert_jax.runs.sources import source
from bert_jax.train.losses.settings import LossSettings
from tests.helpers import finetuning
from tests.helpers.encoder import ENCODER_WORDS
from tests.helpers.refusals import refused

pytestmark = pytest.mark.usefixtures('signal_handlers')
KINDS, COLOURS = ENCODER_WORDS[:6], ENCODER_WORDS[-6:]
SETTINGS = (
    'batch_size=4 max_seq_length=16 steps=30 optimizer.peak_lr=3e-3 optimizer.algorithm=adamw'
    ' runtime.log_every=10 runtime.model_parallel=2 hidden_dropout=0 attention_dropout=0'
).split()


@pytest.fixture
def folder(tmp_path):
    """Tasks in which each word has a colour that is its own: pairs, and plain texts."""
    rng = np.random.default_rng(0)
    rows = {'train': 40, 'dev': 12}
    for split, count in rows.items():
        lines = []
        for _ in range(count):
            number = rng.integers(6)
            alike = {'query': f'the {KINDS[number]}', 'colour': COLOURS[number]}
            lines.append(alike | {'score': int(rng.integers(6))})
        (tmp_path / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    files = {split: f'{split}.jsonl' for split in rows}
    pairs = {
        'kind': 'embedding',
        'files': files,
        'columns': {'anchor': 'query', 'positive': 'colour'},
        'prompts': {'query': 'who is ', 'document': 'a '},
    }
    (tmp_path / 'pairs.json').write_text(json.dumps(pairs))
    scored = {'text_a': 'query', 'text_b': 'colour', 'score': 'score'}
    (tmp_path / 'scored.json').write_text(
        json.dumps(pairs | {'columns': scored, 'score_range': [0, 5], 'prompts': {}})
    )
    texts = {split: {'file': name, 'columns': {'text': 'query'}} for split, name in files.items()}
    (tmp_path / 'texts.json').write_text(
        json.dumps(pairs | {'files': texts | {'dev': files['dev']}})
    )
    return tmp_path


def configuration(*changes):
    return apply(choose_recipe('alike', 'embedding'), [*SETTINGS, *changes])


def tuner_of(task_file, encoder):
    return finetuning.tuner_of(task_file, encoder, configuration().runtime)


def test_a_run_learns_and_is_used(folder, encoder):
    run = str(folder / 'run')
    changes = (
        'steps=60',
        'embedding.matryoshka=32,8',
        'embedding.pooling=weighted_mean',
        'embedding.normalize=true',
    )
    tuner = tuner_of(folder / 'pairs.json', encoder)
    result, _ = tuner.run(configuration(*changes), run)
    assert result['metrics']['accuracy'] > 0.9 and not result['failed']
    assert result['chance_loss'] == pytest.approx(2 * np.log(4)) and result['train_loss'] < 1
    assert evaluation.evaluate(run)['metrics'] == result['metrics']
    # Another task with the same head, without prompts of its own, is asked with the model's.
    scored = evaluation.evaluate(run, str(folder / 'scored.json'))
    assert set(scored['metrics']) == {'spearman', 'pearson'}

    bert = Bert.load(run)
    queries = bert.embed([f'the {word}' for word in KINDS], prompt='query')
    colours = bert.embed(COLOURS, prompt='document')
    assert queries.shape == (6, 32)
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, rtol=1e-5)
    assert ((queries @ colours.T).argmax(1) == np.arange(6)).all()
    assert bert.rank(f'the {KINDS[4]}', COLOURS, top=1)[0]['index'] == 4
    with refused('gives vectors and no answers: .*bert-nearest'):
        Predictor.from_workdir(run)


def test_a_run_of_sparse_vectors(folder, encoder):
    tuner = tuner_of(sparse_task(folder), encoder)
    run = folder / 'run'
    result, _ = tuner.run(configuration('steps=60', 'sparse.document_weight=0.01'), str(run))
    assert result['metrics']['accuracy'] > 0.9 and not result['failed']
    assert result['chance_loss'] == pytest.approx(np.log(4))
    assert evaluation.evaluate(str(run))['metrics'] == result['metrics']
    first, *_, last = map(json.loads, (run / 'metrics.jsonl').read_text().splitlines())
    assert first['base_loss'] > 2 * last['base_loss'] and 'document_flops' in last
    assert last['query_active_dims'] < first['query_active_dims']

    bert = Bert.load(str(run))
    queries = bert.embed([f'the {word}' for word in KINDS], prompt='query')
    colours = bert.embed(COLOURS, prompt='document')
    assert isinstance(queries, sparse.csr_array) and queries.shape == (6, bert.config.vocab_size)
    assert ((queries @ colours.T).toarray().argmax(1) == np.arange(6)).all()
    with refused('vectors of 3 entries: this vocabulary has'):
        bert.decode_sparse(queries[:, :3])
    # The head of a run began with that of its source.
    tuner.run(configuration('steps=60', 'optimizer.peak_lr=1e-30'), str(folder / 'at_rest'))
    began, at_rest, trained = (
        source.read_source(str(name)).params['mlm']['transform']['kernel']
        for name in (encoder, folder / 'at_rest', run)
    )
    np.testing.assert_array_equal(at_rest, began)
    assert np.abs(trained - began).max() > 1e-2
    # The same weights still fill in masks and give states.
    assert bert.fill_mask('the [MASK]') and bert(bert.tokenize('the')).hidden.shape[-1] == 32


@pytest.mark.parametrize('kind', ['embedding', 'sparse_embedding'])
def test_a_run_learns_the_scores_of_a_teacher(folder, encoder, kind):
    """The colour of a word is 4 above another."""
    lines = []
    for number in range(40):
        kind_of, other = number % 6, (number + 1 + number // 6 % 5) % 6
        texts = {'q': KINDS[kind_of], 'p': COLOURS[kind_of], 'n': COLOURS[other]}
        lines.append(json.dumps(texts | {'s': [9.0, 5]}))
    (folder / 'train.jsonl').write_text('\n'.join(lines))
    columns = {'anchor': 'q', 'positive': 'p', 'negatives': 'n', 'scores': 's'}
    files = {'train': {'file': 'train.jsonl', 'columns': columns}, 'dev': 'dev.jsonl'}
    task = sparse_task(folder, kind=kind, files=files)
    changes = 'steps=100', 'embedding.loss=margin_mse', 'batch_size=8'
    run, _ = tuner_of(task, encoder).run(configuration(*changes), str(folder / 'run'))
    assert run['chance_loss'] == pytest.approx(16) and run['train_loss'] < 8


def test_what_sparse_vectors_refuse(folder, encoder):
    task, whole = sparse_task(folder), source.read_source(encoder)
    tuner = tuner_of(task, encoder)
    for changes, message in (
        (['embedding.pooling=max'], 'embedding.pooling=max is for tasks of kind embedding'),
        (['embedding.loss=mse', 'embedding.teacher=x'], 'embedding.teacher=x is for tasks of kind'),
        (
            ['embedding.loss=margin_mse', 'runtime.accumulation=2', 'batch_size=8'],
            'accumulation=2 cuts .*: set embedding.chunk_size',
        ),
        (['embedding.loss=margin_mse'], 'reads triplets, and .* pairs'),
    ):
        with refused(message):
            tuner.resolve(configuration(*changes))
    negatives = {'anchor': 'query', 'positive': 'colour', 'negatives': 'query'}
    triplets = sparse_task(folder, columns=negatives)
    with refused("distill_kl learns a teacher's scores, and .* has none: name their column"):
        tuner_of(triplets, encoder).resolve(configuration('embedding.loss=distill_kl'))
    with refused('sparse: it is for tasks of kind sparse_embedding, and pairs is of kind emb'):
        tuner_of(folder / 'pairs.json', encoder).resolve(configuration('sparse.query_weight=1'))
    bare = whole.changed(params={'encoder': whole.params['encoder']})
    without = finetuning.tuner_of(task, bare, configuration().runtime)
    with refused('trains the masked-LM head of its source, and .* has none'):
        without.resolve(configuration())
    assert without.resolve(configuration('init=random'))


def sparse_task(folder, **entries):
    """The task of pairs, for sparse vectors."""
    task = json.loads((folder / 'pairs.json').read_text()) | {'kind': 'sparse_embedding'}
    (folder / 'sparse.json').write_text(json.dumps(task | entries))
    return folder / 'sparse.json'


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
    ],
)
def test_what_cannot_be_trained(folder, encoder, task, changes, message):
    config = configuration(*changes, 'runtime.model_parallel=8')
    tuner = finetuning.tuner_of(folder / f'{task}.json', encoder, config.runtime)
    with refused(message):
        tuner.resolve(config)


def test_other_tasks_refuse_its_settings(folder, encoder):
    columns = {'text': 'query', 'label': 'score'}
    task = {'kind': 'regression', 'files': {'train': 'train.jsonl', 'dev': 'dev.jsonl'}}
    (folder / 'number.json').write_text(json.dumps(task | {'columns': columns}))
    tuner = tuner_of(folder / 'number.json', encoder)
    with refused(
        'embedding: it is for tasks of kind embedding, sparse_embedding, late_inter.*, and number'
    ):
        tuner.resolve(configuration('embedding.loss=cosine'))
