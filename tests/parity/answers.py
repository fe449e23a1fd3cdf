"""Answers of a relative's directory, ours beside those of transformers' own pipelines."""

from __future__ import annotations

import pathlib

import pytest
import transformers

from bert_jax.inference.predictor import Predictor


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
