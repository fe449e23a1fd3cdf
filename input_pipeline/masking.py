"""Masked language modelling: which tokens are predicted, and what stands in their place.

This file owns the masking rule of google-research/bert (create_pretraining_data.py:342-415)
for many examples at once: the number of predictions, single-token and whole-word choice,
and the mix of [MASK], the same token and a random token. It must not know documents,
sentence pairs or files. N examples, S positions, P predictions a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from configs.errors import UserError
from input_pipeline.randomness import Stream


@dataclass(frozen=True)
class MaskingRule:
    """How tokens are masked.

    `mix` are the shares of predicted tokens that become [MASK], stay the same and become a
    random entry of the vocabulary (the columns MASK, SAME and RND of the paper's table 8).
    """

    probability: float = 0.15
    max_predictions: int = 20
    mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    whole_word: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise UserError(f'--masked_lm_prob={self.probability}: must be more than 0 and at most 1')
        if self.max_predictions < 1:
            raise UserError(f'--max_predictions={self.max_predictions}: must be 1 or more')
        if len(self.mix) != 3 or min(self.mix) < 0 or abs(sum(self.mix) - 1) > 1e-6:
            raise UserError(f'--mask_mix={",".join(map(str, self.mix))}: must be three shares (mask, same, random) that add up to 1')


@dataclass(frozen=True)
class Masked:
    """Masked rows: `input_ids` [N, S]; `positions`, `ids` [N, P] int32 and `weights` [N, P] float32, zero where a row has fewer."""

    input_ids: np.ndarray
    positions: np.ndarray
    ids: np.ndarray
    weights: np.ndarray


def prediction_counts(lengths: np.ndarray, rule: MaskingRule) -> np.ndarray:
    """int64 [N]: predictions of rows with `lengths` tokens, [CLS] and [SEP] counted (:369; rounds half to even, as Python 3)."""
    wanted = np.rint(lengths * rule.probability).astype(np.int64)
    return np.minimum(rule.max_predictions, np.maximum(1, wanted))


def mask(
    ids: np.ndarray,
    candidates: np.ndarray,
    lengths: np.ndarray,
    word_starts: np.ndarray | None,
    rule: MaskingRule,
    mask_id: int,
    vocab_size: int,
    stream: Stream,
) -> Masked:
    """Masks each row of `ids` [N, S] on its own.

    `candidates` [N, S] bool: positions that may be predicted (no [CLS], [SEP], padding);
    `lengths` [N]: tokens of each row; `word_starts` [N, S] bool: candidates that begin a
    word, needed for `rule.whole_word` only. A row with fewer candidates than predictions
    has all of them predicted. Random tokens come from the whole vocabulary, special
    entries included (:408).
    """
    counts = prediction_counts(lengths, rule)
    if rule.whole_word:
        positions = _positions_of(_choose_words(candidates, word_starts, counts, stream), rule.max_predictions)
    else:
        positions = _choose_tokens(candidates, counts, rule.max_predictions, stream)
    rows, length = ids.shape
    chosen = positions < length
    positions[~chosen] = 0
    row = np.arange(rows)[:, None]
    labels = ids[row, positions]
    labels[~chosen] = 0

    draw = stream.bits(positions.size).reshape(positions.shape)
    kind = (draw >> np.uint64(32)) * 2.0**-32
    random_ids = (((draw & np.uint64(0xFFFFFFFF)) * np.uint64(vocab_size)) >> np.uint64(32)).astype(ids.dtype)
    share_mask, share_same, _ = rule.mix
    replacement = np.where(kind < share_mask, ids.dtype.type(mask_id), np.where(kind < share_mask + share_same, labels, random_ids))
    masked = ids.copy()
    flat = (row * length + positions)[chosen]
    masked.reshape(-1)[flat] = replacement[chosen]
    return Masked(masked, positions, labels, chosen.astype(np.float32))


def _choose_tokens(candidates: np.ndarray, counts: np.ndarray, most: int, stream: Stream) -> np.ndarray:
    """int32 [N, P] ascending: `counts` random candidates of each row, then S where there are fewer.

    Each position gets a random key whose low bits are the position itself; the smallest
    keys of a row are the choice. Keys differ, so the choice does not depend on how a
    machine partitions.
    """
    rows, length = candidates.shape
    position_bits = np.uint32((1 << (length - 1).bit_length()) - 1)
    keys = stream.bits32(rows * length).reshape(rows, length) & ~position_bits
    keys |= np.arange(length, dtype=np.uint32)
    keys[~candidates] = np.uint32(0xFFFFFFFF)
    if most < length:
        keys = np.partition(keys, most - 1, axis=1)[:, :most]
    keys.sort(axis=1)
    positions = (keys & position_bits).astype(np.int32)
    ranks = np.arange(keys.shape[1])
    positions[ranks >= np.minimum(counts, candidates.sum(axis=1))[:, None]] = length
    positions.sort(axis=1)
    if most > length:
        positions = np.pad(positions, ((0, 0), (0, most - length)), constant_values=length)
    return positions


def _choose_words(candidates: np.ndarray, word_starts: np.ndarray, counts: np.ndarray, stream: Stream) -> np.ndarray:
    """bool [N, S]: tokens of whole words, in random order while they fit; a word that does not is skipped (:379-391).

    All rows go through their words in step: rank by rank, so the loop is as long as the
    longest row and each turn is one operation over all rows.
    """
    rows, length = candidates.shape
    row = np.arange(rows)[:, None]
    word = np.cumsum(word_starts & candidates, axis=1) - 1  # the word each token belongs to
    word[~candidates] = length - 1
    inside = np.flatnonzero(candidates)
    flat_word = (row * length + word).reshape(-1)[inside]
    sizes = np.bincount(flat_word, minlength=rows * length).reshape(rows, length)
    words = word_starts & candidates
    word_bits = np.uint64((1 << (length - 1).bit_length()) - 1)
    keys = stream.bits(rows * length).reshape(rows, length) & ~word_bits
    keys |= np.arange(length, dtype=np.uint64)
    keys[np.arange(length) >= words.sum(axis=1)[:, None]] = np.uint64(0xFFFFFFFFFFFFFFFF)
    keys.sort(axis=1)
    order = (keys & word_bits).astype(np.int64).clip(max=length - 1)
    sizes_in_order = np.take_along_axis(sizes, order, axis=1)
    sizes_in_order[np.arange(length) >= words.sum(axis=1)[:, None]] = length + 1  # no word: never fits
    left = counts.copy()
    taken = np.zeros((rows, length), bool)
    for rank in range(length):
        size = sizes_in_order[:, rank]
        fits = size <= left
        left -= np.where(fits, size, 0)
        taken[:, rank] = fits
        if not left.any():
            break
    chosen_words = np.zeros((rows, length), bool)
    np.put_along_axis(chosen_words, order, taken, axis=1)
    return np.take_along_axis(chosen_words, word, axis=1) & candidates


def _positions_of(chosen: np.ndarray, most: int) -> np.ndarray:
    """int32 [N, P] ascending: where `chosen` [N, S] is True, then S."""
    rows, length = chosen.shape
    row, position = np.nonzero(chosen)
    counts = chosen.sum(axis=1)
    rank = np.arange(row.size) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = np.full((rows, most), length, np.int32)
    positions[row, rank] = position
    return positions
