"""A run that trains a reranker: what it learns, and all that is done with it then."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import choose_recipe
from bert_jax.inference import Bert, Predictor
from bert_jax.launch.evaluate import evaluate
from bert_jax.launch.nearest import FindNearest
from bert_jax.runs.finetuning import evaluation
from tests.helpers import finetuning
from tests.helpers.encoder import ENCODER_WORDS
from tests.helpers.files import write_beir, write_lines, write_task
from tests.helpers.refusals import refused

pytestmark = pytest.mark.usefixtures('signal_handlers')
KINDS, COLOURS = ENCODER_WORDS[:6], ENCODER_WORDS[-6:]
SETTINGS = (
    'batch_size=4 max_seq_length=16 steps=400 optimizer.peak_lr=3e-3 optimizer.algorithm=adamw'
    ' runtime.log_every=10 runtime.model_parallel=2 hidden_dropout=0 attention_dropout=0'
    ' head_dropout=0'
).split()


@pytest.fixture
def folder(tmp_path):
    """Each kind has a colour of its own; a collection of the colours, and what was found of it."""
    rng = np.random.default_rng(0)
    rows = []
    for number in rng.integers(6, size=60):
        other = COLOURS[(number + 1 + rng.integers(5)) % 6]
        rows.append({'q': f'the {KINDS[number]}', 'd': COLOURS[number], 'no': [other, 'the']})
    pairs = {'anchor': 'q', 'positive': 'd'}
    splits = {'train': (pairs, rows[:48]), 'dev': (pairs | {'negatives': 'no'}, rows[48:])}
    write_task(tmp_path, 'ranking', splits)
    write_lines(tmp_path / 'colours.txt', COLOURS)
    corpus = {f'c{number}': text for number, text in enumerate(COLOURS)}
    queries = {f'q{number}': f'the {text}' for number, text in enumerate(KINDS)}
    write_beir(tmp_path / 'set', corpus, queries, [(f'q{n}', f'c{n}', 1) for n in range(6)])
    # Of the last query nothing was found, of others the right one last.
    found = [f'q{q} Q0 c{(q + 1 + r) % 6} {r} {9 - r} x' for q in range(5) for r in range(6)]
    write_lines(tmp_path / 'found.run', found)
    return tmp_path


def test_a_run_learns_ranks_and_reads_again(folder, encoder, capsys):
    run, config = str(folder / 'run'), apply(choose_recipe('rank', 'ranking'), SETTINGS)
    config = apply(config, ['ranking.loss=multiple_negatives', 'ranking.num_negatives=3'])
    tuner = finetuning.tuner_of(folder / 'task.json', encoder, config.runtime)
    result, _ = tuner.run(config, run)
    assert result['metrics']['ndcg@10'] == 1 and not result['failed']
    assert result['chance_loss'] == pytest.approx(np.log(4), rel=1e-4)
    assert evaluation.evaluate(run)['metrics'] == result['metrics']

    ranked = Bert.load(run, 'float32').rank('the fine', [*COLOURS, ''], top=3)
    assert ranked[0] | {'score': 0} == {'index': 1, 'score': 0, 'text': COLOURS[1]}
    answer = Predictor.from_workdir(run, compute_dtype='float32')(('the fine', COLOURS[1]))
    assert len(ranked) == 3 and answer['value'] == pytest.approx(ranked[0]['score'], abs=1e-6)
    assert 0.5 < answer['value'] <= 1 and Bert.load(run).rank('the fine', []) == []
    with refused('must be a list of texts'):
        Bert.load(run).rank('the fine', 'blue')

    find = {'init_from': encoder, 'input': str(folder / 'colours.txt'), 'queries': ('the fine',)}
    FindNearest(**find, rerank=run, top=2, json=True)()
    (nearest,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first, second = nearest['nearest']
    assert (first['line'], first['text']) == (2, COLOURS[1]) and first['score'] > second['score']
    assert first['score'] == pytest.approx(answer['value'], abs=1e-5) and 'cosine' in first
    with refused('--candidates=3: they are fewer than --top=5'):
        FindNearest(**find, rerank=run, candidates=3)()
    with refused('--candidates: it is for --rerank'):
        FindNearest(**find, candidates=3)()

    given = {'retrieval': str(folder / 'set'), 'rerank': run}
    report = evaluate(init_from=encoder, **given).report
    assert report['metrics']['mrr@10'] == 1 > report['before']['metrics']['mrr@10']
    given['candidates'] = str(folder / 'found.run')
    report = evaluate(**given).report
    assert report['metrics']['mrr@10'] == pytest.approx(5 / 6)
    assert report['before']['metrics']['mrr@10'] == pytest.approx(5 / 6 / 6)
    assert report['without_candidates'] == 1 and 'mrr@10' in report['intervals']
    # Of the first five none is right, and the last stays behind them.
    report = evaluate(**given, depth=5).report
    assert report['metrics']['mrr@10'] == pytest.approx(5 / 6 / 6)
    (folder / 'found.run').write_text('q0 Q0 c0 1 1 x\nq0 Q0 strange 1 1 x\n')
    with refused("found.run: document 'strange' is not in .*set"):
        evaluate(**given)
    with refused('depth: it is for --rerank'):
        evaluate(init_from=encoder, retrieval=str(folder / 'set'), depth=5)


def test_a_run_refuses_what_it_would_not_read(folder, encoder):
    recipe = choose_recipe('rank', 'ranking')
    tuner = finetuning.tuner_of(folder / 'task.json', encoder, recipe.runtime)
    with refused('embedding: it is for tasks of kind embedding, .*, and task is of kind ranking'):
        tuner.resolve(apply(recipe, ['max_seq_length=16', 'embedding.loss=cosent']))
