"""Fine-tuned on some languages and scored on all: the matrix of Pires et al. 2019.

Owns how a row of the matrix is made (a sweep over seeds, then every language), what is kept of it,
and how many pieces two languages have in common. How a run goes and how a split is scored is
bert_jax/runs/finetuning's; the table and the picture are matrix.py's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import FinetuneConfig
from bert_jax.configs.sweep import Point
from bert_jax.input_pipeline.tasks import Example
from bert_jax.input_pipeline.tasks.features import features_of
from bert_jax.input_pipeline.text.whole_text import read_json
from bert_jax.runs.crosslingual import matrix
from bert_jax.runs.crosslingual.languages import Language, training_examples
from bert_jax.runs.crosslingual.matrix import Cell
from bert_jax.runs.finetuning import machine, sweep
from bert_jax.runs.finetuning.approach import Approach
from bert_jax.runs.finetuning.evaluation import TaskEvaluator, config_hash
from bert_jax.runs.finetuning.finetuner import FineTuner
from bert_jax.runs.finetuning.task_data import TaskData, task_identity
from bert_jax.runs.sources.source import Source, load_plain
from bert_jax.runs.workdir.workdir import Workdir


def transfer(
    languages: Mapping[str, Language],
    rows: Sequence[tuple[str, ...]],
    init_from: str,
    workdir: str,
    points: Sequence[Point[FinetuneConfig]],
) -> str:
    """Fine-tune on the languages of each row and score all languages; return the tables.

    A row is written when it is there, so that a call that is stopped shows the rows before. What
    is done is taken as it is.

    Args:
      languages: the task in each language.
      rows: the languages that each model is fine-tuned on.
      init_from: the encoder.
      workdir: the folder of the matrix and of its runs.
      points: the runs of each row, which differ in their seeds alone.

    Raises:
      Stopped: after a signal.
    """
    with Workdir(workdir).lock():
        # What cannot be scored is reported before anything is trained for it.
        scored = {name: scored_examples(language) for name, language in languages.items()}
        encoder = load_plain(init_from)
        ready = machine.ready(points[0].config.runtime, encoder.model)
        cells: list[Cell] = []
        text = ''
        for row in rows:
            cells += _row(row, languages, scored, encoder, points, ready, workdir)
            text = matrix.write(workdir, languages[rows[0][0]].task.metric, cells)
    return text


def _row(
    row: tuple[str, ...],
    languages: Mapping[str, Language],
    scored: Mapping[str, Sequence[Example]],
    source: Source,
    points: Sequence[Point[FinetuneConfig]],
    ready: machine.Machine,
    workdir: str,
) -> list[Cell]:
    """Fine-tune on the languages of a row and score each of all, or take what is there."""
    # The first language names the task, and its split selects and says whether a run has failed.
    first = languages[row[0]]
    train = training_examples(row, languages)
    named = task_identity(first.task, first.given, first.data_dir)
    cache = str(Workdir(workdir).features)
    data = TaskData(first.task, source, named, cache, train)
    fine_tuner = FineTuner(Approach(data, ready), ready)
    folder = os.path.join(workdir, '+'.join(row))
    runs = sweep.run_sweep([(fine_tuner, point) for point in points], folder)
    failed = sum(bool(run.get('failed')) for run in runs)

    # Then each language by every model of the row.
    length = points[0].config.max_seq_length
    seen = pieces(first, train, source, length, cache)
    cells = []
    for name, language in languages.items():
        examples, scores = scored[name], {}
        guess = language.task.constant_scores(examples)
        for point in points:
            ready.heed()
            run = os.path.join(folder, 'runs', point.name)
            scores[point.config.seed] = _score(run, language, examples)
        cells.append(
            Cell(
                row,
                name,
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
    """Read the examples of the split that is scored. UserError where they have no labels."""
    examples = language.task.examples(language.split)
    if not language.task.labelled(examples):
        raise UserError(
            f'--task={language.name}={language.given}: its {language.split} split has no labels, so'
            ' that nothing can be scored: name another with --split'
        )
    return examples


def _score(folder: str, language: Language, examples: Sequence[Example]) -> float:
    """Return a run's score on a language, filed in its folder under the language's name."""
    # A score that is there is taken where it is of these examples and this run.
    workdir, name = Workdir(folder), f'{language.name}-{language.split}'
    facts = {
        'config_hash': config_hash(workdir.config()),
        'examples_digest': hashlib.sha256(repr(examples).encode()).hexdigest()[:16],
    }
    metric = language.task.metric
    if workdir.result(name).exists():
        earlier = read_json(str(workdir.result(name)))
        if {fact: earlier.get(fact) for fact in facts} == facts:
            return earlier['metrics'][metric]
    trained = TaskEvaluator(folder, language.given, language.data_dir, language.split)
    score = trained.record(name, facts)['metrics'][metric]
    logging.info(f'{folder}: {name} {metric} {score:.4f}')
    return score


def pieces(
    language: Language, examples: Sequence[Example], source: Source, length: int, cache: str
) -> np.ndarray:
    """Return the ids of all pieces in the rows of examples, each once, special ones left out."""
    rows = features_of(language.task, examples, source.tokenizer, length, cache)
    ids = rows['input_ids'][rows['input_mask'] > 0]
    return np.setdiff1d(ids, np.array(sorted(source.tokenizer.special_ids), ids.dtype))


def overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Return |both| / |either|, as Pires et al. (section 3) take it of word pieces."""
    union = np.union1d(first, second).size
    return np.intersect1d(first, second).size / union if union else 0.0
