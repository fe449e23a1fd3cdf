"""Pairs against the reference's algorithm, restated slowly.

google-research/bert create_pretraining_data.py:225-340, 418-433.
"""

from __future__ import annotations

import itertools

import numpy as np

from bert_jax.input_pipeline.examples.build_examples import make_examples
from bert_jax.input_pipeline.examples.documents import Documents
from bert_jax.input_pipeline.randomness import Stream
from tests.helpers.documents import make_documents


def test_each_document_has_its_own_number_of_passes():
    documents = make_documents(count=50)
    starts = documents.sentences[documents.documents]

    def examples_of(passes):
        examples = make_examples(documents, 'nsp', 64, passes, 0.0, Stream(13))
        assert np.unique(examples.keys).size == examples.keys.size
        return np.bincount(np.searchsorted(starts, examples.a, 'right') - 1, minlength=50)

    passes = np.arange(50) % 4
    each = examples_of(passes) / examples_of(40) * 40
    assert not each[passes == 0].any()
    np.testing.assert_allclose(each[:48].reshape(12, 4).mean(0), [0, 1, 2, 3], rtol=0.2)
    np.testing.assert_array_equal(examples_of(np.full(50, 3)), examples_of(3))


def test_noisy_sop_tells_single_sentences_beside_a_random_one_as_swapped():
    """ALBERT's released code: neighbours half of which are swapped, but for chunks of one."""
    documents = make_documents(count=40, most_sentences=3, most_tokens=8)
    examples = make_examples(documents, 'sop', 24, 50, 0.5, Stream(7), noisy=True)
    starts = documents.sentences[documents.documents]
    of = lambda token: np.searchsorted(starts, token, 'right') - 1
    neighbours = of(examples.a) == of(examples.b)
    assert (examples.labels[~neighbours] == 1).all() and 0.1 < (~neighbours).mean() < 0.9
    one_sentence = np.searchsorted(documents.sentences, examples.a_end - 1, 'right') == (
        np.searchsorted(documents.sentences, examples.a, 'right')
    )
    assert one_sentence[~neighbours].all()
    assert 0.45 < examples.labels[neighbours].mean() < 0.55
    in_order = examples.a < examples.b
    np.testing.assert_array_equal(in_order[neighbours], examples.labels[neighbours] == 0)


def test_sop_cuts_a_single_sentence_at_a_word():
    tokens = np.arange(60, dtype=np.int32)
    starts = np.arange(60) % 3 == 0
    documents = Documents(
        tokens,
        np.array([0, 59, 60]),
        np.array([0, 1, 2]),
        np.arange(2, dtype=np.uint64),
        np.zeros(2, np.int64),
    )
    examples = make_examples(documents, 'sop', 128, 500, 0.0, Stream(8), starts)
    assert examples.a.size == 500  # a sentence of one word makes none
    cuts = np.where(examples.labels == 1, examples.a, examples.b)
    assert (cuts % 3 == 0).all() and set(cuts.tolist()) == set(range(3, 59, 3))
    assert 0.4 < examples.labels.mean() < 0.6


def test_full_sentences_lose_and_repeat_nothing():
    documents = make_documents(count=20, most_tokens=100)
    examples = make_examples(documents, 'full_sentences', 64, 1, 0.0, Stream(9))
    order = np.argsort(examples.a)
    assert (
        (examples.a[order][1:] == examples.a_end[order][:-1]).all()
        and examples.a.min() == 0
        and examples.a_end.max() == documents.tokens.size
    )
    size = examples.a_end - examples.a
    assert size.max() == 62 and not examples.labels.any() and (examples.b == examples.b_end).all()
    at_sentence = np.isin(examples.a_end, documents.sentences)
    assert (size[~at_sentence] == 62).all()  # only what is longer than a row is cut

    # Cut anywhere: only the last row of a document is short.
    cut = make_examples(documents, 'full_sentences', 64, 1, 0.0, Stream(9), cuts=True)
    ends = documents.sentences[documents.documents]
    wanted = [
        (first, min(first + 62, end))
        for start, end in itertools.pairwise(ends.tolist())
        for first in range(start, end, 62)
    ]
    assert sorted(zip(cut.a.tolist(), cut.a_end.tolist(), strict=True)) == wanted
    long = make_examples(documents, 'full_sentences', 64, 50, 1.0, Stream(9))
    assert (long.a_end - long.a).max() <= 62 and (long.a_end - long.a).mean() < 40


def test_short_rows_have_every_length_from_2_to_the_longest():
    """Each as often: google-research/bert's rng.randint(2, max_num_tokens), both ends counted."""
    sentences, count = 20, 1000  # of one token each
    documents = Documents(
        np.zeros(sentences * count, np.int32),
        np.arange(sentences * count + 1),
        np.arange(0, sentences * count + 1, sentences),
        np.arange(count, dtype=np.uint64),
        np.zeros(count, np.int64),
    )
    examples = make_examples(documents, 'full_sentences', 8, 1, 1.0, Stream(3))
    first = examples.a % sentences == 0
    lengths = np.bincount((examples.a_end - examples.a)[first], minlength=9)
    assert lengths[:2].tolist() == [0, 0] and lengths[7:].sum() == 0
    assert np.abs(lengths[2:7] - count / 5).max() < 4 * (count * 0.2 * 0.8) ** 0.5
