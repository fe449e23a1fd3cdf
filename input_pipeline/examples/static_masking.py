"""Masked language modelling: which tokens are predicted, and what replaces them.

This file owns the masking rule of google-research/bert (create_pretraining_data.py:342-415)
for many examples at once: the number of predictions, the choice of tokens, of whole words
and of runs of words, and the mix of [MASK], the same token and a random token. It must not know
documents, sentence pairs or files. N examples, S positions, P predictions a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.randomness import Stream


@dataclass(frozen=True)
class MaskingRule:
    """How tokens are masked.

    `mix` are the shares of predicted tokens that become [MASK], stay the same and become a
    random entry of the vocabulary (the columns MASK, SAME and RND of the paper's table 8).
    `ngram` above 1: runs of 1 to that many whole words, a run of n with a chance in
    proportion to 1/n (ALBERT; Lan et al. 2020, section 4.1, where it is 3).
    """

    probability: float = 0.15  # share of a row's tokens that is predicted
    max_predictions: int = 20  # P, however long the row is
    # of section 3.1 of the paper (Devlin et al. 2019)
    mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    whole_word: bool = False
    ngram: int = 1

    @property
    def by_words(self) -> bool:
        """Tell whether the tokens of a word are predicted together."""
        return self.whole_word or self.ngram > 1

    def __post_init__(self) -> None:
        # Rounded decimals such as 0.333,0.333,0.334 need not add up to the last bit.
        # A sum that is no number is not within, either.
        is_mix = len(self.mix) == 3 and min(self.mix) >= 0 and abs(sum(self.mix) - 1) <= 1e-6
        if not is_mix:
            raise UserError(
                f'--mask_mix={",".join(map(str, self.mix))}: must be three shares (mask, same,'
                ' random) that add up to 1'
            )


class Masked(NamedTuple):
    """Masked rows, their predictions filled up with zeros.

    `input_ids` [N, S]; `positions`, `ids` [N, P] int32 and `weights` [N, P] float32, zero where a
    row has fewer.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    ids: np.ndarray
    weights: np.ndarray


def prediction_counts(lengths: np.ndarray, rule: MaskingRule) -> np.ndarray:
    """Return int64 [N], predictions of rows with `lengths` tokens, [CLS] and [SEP] counted (:369).

    Rounds half to even, as Python 3.
    """
    # At least one, or a short row would train nothing (:369-370).
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
    """Mask each row of `ids` [N, S] by itself.

    `candidates` [N, S] bool: positions that may be predicted (no [CLS], [SEP], padding);
    `lengths` [N]: tokens of each row; `word_starts` [N, S] bool: candidates that begin a
    word, needed for `rule.by_words` only. A row with fewer candidates than predictions
    has all of them predicted. Random tokens come from the whole vocabulary, special
    entries included (:408).
    """
    # 1. Which places: all random choices of a row come from the stream before those of what is
    # there, in this order, or the records of a seed become others.
    counts = prediction_counts(lengths, rule)
    if rule.by_words:
        assert word_starts is not None, 'the caller gives them where whole words are masked'
        positions = _choose_words(candidates, word_starts, counts, rule.ngram, stream)
    else:
        positions = _choose_tokens(candidates, counts, rule.max_predictions, stream)
    rows, length = ids.shape
    positions = _sort_and_pad(positions, rule.max_predictions, length)

    # 2. What is to be predicted there: the originals, zeros where a row has fewer predictions.
    chosen = positions < length
    positions[~chosen] = 0
    row = np.arange(rows)[:, None]
    labels = ids[row, positions]
    labels[~chosen] = 0

    # 3. What is there instead. One draw a place: its upper half says which of the three kinds,
    # its lower half which random token.
    draw = stream.bits(positions.size).reshape(positions.shape)
    kind = (draw >> np.uint64(32)) * 2.0**-32
    low_half = draw & np.uint64(0xFFFFFFFF)
    random_ids = ((low_half * np.uint64(vocab_size)) >> np.uint64(32)).astype(ids.dtype)

    # The unit interval is cut in three: mask, same, random.
    share_mask, share_same, _ = rule.mix
    replacement = np.where(
        kind < share_mask,
        ids.dtype.type(mask_id),
        np.where(kind < share_mask + share_same, labels, random_ids),
    )

    # Written by flat places: the places of empty predictions are left out, or they would all be 0.
    masked = ids.copy()
    flat = (row * length + positions)[chosen]
    masked.reshape(-1)[flat] = replacement[chosen]
    return Masked(masked, positions, labels, chosen.astype(np.float32))


def _sort_and_pad(positions: np.ndarray, limit: int, length: int) -> np.ndarray:
    """Return [N, P] of positions [N, ?], as google-research/bert writes them, then S."""
    positions.sort(axis=1)
    missing = max(0, limit - positions.shape[1])
    return np.pad(positions[:, :limit], ((0, 0), (0, missing)), constant_values=length)


def _choose_tokens(
    candidates: np.ndarray, counts: np.ndarray, limit: int, stream: Stream
) -> np.ndarray:
    """Return int32 [N, P at most]: `counts` random candidates of each row, and S.

    The positions with the smallest random keys of a row are the choice.
    """
    # The P smallest keys of each row. A partition first: P is a tenth of S, and only those are
    # sorted.
    length = candidates.shape[1]
    keys, place_bits = _draw_keys(candidates, stream)
    if limit < length:
        keys = np.partition(keys, limit - 1, axis=1)[:, :limit]
    keys.sort(axis=1)

    # From a key back to its place; ranks from the row's own count on are no choice. There may be
    # fewer candidates than predictions: then not all keys are real, and the rest is S as well.
    positions = (keys & place_bits).astype(np.int32)
    ranks = np.arange(keys.shape[1])
    positions[ranks >= np.minimum(counts, candidates.sum(axis=1))[:, None]] = length
    return positions


def _draw_keys(eligible: np.ndarray, stream: Stream) -> tuple[np.ndarray, np.uint32]:
    """Return uint32 [N, S], random but for the low bits, which are the place, and their mask.

    The largest key is where not `eligible`. Keys of a row differ, so their order does not
    depend on how a machine sorts or partitions.
    """
    # Room for a place in the low bits, randomness above: 25 bits at 128 places.
    rows, length = eligible.shape
    place_bits = np.uint32((1 << (length - 1).bit_length()) - 1)
    keys = stream.bits32(rows * length).reshape(rows, length) & ~place_bits
    keys |= np.arange(length, dtype=np.uint32)
    keys[~eligible] = np.uint32(0xFFFFFFFF)
    return keys, place_bits


def _choose_words(
    candidates: np.ndarray,
    word_starts: np.ndarray,
    counts: np.ndarray,
    longest: int,
    stream: Stream,
) -> np.ndarray:
    """Return int32 [N, S]: tokens of random runs of up to `longest` whole words that fit, and S.

    A single word that does not fit is skipped (:379-391). A longer run is shortened until it
    fits, is skipped where it meets a chosen word, and stays within its segment. All rows go
    through their words in step: rank by rank, with the rows that still want some.
    """
    # Words numbered within their row, with their sizes, so that a run of words is a subtraction.
    rows, length = candidates.shape
    row = np.arange(rows)[:, None]
    starts = word_starts & candidates
    words = starts.sum(axis=1)
    word = np.cumsum(starts, axis=1) - 1  # the word each token belongs to
    word[~candidates] = length - 1  # one that no run reaches; cut off at the end
    flat_word = (row * length + word)[candidates]
    tokens_of = np.bincount(flat_word, minlength=rows * length).reshape(rows, length)
    # tokens before each word
    before = np.zeros((rows, length + 1), np.int64)
    np.cumsum(tokens_of, axis=1, out=before[:, 1:])

    # The words of each row in random order, and how long a run from each is to be. Slots beyond a
    # row's words have the largest key and sort behind them.
    keys, place_bits = _draw_keys(np.arange(length) < words[:, None], stream)
    keys.sort(axis=1)
    order = np.minimum(keys & place_bits, np.uint32(length - 1))
    runs = np.ones((rows, length), np.int64)
    if longest > 1:
        runs = _draw_run_lengths(candidates, starts, word, longest, stream)

    chosen = _take_runs(order, runs, words, before, counts.copy(), longest)

    # From words back to tokens.
    tokens = np.take_along_axis(chosen, word, axis=1) & candidates
    return np.where(tokens, np.arange(length, dtype=np.int32), np.int32(length))


def _take_runs(
    order: np.ndarray,
    runs: np.ndarray,
    words: np.ndarray,
    before: np.ndarray,
    budget: np.ndarray,
    longest: int,
) -> np.ndarray:
    """Return bool [N, words + longest]: the words that are taken while they fit.

    Args:
      order: [N, S], the words of each row in the order in which they are tried.
      runs: [N, S], how long a run from each word is to be.
      words: [N], how many words a row has.
      before: [N, S + 1], tokens before each word.
      budget: [N], predictions of each row; it is used up.
      longest: words of the longest run.
    """
    # Rank by rank: the next word of every row that still has predictions to give away.
    rows, length = order.shape
    # words; none is beyond the last place of a row
    chosen = np.zeros((rows, length + longest), bool)
    active = np.arange(rows)
    for rank in range(length):
        active = active[(budget[active] > 0) & (rank < words[active])]
        if not active.size:
            break

        # The word of this rank in each active row, and how long its run is to be.
        first = order[active, rank]
        run = runs[active, first]

        # Shorter while it is too long; then taken if it fits and meets no chosen word.
        room, start = budget[active], before[active, first]
        for _ in range(longest - 1):
            run -= (run > 1) & (before[active, first + run] - start > room)

        # A single word that does not fit is skipped, and so is a run that meets a chosen word.
        size = before[active, first + run] - start
        fits = size <= room
        for i in range(longest):
            fits &= (i >= run) | ~chosen[active, first + i]

        # Taken: the words are marked, and their tokens leave the row's budget.
        budget[active] -= size * fits
        for i in range(longest):
            taken = fits & (i < run)
            chosen[active[taken], first[taken] + i] = True
    return chosen


def _draw_run_lengths(
    candidates: np.ndarray, starts: np.ndarray, word: np.ndarray, longest: int, stream: Stream
) -> np.ndarray:
    """Return int64 [N, S], how many words a run from each word has, within its segment.

    1 to `longest`, n with a chance like 1/n.
    """
    rows, length = candidates.shape

    # The words that follow another word of their segment: those where no [SEP] is between, so
    # that the place before is a candidate.
    continues = np.zeros((rows, length + longest), bool)
    row, before = np.nonzero(starts[:, 1:] & candidates[:, :-1])
    continues[row, word[row, before + 1]] = True

    # How many words could follow, up to `longest`.
    reach = np.ones((rows, length), np.int64)
    goes_on = np.ones((rows, length), bool)
    for i in range(1, longest):
        goes_on &= continues[:, i : i + length]
        reach += goes_on

    # 1, 1/2, 1/3, ... summed: a draw of [0, sum) falls into the share of its length. Scaled to the
    # reach, so that the chances of lengths that do not fit are shared out in proportion.
    shares = np.cumsum(1 / np.arange(1, longest + 1))
    draw = (stream.bits32(rows * length) * 2.0**-32).reshape(rows, length) * shares[reach - 1]
    return 1 + np.searchsorted(shares[:-1], draw, 'right')
