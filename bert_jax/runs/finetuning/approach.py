"""What a fine-tuning run trains, from where and on what: the seam between a run and its approach.

Owns what finetuner.py asks of an approach, and the answers of the paper's section 4, where the
whole encoder is trained with a head; feature_based.py has those of section 5.3. It must not know
how a run goes.
"""

from __future__ import annotations

from typing import Any

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.embeddings import OF_WORDS
from bert_jax.configs.schema import FinetuneConfig
from bert_jax.costs.flops import training_flops_per_sequence
from bert_jax.costs.throughput import StepCosts
from bert_jax.input_pipeline.tasks.base import Arrays
from bert_jax.model.blocks import attend, products
from bert_jax.runs.finetuning.task_data import TaskData
from bert_jax.runs.sources.fitting import check_pooler
from bert_jax.runs.workdir import word_vectors
from bert_jax.train import task_heads
from bert_jax.train.state import TrainState, load_encoder, load_frozen, split


class Approach:
    """What a run trains, from where and on what: by default the source's encoder, all of it.

    A run asks nothing else of its approach (finetuner.py). `config` is the run's configuration.

    Attributes:
      data: the task, and the source of the encoder.
    """

    def __init__(self, data: TaskData):
        self.data = data
        self._inputs = word_vectors.inputs(data.source.model, data.source.tokenizer)

    def check(self, config: FinetuneConfig) -> None:
        """Raise UserError where there can be no run of `config`; compute nothing."""
        encoder, task = config.encoder(self.data.source.model), self.data.task
        if encoder.embedding == OF_WORDS and task.head in ('span', 'choice'):
            raise UserError(
                f'{task.name} ({task.kind}) is not for an encoder of whole words (model.embedding='
                f'{OF_WORDS}), which takes classification, pairs, regression and tagging'
            )
        # Where it is not set it is left out for such tasks; asked for, it would be ignored.
        if config.tuning.consistency and task_heads.passes(task.head, encoder) == 1:
            raise UserError(
                'tuning.consistency=true compares answers that are classes or choices, and'
                f' {task.name} ({task.kind}) has none: leave it out'
            )
        if 'pooler' in task_heads.HEADS[task.head].parts:
            check_pooler(self.data.source, config.tuning)

    def features(self, config: FinetuneConfig) -> tuple[Arrays, Arrays]:
        """Return the (training, scored) features that batches are cut from, made once.

        That may be slow, and a signal may end it (Stopped); what `inputs` needs is there then.
        """
        return self.data.features(config.max_seq_length)

    def inputs(self, config: FinetuneConfig, split: str, batch: Arrays) -> Arrays:
        """Return what the model reads of a batch of the features of 'train' or the scored split."""
        return self._inputs(batch)

    def models(self, config: FinetuneConfig) -> tuple[Any, Any]:
        """Return a model, and the same as it is trained, whose attention kernel may be another."""
        # The dropout of the head is the recipe's, and the encoder has its own.
        encoder, task = config.encoder(self.data.source.model), self.data.task
        model = task_heads.make_model(
            task.head, encoder, task.num_outputs, config.head_dropout, config.runtime
        )

        # Two forms of one model: a fused kernel may read only rows of the training length, while
        # splits are predicted in several lengths; and predictions multiply as compute_dtype says.
        length = self.features(config)[0]['input_ids'].shape[-1]
        kernel = attend.choose(config.runtime, encoder, length)
        matmul_dtype = products.read_in_training(config.runtime)
        return model, model.clone(kernel=kernel, matmul_dtype=matmul_dtype)

    def split(self, config: FinetuneConfig, params: Any) -> tuple[Any, Any]:
        """Split fresh parameters: (what is trained, what is not; None where all are)."""
        return split(params, config.encoder(self.data.source.model))

    def begin(self, config: FinetuneConfig, state: TrainState, folder: str) -> TrainState:
        """Return the run's fresh `state` with the weights that training begins with.

        The encoder's are those of the source, unless init=random.
        """
        # The control by which pre-training is judged: nothing of the source but its shape, and
        # what is computed from the vocabulary.
        source = self.data.source
        if config.init == 'random':
            return load_frozen(state, source.params, source.where)

        # A BiLSTM above the encoder is in no pre-trained source: its fresh weights are lent to the
        # tree that is loaded, which must be complete.
        name, encoder = f'--init_from={source.where}', source.params['encoder']
        if config.bilstm and not source.model.bilstm:
            logging.info('%s: its BiLSTM is fresh', folder)
            encoder = {**encoder, 'bilstm': state.params['encoder']['bilstm']}

        # Where it is of the task, the pooler is as fresh as the rest of its head.
        of_task = source.model.traits.pooler_of_task
        if of_task and 'pooler' in task_heads.HEADS[self.data.task.head].parts:
            encoder = {**encoder, 'pooler': state.params['encoder']['pooler']}

        # The encoder alone: heads of the source, if any, answer another task.
        return load_encoder(state, encoder, config.encoder(source.model), name)

    def costs(self, config: FinetuneConfig) -> StepCosts:
        """Count the FLOPs of the encoder with its pooler; the head's are too few to count."""
        encoder = config.encoder(self.data.source.model)
        passes = task_heads.passes(self.data.task.head, encoder)
        return StepCosts(
            lambda length: passes * training_flops_per_sequence(encoder, length, predictions=0)
        )
