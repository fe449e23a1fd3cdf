"""The training of RETVec's network: words and their forms with typos, and a run on them.

Owns which words are trained on and held out, which forms of them a step reads, and the run. The
network is bert_jax/model/retvec.py's, a typo input_pipeline/text/typos.py's. Must not know flags.

Every form is a pure function of seed, step and word, so that a run that goes on reads the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import PretrainConfig
from bert_jax.input_pipeline.randomness import digest64
from bert_jax.input_pipeline.tasks.base import Arrays
from bert_jax.input_pipeline.tasks.batching import iterate_batches
from bert_jax.input_pipeline.text.typos import KINDS, is_word, one_typo
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.wordpiece import CHARACTERS, spell_words
from bert_jax.mesh import construction
from bert_jax.model.retvec import WordSimilarity
from bert_jax.runs.finetuning.data_collator import place_global
from bert_jax.runs.pretraining import held_out
from bert_jax.runs.pretraining.train import PretrainResult
from bert_jax.runs.workdir.run_context import RunContext
from bert_jax.train import loop, state
from bert_jax.train.losses.multi_similarity import make_similarity_objective
from bert_jax.train.step import jit_train_step, make_eval_step, make_train_step

_LEAST = 8  # words to train on; with fewer there is nothing to tell apart


@dataclass(frozen=True, repr=False)
class WordsResult(PretrainResult):
    """How a training of the words' network ended."""

    def uses(self, folder: str) -> dict[str, str]:
        """Return the command that trains a model on such words, and what it does."""
        pretrain = f'bert-pretrain --config=retvec_tiny --init_from={folder} --data=RECORDS'
        return {f'{pretrain} --workdir=DIR': 'pre-trains a model that reads its words so'}


@dataclass(frozen=True)
class Forms:
    """The forms of a word that a step reads: the word itself, and others with typos.

    count: how many, the word among them; share: the most typos of a form, as a share of the word's
    characters, one at least; kinds: of typos, names in KINDS.
    """

    count: int = 2
    share: float = 0.25
    kinds: tuple[str, ...] = tuple(KINDS)

    def of(self, word: str, *name: int | str) -> list[str]:
        """Return the forms of `word` that are drawn for that name; some may equal it."""
        limit, made = max(1, int(len(word) * self.share)), [word]
        for form in range(1, self.count):
            # From one typo to the most, every number alike.
            changed = word
            for number in range(1 + digest64('count', *name, form) % limit):
                changed = one_typo(changed, self.kinds, *name, form, number)
            made.append(changed)
        return made

    def batch(self, words: list[str], *name: int | str) -> np.ndarray:
        """int32 [B, F, 16]: the characters of all forms of B words."""
        forms = [form for row, word in enumerate(words) for form in self.of(word, *name, row)]
        return spell_words(forms).reshape(len(words), self.count, CHARACTERS)


def split_words(tokenizer: Tokenizer, held_out_share: float) -> tuple[list[str], list[str]]:
    """Return a tokenizer's words to train on, and those held out by a hash of their spelling.

    They have a letter or a digit. UserError where the tokenizer has none, or too few.
    """
    if tokenizer.kind != 'words':
        raise UserError(
            'the tokenizer is one of word pieces, and has no list of words: make one by'
            ' bert-train-vocab --model=words'
        )
    words: tuple[list[str], list[str]] = [], []
    for word in tokenizer.tokens(range(tokenizer.known)):
        if is_word(word) and word not in tokenizer.special_tokens:
            words[digest64('held out', word) < held_out_share * 2**64].append(word)
    if len(words[0]) < _LEAST:
        raise UserError(
            f'the tokenizer has {len(words[0])} words to train on, and {_LEAST} are the'
            ' least: train it on more text'
        )
    return words


