"""The table of heads, and those that answer: spans, classes, numbers, tags and choices.

A head is what stands on the encoder for a purpose. Its class names its model, its weights, what
training minimises, what leaves the device, what other programs call it, how it is asked and
answers, and its words in an exported folder. Training, conversion, inference and exports read the
table and know no head by name (docs/adding.md). Heads of pre-training and of search have files of
their own beside this one.

Dims: B batch, T position, K best positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bert_jax.configs.model.model_config import FAMILIES
from bert_jax.configs.model.sentence import VectorsConfig
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.model import heads
from bert_jax.train.head_base import (
    AUTO,
    ONE,
    PARTS,
    ExampleScript,
    Head,
    HubCard,
    TaskHead,
)
from bert_jax.train.losses import task_losses
from bert_jax.train.losses.objective import Batch, Objective
from bert_jax.train.losses.ranking import make_ranking_objective
from bert_jax.train.losses.settings import LossSettings
from bert_jax.train.pretraining_heads import (
    Detection,
    Encoder,
    MaskedWords,
    NextSentence,
    Pretraining,
)
from bert_jax.train.search_heads import Embedding, LateInteraction, SparseEmbedding

# Lines of example scripts that several heads share.
# The softmax, shifted by the largest: exp of a large logit alone would be infinite.
_SHARES = "share = np.exp(out['logits'][0] - out['logits'][0].max())\nshare = share / share.sum()\n"
_PRINT = "print({label: round(float(p), 4) for label, p in zip(about['labels'], share)})"


class Span(TaskHead):
    """The answer to a question, from a start to an end in a text."""

    name = 'span'
    module = heads.Span
    parts = ('span',)
    architecture = 'BertForQuestionAnswering'
    output_names = ('start_logits', 'end_logits')
    peft_task = 'QUESTION_ANS'
    google = ('span',)
    fits_whole_words = False
    objective = staticmethod(task_losses.make_span_objective)
    pipeline = 'QuestionAnswering'
    script = ExampleScript(
        """\
