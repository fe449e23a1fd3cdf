"""The feature-based approach (paper section 5.3): a BiLSTM on what a frozen encoder says of words.

Owns what of it differs from fine-tuning; runs themselves are finetuning/finetuner.py's, so these
are resumed, selected, scored and swept alike.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.embedding_kinds import OF_WORDS
from bert_jax.costs.step_costs import StepCosts
from bert_jax.input_pipeline.tasks.base import Arrays
from bert_jax.model.bilstm import FeatureTagger, find_layers
from bert_jax.runs.finetuning.approach import Approach, Training
from bert_jax.runs.finetuning.encoder_cache import WordStates
from bert_jax.runs.finetuning.machine import Machine
from bert_jax.runs.finetuning.task_data import TaskData
from bert_jax.train import task_heads


class FeatureBased(Approach):
    """For a tagging task: a row is a sentence, and its inputs are words in place of word pieces."""

    def __init__(self, data: TaskData, machine: Machine):
        """Let the encoder run on `machine`; keep its outputs in the folder `data.cache`."""
        # The BiLSTM reads a sequence of words with a label each: no other kind of task has that.
        if data.task.head != 'tokens':
            raise UserError(
                f'task {data.task.name}: the feature-based approach is for tagging, and its kind is'
                f' {data.task.kind}'
            )

        if data.source.model.embedding == OF_WORDS:
            raise UserError(
                f'{data.source.where} reads whole words by their characters'
                f' (model.embedding={OF_WORDS}), and the feature-based approach takes word pieces'
            )

        # By max_seq_length, then split: rows of another length give words other contexts.
        super().__init__(data, machine)
        self._words: dict[int, dict[str, WordStates]] = {}

    def check(self, config: Any) -> None:
        """Raise UserError where the encoder has too few layers for `features`."""
        # Asks and throws away: the layers are named by the setting, counted by the encoder.
        find_layers(config.features, self.data.source.model.num_layers)
        self.check_targets(config)

    def make_training(self, config: Any) -> Training:
        """Make what a run of `config` trains: a BiLSTM with a classifier."""
        # 'sum...' learns one weight a layer; a single layer or a concatenation needs none.
        task = self.data.task
        model = FeatureTagger(
            outputs=task.num_outputs,
            weigh=config.features.startswith('sum'),
            depth=config.lstm_layers,
            width=config.lstm_width,
            dropout=config.head_dropout,
            dtype=jnp.dtype(config.runtime.compute_dtype),
        )
        train, scored = self.features(config)
        layers = find_layers(config.features, self.data.source.model.num_layers)
        words, targets = self._words[config.max_seq_length], self.make_targets(config)

        def read_inputs(split: str, batch: Arrays) -> Arrays:
            # The states are fetched batch by batch; all of them would not fit in memory.
            return batch | {'features': words[split].lookup(batch['input_ids'], layers)}

        return Training(
            train,
            scored,
            model,
            model,  # no attention, so no kernel to choose
            task_heads.make_objective(task.head, model, config.embedding, targets),
            (model, config.embedding, targets),
            read_inputs,
            divide=lambda params: (params, None),
            load=lambda state, folder: state,  # a BiLSTM begins at random
            costs=StepCosts(None),  # the encoder's are spent once, and not in a step
        )

    def features(self, config: Any) -> tuple[Arrays, Arrays]:
        """Return a row for each sentence; compute the states of the words that the run needs."""
        data, length = self.data, config.max_seq_length

        # The same rows as fine-tuning has, so that both read a word in the same context.
        if length not in self._words:
            rows = zip(('train', data.split), data.features(length))
            self._words[length] = {
                split: WordStates(data.cache, data.source, of_split) for split, of_split in rows
            }

        # Only the chosen training examples: the encoder is the expensive part of such a run.
        train, scored = self._words[length]['train'], self._words[length][data.split]
        chosen = data.choose(config.train_examples, config.seed)
        train.need(chosen, self._machine.mesh, self._machine.heed)
        scored.need(range(len(data.scored)), self._machine.mesh, self._machine.heed)
        return train.sentences, scored.sentences
