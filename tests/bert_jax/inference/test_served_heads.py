"""The two tables of heads name the same ones, and every task has a head that can be trained."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bert_jax.configs.model.families import FAMILIES
from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.inference import serving_folder
from bert_jax.inference.served_heads import SERVED
from bert_jax.input_pipeline.tasks import BY_KIND
from bert_jax.input_pipeline.tasks.classification import text_task
from bert_jax.input_pipeline.tasks.embedding import EmbeddingTask
from bert_jax.input_pipeline.tasks.multilabel import MultiLabelTask
from bert_jax.input_pipeline.tasks.multiple_choice import ChoiceTask
from bert_jax.input_pipeline.tasks.squad import SpanTask
from bert_jax.input_pipeline.tasks.tagging import TaggingTask
from bert_jax.train.task_heads import CLASSES, HEADS, PARTS
from tests.helpers import tiny_models

TASKS = [
    text_task('x', 'classification', ('a', 'b'), ('accuracy',), {}),
    text_task('x', 'pair', ('a', 'b'), ('accuracy',), {}),
    text_task('x', 'regression', (), ('pearson',), {}),
    SpanTask('x', {}),
    ChoiceTask('x', ('0', '1'), {}),
    TaggingTask('x', ('O', 'B-X', 'I-X'), ('accuracy',), {}),
    EmbeddingTask('x', {}, ('spearman',), (), {}),
    MultiLabelTask('x', 'multilabel', ('a', 'b'), ('micro_f1',), {}),
]


def test_both_tables_name_the_same_heads():
    assert list(SERVED) == list(HEADS)


def test_every_kind_of_task_has_a_head_that_is_trained_and_answers():
    assert {task.kind for task in TASKS} == set(BY_KIND)
    for task in TASKS:
        assert HEADS[task.head].objective
        # Vectors are no answers.
        assert (SERVED[task.head].pipeline is None) == (task.kind == 'embedding')
    trained = {name for name, head in HEADS.items() if head.objective}
    assert trained == {task.head for task in TASKS}


@pytest.mark.parametrize(
    ('head', 'texts', 'words', 'usage'),
    [
        ('classifier', 2, ['a'], "'a text' 'its pair'"),
        ('span', None, ['a'], "'a question' 'its context'"),
    ],
)
def test_an_exported_folder_is_asked_what_its_model_was_trained_on(head, texts, words, usage):
    labels = tiny_models.LABELS if head == 'classifier' else ()
    model = tiny_models.model(HEADS[head].architecture, labels=labels)
    command = [sys.executable, '-c', serving_folder.example(model, 'stablehlo', texts), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f'Serves the model in this folder: python serve.py {usage}\n'


def test_every_part_belongs_to_a_head_and_every_head_has_its_parts():
    of_families = [head.of(family) for family in FAMILIES for head in HEADS.values()]
    assert {part for head in of_families for part in head.parts} == set(PARTS)
    for head in CLASSES.values():
        assert set(head.google) <= set(PARTS)


@pytest.mark.parametrize('name', HEADS)
def test_a_model_finds_its_own_row(name):
    model = tiny_models.model(HEADS[name].architecture)
    sentence = SentenceConfig() if name == 'embedding' else None
    model = model._replace(problem_type=HEADS[name].problem_type, sentence=sentence)
    assert model.head == name


def test_one_number_without_a_type_is_a_regression_as_transformers_takes_it():
    model = tiny_models.model('BertForSequenceClassification', labels=())
    assert model.head == 'regressor'
    assert model._replace(problem_type='single_label_classification').head == 'regressor'
    assert model._replace(problem_type='multi_label_classification').head == 'multi_label'


def test_importing_the_room_imports_nothing_heavy_before_the_predictor_is_asked_for():
    code = (
        'import sys, bert_jax.inference\n'
        'assert not {"jax", "flax", "numpy", "tensorflow"} & set(sys.modules)\n'
        'from bert_jax.inference import Predictor\n'
        'assert Predictor.from_workdir and bert_jax.inference.Predictor is Predictor\n'
        'try: bert_jax.inference.Oracle\n'
        'except AttributeError as error: print(error)'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "module 'bert_jax.inference' has no attribute 'Oracle'\n"
