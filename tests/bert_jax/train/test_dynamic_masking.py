"""Masks drawn in the step against the offline job's.

The same rule, the same distributions, the same on every mesh.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.input_pipeline.examples.static_masking import MaskingRule, mask
from bert_jax.input_pipeline.randomness import Stream
from bert_jax.train.dynamic_masking import DynamicMasking
from tests.helpers.masking import CLS, MASK, SEP, VOCAB, batch

RULE = DynamicMasking(
    probability=0.15,
    max_predictions=20,
    mix=(0.8, 0.1, 0.1),
    whole_word=False,
    mask_id=MASK,
    vocab_size=VOCAB,
)


def rows_of(**sizes) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Unmasked records as a batch, and the candidates and lengths that the offline job knows."""
    ids, candidates, lengths, starts = batch(**sizes)
    real = np.arange(ids.shape[1]) < lengths[:, None]
    # Two special tokens lie before B.
    second = np.cumsum(~candidates & real, axis=1) - (~candidates & real) >= 2
    columns = {
        'input_ids': ids,
        'input_mask': real,
        'segment_ids': second & real,
        'word_starts': starts,
    }
    return {name: x.astype(np.int32) for name, x in columns.items()}, candidates, lengths


def draw(
    rule: DynamicMasking, records: dict[str, np.ndarray], seed: int = 0
) -> dict[str, np.ndarray]:
    rows = np.arange(len(records['input_ids']), dtype=np.uint32)
    return jax.tree.map(np.asarray, jax.jit(rule.draw)(records, jax.random.key(seed), rows))


def cut_words(records: dict[str, np.ndarray]) -> np.ndarray:
    return np.cumsum(records['word_starts'], axis=1)


@pytest.mark.parametrize('whole_word', [False, True])
def test_masks_are_those_of_the_offline_job_in_kind_and_number(whole_word):
    records, candidates, lengths = rows_of(rows=2500, seq_len=128)
    rule = MaskingRule(RULE.probability, RULE.max_predictions, RULE.mix, whole_word)
    offline = mask(
        records['input_ids'],
        candidates,
        lengths,
        records['word_starts'] > 0,
        rule,
        MASK,
        VOCAB,
        Stream(1, 'x'),
    )
    drawn = draw(dataclasses.replace(RULE, whole_word=whole_word), records)
    places, weights = drawn['masked_lm_positions'], drawn['masked_lm_weights'] > 0
    counts = weights.sum(1)
    row = np.arange(len(counts))[:, None]

    chosen = np.zeros_like(candidates)
    chosen[np.nonzero(weights)[0], places[weights]] = True
    # No place twice, and no special token.
    assert (chosen.sum(1) == counts).all()
    assert (chosen <= candidates).all()
    assert (np.diff(weights.astype(int), axis=1) <= 0).all()
    assert not places[~weights].any()
    assert not drawn['masked_lm_ids'][~weights].any()
    assert (np.diff(np.where(weights, places, 1000 + np.arange(20)), axis=1) > 0).all()
    restored = drawn['input_ids'].copy()
    restored[chosen] = drawn['masked_lm_ids'][weights]
    np.testing.assert_array_equal(restored, records['input_ids'])

    wanted = offline.weights.sum(1)
    if whole_word:
        assert (counts <= np.minimum(20, np.maximum(1, np.rint(lengths * 0.15)))).all()
        assert counts.mean() == pytest.approx(wanted.mean(), abs=0.03)
        word = np.where(candidates, cut_words(records), -1)
        for i in range(200):  # a word is masked as a whole or not at all
            assert set(word[i][chosen[i]]).isdisjoint(word[i][candidates[i] & ~chosen[i]])
    else:
        np.testing.assert_array_equal(counts, wanted)

    shown, labels = drawn['input_ids'][row, places][weights], drawn['masked_lm_ids'][weights]
    was_mask, was_same = shown == MASK, shown == labels
    spread = 4 * 0.4 / np.sqrt(weights.sum())
    assert was_mask.mean() == pytest.approx(0.8, abs=spread)
    assert was_same.mean() == pytest.approx(0.1 + 0.1 / VOCAB, abs=spread)
    random = shown[~was_mask & ~was_same]
    assert random.min() < 10
    assert random.max() >= VOCAB - 10
    assert random.mean() == pytest.approx(VOCAB / 2, rel=0.03)


def test_a_row_has_its_own_masks_wherever_it_lies():
    records, _, _ = rows_of(rows=8)
    key, half = jax.random.key(3), {name: x[4:] for name, x in records.items()}
    whole = draw(RULE, records, seed=3)
    part = jax.jit(RULE.draw)(half, key, jnp.arange(4, 8, dtype=jnp.uint32))
    for name, x in part.items():
        np.testing.assert_array_equal(x, whole[name][4:], err_msg=name)


