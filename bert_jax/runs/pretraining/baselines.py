"""What guessing without a model scores on held-out records: the yardstick of every result.

Owns the unigram baseline for masked tokens and the majority baseline for next sentence
prediction, both counted from the records themselves. It must not know any model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

# Records that are read at once; it changes no number, but how `examples` is rounded up.
_BATCH = 2048
_TRAIN_EXAMPLES = 50_000  # a second or two of reading


@dataclasses.dataclass(frozen=True)
class Baselines:
    """Scores on the held-out records; losses in nats, accuracies as fractions.

    unigram_nll, unigram_accuracy: each masked token predicted from the frequencies of tokens
    in the training records (one added to each count). nsp_accuracy, nsp_nll: always the more
    frequent label, and its entropy. masked, examples: what the scores were taken over.
    """

    unigram_nll: float
    unigram_accuracy: float
    nsp_nll: float
    nsp_accuracy: float
    masked: int
    examples: int

    def by_metric(self, nsp: bool) -> dict[str, float]:
        """Return the scores by the names of metrics.jsonl; `nsp`: whether there are pairs."""
        tokens = {'mlm_loss': self.unigram_nll, 'mlm_accuracy': self.unigram_accuracy}
        if not nsp:
            return {**tokens, 'loss': self.unigram_nll}
        pairs = {'nsp_loss': self.nsp_nll, 'nsp_accuracy': self.nsp_accuracy}
        return {**tokens, **pairs, 'loss': self.unigram_nll + self.nsp_nll}


def count_baselines(
    directory: str, examples: int = 0, train_examples: int = 0, tokenizer: Tokenizer | None = None
) -> Baselines:
    """Count the baselines over the first `examples` held-out records of each language.

    Frequencies are those of the first `train_examples` training records, which are a sample of all
    because records lie in the order of a hash. 0 means all records, in both. `tokenizer` is theirs,
    where it is read already.
    """
    # One is added to each count: a token never seen in training costs much, and not infinity.
    tokenizer = tokenizer or Tokenizer.load(f'{directory}/tokenizer')
    counts = count_tokens(directory, tokenizer, train_examples)
    log_p = np.log(counts + 1) - np.log(counts.sum() + len(counts))

    # Held-out records are masked once, at writing, so every model is asked for the same tokens; -1
    # marks places of a row that hold no mask.
    masked_ids, labels = [], []
    held_out = RecordStream(directory, 'eval', _BATCH, 0)
    for language in held_out.languages:
        left = examples or held_out.records
        for batch in held_out.evaluation(-(-examples // _BATCH), language):
            # Evaluation fills its last batch with rows of weight 0; no more than `examples` count.
            real = np.flatnonzero(batch['example_weights'] > 0)[:left]
            left -= real.size
            labels.append(batch['next_sentence_labels'][real])
            ids_or_none = np.where(batch['masked_lm_weights'] > 0, batch['masked_lm_ids'], -1)
            masked_ids.append(ids_or_none[real])

    # Only then down to the places with a mask.
    ids, label = np.concatenate(masked_ids), np.concatenate(labels)
    ids = ids[ids >= 0]

    # The best constant answer: its accuracy is the commoner label's share, and its loss, where it
    # gives that share as a probability, the entropy.
    share = label.mean()
    return Baselines(
        unigram_nll=float(-log_p[ids].mean()),
        unigram_accuracy=float((ids == counts.argmax()).mean()),
        nsp_nll=measure_entropy(share),
        nsp_accuracy=float(max(share, 1 - share)),
        masked=int(ids.size),
        examples=int(label.size),
    )


def measure_entropy(share: float) -> float:
    """Return what the best constant answer loses, in nats, where a share has one of two labels."""
    return float(-sum(p * np.log(p) for p in (share, 1 - share) if p > 0))


def log_baselines(directory: str, examples: int, tokenizer: Tokenizer, nsp: bool) -> Baselines:
    """Count and log the baselines over the first `examples` held-out records (0: all).

    Frequencies are of enough training records to settle the third digit. `nsp`: whether pairs are
    distinguished.
    """
    # As many held-out records as an evaluation reads, or the two would not compare.
    guess = count_baselines(directory, examples, _TRAIN_EXAMPLES, tokenizer)
    pairs = (
        f'; most frequent label nsp_accuracy {guess.nsp_accuracy:.3f}, nsp_loss {guess.nsp_nll:.3f}'
    )
    logging.info(
        f'held out, guessing: unigram mlm_loss {guess.unigram_nll:.3f} (perplexity'
        f' {math.exp(guess.unigram_nll):.0f}), mlm_accuracy {guess.unigram_accuracy:.3f}'
        f'{pairs if nsp else ""}'
    )
    return guess


def compare_with_guessing(lines: Sequence[Mapping[str, Any]]) -> str | None:
    """Say how the last evaluation of a run compares with guessing, in a sentence.

    Args:
      lines: those of the run's metrics.jsonl.

    Returns:
      None where no evaluation was compared with guessing. For a run below guessing it says how many
      more steps that takes at the pace of the last two evaluations: a lower bound, for the pace of
      learning falls.
    """
    detected = [line for line in lines if line.get('rtd_nats_gained') is not None]
    if detected:
        gained, loss = detected[-1]['rtd_nats_gained'], detected[-1]['rtd_loss']
        figures = f'(held-out rtd_loss {loss:.3f}, guessing {loss + gained:.3f})'
        if gained > 0:
            return f'{gained:.3f} nats better than guessing by the share replaced {figures}'
        return f'no better than guessing by the share replaced {figures}: train longer'
    compared = [line for line in lines if line.get('nats_gained') is not None]
    if not compared:
        return None
    last = compared[-1]
    gained, loss = last['nats_gained'], last['mlm_loss']
    figures = f'(held-out mlm_loss {loss:.2f}, guessing {loss + gained:.2f})'
    if gained > 0:
        return f'{gained:.2f} nats better than guessing by word frequencies {figures}'

    advice = 'train longer'
    before = [line for line in compared if line['step'] < last['step']]
    if before and gained > before[-1]['nats_gained']:
        pace = (gained - before[-1]['nats_gained']) / (last['step'] - before[-1]['step'])
        steps = float(f'{-gained / pace:.1g}')
        advice += f', by about {steps:,.0f} steps at least'
    return f'no better than guessing by word frequencies {figures}: {advice}'


def count_tokens(directory: str, tokenizer: Tokenizer, examples: int = 0) -> np.ndarray:
    """Count how often each id [V] is in the training records, special tokens not counted.

    Masked places count as what they hid. The first `examples` records, rounded up to whole batches
    of 2,048; 0: all.
    """
    # Put the hidden tokens back first: counted as they stand, [MASK] would be the most frequent.
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    stream = RecordStream(directory, 'train', _BATCH, 0)
    for batch in stream.evaluation(-(-examples // _BATCH)):
        ids = batch['input_ids'].copy()
        if 'masked_lm_weights' in batch:  # else the train step masks
            rows, places = np.nonzero(batch['masked_lm_weights'])
            positions = batch['masked_lm_positions'][rows, places]
            ids[rows, positions] = batch['masked_lm_ids'][rows, places]

        # Not padding, and not the rows that fill up the last batch.
        tokens = batch['pack_ids' if 'pack_ids' in batch else 'input_mask'] > 0
        is_record = batch['example_weights'] > 0
        of_records = ids[tokens & is_record[:, None]]
        # Of whole words those that are known and in no list are beyond, and never an answer.
        of_entries = np.bincount(of_records, minlength=tokenizer.vocab_size)
        counts += of_entries[: tokenizer.vocab_size]

    # Special tokens are never masked, so to guess them would be a waste.
    counts[[tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]] = 0
    return counts * tokenizer.listed(np.arange(len(counts)))
