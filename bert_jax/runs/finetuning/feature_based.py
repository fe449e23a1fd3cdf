"""The feature-based approach (paper section 5.3): a BiLSTM on what a frozen encoder says of words.

Owns what of it differs from fine-tuning; runs themselves are finetuning/finetuner.py's, so these
are resumed, selected, scored and swept alike.
"""

from __future__ import annotations

import jax.numpy as jnp

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.embedding_kinds import OF_WORDS
from bert_jax.costs.step_costs import StepCosts
from bert_jax.input_pipeline.tasks.base import Arrays
from bert_jax.model.bilstm import FeatureTagger, find_layers
from bert_jax.runs.finetuning.approach import Approach, RunSetup, Training
from bert_jax.runs.finetuning.encoder_cache import WordStates
from bert_jax.runs.finetuning.machine import Machine
from bert_jax.runs.finetuning.task_data import TaskData
from bert_jax.train import task_heads
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

    def check(self, setup: RunSetup) -> None:
        """Raise UserError where the encoder has too few layers for `features`."""
        # Asks and throws away: the layers are named by the setting, counted by the encoder.
        self._list_layers(setup)

    def _list_layers(self, setup: RunSetup) -> tuple[int, ...]:
        assert setup.tagger is not None, 'its settings are a FeatureConfig'
        return find_layers(setup.tagger.features, self.data.source.model.num_layers)

    def make_training(self, setup: RunSetup) -> Training:
        """Make what a run trains: a BiLSTM with a classifier."""
        # 'sum...' learns one weight a layer; a single layer or a concatenation needs none.
        task, tagger = self.data.task, setup.tagger
        assert tagger is not None, 'its settings are a FeatureConfig'
        model = FeatureTagger(
            outputs=task.num_outputs,
            weigh=tagger.features.startswith('sum'),
            depth=tagger.layers,
            width=tagger.width,
            dropout=setup.head_dropout,
            dtype=jnp.dtype(setup.runtime.compute_dtype),
        )
        train, scored = self.make_features(setup)
        objective = task_heads.make_objective(task.head, model, setup.losses)
        # Without attention there is no kernel to choose. The encoder's costs are spent once, and
        # not in a step.
        return Training(train, scored, model, model, objective, StepCosts(None))

    def make_features(self, setup: RunSetup) -> tuple[Arrays, Arrays]:
        """Return a row for each sentence; compute the states of the words that the run needs."""
        data, length = self.data, setup.length

        # The same rows as fine-tuning has, so that both read a word in the same context.
        if length not in self._words:
            rows = zip(('train', data.split), data.features(length))
            self._words[length] = {
                split: WordStates(data.cache, data.source, of_split) for split, of_split in rows
            }

        # Only the chosen training examples: the encoder is the expensive part of such a run.
        train, scored = self._words[length]['train'], self._words[length][data.split]
        train.compute(setup.examples, self._machine.mesh, self._machine.heed)
        scored.compute(range(len(data.scored)), self._machine.mesh, self._machine.heed)
        return train.sentences, scored.sentences

    def read_inputs(self, setup: RunSetup, split: str, batch: Arrays) -> Arrays:
        """Add the states of the words of a batch of 'train' or the scored split."""
        # The states are fetched batch by batch; all of them would not fit in memory.
        states = self._words[setup.length][split]
        return batch | {'features': states.lookup(batch['input_ids'], self._list_layers(setup))}

    def load_weights(self, setup: RunSetup, state: TrainState, folder: str) -> TrainState:
        """Return the fresh state: a BiLSTM begins at random."""
        del setup, folder
        return state
