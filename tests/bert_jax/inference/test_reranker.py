"""Orders of documents by what a scorer gives them."""

from __future__ import annotations

import math

import pytest

from bert_jax.inference.reranker import make_scorer, rank
from bert_jax.runs.sources.source import Source
from tests.helpers import tiny_models
from tests.helpers.refusals import refused


class Fixed:
    """Gives each pair the number that its document is."""

    def iterate_logits(self, pairs):
        """Yield the numbers."""
        return (float(document) for _, document in pairs)

    def activate(self, logit):
        """Return a sigmoid."""
        return 1 / (1 + math.exp(-logit))


def test_logits_rank_where_their_sigmoids_are_equal():
    found = rank(Fixed(), 'q', ['60', '1', '90', '60'], top=3)
    assert [one['index'] for one in found] == [2, 0, 3]
    assert found[0]['score'] == found[1]['score'] == 1.0


@pytest.mark.parametrize(
    'documents, top, refusal',
    [
        (['1'], 0, 'top=0 must be a whole number from 1'),
        (['1'], 1.5, 'top=1.5 must be a whole number'),
        (['1'], '2', "top='2' must be a whole number"),
        (None, 2, 'documents=None must be a list of texts'),
        ('1', 2, "documents='1' must be a list of texts"),
    ],
)
def test_a_call_that_makes_no_order_is_refused(documents, top, refusal):
    with refused(refusal):
        rank(Fixed(), 'q', documents, top)


def test_what_has_no_place_in_an_order_is_refused():
    with refused('gives a pair nan'):
        rank(Fixed(), 'q', ['1', 'nan'])
    several = tiny_models.model('BertForSequenceClassification')
    with refused('gives a pair no single score'):
        make_scorer(Source(several, tiny_models.tokenizer(), '', 0))
