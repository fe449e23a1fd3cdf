"""Masks drawn inside the train step, so that no two passes over a record predict the same tokens.

Owns the rule of input_pipeline/examples/static_masking.py (google-research/bert
create_pretraining_data.py:342-415) for rows that lie on the device: how many tokens, which, and
what replaces them. Each example of a packed row is masked as in a row of its own. Bits come from
(key, global row, example) alone, so a row has the same masks on any mesh and after any restart.
Knows nothing of models, steps or seeds.

Dims: B rows, S positions, P predictions a row, K examples a row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.train.losses.objective import Batch

# The first takes the longest prefix of words that fits, two more fill what is left: 19.0 tokens a
# row at S=128, where the first alone takes 18.2.
_ROUNDS = 3


@dataclass(frozen=True)
class DynamicMasking:
    """The rule of masking: how many tokens of an example, which ones, and what replaces them.

    Attributes:
      probability: share of an example's tokens that are predicted.
      max_predictions: the most tokens that are predicted, of an example and of a row. Packing
        leaves room for the most that the rule may draw of all examples of a row.
      mix: the shares of predicted tokens that become [MASK], stay, and become a random entry of
        the vocabulary.
      whole_word: whether words are masked whole.
      mask_id: the id of [MASK].
      vocab_size: random entries are below it.
      separator: an id that is never predicted, even inside a row.
      rule: 'bert' rounds the number of predictions; 'roberta' rounds it up with the chance of its
        fraction, and never draws special_ids (fairseq data/mask_tokens_dataset.py;
        max_predictions must leave room for all).
      special_ids: the ids that 'roberta' never draws.
    """

    probability: float
    max_predictions: int
    mix: tuple[float, ...]
    whole_word: bool
    mask_id: int
    vocab_size: int
    separator: int | None = None
    rule: Literal['bert', 'roberta'] = 'bert'
    special_ids: tuple[int, ...] = ()

    def draw(self, batch: Batch, key: jax.Array, rows_B: jax.Array) -> dict[str, jax.Array]:
        """Mask a batch: return new input_ids, and masked_lm_positions, _ids and _weights [B, P].

        Args:
          batch: unmasked input_ids, segment_ids, word_starts and input_mask [B, S]; of packed rows
            pack_ids in place of the last. The result has all but word_starts.
          key: the key of the step.
          rows_B: the numbers of the rows in the global batch.
        """
        read = {name: batch[name] for name in ('input_ids', 'segment_ids', 'word_starts')}
        if 'pack_ids' in batch:
            read['pack_ids'], K = batch['pack_ids'], batch['cls_positions'].shape[1]
        else:
            read['pack_ids'], K = batch['input_mask'], 1
        draw_row = functools.partial(self._draw_row, K)
        masked = jax.vmap(draw_row, in_axes=(None, 0, 0))(key, rows_B, read)
        return {name: batch[name] for name in batch if name != 'word_starts'} | masked

    def _draw_row(
        self, K: int, key: jax.Array, row: jax.Array, read: Batch
    ) -> dict[str, jax.Array]:
        ids_S, pack_S = read['input_ids'], read['pack_ids']
        S = ids_S.shape[0]
        P = min(self.max_predictions, S)

        # All bits of the row at once: S scores of words, P draws of what is shown, P random words.
        row_key = jax.random.fold_in(key, row)
        bits = jax.random.bits(row_key, (S + 2 * P,), jnp.uint32)
        candidates_S = mark_text(pack_S, read['segment_ids'])
        if self.separator is not None:
            candidates_S &= ids_S != self.separator
        # Without --whole_word every token of text is a word of its own.
        starts_S = candidates_S
        if self.whole_word:
            starts_S = candidates_S & (read['word_starts'] > 0)
        lengths_K = jnp.sum(pack_S[None] == jnp.arange(1, K + 1)[:, None], axis=1)
        counts_K = self._count(row_key, lengths_K, S, P)
        chosen_S = choose_words(bits[:S], candidates_S, starts_S, pack_S, counts_K)

        # The chosen positions, first to last: each is known by its distance from the end, of which
        # top_k gives the largest first. It also makes the number static, which a boolean index
        # could not; 0 fills up rows with fewer.
        from_end_P, _ = jax.lax.top_k(jnp.where(chosen_S, S - jnp.arange(S), 0), P)
        is_real_P = from_end_P > 0
        positions_P = jnp.where(is_real_P, S - from_end_P, 0)
        labels_P = jnp.where(is_real_P, ids_S[positions_P], 0)
        random_P = self._random_ids(bits[S + P :]).astype(ids_S.dtype)
        shown_P = self._choose_shown(bits[S : S + P], labels_P, random_P)
        return {
            # Unused places of P write to S, one past the end, which mode='drop' leaves out.
            'input_ids': ids_S.at[jnp.where(is_real_P, positions_P, S)].set(shown_P, mode='drop'),
            'masked_lm_positions': positions_P,
            'masked_lm_ids': labels_P,
            'masked_lm_weights': is_real_P.astype(jnp.float32),
        }

    def _choose_shown(
        self, bits_P: jax.Array, labels_P: jax.Array, random_P: jax.Array
    ) -> jax.Array:
        """Return what stands in place of each predicted token: [MASK], itself or a random one."""
        # The upper 24 bits as a float in [0, 1): all that a float32 holds exactly.
        draw_P = (bits_P >> 8).astype(jnp.float32) * 2.0**-24
        share_mask, share_same, _ = self.mix
        same_or_random_P = jnp.where(draw_P < share_mask + share_same, labels_P, random_P)
        return jnp.where(draw_P < share_mask, self.mask_id, same_or_random_P)

    def _count(self, key: jax.Array, lengths_K: jax.Array, S: int, P: int) -> jax.Array:
        """Return the predicted tokens of examples of such lengths; S and P bound both."""
        # By float64 on the host and not by float32 here: a product of 4.5 must round as the offline
        # job rounds it.
        wanted = np.arange(S + 1) * self.probability
        if self.rule == 'bert':
            return jnp.asarray(np.clip(np.rint(wanted), 1, P).astype(np.int32))[lengths_K]
        # Another key than that of the row's other bits.
        chance_K = jax.random.uniform(jax.random.fold_in(key, 1), lengths_K.shape)
        up_K = chance_K < jnp.asarray((wanted % 1).astype(np.float32))[lengths_K]
        return jnp.asarray(wanted.astype(np.int32))[lengths_K] + up_K.astype(jnp.int32)

    def _random_ids(self, bits_P: jax.Array) -> jax.Array:
        """Return P entries of the vocabulary, uint32, each as likely as any other."""
        if self.rule == 'bert':
            return bits_P % jnp.uint32(self.vocab_size)
        # Of the others, counted without the special ones: each of these moves what is behind it on.
        special = sorted(self.special_ids)
        ids_P = bits_P % jnp.uint32(self.vocab_size - len(special))
        for special_id in special:
            ids_P += (ids_P >= special_id).astype(jnp.uint32)
        return ids_P


def mark_text(pack_S: jax.Array, segment_S: jax.Array) -> jax.Array:
    """Return bool [S], true at text: not at [CLS] (first), [SEP] (a segment's last), padding.

    Args:
      pack_S: the example that each token is of, from 1; 0 for padding.
      segment_S: its segment in the example, 0 or 1.
    """
    # Where the next number differs a segment ends, with its [SEP].
    number_S = jnp.where(pack_S > 0, 2 * pack_S + segment_S, 0)
    following_S = jnp.append(number_S[1:], 0)
    return (number_S > 0) & (number_S == following_S) & ~_begins(pack_S)


def choose_words(
    bits_S: jax.Array,
    candidates_S: jax.Array,
    starts_S: jax.Array,
    pack_S: jax.Array,
    counts_K: jax.Array,
) -> jax.Array:
    """Choose random whole words of each example; return their tokens as bool [S].

    Words begin at starts_S and run over the candidates of their example that follow. Each has the
    score of its start, of random bits_S; in order of scores each round takes the longest run of
    words that fits, of those that fit by themselves. A word that does not fit is passed over.

    Args:
      bits_S: uint32 random bits.
      candidates_S: where a token may be predicted.
      starts_S: candidates that begin a word.
      pack_S: the example that each token is of, from 1; 0 for padding.
      counts_K: the most tokens of each example.
    """
    S, K = bits_S.shape[0], counts_K.shape[0]
    position_S = jnp.arange(S)
    # Where each token's word begins: the nearest start to its left, in its example.
    start_S = jax.lax.cummax(jnp.where(starts_S | _begins(pack_S), position_S, 0))
    # Example by example in order of scores, the tokens of a word side by side; what is no candidate
    # comes last. The example is in the upper bits of the score.
    shift = (K - 1).bit_length()
    example_S = (pack_S - 1).astype(jnp.uint32)
    score_S = example_S << (31 - shift) | bits_S[start_S] >> (1 + shift)
    score_S = jnp.where(candidates_S, score_S, jnp.uint32(1 << 31))
    _, word, order = jax.lax.sort(
        (score_S, jnp.where(candidates_S, start_S, S), position_S), num_keys=3
    )
    # Index of the first and the last token of each token's word, and of its example's candidates.
    free = word < S
    example = jnp.where(free, pack_S[order] - 1, K)
    first, last = _bounds(word)
    begin, end = _bounds(example)
    size = last - first + 1
    counts = jnp.append(counts_K, 0)[example]
    taken = jnp.zeros(S, bool)
    for _ in range(_ROUNDS):
        # Only words that fit into the room of this round take part; of those the run from the best
        # score on whose last token still fits. Sums run from the example's begin; at a word's last
        # token they count the word whole.
        sums = jnp.cumsum(taken)
        room = counts - (sums[end] - sums[begin] + taken[begin])
        fits = free & ~taken & (size <= room)
        sums = jnp.cumsum(fits)
        taken |= fits & (sums[last] - sums[begin] + fits[begin] <= room)
    return jnp.zeros(S, bool).at[order].set(taken)


def _begins(number_S: jax.Array) -> jax.Array:
    """Return bool [S], true where another number stands than before."""
    return jnp.append(True, number_S[1:] != number_S[:-1])


def _bounds(number_S: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the index of the first and the last of the equal neighbours of each number."""
    position_S = jnp.arange(number_S.shape[0])
    begins_S = _begins(number_S)
    ends_S = jnp.append(begins_S[1:], True)
    first_S = jax.lax.cummax(jnp.where(begins_S, position_S, 0))
    last_S = jax.lax.cummin(jnp.where(ends_S, position_S, number_S.shape[0]), reverse=True)
    return first_S, last_S