inside = np.array([side == 1 for side in texts[0].sequence_ids])
start = int(np.where(inside, out['start_logits'][0], -1e9).argmax())
end = start + int(np.where(inside, out['end_logits'][0], -1e9)[start : start + 30].argmax())
print(words[1][texts[0].offsets[start][0] : texts[0].offsets[end][1]])""",
        "'a question' 'its context'",
        truncation='only_second',
        least=2,
    )
    card = HubCard(
        'question-answering',
        'finds the answer to a question in a text',
        AUTO.replace('{auto}', 'AutoModelForQuestionAnswering')
        + "print(model(**tokenizer('A question?', 'Its context.', return_tensors='pt'))"
        '.start_logits)',
    )

    def read_outputs(self, result: Any, config: ModelConfig) -> tuple[jax.Array, ...]:
        """Return the logits of starts and of ends, [B, T]."""
        return result[..., 0], result[..., 1]

    def decode(self, result: Any, batch: Batch, n_best: int) -> dict[str, jax.Array]:
        """Return the `n_best` best starts and ends, best first, in place of all logits.

        {'start_scores', 'start_indices', 'end_scores', 'end_indices': [B, K], 'null_scores': [B]},
        where the null score is start + end at [CLS]. Padding is never among the best (K is at most
        T).
        """
        # Padding scores far below any real position, so that top_k takes it last.
        real_BT = batch['input_mask'] > 0
        best = {'null_scores': result[:, 0].sum(-1)}
        for index, side in enumerate(('start', 'end')):
            scores_BT = jnp.where(real_BT, result[..., index], -1e9)
            # A window may be shorter than n_best: top_k takes no more than there are.
            K = min(n_best, scores_BT.shape[1])
            best[f'{side}_scores'], best[f'{side}_indices'] = jax.lax.top_k(scores_BT, K)
        return best


class Classifier(TaskHead):
    """One of several labels of a text or a pair."""

    name = 'classifier'
    module = heads.Classifier
    parts = ('pooler', 'classifier')
    architecture = 'BertForSequenceClassification'
    peft_task = 'SEQ_CLS'
    google = ('classifier',)
    labelled = True
    has_targets = True
    has_consistency = True
    objective: ClassVar[Callable[..., Objective]] = staticmethod(
        task_losses.make_classification_objective
    )
    pipeline = 'TextClassification'
    script = ExampleScript(_SHARES + _PRINT)
    card = HubCard('text-classification', 'classifies texts or pairs of texts', ONE)


class Regressor(Classifier):
    """A number of a text or a pair."""

    name = 'regressor'
    problem_type = 'regression'
    has_targets = False
    has_consistency = False
    objective = staticmethod(task_losses.make_regression_objective)
    pipeline = 'Regression'
    script = ExampleScript(
        "numbers = out['logits'][0]\n"
        "if about.get('activation') == 'sigmoid':\n    numbers = (1 + np.tanh(numbers / 2)) / 2\n"
        'values = [round(float(value), 4) for value in numbers]\nprint(values[0]'
        " if len(values) == 1 else dict(zip(about['labels'], values)))"
    )
    card = HubCard(
        'text-ranking',
        'gives texts or pairs of texts a number',
        'from sentence_transformers import CrossEncoder\n\nmodel = CrossEncoder({name!r})\n'
        "print(model.predict([('A text.', 'Another.')]))",
    )


class Ranking(Regressor):
    """How well a document answers a query; a list of them in training (a cross-encoder)."""

    name = 'ranking'
    sections = ('ranking',)
    fits_whole_words = False

    def decode(self, result: Any, batch: Batch, n_best: int) -> dict[str, jax.Array]:
        """Return the logits [B, C] of the documents of each query."""
        return {'logits': result[..., 0]}

    def answer_with(self, max_seq_length: int) -> dict[str, Any]:
        """Return a sigmoid, as CrossEncoder has it, and the rows of training."""
        return {'activation': 'sigmoid', 'max_seq_length': max_seq_length}

    def make_objective(self, model: Any, settings: LossSettings) -> Objective:
        """Return the objective of lists of documents."""
        return make_ranking_objective(model, settings.ranking)


class MultiLabel(Classifier):
    """Any number of several labels of a text or a pair."""

    name = 'multi_label'
    problem_type = 'multi_label_classification'
    has_targets = False
    has_consistency = False
    objective = staticmethod(task_losses.make_multi_label_objective)
    pipeline = 'MultiLabelClassification'
    # Of several labels that may hold at once, each has a probability of its own; tanh never
    # overflows. Those are given whose probability is above the threshold that was chosen on dev.
    script = ExampleScript(
        """\
