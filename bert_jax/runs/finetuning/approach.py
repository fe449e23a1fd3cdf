"""What a fine-tuning run trains, from where and on what, made once of its configuration.

Owns the answers of the paper's section 4, where the whole encoder is trained with a head;
feature_based.py has those of section 5.3. It must not know how a run goes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.embedding_kinds import OF_WORDS
from bert_jax.configs.model.sentence import LOSSES, EmbeddingConfig, SentenceConfig
from bert_jax.configs.schema import FinetuneConfig, ModelConfig
from bert_jax.costs.flops import count_training_flops
from bert_jax.costs.step_costs import StepCosts
from bert_jax.input_pipeline.tasks.base import INPUT_KEYS, Arrays
from bert_jax.input_pipeline.tasks.classification import class_weights
from bert_jax.input_pipeline.tasks.embedding import EmbeddingTask
from bert_jax.model.blocks import matmul
from bert_jax.model.blocks.attention_kernels import choose_kernel
from bert_jax.runs.finetuning.encoder_cache import narrowed, text_vectors
from bert_jax.runs.finetuning.machine import Machine
from bert_jax.runs.finetuning.task_data import TaskData
from bert_jax.runs.sources.fitting import check_pooler
from bert_jax.runs.sources.source import Source, plain, read_source
from bert_jax.runs.workdir import word_vectors
from bert_jax.train import task_heads
from bert_jax.train.losses.objective import Objective
from bert_jax.train.losses.task_losses import ClassTargets
from bert_jax.train.state import TrainState, load_encoder, load_frozen, split_frozen


@dataclasses.dataclass(frozen=True)
class Training:
    """What one run trains, on what and from where.

    Attributes:
      train: features of the training rows, which batches are cut from.
      scored: those of the scored split.
      model: the model.
      trained: the same as it is trained, whose attention kernel may be another.
      objective: what is minimised.
      program_key: what decides its program besides optimizer and runtime settings.
      read_inputs: makes what the model reads of a batch of the features of 'train' or the scored
        split.
      divide: fresh parameters -> (what is trained, what is not; None where all are).
      load: (the run's fresh state, its folder) -> the state that training begins with.
      costs: what its steps take.
    """

    train: Arrays
    scored: Arrays
    model: Any
    trained: Any
    objective: Objective
    program_key: tuple[Any, ...]
    read_inputs: Callable[[str, Arrays], Arrays]
    divide: Callable[[Any], tuple[Any, Any]]
    load: Callable[[TrainState, str], TrainState]
    costs: StepCosts


class Approach:
    """All of the source's encoder is trained, with a head.

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

    def make_training(self, config: FinetuneConfig) -> Training:
        """Make what a run of `config` trains; slow where features are new.

        Raises:
          UserError: there can be no such run.
          Stopped: after a signal.
        """
        # The dropout of the head is the recipe's, and the encoder has its own.
        source, task = self.data.source, self.data.task
        encoder = config.encoder(source.model)
        sentence = config.embedding.sentence(task.options.get('prompts', {}), config.max_seq_length)
        model = task_heads.make_model(
            task.head, encoder, task.num_outputs, config.head_dropout, config.runtime, sentence
        )

        # Two forms of one model: a fused kernel may read only rows of the training length, while
        # splits are predicted in several lengths; and predictions multiply as compute_dtype says.
        train, scored = self.features(config)
        kernel = choose_kernel(config.runtime, encoder, train['input_ids'].shape[-1])
        matmul_dtype = matmul.read_in_training(config.runtime)
        trained = model.clone(kernel=kernel, matmul_dtype=matmul_dtype)
        targets = self.make_targets(config)
        passes = task_heads.count_passes(task.head, encoder)

        def count_flops(length: int) -> int:
            # Of the encoder with its pooler; the head's are too few to count.
            return passes * count_training_flops(encoder, length, predictions=0)

        def divide(params: Any) -> tuple[Any, Any]:
            return split_frozen(params, encoder)

        def load(state: TrainState, folder: str) -> TrainState:
            # The control by which pre-training is judged has nothing of the source but its shape,
            # and what is computed from the vocabulary.
            if config.init == 'random':
                return load_frozen(state, source.params, source.where)
            is_fresh = config.bilstm and not source.model.bilstm
            return load_source(state, source, encoder, task.head, is_fresh, folder)

        return Training(
            train,
            scored,
            model,
            trained,
            task_heads.make_objective(task.head, trained, config.embedding, targets),
            (trained, config.embedding, targets),
            lambda split_frozen, batch: self._inputs(batch),
            divide,
            load,
            StepCosts(count_flops),
        )

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
        is_compared = task_heads.count_passes(task.head, encoder) > 1
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
        self.make_targets(config)

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

    def make_targets(self, config: FinetuneConfig) -> ClassTargets:
        """Return the weights of classes and their smoothing. UserError where they are none."""
        chosen = self.data.choose(config.train_examples, config.seed)
        given = (self.data.train[i].label for i in chosen)
        weights = class_weights(config.class_weights, self.data.task.labels, given)
        return ClassTargets(weights, config.label_smoothing)


def load_source(
    state: TrainState,
    source: Source,
    encoder: ModelConfig,
    head: str,
    is_bilstm_fresh: bool,
    folder: str,
) -> TrainState:
    """Return a run's fresh `state` with the encoder of its source.

    Args:
      state: which says how the arrays lie.
      source: where the weights are from.
      encoder: the shape of the run's encoder.
      head: the name of the task's head.
      is_bilstm_fresh: whether there is a BiLSTM above the encoder that the source has not.
      folder: that of the run, for the log.
    """
    # A BiLSTM above the encoder is in no pre-trained source: its fresh weights are lent to the
    # tree that is loaded, which must be complete.
    name, weights = f'--init_from={source.where}', source.params['encoder']
    if is_bilstm_fresh:
        logging.info(f'{folder}: its BiLSTM is fresh')
        weights = {**weights, 'bilstm': state.params['encoder']['bilstm']}

    # Where it is of the task, the pooler is as fresh as the rest of its head.
    parts = task_heads.HEADS[head].of(source.model.family).parts
    if source.model.traits.pooler_of_task and 'pooler' in parts:
        weights = {**weights, 'pooler': state.params['encoder']['pooler']}

    # The encoder, and the head that all share: others of the source answer another task.
    shared = {}
    if 'head' in parts:
        origin = 'fresh: the source has none'
        if 'head' in source.params:
            shared['head'] = source.params['head']
            origin = f'that of {source.where}'
        logging.info(f'{folder}: the layer that all heads share is {origin}')
    return load_encoder(state, weights, encoder, name, shared)


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
