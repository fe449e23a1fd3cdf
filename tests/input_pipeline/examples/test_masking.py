"""Masking against the reference's rule, restated slowly.

google-research/bert create_pretraining_data.py:342-415.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from bert_jax.input_pipeline.examples import static_masking
from bert_jax.input_pipeline.examples.static_masking import MaskingRule, mask, prediction_counts
from bert_jax.input_pipeline.randomness import Stream, mix
from tests.helpers.masking import MASK, VOCAB, batch


def run(rule, name='a', **kwargs):
    return mask(*batch(**kwargs), rule, MASK, VOCAB, Stream(1, name))


def test_mix_of_mask_same_and_random():
    mix_ = (0.5, 0.2, 0.3)
    masked = run(MaskingRule(0.15, 20, mix_), rows=8000)
    shown = np.take_along_axis(masked.input_ids, masked.positions, axis=1)[masked.weights > 0]
    labels = masked.ids[masked.weights > 0]
    as_mask, as_same = (shown == MASK).mean(), (shown == labels).mean()
    # A random token is [MASK] or the same token once in VOCAB.
    assert abs(as_mask - mix_[0] - mix_[2] / VOCAB) < 0.01
    assert abs(as_same - mix_[1] - mix_[2] / VOCAB) < 0.01
    random = shown[(shown != MASK) & (shown != labels)]
    # The whole vocabulary, special entries too.
    assert random.min() < 10 and random.max() > VOCAB - 20
    assert abs(random.mean() - VOCAB / 2) < 12


def slow_ngrams(sizes, ends, budget, longest, random):
    """Words chosen one run at a time (ALBERT section 4.1).

    `ends` are the words after which a segment ends.
    """
    chosen, left = set(), budget
    for word in random.permutation(len(sizes)).tolist():
        if not left:
            break
        reach = min(longest, 1 + min(end for end in ends if end >= word) - word)
        shares = np.array([1 / n for n in range(1, reach + 1)])
        run = random.choice(np.arange(1, reach + 1), p=shares / shares.sum())
        while run > 1 and sum(sizes[word : word + run]) > left:
            run -= 1
        words = set(range(word, word + run))
        if sum(sizes[word : word + run]) <= left and not words & chosen:
            chosen |= words
            left -= sum(sizes[word : word + run])
    return chosen


@pytest.mark.parametrize('longest, share', [(1, 0.34), (3, 0.6)])
def test_runs_of_words_are_chosen_as_by_a_slow_greedy_one(longest, share):
    """How often each word is chosen, alone and together with its neighbour.

    In two segments, with words of one to three tokens.
    """
    segments = [[1, 1, 2, 1, 3, 1], [2, 1, 1, 1, 2]]
    sizes = [size for segment in segments for size in segment]
    length = sum(sizes) + 3
    place, firsts, candidates = 1, [], np.ones((1, length), bool)
    for segment in segments:
        firsts += (place + np.cumsum(segment) - segment).tolist()
        place += sum(segment) + 1
        candidates[0, place - 1] = False
    candidates[0, 0] = False
    starts = np.zeros((1, length), bool)
    starts[0, firsts] = True
    rows = 10000
    shape = lambda array: np.repeat(array, rows, 0)
    rule = MaskingRule(share, 40, whole_word=True, ngram=longest)
    masked = mask(
        np.full((rows, length), 50, np.int32),
        shape(candidates),
        np.full(rows, length),
        shape(starts),
        rule,
        MASK,
        VOCAB,
        Stream(4),
    )
    chosen = np.zeros((rows, length), bool)
    row, rank = np.nonzero(masked.weights)
    chosen[row, masked.positions[row, rank]] = True
    word = np.cumsum(starts[0]) - 1
    for i in range(len(sizes)):  # whole words only
        assert (chosen[:, candidates[0] & (word == i)] == chosen[:, firsts[i], None]).all()
    ours = chosen[:, firsts].astype(float)
    theirs = np.zeros((3000, len(sizes)))
    random = np.random.RandomState(0)
    for i in range(len(theirs)):
        theirs[i, list(slow_ngrams(sizes, (5, 10), round(length * share), longest, random))] = 1
    np.testing.assert_allclose(
        ours.T @ ours / len(ours), theirs.T @ theirs / len(theirs), atol=0.04
    )


def test_numbers_are_the_same_for_ever():
    """Records made elsewhere, or by another numpy, must have the same bytes.

    These digests may never change.
    """
    digest = hashlib.sha256()
    for array in (
        Stream(7, 'golden').bits(100),
        mix(np.arange(100), 3),
        Stream(7, 'h').half_of(np.arange(200)),
    ):
        digest.update(array.astype('<u8').tobytes())
    masked = run(MaskingRule(), 'golden')
    digest.update(masked.input_ids.tobytes() + masked.positions.tobytes())
    assert digest.hexdigest()[:16] == GOLDEN


GOLDEN = 'c276c69b31a010f1'


def test_predictions_of_a_row_are_its_share_rounded_half_to_even_and_between_1_and_the_most():
    lengths = np.array([1, 3, 10, 30, 50, 120, 128, 512])
    assert prediction_counts(lengths, MaskingRule()).tolist() == [1, 1, 2, 4, 8, 18, 19, 20]


def test_a_run_of_n_words_is_as_likely_as_1_over_n():
    """Of the runs that start where so many can follow."""
    rows, length, longest = 400, 103, 3
    starts = np.ones((rows, length), bool)
    word = np.broadcast_to(np.arange(length), starts.shape)
    runs = static_masking._draw_run_lengths(starts, starts, word, longest, Stream(3))
    for reach, where in ((3, slice(0, length - 2)), (2, length - 2), (1, length - 1)):
        found, draws = runs[:, where], runs[:, where].size
        chances = 1 / np.arange(1, reach + 1)
        for number, chance in enumerate(chances / chances.sum(), 1):
            deviation = (chance * (1 - chance) / draws) ** 0.5
            assert abs((found == number).mean() - chance) <= 4 * deviation
