"""The table of heads: every task has a head that is trained, and every model finds its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bert_jax.inference import pipelines, serving_folder
from bert_jax.input_pipeline.tasks.classification import make_text_task
from bert_jax.input_pipeline.tasks.embedding import EmbeddingTask
from bert_jax.input_pipeline.tasks.load_task import BY_KIND
from bert_jax.input_pipeline.tasks.multilabel import MultiLabelTask
from bert_jax.input_pipeline.tasks.multiple_choice import ChoiceTask
from bert_jax.input_pipeline.tasks.ranking import RankingTask
from bert_jax.input_pipeline.tasks.squad import SpanTask
from bert_jax.input_pipeline.tasks.tagging import TaggingTask
from bert_jax.train.head_base import TaskHead
from bert_jax.train.task_heads import HEADS
from tests.helpers import tiny_models

TASKS = [
    make_text_task('x', 'classification', ('a', 'b'), ('accuracy',), {}),
    make_text_task('x', 'pair', ('a', 'b'), ('accuracy',), {}),
    make_text_task('x', 'regression', (), ('pearson',), {}),
    SpanTask('x', {}),
    ChoiceTask('x', ('0', '1'), {}),
    TaggingTask('x', ('O', 'B-X', 'I-X'), ('accuracy',), {}),
    *(EmbeddingTask('x', {}, ('spearman',), {}, kind=kind) for kind in EmbeddingTask.kinds),
    MultiLabelTask('x', 'multilabel', ('a', 'b'), ('micro_f1',), {}),
    RankingTask('x', {}, ('ndcg@10',), {}),
]


def test_every_head_is_asked_by_a_class_that_is_there():
    for head in HEADS.values():
        assert head.pipeline is None or hasattr(pipelines, head.pipeline)


def test_every_kind_of_task_has_a_head_that_is_trained_and_answers():
    assert {task.kind for task in TASKS} == set(BY_KIND)
    for task in TASKS:
        # Vectors are no answers.
        assert (HEADS[task.head].pipeline is None) == isinstance(task, EmbeddingTask)
    trained = {name for name, head in HEADS.items() if isinstance(head, TaskHead)}
    assert trained == {task.head for task in TASKS}


def test_an_exported_folder_is_asked_what_its_model_was_trained_on():
    model = tiny_models.model('BertForSequenceClassification')
    command = [sys.executable, '-c', serving_folder.make_example(model, 'stablehlo', 2), 'a']
    done = subprocess.run(command, capture_output=True, text=True)
    line = "Serves the model in this folder: python serve.py 'a text' 'its pair'\n"
    assert (done.returncode, done.stderr) == (2, line)


@pytest.mark.parametrize('name', [name for name in HEADS if HEADS[name].is_in('bert')])
def test_a_model_finds_its_own_row(name):
    model = tiny_models.model(HEADS[name].architecture)
    vectors = HEADS[name].vectors
    sentence = vectors and vectors()
    model = model._replace(problem_type=HEADS[name].problem_type, sentence=sentence)
    # A reranker that is trained answers as a regression does.
    assert model.head == {'ranking': 'regressor'}.get(name, name)


def test_one_number_without_a_type_is_a_regression_as_transformers_takes_it():
    model = tiny_models.model('BertForSequenceClassification', labels=())
    assert model.head == 'regressor'
    assert model._replace(problem_type='single_label_classification').head == 'regressor'
    assert model._replace(problem_type='multi_label_classification').head == 'multi_label'
