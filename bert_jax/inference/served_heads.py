"""The table of what each head is asked and answers where it serves: one row a head.

Rows have the names of bert_jax/train/task_heads.py. Owns that correspondence, and the
lines in which the example script of an exported folder asks and prints. How answers are made is
pipelines.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.configs.errors import UserError
from bert_jax.conversion.parameters import Model, check_parts
from bert_jax.inference import pipelines
from bert_jax.inference.pipelines import Pipeline
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.train.task_heads import CLASSES

# Lines that several heads share; `words` are the arguments: one text, or a pair.
_BATCH = 'batch = {name: np.array(value, np.int32) for name, value in rows.items()}'
# The softmax, shifted by the largest: exp of a large logit alone would be infinite.
_SHARES = "share = np.exp(out['logits'][0] - out['logits'][0].max())\nshare = share / share.sum()\n"
# The masked places; a text without any still needs an array of one.
_MASKED = """
places = np.flatnonzero(batch['input_ids'][0] == about['mask_id'])
if not len(places) and len(words) < 2:
    print('no [MASK] in the pieces that are read: write one', file=sys.stderr)
    sys.exit(2)
batch['masked_lm_positions'] = places[None].astype(np.int32) if len(places) else \
np.zeros((1, 1), np.int32)"""
_BEST = """\
for place, row in zip(places, out['{}'][0]):
    print([tokenizer.id_to_token(int(i)) for i in \
np.argsort(-row[: tokenizer.get_vocab_size()])[:5]])"""
_PRINT = "print({label: round(float(p), 4) for label, p in zip(about['labels'], share)})"
# Of several labels that may hold at once, each has a probability of its own; tanh never overflows.
# Those are given whose probability is above the threshold that was chosen on dev.
_SIGMOID = """\
share = (1 + np.tanh(out['logits'][0] / 2)) / 2
limits = about.get('thresholds', {})
print([label for label, p in zip(about['labels'], share) if p > limits.get(label, 0.5)])
"""
_SPAN = """\
inside = np.array([side == 1 for side in texts[0].sequence_ids])
start = int(np.where(inside, out['start_logits'][0], -1e9).argmax())
end = start + int(np.where(inside, out['end_logits'][0], -1e9)[start : start + 30].argmax())
print(words[1][texts[0].offsets[start][0] : texts[0].offsets[end][1]])"""
_TEXTS = "'a text' ['its pair']"


class Served(NamedTuple):
    """A row of the table.

    All but the pipeline are a head's own lines in the example script of a folder, in Python; the
    other lines are serving_folder.py's.

    Attributes:
      pipeline: how the head is asked and answers; None where it gives only arrays.
      answer: prints what the outputs `out` say.
      usage: the arguments on the command line, `words` in the script.
      texts: what the tokenizer reads of them, a list.
      batch: the program's inputs, from `rows`.
      truncation: which text the tokenizer cuts where both are too long.
      least, most: how many arguments there may be.
    """

    pipeline: type[Pipeline] | None
    answer: str
    usage: str = _TEXTS
    texts: str = '[tuple(words) if len(words) > 1 else words[0]]'
    batch: str = _BATCH
    truncation: str = 'longest_first'
    least: int = 1
    most: int = 2


SERVED = {
    'span': Served(
        pipelines.QuestionAnswering,
        _SPAN,
        "'a question' 'its context'",
        truncation='only_second',
        least=2,
    ),
    'classifier': Served(pipelines.TextClassification, _SHARES + _PRINT),
    'regressor': Served(
        pipelines.Regression,
        "numbers = out['logits'][0]\n"
        "if about.get('activation') == 'sigmoid':\n    numbers = (1 + np.tanh(numbers / 2)) / 2\n"
        'values = [round(float(value), 4) for value in numbers]\nprint(values[0]'
        " if len(values) == 1 else dict(zip(about['labels'], values)))",
    ),
    'multi_label': Served(pipelines.MultiLabelClassification, _SIGMOID + _PRINT),
    'tokens': Served(
        pipelines.TokenClassification,
        "for token, row in zip(texts[0].tokens, out['logits'][0]):\n    print(token,"
        " about['labels'][row.argmax()])",
        "'a text'",
    ),
    'choice': Served(
        pipelines.MultipleChoice,
        _SHARES + 'print({choice: round(float(p), 4) for choice, p in zip(words[1:], share)})',
        "'a text' 'a choice' 'another' ...",
        '[(words[0], choice) for choice in words[1:]]',
        _BATCH.replace('np.array(value', 'np.array([value]'),
        least=3,
        most=999,
    ),
    'pretraining': Served(
        pipelines.FillMask,
        _BEST.format('prediction_logits')
        + "\nprint('next sentence:', bool(out['seq_relationship_logits'][0].argmax() == 0))",
        "'a text with [MASK]' ['what may follow it']",
        batch=_BATCH + _MASKED,
    ),
    'masked_words': Served(
        pipelines.FillMaskAlone,
        _BEST.format('logits'),
        "'a text with [MASK]'",
        batch=_BATCH + _MASKED.replace(' and len(words) < 2', ''),
    ),
    'next_sentence': Served(
        pipelines.NextSentencePrediction,
        "print('next sentence:', bool(out['logits'][0].argmax() == 0))",
        "'a text' 'what may follow it'",
        least=2,
    ),
    'encoder': Served(None, "print(out['pooler_output'][0].tolist())", "'a text'"),
    'embedding': Served(None, "print(out['sentence_embedding'][0].tolist())", "'a text'"),
}


def script_of(model: Model, texts: int | None = None) -> Served:
    """Return a model's own lines of the example script; texts: of an example, if known."""
    script = SERVED[model.head]
    if texts and script.usage == _TEXTS:
        usage = "'a text' 'its pair'" if texts == 2 else "'a text'"
        script = script._replace(usage=usage, least=texts, most=texts)
    return script


def check_windows(model: Model, doc_stride: int) -> None:
    """Raise UserError for a model that does not read a text in several rows, or no such windows."""
    if doc_stride < 1:
        raise UserError(f'doc_stride={doc_stride}: must be a whole number from 1')
    served = SERVED[model.head].pipeline
    if served is None or not served.in_windows:
        raise UserError(
            f'doc_stride: {model.architecture} is not read in windows, as classifiers, regressions'
            ' and questions are: leave it out'
        )


def pipeline(
    model: Model, tokenizer: Tokenizer, max_length: int, top: int, options: Mapping[str, Any]
) -> Pipeline:
    """Return what asks `model` and makes its answers.

    Args:
      model: the model.
      tokenizer: the model's.
      max_length: word pieces of its longest row.
      top: how many candidates an answer lists.
      options: those of the task that it was trained on.

    Raises:
      UserError: the model has no head that answers.
    """
    # A class may be readable and still have no head of ours that answers (an encoder).
    served = SERVED[model.head] if model.architecture in CLASSES else None
    if served is None or served.pipeline is None:
        if model.sentence is not None:
            raise UserError(
                'a sentence encoder gives vectors and no answers: take Bert.load(...).embed of'
                ' bert_jax.inference, or bert-nearest'
            )
        raise UserError(
            f'{model.architecture} has no head that answers: its hidden states are what'
            ' bert-extract-features writes'
        )

    check_parts(model, 'to answer', 'name one that has all, or train it first')

    # Sources of others may leave out their labels: then as transformers calls them.
    labels = tuple(model.labels)
    if CLASSES[model.architecture].labelled and not labels:
        labels = tuple(f'LABEL_{i}' for i in range(model.outputs))

    return served.pipeline(labels, tokenizer, max_length, top, {**model.chosen, **options})
