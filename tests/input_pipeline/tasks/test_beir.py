"""Scores of rankings: numbers worked out by hand, those of trec_eval, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.input_pipeline.tasks import beir
from tests.helpers.refusals import refused

TEN = [f'd{n}' for n in range(10)]


def means(rankings, grades) -> dict[str, float]:
    return {name: float(v.mean()) for name, v in beir.scores(rankings, grades).items()}


def test_scores_of_yes_and_no():
    # Relevant documents at ranks 2 and 4, a third is not found; the other query finds nothing.
    ranking = ['a', 'x', 'b', 'y']
    grades = {'q': {'x': 1, 'y': 1, 'z': 1, 'a': 0}, 'r': {'x': 1}}
    found = means({'q': ranking, 'r': ['a']}, grades)
    dcg = 1 / np.log2(3) + 1 / np.log2(5)
    wanted = {
        'ndcg@10': dcg / (1 + 1 / np.log2(3) + 1 / 2) / 2,
        'mrr@10': 1 / 2 / 2,
        'map@100': (1 / 2 + 2 / 4) / 3 / 2,
        'accuracy@1': 0,
        'accuracy@3': 1 / 2,
        'precision@5': 2 / 5 / 2,
        'recall@3': 1 / 3 / 2,
        'recall@100': 2 / 3 / 2,
    }
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-12)


def test_scores_of_grades():
    # Gains are the grades, one below 0 is none; the ideal order is 3, 2, 1.
    found = means({'q': ['a', 'b', 'n', 'c']}, {'q': {'a': 1, 'b': 3, 'c': 2, 'n': -2}})
    dcg, best = 1 + 3 / np.log2(3) + 2 / np.log2(5), 3 + 2 / np.log2(3) + 1 / 2
    assert found['ndcg@10'] == pytest.approx(dcg / best, abs=1e-12)
    assert found['map@100'] == pytest.approx((1 + 1 + 3 / 4) / 3, abs=1e-12)


@pytest.mark.parametrize('grade, relevant', [(1, 100), (2, 150)])
def test_map_divides_by_its_depth_without_grades_and_by_all_with_them(grade, relevant):
    grades = {'q': {f'd{n}': grade for n in range(150)}}
    assert means({'q': TEN}, grades)['map@100'] == pytest.approx(10 / relevant)


@pytest.mark.parametrize(
    'ranking, grades, message',
    [
        (['a', 'b', 'a'], {'a': 1}, "query 'q': document 'a' is twice in its ranking"),
        (['a'], {'a': 0}, "query 'q' has no relevant document"),
    ],
)
def test_rankings_that_are_refused(ranking, grades, message):
    with refused(message):
        beir.scores({'q': ranking}, {'q': grades})


FILES = {
    'corpus.jsonl': '{"_id": "d1", "title": "T", "text": "one"}\n{"_id": "d2", "text": "two"}\n',
    'queries.jsonl': '{"_id": "q1", "text": "first"}\n{"_id": "q2", "text": "of another split"}\n',
    'qrels/test.tsv': 'query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n',
}


def write(folder, **changes) -> str:
    (folder / 'qrels').mkdir()
    for name, text in (FILES | changes).items():
        (folder / name).write_text(text)
    return str(folder)


def test_a_folder_of_beir_is_read(tmp_path):
    given = beir.read_retrieval_set(write(tmp_path))
    assert given.queries == {'q1': 'first'}
    assert given.documents == {'d1': 'T one', 'd2': 'two'}
    assert given.grades == {'q1': {'d1': 2, 'd2': 0}}


@pytest.mark.parametrize(
    'name, added, message',
    [
        ('qrels/test.tsv', 'q1\td3\t1\n', r"test.tsv:4: document 'd3' is not in .*corpus.jsonl"),
        ('qrels/test.tsv', 'q2\td1\t0.5\n', r"test.tsv:4: score '0.5' is not a whole number"),
        ('qrels/test.tsv', 'q2\td1\t0\n', r"test.tsv: query 'q2' has no relevant document"),
        ('corpus.jsonl', '{"_id": "d1", "text": ""}\n', r"corpus.jsonl:3: id 'd1' again"),
    ],
)
def test_folders_that_are_refused(tmp_path, name, added, message):
    with refused(message):
        beir.read_retrieval_set(write(tmp_path, **{name: FILES[name] + added}))


def test_a_run_is_ranked_by_its_scores_in_float32(tmp_path):
    run = 'q1 Q0 a 1 0.1 me\nq1 Q0 b 2 0.10000000001 me\n\nq1\tQ0\tc\t3\t7\tme\n'
    (tmp_path / 'run').write_text(run)
    found = beir.read_run(str(tmp_path / 'run'))
    assert list(found) == ['q1']
    assert beir.ranked(found['q1'], graded=False) == ['c', 'a', 'b']
    assert beir.ranked(found['q1'], graded=True) == ['c', 'b', 'a']


@pytest.mark.parametrize(
    'line, message',
    [
        ('q Q0 a 2 1 me', r"run:2: query 'q' and document 'a' again"),
        ('q b 2', r'run:2: 3 columns where a run has six'),
        ('q Q0 b 2 nan me', r"run:2: score 'nan' is not a number"),
    ],
)
def test_runs_that_are_refused(tmp_path, line, message):
    (tmp_path / 'run').write_text(f'q Q0 a 1 2 me\n{line}\n')
    with refused(message):
        beir.read_run(str(tmp_path / 'run'))
