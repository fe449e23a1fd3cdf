"""Fine-tuned on some languages and scored on all: the matrix of Pires et al. 2019.

Owns how a row of the matrix is made (a sweep over seeds, then every language), what is kept of it,
and how many pieces two languages have in common. How a run goes and how a split is scored is
bert_jax/runs/finetuning's; the table and the picture are matrix.py's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import FinetuneConfig
from bert_jax.configs.sweep import Point
from bert_jax.input_pipeline.tasks import Example
from bert_jax.input_pipeline.tasks.features import features_of
from bert_jax.input_pipeline.text.whole_text import read_json
from bert_jax.runs.crosslingual.languages import Language, training_examples
from bert_jax.runs.finetuning import evaluation
from bert_jax.runs.finetuning.approach import FineTuning
from bert_jax.runs.finetuning.finetuner import FineTuner
from bert_jax.runs.finetuning.machine import Machine
from bert_jax.runs.finetuning.sweep import run_sweep
from bert_jax.runs.finetuning.task_data import TaskData, task_identity
from bert_jax.runs.sources.source import Source
from bert_jax.runs.workdir.workdir import Workdir


class Cell(NamedTuple):
    """What models that were fine-tuned on some languages score on one.

    scores: of the task's metric, by seed; failed: how many of the models have learnt nothing of
    what they were trained on; overlap: see `overlap`; guess: what a constant answer scores.
    """

    trained_on: tuple[str, ...]
    language: str
    split: str
    examples: int
    scores: dict[int, float]
    failed: int
    overlap: float
    guess: float | None


def row_folder(workdir: str, row: Sequence[str]) -> str:
    """Where the runs of a row lie."""
    return os.path.join(workdir, '+'.join(row))


def make_row(
    row: tuple[str, ...],
    languages: Mapping[str, Language],
    scored: Mapping[str, Sequence[Example]],
    source: Source,
    points: Sequence[Point[FinetuneConfig]],
    machine: Machine,
    workdir: str,
) -> list[Cell]:
    """Fine-tunes on the languages of a row and scores each of all, or takes what is there.

    `scored`: what is scored of each language. `points` differ in their seeds alone. Raises
    machine.Stopped after a signal.
    """
    # The first language names the task, and its split selects and says whether a run has failed.
    first = languages[row[0]]
    train = training_examples(row, languages)
    named = task_identity(first.task, first.given, first.data_dir)
    cache = str(Workdir(workdir).features)
    data = TaskData(first.task, source, named, cache, train)
    fine_tuner = FineTuner(FineTuning(data), machine)
    folder = row_folder(workdir, row)
    runs = run_sweep([(fine_tuner, point) for point in points], folder)
    failed = sum(bool(run.get('failed')) for run in runs)

    # Then each language by every model of the row.
    length = points[0].config.max_seq_length
    seen = pieces(first, train, source, length, cache)
    cells = []
    for name, language in languages.items():
        examples, scores = scored[name], {}
        guess = language.task.constant_scores(examples)
        for point in points:
            machine.heed()
            at = os.path.join(folder, 'runs', point.name)
            scores[point.config.seed] = _score(at, language, examples)
        cells.append(
            Cell(
                row,
                language.name,
                language.split,
                len(examples),
                scores,
                failed,
                overlap(seen, pieces(language, examples, source, length, cache)),
                guess[language.task.metric] if guess else None,
            )
        )
    return cells


def scored_examples(language: Language) -> list[Example]:
    """The examples of the split that is scored. UserError where they have no labels."""
    examples = language.task.examples(language.split)
    if not language.task.labelled(examples):
        raise UserError(
            f'--task={language.name}={language.given}: its {language.split} split has no labels, so'
            ' that nothing can be scored: name another with --split'
        )
    return examples


def _score(folder: str, language: Language, examples: Sequence[Example]) -> float:
    """A run's score on a language; filed in its folder under the language's name."""
    # A score that is there is taken where it is of these examples and this run.
    workdir, name = Workdir(folder), f'{language.name}-{language.split}'
    facts = {
        'config_hash': evaluation.config_hash(workdir.config()),
        'examples_digest': hashlib.sha256(repr(examples).encode()).hexdigest()[:16],
    }
    if workdir.result(name).exists():
        there = read_json(str(workdir.result(name)))
        if {fact: there.get(fact) for fact in facts} == facts:
            return there['metrics'][language.task.metric]
    trained = evaluation.TrainedTask(folder, language.given, language.data_dir, language.split)
    predictions = trained.predict(trained.examples, str(workdir.features))
    found = evaluation.record(
        trained.task, name, trained.examples, predictions, workdir, facts | {'step': trained.step}
    )
    score = found['metrics'][language.task.metric]
    logging.info('%s: %s %s %.4f', folder, name, language.task.metric, score)
    return score


def pieces(
    language: Language, examples: Sequence[Example], source: Source, length: int, cache: str
) -> np.ndarray:
    """The ids of all pieces in the rows of some examples, each once, special ones left out."""
    rows = features_of(language.task, examples, source.tokenizer, length, cache)
    found = np.unique(rows['input_ids'][rows['input_mask'] > 0])
    return np.setdiff1d(found, np.array(sorted(source.tokenizer.special_ids), found.dtype))


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """|one and other| / |one or other|, as Pires et al. (section 3) take it of word pieces."""
    union = np.union1d(one, other).size
    return np.intersect1d(one, other).size / union if union else 0.0
