"""Runs of the feature-based approach (paper section 5.3): a BiLSTM where fine-tuning has its model,
word states for word pieces.

Owns what differs from fine-tuning; all else of a run is finetuning/finetuner.py's, so these are
resumed, selected, scored and swept alike.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from bert_jax.model.tagger import FeatureTagger, layers_of
from bert_jax.train.state import TrainState
from configs.errors import UserError
from configs.schema import FeatureConfig, FinetuneConfig
from input_pipeline.tasks import Task
from launch.finetuning.encoder_cache import WordStates
from launch.finetuning.finetuner import Features, FineTuner, Stopped


class FeatureBasedTuner(FineTuner):
    """For a tagging task; also takes FeatureConfigs; `cache` keeps its features."""

    def __init__(self, task: Task, *arguments: Any):
        if task.head != 'tokens':
            raise UserError(
                f'task {task.name}: the feature-based approach is for tagging, and its kind is'
                f' {task.kind}'
            )
        super().__init__(task, *arguments)
        self._words: dict[int, dict[str, WordStates]] = {}

    def check(self, config: FinetuneConfig) -> None:
        super().check(config)
        if isinstance(config, FeatureConfig):
            layers_of(config.features, self.source.model.num_layers)

    def features(self, config: FinetuneConfig) -> tuple[Features, Features]:
        """Those of fine-tuning, or a row of words a sentence; the states of the words that the run
        needs are there then.
        """
        if not isinstance(config, FeatureConfig):
            return super().features(config)
        length = config.max_seq_length
        if length not in self._words:
            rows = zip(('train', self.split), super().features(config), strict=True)
            self._words[length] = {
                split: WordStates(self._cache, self.source, of_split) for split, of_split in rows
            }
        train, scored = self._words[length]['train'], self._words[length][self.split]
        train.need(self.chosen(config), self._mesh, self._heed)
        scored.need(range(len(self._scored_examples)), self._mesh, self._heed)
        return train.sentences, scored.sentences

    def _heed(self) -> None:
        """Raises Stopped after a signal."""
        if self._stop.received is not None:
            raise Stopped(self._stop.received)

    def inputs(self, config: FinetuneConfig, split: str, batch: Features) -> Features:
        """The batch with the states of its words."""
        if not isinstance(config, FeatureConfig):
            return super().inputs(config, split, batch)
        layers = layers_of(config.features, self.source.model.num_layers)
        return batch | {
            'features': self._words[config.max_seq_length][split].lookup(batch['input_ids'], layers)
        }

    def models(self, config: FinetuneConfig) -> tuple[Any, Any]:
        """The BiLSTM."""
        if not isinstance(config, FeatureConfig):
            return super().models(config)
        model = FeatureTagger(
            outputs=self.task.num_outputs,
            weigh=config.features.startswith('sum'),
            depth=config.lstm_layers,
            width=config.lstm_width,
            dropout=config.head_dropout,
            dtype=jnp.dtype(config.runtime.compute_dtype),
        )
        return model, model

    def begin(self, config: FinetuneConfig, state: TrainState, folder: str) -> TrainState:
        """A BiLSTM begins at random."""
        return state if isinstance(config, FeatureConfig) else super().begin(config, state, folder)
