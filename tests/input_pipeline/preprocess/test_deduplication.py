"""Exact deduplication against Python's own sets and dictionaries."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from bert_jax.input_pipeline.preprocess import deduplication, job_stages
from bert_jax.input_pipeline.preprocess.sorted_runs import documents_of, load
from bert_jax.input_pipeline.records import shards
from bert_jax.input_pipeline.text import corpus
from tests.helpers.jobs import digests, run


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Everything in several parts: buckets, runs of a unit, ranges of hashes."""
    monkeypatch.setattr('bert_jax.input_pipeline.preprocess.job_plan.MIN_BUCKET_TOKENS', 2000)
    monkeypatch.setattr(job_stages, 'RUN_TOKENS', 4000)
    monkeypatch.setattr(deduplication, 'RANGE_ITEMS', 100)


@pytest.fixture(scope='module')
def text(tmp_path_factory, vocabulary):
    """Three files of 200 documents, a third of them copies; and the documents.

    A third of the lines are from a common stock.
    """
    source, (_, index, _) = random.Random(0), vocabulary
    plain = [word for word in index if word[0] == 'w']
    stock = [' '.join(source.choices(plain, k=6)) + ' .' for _ in range(40)]
    documents = []
    for i in range(200):
        if documents and i % 3 == 0:
            documents.append(source.choice(documents))
        else:
            lines = [
                (
                    source.choice(stock)
                    if source.random() < 0.3
                    else ' '.join(source.choices(plain, k=8))
                )
                for _ in range(source.randint(2, 12))
            ]
            documents.append(tuple(lines))
    documents.append(documents[1][:-1])  # the beginning of another is no copy of it
    documents.append(('zzz .', *documents[1]))
    documents.append((documents[1][1], documents[1][0], *documents[1][2:]))
    folder = tmp_path_factory.mktemp('copies')
    for i in range(3):
        (folder / f'{i}.txt').write_text('\n\n'.join('\n'.join(lines) for lines in documents[i::3]))
    return folder, documents


def left_by(text, vocabulary, kind, monkeypatch, tmp_path):
    """The documents that are in the buckets, as tuples of tuples of tokens, and the statistics."""
    kept, make = [], job_stages.make_records

    def look(recipe, split, number, buckets, inputs, path):
        for file in inputs if number == 0 else ():
            run = documents_of(load(file))
            lines = np.split(run.tokens, run.sentences[1:-1])
            lines = [tuple(line.tolist()) for line in lines]
            kept.extend(tuple(lines[a:b]) for a, b in itertools.pairwise(run.documents))
        return make(recipe, split, number, buckets, inputs, path)

    monkeypatch.setattr(job_stages, 'make_records', look)
    output = f'{tmp_path}/{kind}'
    manifest = run(text[0], vocabulary, dedup=kind, eval_fraction=0, output=output)
    assert shards.verify(output).faults == []
    return kept, manifest.statistics['text']['train']


def ids(vocabulary, line):
    return tuple(vocabulary[1].get(word, 1) for word in line.split())


def test_one_of_each_line_is_left_in_its_document(text, vocabulary, monkeypatch, tmp_path):
    found, sums = left_by(text, vocabulary, 'lines', monkeypatch, tmp_path)
    everything = [line for document in found for line in document]
    originals = [[ids(vocabulary, line) for line in lines] for lines in text[1]]
    different = {line for lines in originals for line in lines}
    assert len(everything) == len(set(everything)) and set(everything) == different
    for document in found:  # in the order of one of the originals
        assert any(iter_in(document, lines) for lines in originals)
    assert (sums['sentences'], sums['duplicate_line_rate']) == (len(different), 0)
    assert sums['duplicates_dropped'] == sum(map(len, text[1])) - len(different)
    assert sums['documents'] == len(found)
    assert sums['one_sentence_documents'] == sum(len(document) == 1 for document in found)


def iter_in(part, lines):
    rest = iter(lines)
    return all(line in rest for line in part)


@pytest.mark.parametrize('kind', ['documents', 'lines'])
def test_bytes_do_not_depend_on_where_files_are_cut(text, vocabulary, monkeypatch, tmp_path, kind):
    options = {'dedup': kind, 'eval_fraction': 0.2, 'num_shards': 2}
    manifest = run(text[0], vocabulary, output=f'{tmp_path}/one', **options)
    assert all(of['duplicates_dropped'] for of in manifest.statistics['text'].values())
    with monkeypatch.context() as patch:
        patch.setattr(job_stages, 'RUN_TOKENS', 500)
        patch.setattr(deduplication, 'RANGE_ITEMS', 1 << 20)
        patch.setattr(corpus.units, '__defaults__', (corpus.TextOptions(), 2000, None))
        run(text[0], vocabulary, output=f'{tmp_path}/other', **options)
    assert digests(tmp_path / 'one') == digests(tmp_path / 'other')
