"""Answers of a relative's directory, ours beside those of transformers' own pipelines."""

from __future__ import annotations

import pathlib

import pytest

from bert_jax.conversion.trained_model import Model
from bert_jax.inference import export
from bert_jax.inference.bert import MaskFiller
from bert_jax.inference.predictor import Predictor
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.runs.sources.source import read_source
from tests.parity import reference
from tests.parity.reference import torch, transformers


def served(
    architecture: str, tokenizer: Tokenizer, folder: pathlib.Path, **settings
) -> tuple[pathlib.Path, Model]:
    """A model of transformers with random weights, read here and written with `tokenizer`."""
    theirs, ours = folder / 'theirs', folder / 'ours'
    sizes = {'intermediate_size': 50, 'max_position_embeddings': 130} | settings
    tokenizer.save(theirs)
    made = reference.random_model(architecture, vocab_size=tokenizer.vocab_size, **sizes)
    made.save_pretrained(theirs)
    read = read_source(str(theirs))
    export.write(read.bert, read.tokenizer, 'huggingface', str(ours))
    return ours, read.bert


def pipeline(task: str, where: pathlib.Path, **options):
    """transformers' pipeline of a directory."""
    return transformers.pipeline(task, str(where), device='cpu', **options)


def same_classes(where: pathlib.Path, text: str, text_b: str) -> None:
    """Asserts the probabilities of a classifier, of `text_b` alone and of the pair."""
    ours = Predictor.from_workdir(str(where))
    theirs = pipeline('text-classification', where, top_k=None)
    for found, wanted in (
        (ours(text_b), theirs(text_b)),
        (
            ours({'text': text, 'text_b': text_b}),
            theirs({'text': text, 'text_pair': text_b}),
        ),
    ):
        wanted = wanted[0] if isinstance(wanted[0], list) else wanted
        scores = {one['label']: one['score'] for one in wanted}
        assert found['probabilities'] == pytest.approx(scores, abs=2e-5)


def same_number(where: pathlib.Path, text: str) -> None:
    """Asserts the number that a regressor gives."""
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(where)
    rows = transformers.AutoTokenizer.from_pretrained(where)(text, return_tensors='pt')
    wanted = theirs(**rows).logits.item()
    assert Predictor.from_workdir(str(where))(text)['value'] == pytest.approx(wanted, abs=2e-5)


def same_words(where: pathlib.Path, *texts: str) -> None:
    """Asserts the probabilities of the words for one mask in each text."""
    ours, theirs = MaskFiller(read_source(str(where)), 5), pipeline('fill-mask', where)
    for text in texts:
        found = [word['probability'] for word in ours(text)['masks'][0]]
        assert found == pytest.approx([word['score'] for word in theirs(text)], abs=2e-5)


def same_answer(where: pathlib.Path, question: str, context: str) -> None:
    """Asserts the answer: the best start and end within the context, at most 30 pieces long."""
    found = Predictor.from_workdir(str(where))({'question': question, 'context': context})
    rows = transformers.AutoTokenizer.from_pretrained(where)(question, context, return_tensors='pt')
    with torch.no_grad():
        logits = transformers.AutoModelForQuestionAnswering.from_pretrained(where)(**rows)
    start, end = logits.start_logits[0].numpy(), logits.end_logits[0].numpy()
    encoding = Tokenizer.load(where).encode_with_offsets(context)
    first = rows['input_ids'].shape[1] - 1 - len(encoding.ids)
    inside = range(first, first + len(encoding.ids))
    pairs = [(start[a] + end[b], a, b) for a in inside for b in inside if a <= b < a + 30]
    _, a, b = max(pairs)
    # A piece may be white space alone, which no answer begins or ends with.
    wanted = context[encoding.starts[a - first] : encoding.ends[b - first]].strip()
    assert found['answer'] == wanted
