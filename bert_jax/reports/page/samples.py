"""Held-out text with a word hidden, and what a pre-training run fills in before and after training.

Owns which words are hidden: in each of the first held-out records the longest masked token that is
a whole word, since short ones are mostly such as `the`. It must not
know how a model answers (bert_jax/inference/bert.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.reports.page.runs import Run

# Word pieces on either side of the hidden one: a text that is read at a glance.
_AROUND = 24
# Records that are looked at for a word, and the letters of one that tells something.
_LOOKED_AT, _SHORT = 8, 4


class Hidden(NamedTuple):
    """A text in which one word is hidden, cut at the word: `before`, `word`, `after`."""

    before: str
    word: str
    after: str


class Sample(NamedTuple):
    """A hidden word, and the likeliest (word, probability) at the start of the run and now."""

    hidden: Hidden
    first: list[tuple[str, float]]
    now: list[tuple[str, float]]


class Samples(NamedTuple):
    """What a run fills in; began: what its first weights were, in words; step: of its newest."""

    began: str
    step: int
    samples: list[Sample]


def fill_samples(run: Run, count: int, top: int = 3) -> Samples:
    """Return hidden words of the run's held-out records, each with its `top` best answers.

    Raises:
      UserError: the run has no checkpoint yet, its records are gone or hold nothing out, or its
        model has no head for masked words.
    """
    from bert_jax.inference.bert import MASK, MaskFiller
    from bert_jax.runs.sources.source import read_source

    # What is cheap to refuse first: to read a model takes a while.
    assert isinstance(run.config, schema.PretrainConfig), 'only pre-training has held-out records'
    if not run.workdir.newest_step():
        raise UserError('no checkpoint yet')
    if not run.records:
        raise UserError('the run has not noted where its held-out records are')
    words = find_hidden_words(run.records, run.workdir.tokenizer())
    texts = list(itertools.islice(words, _LOOKED_AT * count))
    # In their order, but words such as `the` behind all others: everything guesses those.
    texts.sort(key=lambda text: text.word.isascii() and len(text.word) < _SHORT)
    texts = texts[:count]
    if not texts:
        raise UserError(f'no whole word is masked in the held-out records of {run.records}')

    # The same model twice, with its first weights and with its newest.
    now = read_source(run.workdir.name)
    params, began = _first_weights(run.config, now.tokenizer, run.data)
    # At first nothing is added to the model, whatever the tuning of the run is.
    first = now._replace(bert=now.bert._replace(params=params, config=run.config.model))
    fill_first, fill_now = MaskFiller(first, top, 'float32'), MaskFiller(now, top, 'float32')
    filled = []
    for text in texts:
        answers = []
        for fill in (fill_first, fill_now):
            (best,) = fill(f'{text.before}{MASK}{text.after}')['masks']
            answers.append([(word['token'], word['probability']) for word in best])
        filled.append(Sample(text, *answers))
    return Samples(began, now.step, filled)


def _first_weights(
    config: schema.PretrainConfig, tokenizer: Tokenizer, data: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return the weights that a run began with, made or read again, and what they are in words."""
    from bert_jax.runs.sources import fitting

    init_from, init_by = data.get('init_from'), data.get('init_by', 'weights')
    begun = fitting.is_word_network(init_from)
    if init_from and not begun:
        source = fitting.read_for_pretraining(
            init_from, tokenizer, config.model, config.seed, init_by=init_by
        )
        return source.params, f'the weights of {source.where}'

    import jax

    from bert_jax.model.heads import Pretraining
    from bert_jax.runs.workdir import word_vectors
    from bert_jax.train.state import init_params

    # A function of the seed alone, so that they are those of the run's step 0.
    make = jax.jit(lambda seed: init_params(Pretraining(config.model), seed))
    fresh, began = make(np.uint32(config.seed)), f'fresh weights of seed {config.seed}'
    if begun:
        fresh = fitting.put_network_into(fresh, str(init_from))
        began += f' around the network of words of {init_from}'
    fresh = word_vectors.filled_in(jax.device_get(fresh), config.model, tokenizer)
    return fresh, f'{began}, as at step 0'


def find_hidden_words(records: str, tokenizer: Tokenizer) -> Iterator[Hidden]:
    """Yield a hidden word of each held-out record that has a whole one, in their order."""
    from bert_jax.input_pipeline.records.shards import Manifest
    from bert_jax.input_pipeline.records.stream import RecordStream

    manifest = Manifest.load(records)
    if manifest.tokenizer_fingerprint != tokenizer.fingerprint:
        raise UserError(f'{records} holds other records by now: their tokenizer is another')
    if not manifest.records('eval'):
        raise UserError(f'{records} holds nothing out')
    for batch in RecordStream(records, 'eval', 64, 0).evaluation():
        for row in range(int(batch['example_weights'].sum())):
            word = _hide_word({name: column[row] for name, column in batch.items()}, tokenizer)
            if word:
                yield word


def _hide_word(row: Mapping[str, np.ndarray], tokenizer: Tokenizer) -> Hidden | None:
    """Return the longest masked token of a record that is a whole word, in the text around it."""
    # The text as it was: masked positions have [MASK], or another word.
    ids, masked = row['input_ids'].copy(), row['masked_lm_weights'] > 0
    positions = row['masked_lm_positions'][masked]
    ids[positions] = row['masked_lm_ids'][masked]
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.unk_id}

    # A whole word: it begins one, and what follows begins another.
    is_special = np.isin(ids, list(special))
    begins = tokenizer.starts_word[ids] | is_special
    ends = np.append(begins[1:], True)
    words = []
    for at in positions.tolist():
        entry = tokenizer.entries[ids[at]]
        if begins[at] and ends[at] and not is_special[at] and any(map(str.isalpha, entry)):
            words.append((len(entry), at))
    if not words:
        return None
    _, at = max(words)

    # Its side of the pair, as far as every piece of it is known.
    borders = np.flatnonzero(is_special)
    first = max([0, at - _AROUND, *(borders[borders < at] + 1)])
    last = min([len(ids), at + _AROUND, *borders[borders > at]])
    before = tokenizer.decode(ids[first:at]).lstrip()
    after = tokenizer.decode(ids[at + 1 : last])
    if len(before) + len(after) < 20:  # there is nothing to guess by
        return None
    return Hidden(f'{before} ', tokenizer.decode(ids[at : at + 1]).strip(), after)
