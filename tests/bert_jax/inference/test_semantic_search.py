"""SemanticSearch nearest to a query: the cosines of the extractor's vectors, in order."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.inference.extractor import Extractor
from bert_jax.inference.semantic_search import SemanticSearch
from bert_jax.input_pipeline.text.record_files import BadRecord
from bert_jax.runs.sources.source import Source
from tests.helpers import tiny_models

TEXTS = ['paris is the capital of france', 'a bad film', '', 'a good film', 'who is unable ?']


def extractor(pool='mean', layer=-1) -> Extractor:
    source = Source(tiny_models.model('BertModel'), tiny_models.tokenizer(), '', 0)
    return Extractor(source, [layer], pool, 16, 'float32', 'float32')


def vector(pool, layer, text) -> np.ndarray:
    (part,) = extractor(pool, layer)(iter([(1, {'text': text})]), '')
    return part.features[0][0]


def test_the_nearest_are_those_of_the_greatest_cosine(pool='cls', layer=1):
    records = list(enumerate(({'text': text} for text in TEXTS), 1))
    sentences = SemanticSearch(extractor(pool, layer), records, 'sentences.txt')
    query = vector(pool, layer, 'a film')
    wanted = {}
    for line, text in enumerate(TEXTS, 1):
        if text:
            other = vector(pool, layer, text)
            wanted[line] = query @ other / np.linalg.norm(query) / np.linalg.norm(other)
    found = sentences.nearest('a film', 3)
    assert [one.line for one in found] == sorted(wanted, key=wanted.get, reverse=True)[:3]
    assert [one.text for one in found] == [TEXTS[one.line - 1] for one in found]
    assert [one.cosine for one in found] == pytest.approx(
        [wanted[one.line] for one in found], abs=1e-5
    )
    assert len(sentences.nearest('a film', 99)) == 4


@pytest.mark.parametrize(
    ('records', 'message'),
    [
        ([(3, BadRecord('not UTF-8'))], 's.txt:3: not UTF-8: mend or delete it'),
        ([(1, {'text': ' '})], 's.txt: no sentence in it'),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(records, message):
    with pytest.raises(UserError, match=message):
        SemanticSearch(extractor(), records, 's.txt')
