"""Runs that train late interaction: what they learn, and that search and scores use the model."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bert_jax.configs.model.late_interaction import LateInteractionConfig
from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import choose_recipe
from bert_jax.inference import Bert
from bert_jax.inference.reranker import load_scorer
from bert_jax.inference.semantic_search import SemanticSearch
from bert_jax.input_pipeline.text.record_files import Reader
from bert_jax.runs.finetuning import evaluation
from bert_jax.runs.sources.source import Source
from bert_jax.runs.vector_evaluation import evaluate_retrieval
from tests.helpers import finetuning, tiny_models
from tests.helpers.encoder import ENCODER_WORDS
from tests.helpers.refusals import refused

pytestmark = pytest.mark.usefixtures('signal_handlers')
KINDS, COLOURS = ENCODER_WORDS[:6], ENCODER_WORDS[-6:]
SETTINGS = (
    'batch_size=4 max_seq_length=16 steps=100 optimizer.peak_lr=3e-3 optimizer.algorithm=adamw'
    ' runtime.log_every=10 runtime.model_parallel=2 hidden_dropout=0 attention_dropout=0'
    ' late_interaction.width=8 late_interaction.query_expansion=fixed'
    ' late_interaction.expansion_length=9 late_interaction.skip=a'
).split()


@pytest.fixture
def task_file(tmp_path):
    """A task in which each word has a colour that is its own."""
    rng = np.random.default_rng(0)
    for split, count in {'train': 40, 'dev': 12}.items():
        lines = []
        for number in rng.integers(6, size=count):
            lines.append({'anchor': f'the {KINDS[number]}', 'positive': COLOURS[number]})
        (tmp_path / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    task = {
        'kind': 'late_interaction',
        'files': {'train': 'train.jsonl', 'dev': 'dev.jsonl'},
        'columns': {'anchor': 'anchor', 'positive': 'positive'},
        'prompts': {'query': 'who ', 'document': 'a '},
    }
    (tmp_path / 'task.json').write_text(json.dumps(task))
    return tmp_path / 'task.json'


def configuration(*changes):
    return apply(choose_recipe('alike', 'late_interaction'), [*SETTINGS, *changes])


def test_a_run_learns_and_is_used(task_file, encoder, tmp_path):
    run = str(tmp_path / 'run')
    tuner = finetuning.tuner_of(task_file, encoder, configuration().runtime)
    result, _ = tuner.run(configuration(), run)
    assert result['metrics']['accuracy'] > 0.9 and not result['failed']
    assert evaluation.evaluate(run)['metrics'] == result['metrics']

    bert = Bert.load(run, 'float32')
    queries = bert.embed([f'the {word}' for word in KINDS], prompt='query')
    documents = bert.embed(COLOURS, prompt='document')
    assert [vectors.shape for vectors in queries] == [(9, 8)] * 6
    # [CLS], the colour and [SEP]: the prompt is skipped.
    assert [vectors.shape for vectors in documents] == [(3, 8)] * 6
    np.testing.assert_allclose(np.linalg.norm(queries[0], axis=1), 1, rtol=1e-5)
    scores = [[(q @ d.T).max(1).sum() for d in documents] for q in queries]
    assert (np.argmax(scores, axis=1) == np.arange(6)).all()
    pairs = [(f'the {KINDS[i]}', COLOURS[j]) for i, j in ((0, 0), (0, 3), (5, 0))]
    found = list(load_scorer(run).iterate_logits(pairs))
    assert found == pytest.approx([scores[0][0], scores[0][3], scores[5][0]], rel=1e-5)

    # A string is one text; what is of one dense vector is refused.
    assert [vectors.shape for vectors in bert.embed(COLOURS[0], prompt='document')] == [(3, 8)]
    assert bert.embed([]) == []
    with refused('pool and truncate_dim are of models that give a text one dense vector'):
        bert.embed(COLOURS, pool='mean')
    # Training goes on with the layer of the run, and another width has none to go on with.
    again = finetuning.tuner_of(task_file, run, configuration().runtime)
    more, _ = again.run(configuration('steps=2', 'optimizer.peak_lr=1e-9'), str(tmp_path / 'more'))
    assert more['metrics']['mrr'] == pytest.approx(result['metrics']['mrr'])

    sentences, beir = tmp_path / 'colours.txt', tmp_path / 'beir'
    sentences.write_text('\n'.join(COLOURS))
    search = SemanticSearch.of_file(run, Reader(str(sentences), ('text',), (), {}))
    assert [search.nearest(f'the {kind}', 1)[0].text for kind in KINDS] == COLOURS
    (beir / 'qrels').mkdir(parents=True)
    for name, texts in (('queries', [f'the {kind}' for kind in KINDS]), ('corpus', COLOURS)):
        rows = [json.dumps({'_id': str(i), 'text': text}) for i, text in enumerate(texts)]
        (beir / f'{name}.jsonl').write_text('\n'.join(rows))
    lines = ['query-id\tcorpus-id\tscore', *(f'{i}\t{i}\t1' for i in range(6))]
    (beir / 'qrels' / 'test.tsv').write_text('\n'.join(lines) + '\n')
    embed = lambda texts, prompt: bert.embed(texts, prompt=prompt)
    report = evaluate_retrieval(embed, str(beir), compare=bert.similarity, draws=0)
    assert report['similarity'] == 'maxsim' and report['metrics']['ndcg@10'] == 1
    assert report['metrics']['corpus_tokens'] == 3 and report['metrics']['corpus_bytes'] == 96


@pytest.mark.parametrize(
    'changes, message',
    [
        (['late_interaction.document_length=17'], 'rows of 17 tokens, and max_seq_length=16 is'),
        (['late_interaction.query_length=8'], 'query_length=8 is below expansion_length=9'),
        (['embedding.loss=cosine'], 'loss=cosine brings cosines to labels, .* embedding.loss=cose'),
        (['embedding.truncate_dim=4'], 'truncate_dim=4 is for tasks of kind embedding, and not'),
        (['embedding.pooling=cls'], 'pooling=cls is for tasks of kind embedding, and not for late'),
        (
            ['sparse.query_weight=1'],
            'sparse: it is for tasks of kind sparse_embedding, and task is',
        ),
        (['embedding.loss=margin_mse'], 'margin_mse reads triplets, and the train split of task'),
    ],
)
def test_what_cannot_be_trained(task_file, encoder, changes, message):
    with refused(message):
        tuner = finetuning.tuner_of(task_file, encoder, configuration().runtime)
        tuner.resolve(configuration(*changes))


def test_a_model_without_its_layer_gives_no_vectors():
    config = LateInteractionConfig()
    model = tiny_models.model('BertModel')._replace(sentence=config)
    with refused('it lacks projection, from which its vectors are made: train it first'):
        Bert(Source(model, tiny_models.tokenizer(), 'it', 0)).embed(['paris'])
