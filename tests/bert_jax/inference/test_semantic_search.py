"""SemanticSearch nearest to a query: the cosines of the extractor's vectors, in order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bert_jax.inference.semantic_search import (
    Mining,
    SemanticSearch,
    mine_file,
    mine_hard_negatives,
    nearest,
)
from bert_jax.input_pipeline.text.record_files import BadRecord
from tests.helpers.files import read_jsonl, write_jsonl
from tests.helpers.refusals import refused

TEXTS = ['paris is the capital of france', 'a bad film', '', 'a good film', 'who is unable ?']


def embed(texts, prompt=''):
    """Vectors by bytes, and the prompt among them."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(256, 8)).astype(np.float32)
    return np.array([table[list((prompt + text).encode())].mean(0) for text in texts])


def test_the_nearest_are_those_of_the_greatest_cosine():
    records = list(enumerate(({'text': text} for text in TEXTS), 1))
    sentences = SemanticSearch(embed, records, 'sentences.txt', 'cosine')
    (query,) = embed(['a film'], 'query')
    wanted = {}
    for line, text in enumerate(TEXTS, 1):
        if text:
            (other,) = embed([text], 'document')
            wanted[line] = query @ other / np.linalg.norm(query) / np.linalg.norm(other)
    found = sentences.nearest('a film', 3)
    assert [one.line for one in found] == sorted(wanted, key=wanted.get, reverse=True)[:3]
    assert [one.text for one in found] == [TEXTS[one.line - 1] for one in found]
    assert [one.score for one in found] == pytest.approx(
        [wanted[one.line] for one in found], abs=1e-5
    )
    assert len(sentences.nearest('a film', 99)) == 4


@pytest.mark.parametrize(('top', 'block'), [(13, 3), (99, 64)])
def test_nearest_is_exact_and_of_equal_products_takes_the_lower_index(top, block):
    random = np.random.default_rng(0)
    vectors = random.integers(-2, 3, (50, 4)).astype(np.float16)
    queries = random.integers(-2, 3, (7, 4)).astype(np.float32)
    queries[2] = 0
    scores, indices = nearest(queries, vectors, top, block)
    products = queries @ vectors.T + 0.0
    wanted = np.argsort(-products, axis=1, kind='stable')[:, :top]
    assert (indices == wanted).all()
    assert (scores == np.take_along_axis(products, wanted, axis=1)).all()


@pytest.mark.parametrize(
    ('records', 'message'),
    [
        ([(3, BadRecord('not UTF-8'))], 's.txt:3: not UTF-8: mend or delete it'),
        ([(1, {'text': ' '})], 's.txt: no sentence in it'),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(records, message):
    with refused(message):
        SemanticSearch(embed, records, 's.txt', 'cosine')


@pytest.mark.parametrize(('sign', 'wanted'), [(1, ['c', 'd']), (-1, ['d'])])
def test_a_negative_is_below_the_positive_by_a_share_of_its_cosine(sign, wanted):
    """Of a positive at 0.8 from 0.6 on, and of one at -0.8 from -1 on."""
    cosines = {'a': 0.8 * sign, 'b': 0.7, 'c': 0.5, 'd': -1.0, 'q': 1.0, 'r': 0.0}
    embed = lambda texts, prompt: np.array(
        [[cosines[t], (1 - cosines[t] ** 2) ** 0.5] for t in texts], np.float32
    )
    pairs = [('q', 'a'), *(('r', other) for other in 'bcd')]
    mined = mine_hard_negatives(pairs, embed, Mining(len(wanted), margin=0.25))
    assert next(mined)['negatives'] == wanted


@pytest.fixture
def mined(tmp_path):
    """A function that mines pairs.jsonl, or another file, of 12 pairs at random places."""
    rng = np.random.default_rng(0)
    pairs = [(f'q{i % 9}', f'd{i}') for i in range(12)]
    space = {text: rng.normal(size=4) for text in {text for pair in pairs for text in pair}}
    write_jsonl(tmp_path / 'pairs.jsonl', ({'q': q, 'positive': d} for q, d in pairs))

    def embed(texts, prompt):
        assert prompt == {'q': 'query', 'd': 'document'}[texts[0][0]]
        return np.array([space[text] / np.linalg.norm(space[text]) for text in texts], np.float32)

    def mine(mining, columns, file='pairs.jsonl'):
        out = tmp_path / 'out.jsonl'
        return mine_file(str(tmp_path / file), columns, str(out), embed, mining), out

    mine.pairs, mine.embed = pairs, embed
    return mine


def test_hard_negatives_are_mined_from_a_file_to_a_file(tmp_path, mined):
    """Which documents they are is tested in tests/parity/test_mining.py."""
    mining = Mining(3, 2, 11, 0.05)
    rows = list(mine_hard_negatives(mined.pairs, mined.embed, mining))
    assert 0 < len(rows) < len(mined.pairs)  # some have too few
    counts, out = mined(mining, {'anchor': 'q'})
    assert counts == (12, len(rows)) and read_jsonl(out) == rows
    # And it may have any form that a task's file has.
    anchors, positives = zip(*mined.pairs, strict=True)
    table = pa.table({'anchor': anchors, 'positive': positives})
    parquet.write_table(table, tmp_path / 'pairs.parquet')
    assert mined(mining, {}, 'pairs.parquet')[0] == (12, len(rows))


@pytest.mark.parametrize(
    ('mining', 'columns', 'message'),
    [
        (Mining(1, 50, 60), {'anchor': 'q'}, 'no pair has 1 hard negatives of these ranks'),
        (Mining(2, 5, 6), {'anchor': 'q'}, '--mine_ranks=5,6: these are fewer than --negatives=2'),
        (Mining(), {'text': 'q'}, "--columns: 'text' is not among anchor, positive"),
    ],
)
def test_what_cannot_be_mined_is_refused(mined, mining, columns, message):
    with refused(message):
        mined(mining, columns)


def test_ranks_and_texts_that_are_none_are_refused(tmp_path, mined):
    with refused('--mine_ranks=-1,5: write two numbers'):
        Mining.of(1, '-1,5', None)
    write_jsonl(tmp_path / 'pairs.jsonl', [{'q': 'a', 'positive': ' '}])
    with refused('pairs.jsonl:1: an empty text'):
        mined(Mining(), {'anchor': 'q'})
