"""The table of heads: one row says all that this side knows of one.

A head is what stands on the encoder for a purpose. A row names its model, its weights, what
training minimises, what leaves the device, and what other programs call it; training, conversion
and serving read it and know no head by name. Owns that correspondence and nothing else: models
are in model/heads.py, losses in losses/. What a head is asked and answers in words is
bert_jax/inference/served_heads.py's, the one other table; docs/architecture.md says how to add one.

Dims: B batch, T position, K best positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bert_jax.configs.model.families import FAMILIES
from bert_jax.configs.model.sentence import EmbeddingConfig, SentenceConfig
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.model import heads
from bert_jax.train.losses import task_losses
from bert_jax.train.losses.multiple_negatives import make_vector_objective
from bert_jax.train.losses.objective import Batch, Objective
from bert_jax.train.losses.task_losses import ClassTargets


class Part(NamedTuple):
    """Weights above the encoder's blocks; heads share them.

    Their names in other programs are those of the families (configs/model/families).

    Attributes:
      path: how the paths of its arrays begin in our tree.
      of_task: whether the task says how many outputs they have, by its labels.
    """

    path: str
    of_task: bool = False


PARTS = {
    'pooler': Part('encoder/pooler/'),
    'head': Part('head/'),
    'mlm': Part('mlm/'),
    'nsp': Part('nsp/'),
    'classifier': Part('classifier/', of_task=True),
    'span': Part('span/'),
}

# The axes of the inputs, int32: b rows, t positions, p masked positions, c choices.
_ROWS = dict.fromkeys(('input_ids', 'input_mask', 'segment_ids'), 'b, t')
_MASKED = _ROWS | {'masked_lm_positions': 'b, p'}
_OF_CHOICES = dict.fromkeys(_ROWS, 'b, c, t')


def _best_positions(logits_BT2: jax.Array, batch: Batch, n_best: int) -> dict[str, jax.Array]:
    """Return the `n_best` best starts and ends, best first, in place of all logits.

    {'start_scores', 'start_indices', 'end_scores', 'end_indices': [B, K], 'null_scores': [B]},
    where the null score is start + end at [CLS]. Padding is never among the best (K is at most T).
    """
    # Padding scores far below any real position, so that top_k takes it last.
    real_BT = batch['input_mask'] > 0
    best = {'null_scores': logits_BT2[:, 0].sum(-1)}
    for index, side in enumerate(('start', 'end')):
        scores_BT = jnp.where(real_BT, logits_BT2[..., index], -1e9)
        # A window may be shorter than n_best: top_k takes no more than there are.
        K = min(n_best, scores_BT.shape[1])
        best[f'{side}_scores'], best[f'{side}_indices'] = jax.lax.top_k(scores_BT, K)
    return best


# (model, how a sentence encoder is trained, how classes are) -> what is minimised.
MakeObjective = Callable[[Any, EmbeddingConfig, ClassTargets], Objective]


def _of_model(make: Callable[[Any], Objective]) -> MakeObjective:
    """Return what makes an objective that the model alone decides."""
    return lambda model, embedding, targets: make(model)


def _classes(model: Any, embedding: EmbeddingConfig, targets: ClassTargets) -> Objective:
    return task_losses.make_classification_objective(model, targets)


_CHOICES = _of_model(task_losses.make_choice_objective)


@dataclass(frozen=True)
class Head:
    """A row of the table.

    Attributes:
      module: the model; of `outputs` and `head_dropout` it takes what it has fields for.
      parts: names in PARTS of the weights that the model's results depend on.
      architecture: transformers' class for BERT; `class_in` has that of another family.
      outputs: what transformers calls each output -> what of the model's result it is, float32;
        logits are before any softmax.
      inputs: what the model reads -> its axes, as in 'b, t'.
      problem_type: what transformers is told besides the class, or None.
      labelled: whether the outputs are called by labels.
      of_words: whether words are given to it one by one, each as behind a space.
      objective: what fine-tuning minimises; None where no task has this head.
      has_targets: whether the objective reads weights of classes and smoothing.
      decoded: (result, batch, n_best) -> the arrays that a task decodes.
      google: the parts by which a checkpoint of google-research/bert is known to have this head;
        () where the reference has no such head.
    """

    module: type[heads.EncoderModel]
    parts: tuple[str, ...]
    architecture: str
    outputs: Mapping[str, Callable[[Any, ModelConfig], jax.Array]]
    inputs: Mapping[str, str] = dataclasses.field(default_factory=lambda: _ROWS)
    problem_type: str | None = None
    labelled: bool = False
    of_words: bool = False
    objective: MakeObjective | None = None
    has_targets: bool = False
    decoded: Callable[[Any, Batch, int], dict[str, jax.Array]] = lambda logits, batch, n_best: {
        'logits': logits
    }
    google: tuple[str, ...] = ()

    def is_in(self, family: str) -> bool:
        """Tell whether a family has such a head: not each has those for pairs of texts."""
        named = self.architecture.removeprefix('Bert')
        return 'nsp' not in self.parts or named in FAMILIES[family].pairs

    def of(self, family: str) -> Head:
        """Return the head as a family has it: with its pooler, or with the head that all share."""
        if not FAMILIES[family].shared_head:
            return self
        parts = tuple(part for part in self.parts if part != 'pooler')
        is_bare = set(self.parts) <= {'pooler'}
        return dataclasses.replace(self, parts=parts if is_bare else ('head', *parts))

    def class_in(self, family: str) -> str:
        """Return the class of transformers for a family."""
        return FAMILIES[family].class_of(self.architecture)

    def model(
        self,
        config: ModelConfig,
        dtype: DTypeLike,
        outputs: int,
        head_dropout: float = 0.0,
        remat: str = 'none',
        scan: bool = False,
        sentence: SentenceConfig | None = None,
    ) -> Any:
        """Make the encoder of `config` with this head, layers computed in `dtype`.

        `outputs` (labels or numbers), `head_dropout` and `sentence` are used where the head has
        such a choice; `remat` and `scan` are those of RuntimeConfig.
        """
        # Heads differ in these three fields alone; the rest is EncoderModel's.
        fields = {field.name for field in dataclasses.fields(self.module)}
        offered = {'outputs': outputs, 'head_dropout': head_dropout, 'sentence': sentence}
        taken: dict[str, Any] = {
            name: value for name, value in offered.items() if name in fields and value is not None
        }
        return self.module(config, dtype, remat, scan, **taken)


# What of a model's result leaves it, by the encoder's configuration.
_RESULT = {'logits': lambda result, config: result}
_SECOND = lambda result, config: result[1]
# Of the vocabulary's real size.
_WORDS = lambda result, config: result[0][..., : config.vocab_size]

_CLASSIFIER = Head(
    module=heads.Classifier,
    parts=('pooler', 'classifier'),
    architecture='BertForSequenceClassification',
    outputs=_RESULT,
    labelled=True,
    objective=_classes,
    has_targets=True,
    google=('classifier',),
)
# By the name that tasks have for a head. Of the rows of one class the first stands for it; of the
# parts that a Google checkpoint holds the first row that fits says what it is.
HEADS = {
    'span': Head(
        module=heads.Span,
        parts=('span',),
        architecture='BertForQuestionAnswering',
        outputs={
            'start_logits': lambda logits_BT2, config: logits_BT2[..., 0],
            'end_logits': lambda logits_BT2, config: logits_BT2[..., 1],
        },
        objective=_of_model(task_losses.make_span_objective),
        decoded=_best_positions,
        google=('span',),
    ),
    'classifier': _CLASSIFIER,
    'regressor': dataclasses.replace(
        _CLASSIFIER,
        problem_type='regression',
        objective=_of_model(task_losses.make_regression_objective),
        has_targets=False,
    ),
    'multi_label': dataclasses.replace(
        _CLASSIFIER,
        problem_type='multi_label_classification',
        objective=_of_model(task_losses.make_multi_label_objective),
        has_targets=False,
    ),
    'tokens': Head(
        module=heads.Tokens,
        parts=('classifier',),
        architecture='BertForTokenClassification',
        outputs=_RESULT,
        labelled=True,
        of_words=True,
        objective=_of_model(task_losses.make_token_objective),
    ),
    'choice': Head(
        module=heads.Choice,
        parts=('pooler', 'classifier'),
        architecture='BertForMultipleChoice',
        outputs=_RESULT,
        inputs=_OF_CHOICES,
        objective=_CHOICES,
        decoded=lambda scores, batch, n_best: {
            'logits': task_losses.mask_absent_choices(scores, batch)
        },
    ),
    'pretraining': Head(
        module=heads.Pretraining,
        parts=('pooler', 'mlm', 'nsp'),
        architecture='BertForPreTraining',
        outputs={'prediction_logits': _WORDS, 'seq_relationship_logits': _SECOND},
        inputs=_MASKED,
        google=('pooler', 'mlm', 'nsp'),
    ),
    'masked_words': Head(
        module=heads.Pretraining,
        parts=('mlm',),
        architecture='BertForMaskedLM',
        outputs={'logits': _WORDS},
        inputs=_MASKED,
        google=('mlm',),
    ),
    'next_sentence': Head(
        module=heads.NextSentence,
        parts=('pooler', 'nsp'),
        architecture='BertForNextSentencePrediction',
        outputs=_RESULT,
        google=('pooler', 'nsp'),
    ),
    'encoder': Head(
        module=heads.EncoderOnly,
        parts=('pooler',),
        architecture='BertModel',
        outputs={'last_hidden_state': lambda result, config: result[0], 'pooler_output': _SECOND},
        google=('pooler',),
    ),
    'embedding': Head(
        module=heads.SentenceEncoder,
        parts=(),
        architecture='BertModel',
        outputs={'sentence_embedding': lambda result, config: result},
        objective=lambda model, embedding, targets: make_vector_objective(model, embedding),
        decoded=lambda vectors, batch, n_best: {'sentence_embedding': vectors},
    ),
}
# The same by the classes of transformers, of all families.
CLASSES = {
    head.class_in(family): head.of(family)
    for family in FAMILIES
    for head in reversed(HEADS.values())
    if head.is_in(family)
}


def pretraining_head(config: ModelConfig) -> Head:
    """Return the head that pre-training trains, without pairs that for masked words alone."""
    return HEADS['pretraining' if config.traits.pairs else 'masked_words'].of(config.family)


def of_task(parts: Iterable[str]) -> tuple[str, ...]:
    """Return those of some parts whose outputs are as many as a task has."""
    return tuple(part for part in parts if PARTS[part].of_task)


def make_model(
    head: str,
    config: ModelConfig,
    outputs: int,
    head_dropout: float,
    runtime: RuntimeConfig,
    sentence: SentenceConfig | None = None,
) -> Any:
    """Make the encoder of `config` with the head of that name, computed as `runtime` says.

    What its products read is runtime.compute_dtype: training may multiply otherwise (`products`).
    outputs: how many labels or numbers the task has. sentence: what makes a vector of a text, where
    the head does. KeyError for an unknown name.
    """
    dtype = jnp.dtype(runtime.compute_dtype)
    return HEADS[head].model(
        config, dtype, outputs, head_dropout, runtime.remat, runtime.scan_layers, sentence
    )


def make_objective(
    head: str,
    model: Any,
    embedding: EmbeddingConfig | None = None,
    targets: ClassTargets | None = None,
) -> Objective:
    """Return what fine-tuning a model with the head of that name minimises.

    `embedding` says how a sentence encoder is trained, `targets` how classes are; other heads do
    not read them.

    Raises:
      KeyError: no task has that head.
    """
    objective = HEADS[head].objective
    if objective is None:
        raise KeyError(head)
    return objective(model, embedding or EmbeddingConfig(), targets or ClassTargets())


def passes(head: str, config: ModelConfig) -> int:
    """Count the passes of a batch in a training step: two for AdaMix's consistency loss."""
    has_classes = HEADS[head].objective in (_classes, _CHOICES)
    return 2 if has_classes and config.tuning.consistent else 1


def make_predict(
    head: str, model: Any, n_best: int
) -> Callable[[Any, Batch], dict[str, jax.Array]]:
    """Make predict(params, batch) -> the arrays that a task decodes, without dropout.

    n_best: how many best starts and ends of a span, where the head has spans.
    """
    decoded = HEADS[head].decoded

    def predict(params: Any, batch: Batch) -> dict[str, jax.Array]:
        return decoded(model.apply({'params': params}, batch), batch, n_best)

    return predict