def test_robertas_rule_rounds_by_chance_and_draws_no_special_word():
    """The mean number is the share itself, where BERT's rounding is off by up to one half."""
    rows, special = 6000, (0, 2, 3, MASK, 700)
    ids = np.full((rows, 32), 10, np.int32)
    ids[:, 9] = 3
    mask_of = np.arange(32) < np.where(np.arange(rows) % 2, 30, 22)[:, None]
    records = {
        'input_ids': ids,
        'input_mask': mask_of.astype(np.int32),
        'segment_ids': np.zeros_like(ids),
        'word_starts': np.zeros_like(ids),
    }
    rule = dataclasses.replace(
        RULE, max_predictions=5, separator=3, rule='roberta', special_ids=special
    )
    drawn = draw(rule, records)
    weights = drawn['masked_lm_weights'] > 0
    counts = weights.sum(1)
    # 0.15 of 22 tokens are 3.3, of 30 they are 4.5; a bound of four standard deviations.
    for length, wanted in ((22, 3.3), (30, 4.5)):
        of_length = counts[mask_of.sum(1) == length]
        assert set(of_length.tolist()) == {int(wanted), int(wanted) + 1}
        spread = 4 * 0.5 / np.sqrt(rows / 2)
        assert of_length.mean() == pytest.approx(wanted, abs=spread)

    # Not a separator in the midst of a row, and nothing special in the place of a word.
    assert not (drawn['masked_lm_positions'][weights] == 9).any()
    shown = drawn['input_ids'][np.arange(rows)[:, None], drawn['masked_lm_positions']][weights]
    random = shown[(shown != MASK) & (shown != 10)]
    assert random.size > 1500 and not np.isin(random, special).any()
    assert random.min() == 1 and random.max() == VOCAB - 1
    assert random.mean() == pytest.approx(VOCAB / 2, rel=0.05)


def pack(records: dict[str, np.ndarray], members: int) -> dict[str, np.ndarray]:
    """Rows that hold so many of the records each, one after the other."""
    rows, S = len(records['input_ids']) // members, records['input_ids'].shape[1] * members
    names = ('input_ids', 'segment_ids', 'word_starts')
    packed = {name: np.zeros((rows, S), np.int32) for name in (*names, 'pack_ids')}
    lengths = records['input_mask'].sum(1).reshape(rows, members)
    ends = np.cumsum(lengths, axis=1)
    for row in range(rows):
        for i in range(members):
            here = slice(ends[row, i] - lengths[row, i], ends[row, i])
            packed['pack_ids'][row, here] = i + 1
            for name in names:
                packed[name][row, here] = records[name][row * members + i, : lengths[row, i]]
    return packed | {'cls_positions': (ends - lengths).astype(np.int32)}


@pytest.mark.parametrize('whole_word', [False, True])
@pytest.mark.parametrize('rounding', ['bert', 'roberta'])
def test_each_example_of_a_packed_row_is_masked_as_in_a_row_of_its_own(rounding, whole_word):
    members, P = 5, 60
    records, candidates, lengths = rows_of(rows=3000, seq_len=64)
    rule = dataclasses.replace(RULE, rule=rounding, whole_word=whole_word, separator=3)
    alone = draw(dataclasses.replace(rule, max_predictions=10), records)['masked_lm_weights']
    packed = pack(records, members)
    drawn = draw(dataclasses.replace(rule, max_predictions=P), packed)
    weights, places = drawn['masked_lm_weights'] > 0, drawn['masked_lm_positions']
    masked = np.zeros(packed['input_ids'].shape, bool)
    masked[np.nonzero(weights)[0], places[weights]] = True
    assert masked.sum() == weights.sum() < P * len(weights)

    # What was masked, example by example, against the rule counted by hand.
    numbers, number = packed['pack_ids'], np.arange(1, members + 1)
    counts = ((numbers[:, :, None] == number) & masked[:, :, None]).sum(1).ravel()
    share = lengths * 0.15
    if rounding == 'bert':
        least = most = np.maximum(1, np.rint(share))
    else:
        least, most = np.floor(share), np.ceil(share)
    assert (counts <= most).all() and (whole_word or (counts >= least).all())
    spread = 5 * counts.std() / np.sqrt(counts.size)
    assert counts.mean() == pytest.approx(alone.sum(1).mean(), abs=spread)

    # Only text is masked, wherever its example lies, and words as wholes.
    flat = np.zeros_like(candidates)
    for i in range(len(flat)):
        row, slot = divmod(i, members)
        flat[i, : lengths[i]] = masked[row][numbers[row] == slot + 1]
    assert (flat <= candidates).all()
    if whole_word:
        word = np.where(candidates, cut_words(records), -1)
        for i in range(400):
            assert set(word[i][flat[i]]).isdisjoint(word[i][candidates[i] & ~flat[i]])
    # Every place of a text is as likely as any other.
    second = (records['segment_ids'] == 1) & candidates
    shares = [flat[part & candidates].mean() for part in (second, ~second)]
    assert shares[0] == pytest.approx(shares[1], abs=0.01)
    restored = drawn['input_ids'].copy()
    restored[masked] = drawn['masked_lm_ids'][weights]
    np.testing.assert_array_equal(restored, packed['input_ids'])


def test_words_do_not_reach_into_the_next_example():
    """An example may begin within a word, as texts that are cut where a row is full do."""
    ids = np.array([[CLS, 10, 11, SEP, CLS, 12, 13, 14, SEP, 0]], np.int32)
    packed = {
        'input_ids': ids,
        'segment_ids': np.zeros_like(ids),
        'word_starts': np.array([[0, 1, 0, 0, 0, 0, 0, 1, 0, 0]], np.int32),
        'pack_ids': np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]], np.int32),
        'cls_positions': np.array([[0, 4]], np.int32),
    }
    rule = dataclasses.replace(RULE, probability=0.5, whole_word=True)
    seen = set()
    for seed in range(40):
        drawn = draw(rule, packed, seed)
        seen.add(tuple(drawn['masked_lm_positions'][drawn['masked_lm_weights'] > 0].tolist()))
    # Two of four tokens of the first example, and two of five of the second, whole words alone.
    assert seen == {(1, 2, 5, 6), (1, 2, 7)}
