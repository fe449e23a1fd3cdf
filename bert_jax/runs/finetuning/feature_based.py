"""The feature-based approach (paper section 5.3): a BiLSTM on what a frozen encoder says of words.

Owns what of it differs from fine-tuning; runs themselves are finetuning/finetuner.py's, so these
are resumed, selected, scored and swept alike.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.embeddings import OF_WORDS
from bert_jax.costs.throughput import StepCosts
from bert_jax.input_pipeline.tasks.base import Arrays
from bert_jax.model.bilstm import FeatureTagger, layers_of
from bert_jax.runs.finetuning.approach import Approach
from bert_jax.runs.finetuning.encoder_cache import WordStates
from bert_jax.runs.finetuning.machine import Machine
from bert_jax.runs.finetuning.task_data import TaskData
from bert_jax.train.state import TrainState


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
        layers_of(config.features, self.data.source.model.num_layers)
        self.check_targets(config)

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
        train.need(data.chosen(config), self._machine.mesh, self._machine.heed)
        scored.need(range(len(data.scored)), self._machine.mesh, self._machine.heed)
        return train.sentences, scored.sentences

    def inputs(self, config: Any, split: str, batch: Arrays) -> Arrays:
        """Return the batch with the states of its words."""
        # The states are fetched batch by batch; all of them would not fit in memory.
        layers = layers_of(config.features, self.data.source.model.num_layers)
        words = self._words[config.max_seq_length][split]
        return batch | {'features': words.lookup(batch['input_ids'], layers)}

    def models(self, config: Any) -> tuple[Any, Any]:
        """Make the BiLSTM with a classifier."""
        # 'sum...' learns one weight a layer; a single layer or a concatenation needs none.
        model = FeatureTagger(
            outputs=self.data.task.num_outputs,
            weigh=config.features.startswith('sum'),
            depth=config.lstm_layers,
            width=config.lstm_width,
            dropout=config.head_dropout,
            dtype=jnp.dtype(config.runtime.compute_dtype),
        )

        # No attention, so no kernel to choose: one model for training and for prediction.
        return model, model

    def split(self, config: Any, params: Any) -> tuple[Any, Any]:
        """Return that all of the BiLSTM is trained."""
        return params, None

    def begin(self, config: Any, state: TrainState, folder: str) -> TrainState:
        """Return the state as it is: a BiLSTM begins at random."""
        return state

    def costs(self, config: Any) -> StepCosts:
        """Count no FLOPs: the encoder's are spent once, and not in a step."""
        return StepCosts(None)
