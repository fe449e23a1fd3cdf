"""What a fine-tuning run trains, from where and on what: the seam between a run and its approach.

Owns what finetuner.py asks of an approach, and the answers of the paper's section 4, where the
whole encoder is trained with a head; feature_based.py has those of section 5.3. It must not know
how a run goes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.embeddings import OF_WORDS
from bert_jax.configs.model.sentence import LOSSES, EmbeddingConfig, SentenceConfig
from bert_jax.configs.schema import FinetuneConfig, ModelConfig
from bert_jax.costs.flops import training_flops_per_sequence
from bert_jax.costs.throughput import StepCosts
from bert_jax.input_pipeline.tasks.base import INPUT_KEYS, Arrays
from bert_jax.input_pipeline.tasks.embedding import EmbeddingTask
from bert_jax.input_pipeline.tasks.files.class_weights import class_weights
from bert_jax.model.blocks import matmul
from bert_jax.model.blocks.attention_kernels import choose_kernel
from bert_jax.runs.finetuning.encoder_cache import narrowed, text_vectors
from bert_jax.runs.finetuning.machine import Machine
from bert_jax.runs.finetuning.task_data import TaskData
from bert_jax.runs.sources.fitting import check_pooler
from bert_jax.runs.sources.source import Source, plain, read_source
from bert_jax.runs.workdir import word_vectors
from bert_jax.train import task_heads
from bert_jax.train.losses.task_losses import ClassTargets
from bert_jax.train.state import TrainState, load_encoder, load_frozen, split


class Approach:
    """What a run trains, from where and on what: by default the source's encoder, all of it.

    A run asks nothing else of its approach (finetuner.py). `config` is the run's configuration.

    Attributes:
      data: the task, and the source of the encoder.
    """

    def __init__(self, data: TaskData, machine: Machine):
        """Take up a task; a teacher runs on `machine`, its vectors are kept in `data.cache`."""
        self.data, self._machine = data, machine
        # By name; the features that it has taught by name, width and length of rows.
        self._teachers: dict[str, Source] = {}
        self._taught: dict[tuple[str, int, int], Arrays] = {}
        self._inputs = word_vectors.inputs(data.source.model, data.source.tokenizer)

    def check(self, config: FinetuneConfig) -> None:
        """Raise UserError where there can be no run of `config`; compute nothing."""
        encoder, task = config.encoder(self.data.source.model), self.data.task
        if encoder.embedding == OF_WORDS and not task_heads.HEADS[task.head].fits_whole_words:
            raise UserError(
                f'{task.name} ({task.kind}) is not for an encoder of whole words (model.embedding='
                f'{OF_WORDS}), which takes classification, pairs, regression and tagging'
            )
        if isinstance(task, EmbeddingTask):
            check_embedding(config, task, encoder)
        elif config.embedding != EmbeddingConfig():
            raise UserError(
                f'embedding: it is for tasks of kind embedding, and {task.name} is of kind'
                f' {task.kind}: leave it out'
            )
        # Where it is not set it is left out for such tasks; asked for, it would be ignored.
        is_compared = task_heads.passes(task.head, encoder) > 1
        if config.tuning.consistency and not is_compared:
            raise UserError(
                'tuning.consistency=true compares answers that are classes or choices, and'
                f' {task.name} ({task.kind}) has none: leave it out'
            )
        self.check_targets(config, is_compared)
        if 'pooler' in task_heads.HEADS[task.head].of(encoder.family).parts:
            check_pooler(self.data.source, config.tuning)

    def check_targets(self, config: FinetuneConfig, is_compared: bool = False) -> None:
        """Raise UserError where weights of classes or smoothing are not for such a run.

        `is_compared`: whether a step compares two passes, as AdaMix does.
        """
        task = self.data.task
        for name in ('class_weights', 'label_smoothing'):
            value = getattr(config, name)
            if value and not task_heads.get_task_head(task.head).has_targets:
                raise UserError(
                    f'{name}={value} is for tasks of kind classification and pair, and {task.name}'
                    f' is of kind {task.kind}: leave it out'
                )
            if value and is_compared:
                raise UserError(f'{name}={value} does not go with tuning.consistency: leave it out')
        self.targets(config)

    def features(self, config: FinetuneConfig) -> tuple[Arrays, Arrays]:
        """Return the (training, scored) features that batches are cut from, made once.

        That may be slow, and a signal may end it (Stopped); what `inputs` needs is there then.
        """
        train, scored = self.data.features(config.max_seq_length)
        if not config.embedding.teacher:
            return train, scored
        width = config.embedding.truncate_dim or self.data.source.model.hidden_size
        key = config.embedding.teacher, width, config.max_seq_length
        if key not in self._taught:
            self._taught[key] = self._with_teacher(train, *key[:2])
        return self._taught[key], scored

    def _with_teacher(self, train: Arrays, name: str, width: int) -> Arrays:
        """Return training features with 'teacher_vectors' [N, C, width, 1] float32.

        The last axis of one tells them from the positions of rows. A plain text is there once.
        """
        teacher = self._teacher(name)
        prompts = dict((teacher.bert.sentence or SentenceConfig()).prompts)
        texts = [example.prompted(prompts) for example in self.data.train]
        numbers: dict[str, int] = {}
        rows_NC = np.array(
            [[numbers.setdefault(text, len(numbers)) for text in row] for row in texts]
        )
        vectors = text_vectors(
            self.data.cache, teacher, list(numbers), self._machine.mesh, self._machine.heed
        )
        if vectors.shape[1] < width:
            raise UserError(
                f'embedding.teacher={name} gives vectors of {vectors.shape[1]} numbers, and the'
                f' student gives {width}: set embedding.truncate_dim={vectors.shape[1]}, or take a'
                ' wider teacher'
            )
        vectors = narrowed(vectors, width)
        C = rows_NC.shape[1]
        once = {key: train[key][:, :C] for key in (*INPUT_KEYS, 'text_numbers')}
        return train | once | {'teacher_vectors': vectors[rows_NC][..., None]}

    def _teacher(self, name: str) -> Source:
        if name not in self._teachers:
            teacher = plain(read_source(name))
            if teacher.model.words.reads != 'input_ids':
                raise UserError(f'embedding.teacher={name} does not read word pieces: take another')
            self._teachers[name] = teacher
        return self._teachers[name]

    def identity(self, config: FinetuneConfig) -> dict[str, Any]:
        """Return what a run of `config` depends on besides the task and the source."""
        name = config.embedding.teacher
        return {'teacher_fingerprint': self._teacher(name).fingerprint()} if name else {}

    def targets(self, config: FinetuneConfig) -> ClassTargets:
        """Return the weights of classes and their smoothing. UserError where they are none."""
        train = self.data.train
        given = (train[i].label for i in self.data.chosen(config))
        weights = class_weights(config.class_weights, self.data.task.labels, given)
        return ClassTargets(weights, config.label_smoothing)

    def inputs(self, config: FinetuneConfig, split: str, batch: Arrays) -> Arrays:
        """Return what the model reads of a batch of the features of 'train' or the scored split."""
        return self._inputs(batch)

    def models(self, config: FinetuneConfig) -> tuple[Any, Any]:
        """Return a model, and the same as it is trained, whose attention kernel may be another."""
        # The dropout of the head is the recipe's, and the encoder has its own.
        encoder, task = config.encoder(self.data.source.model), self.data.task
        model = task_heads.make_model(
            task.head,
            encoder,
            task.num_outputs,
            config.head_dropout,
            config.runtime,
            config.embedding.sentence(task.options.get('prompts', {}), config.max_seq_length),
        )

        # Two forms of one model: a fused kernel may read only rows of the training length, while
        # splits are predicted in several lengths; and predictions multiply as compute_dtype says.
        length = self.features(config)[0]['input_ids'].shape[-1]
        kernel = choose_kernel(config.runtime, encoder, length)
        matmul_dtype = matmul.read_in_training(config.runtime)
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
            logging.info(f'{folder}: its BiLSTM is fresh')
            encoder = {**encoder, 'bilstm': state.params['encoder']['bilstm']}

        # Where it is of the task, the pooler is as fresh as the rest of its head.
        of_task = source.model.traits.pooler_of_task
        parts = task_heads.HEADS[self.data.task.head].of(source.model.family).parts
        if of_task and 'pooler' in parts:
            encoder = {**encoder, 'pooler': state.params['encoder']['pooler']}

        # The encoder, and the head that all share: others of the source answer another task.
        shared = {p: source.params[p] for p in ('head',) if p in parts and p in source.params}
        if 'head' in parts:
            origin = f'that of {source.where}' if shared else 'fresh: the source has none'
            logging.info(f'{folder}: the layer that all heads share is {origin}')
        return load_encoder(state, encoder, config.encoder(source.model), name, shared)

    def costs(self, config: FinetuneConfig) -> StepCosts:
        """Count the FLOPs of the encoder with its pooler; the head's are too few to count."""
        encoder = config.encoder(self.data.source.model)
        passes = task_heads.passes(self.data.task.head, encoder)
        return StepCosts(
            lambda length: passes * training_flops_per_sequence(encoder, length, predictions=0)
        )


def check_embedding(config: FinetuneConfig, task: EmbeddingTask, encoder: ModelConfig) -> None:
    """Raise UserError where a sentence encoder cannot be trained as `config` says."""
    embedding, examples = config.embedding, task.layouts.get('train', '')
    embedding.check_width(encoder.hidden_size)
    embedding.check_batch(config.batch_size, config.runtime.accumulation)
    if examples and examples not in embedding.reads.examples:
        fitting = [name for name, reads in LOSSES.items() if examples in reads.examples]
        raise UserError(
            f'embedding.loss={embedding.loss} reads {" and ".join(embedding.reads.examples)}, and'
            f' the train split of {task.name} has {examples}: take {" or ".join(fitting)}'
        )
    if (
        examples == 'texts'
        and embedding.reads.in_batch
        and not (encoder.hidden_dropout or encoder.attention_dropout)
    ):
        raise UserError(
            f'embedding.loss={embedding.loss} compares two draws of dropout, and the encoder has'
            ' none: set hidden_dropout, as to 0.1'
        )