share = (1 + np.tanh(out['logits'][0] / 2)) / 2
limits = about.get('thresholds', {})
print([label for label, p in zip(about['labels'], share) if p > limits.get(label, 0.5)])
"""
        + _PRINT
    )
    card = HubCard(
        'text-classification',
        'gives texts any number of labels',
        ONE.replace("'A text.'", "'A text.', top_k=None"),
    )


class Tokens(TaskHead):
    """A label of each word of a text."""

    name = 'tokens'
    module = heads.Tokens
    parts = ('classifier',)
    architecture = 'BertForTokenClassification'
    peft_task = 'TOKEN_CLS'
    labelled = True
    of_words = True
    objective = staticmethod(task_losses.make_token_objective)
    pipeline = 'TokenClassification'
    script = ExampleScript(
        "for token, row in zip(texts[0].tokens, out['logits'][0]):\n    print(token,"
        " about['labels'][row.argmax()])",
        "'a text'",
    )
    card = HubCard('token-classification', 'labels the words of a text', ONE)


class Choice(TaskHead):
    """One of several continuations of a text, each a row of its own."""

    name = 'choice'
    module = heads.Choice
    parts = ('pooler', 'classifier')
    architecture = 'BertForMultipleChoice'
    inputs = dict.fromkeys(Head.inputs, 'b, c, t')
    fits_whole_words = False
    has_consistency = True
    objective = staticmethod(task_losses.make_choice_objective)
    pipeline = 'MultipleChoice'
    script = ExampleScript(
        _SHARES + 'print({choice: round(float(p), 4) for choice, p in zip(words[1:], share)})',
        "'a text' 'a choice' 'another' ...",
        '[(words[0], choice) for choice in words[1:]]',
        ExampleScript('').batch.replace('np.array(value', 'np.array([value]'),
        least=3,
        most=999,
    )
    card = HubCard(
        'multiple-choice',
        'chooses among several continuations of a text',
        AUTO.replace('{auto}', 'AutoModelForMultipleChoice')
        + "rows = tokenizer(['A text.'] * 2, ['One.', 'Another.'], return_tensors='pt',"
        ' padding=True)\n'
        'print(model(**{{name: row[None] for name, row in rows.items()}}).logits)',
    )

    def decode(self, result: Any, batch: Batch, n_best: int) -> dict[str, jax.Array]:
        """Return the scores of the choices that are there."""
        return {'logits': task_losses.mask_absent_choices(result, batch)}


# Of the heads of one class the first stands for it; of the parts that a Google checkpoint holds the
# first head that fits says what it is.
HEADS: dict[str, Head] = {
    head.name: head()
    for head in (
        Span,
        Classifier,
        Regressor,
        Ranking,
        MultiLabel,
        Tokens,
        Choice,
        Pretraining,
        MaskedWords,
        Detection,
        NextSentence,
        Encoder,
        Embedding,
        SparseEmbedding,
        LateInteraction,
    )
}
# The same by the classes of transformers, of all families.
CLASSES = {
    head.class_in(family): head.of(family)
    for family in FAMILIES
    for head in reversed(HEADS.values())
    if head.is_in(family)
}


def get_task_head(name: str) -> TaskHead:
    """Return the head of that name. KeyError where no task has it."""
    head = HEADS[name]
    if not isinstance(head, TaskHead):
        raise KeyError(name)
    return head


def choose_pretraining_head(config: ModelConfig) -> Head:
    """Return the head that pre-training trains, without pairs that for masked words alone."""
    name = 'pretraining'
    if not config.traits.pairs:
        name = 'masked_words'
    return HEADS[name].of(config.family)


def list_parts(family: str) -> list[str]:
    """Return the parts that models of a family may have, in the order of PARTS."""
    parts = set()
    for head in HEADS.values():
        if head.is_in(family):
            parts |= set(head.of(family).parts)
    return [name for name in PARTS if name in parts]


def select_of_task(parts: Iterable[str]) -> tuple[str, ...]:
    """Return those of some parts whose outputs are as many as a task has."""
    return tuple(part for part in parts if PARTS[part].of_task)


def make_model(
    head: str,
    config: ModelConfig,
    outputs: int,
    head_dropout: float,
    runtime: RuntimeConfig,
    sentence: VectorsConfig | None = None,
) -> Any:
    """Make the encoder of `config` with the head of that name, computed as `runtime` says.

    What its products read is runtime.compute_dtype: training may multiply otherwise
    (`matmul_dtype`).
    outputs: how many labels or numbers the task has. sentence: what makes a vector of a text, where
    the head does. KeyError for an unknown name.
    """
    dtype = jnp.dtype(runtime.compute_dtype)
    return HEADS[head].model(
        config, dtype, outputs, head_dropout, runtime.remat, runtime.scan_layers, sentence
    )


def make_objective(head: str, model: Any, settings: LossSettings | None = None) -> Objective:
    """Return what fine-tuning a model with the head of that name minimises.

    Raises:
      KeyError: no task has that head.
    """
    return get_task_head(head).make_objective(model, settings or LossSettings())


def count_passes(head: str, config: ModelConfig) -> int:
    """Count the passes of a batch in a training step: two for AdaMix's consistency loss."""
    if get_task_head(head).has_consistency and config.tuning.consistent:
        return 2
    return 1


def make_predict(
    head: str, model: Any, n_best: int
) -> Callable[[Any, Batch], dict[str, jax.Array]]:
    """Make predict(params, batch) -> the arrays that a task decodes, without dropout.

    n_best: how many best starts and ends of a span, where the head has spans.
    """

    def predict(params: Any, batch: Batch) -> dict[str, jax.Array]:
        return HEADS[head].decode(model.apply({'params': params}, batch), batch, n_best)

    return predict