def iterate_word_batches(
    words: list[str], forms: Forms, batch_size: int, seed: int, start: int = 0
) -> Iterator[Arrays]:
    """Endless batches from step `start` on, every word once an epoch, in an order of its own."""
    numbers = {'word': np.arange(len(words), dtype=np.int32)}
    rows = iterate_batches(numbers, ['word'], batch_size, seed, start)
    for step, batch in enumerate(rows, start):
        chosen = [words[number] for number in batch['word']]
        yield {
            'input_ids': batch['word'],  # by which a step counts its rows
            'characters': forms.batch(chosen, seed, step),
            'example_weights': batch['example_weights'],
        }


def iterate_evaluation_batches(words: list[str], forms: Forms, batch_size: int) -> Iterator[Arrays]:
    """Every word once, with the same typos each time; what fills up the last batch has weight 0."""
    for first in range(0, len(words), batch_size):
        part = words[first : first + batch_size]
        filled = part + part[:1] * (batch_size - len(part))
        yield {
            'input_ids': np.zeros(batch_size, np.int32),
            'characters': forms.batch(filled, 'evaluation', first),
            'example_weights': (np.arange(batch_size) < len(part)).astype(np.float32),
        }


def train(
    config: PretrainConfig,
    tokenizer: Tokenizer,
    held_out_share: float,
    forms: Forms,
    workdir: str,
    profile_steps: int = 0,
) -> WordsResult:
    """Train the network in `workdir`, from its newest checkpoint.

    UserError where the settings do not fit, or the folder holds another run.
    """
    check(config)
    (words, apart), batch_size = split_words(tokenizer, held_out_share), config.phases[0].batch_size
    mesh = construction.make_mesh(config.runtime)
    model = WordSimilarity(jnp.dtype(config.runtime.compute_dtype))
    objective = make_similarity_objective(model)
    # The loss compares words of the whole batch, which no device sums a share of by itself: the
    # update is sharded where that is asked for, and the exchange is XLA's affair.
    shards = bool(config.runtime.shard_optimizer)
    fresh = state.create_state(model, config.seed, config.optimizer, mesh, shards)
    train_step = jit_train_step(make_train_step(objective, config.optimizer), fresh)
    eval_step = jax.jit(make_eval_step(objective))

    def place(batch: Arrays) -> dict[str, jax.Array]:
        return place_global(batch, mesh, batch_size)

    def evaluate(step: int, now: state.TrainState) -> loop.EvalResult:
        del step
        rows = iterate_evaluation_batches(apart, forms, batch_size)
        sums = held_out.measure(eval_step, now.params, map(place, rows))
        return loop.EvalResult({'split': 'eval', **sums}, score=(sums['nearest_is_same'],))

    # What decides the result beside the settings; `words` is the mark of such a folder.
    reads = {
        'words': tokenizer.fingerprint,
        'eval_words': held_out_share,
        'forms': forms.count,
        'typos': forms.share,
        'kinds': list(forms.kinds),
    }
    logging.info(f'{len(words)} words to train on, {len(apart)} held out')
    evaluation = None
    if apart:
        evaluation = loop.Evaluation(config.runtime.eval_every, evaluate)
    with RunContext(workdir, config, mesh, profile_steps=profile_steps) as context:
        context.claim(tokenizer, reads)
        context.begin(fresh)
        rows = iterate_word_batches(words, forms, batch_size, config.seed, int(context.state.step))
        ended = loop.train_steps(
            context, train_step, loop.prefetch(rows, place), evaluation, loop.Part(name='words')
        )
    return WordsResult(workdir, int(ended.state.step), signal=ended.signal)


def check(config: PretrainConfig) -> None:
    """UserError for settings of pre-training that this run has no place for."""
    if len(config.phases) != 1 or config.phases[0].seq_len != CHARACTERS:
        raise UserError(
            f'phases: words have one, of seq_len={CHARACTERS} characters: change its steps and'
            ' batch_size alone'
        )
    if config.runtime.accumulation > 1:
        raise UserError(
            'runtime.accumulation: every word of a batch is compared with all others: leave it at'
            ' 1, and lower phases.0.batch_size where memory is short'
        )
    if config.tuning.method != 'full':
        raise UserError(f'tuning.method={config.tuning.method}: a network of words has no blocks')
