"""Fine-tuned on some languages and scored on all: the matrix of Pires et al. 2019.

Owns how a row of the matrix is made (a sweep over seeds, then every language), what is kept of it,
how many pieces two languages have in common, its tables and its picture. How a run goes and how a
split is scored is bert_jax/runs/finetuning's.
"""

from __future__ import annotations

import hashlib
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.overrides import Point
from bert_jax.configs.schema import FinetuneConfig, hash_config
from bert_jax.input_pipeline.tasks.base import Example
from bert_jax.input_pipeline.tasks.features import load_features
from bert_jax.input_pipeline.text.encodings import read_json
from bert_jax.runs.crosslingual.languages import Language, read_training_examples
from bert_jax.runs.finetuning import machine, sweep
from bert_jax.runs.finetuning.approach import Approach
from bert_jax.runs.finetuning.evaluation import TaskEvaluator
from bert_jax.runs.finetuning.finetuner import FineTuner
from bert_jax.runs.finetuning.task_data import TaskData, task_identity
from bert_jax.runs.sources.source import Source, load_plain
from bert_jax.runs.workdir import plots
from bert_jax.runs.workdir.workdir import Workdir


class Cell(NamedTuple):
    """What models that were fine-tuned on some languages score on one.

    Attributes:
      trained_on: those languages.
      language: the one.
      split: of it.
      examples: how many there are in the split.
      scores: of the task's metric, by seed.
      failed: how many of the models have learnt nothing of what they were trained on.
      overlap: the share of word pieces in common (`compute_overlap`).
      guess: what a constant answer scores.
    """

    trained_on: tuple[str, ...]
    language: str
    split: str
    examples: int
    scores: dict[int, float]
    failed: int
    overlap: float
    guess: float | None

    @property
    def mean(self) -> float:
        """Return the mean over seeds."""
        return statistics.fmean(self.scores.values())

    @property
    def sd(self) -> float | None:
        """Return the sample standard deviation over seeds; None of one."""
        if len(self.scores) < 2:
            return None
        return statistics.stdev(self.scores.values())


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
        scored = {name: read_scored_examples(language) for name, language in languages.items()}
        encoder = load_plain(init_from)
        ready = machine.prepare_machine(points[0].config.runtime, encoder.model)
        matrix = _Matrix(languages, scored, encoder, points, ready, workdir)
        cells: list[Cell] = []
        text = ''
        for row in rows:
            cells += matrix.make_row(row)
            text = write_report(workdir, languages[rows[0][0]].task.metric, cells)
    return text


class _Matrix(NamedTuple):
    """What the rows of a matrix share: the arguments of `transfer`, and what is made of them.

    Attributes:
      languages: the task in each language.
      scored: the examples that are scored in each.
      source: the encoder.
      points: the runs of each row.
      machine: what carries them out.
      workdir: their folder.
    """

    languages: Mapping[str, Language]
    scored: Mapping[str, Sequence[Example]]
    source: Source
    points: Sequence[Point[FinetuneConfig]]
    machine: machine.Machine
    workdir: str

    def make_row(self, row: tuple[str, ...]) -> list[Cell]:
        """Fine-tune on the languages of a row and score each of all, or take what is there."""
        # The first language names the task, and its split selects and says whether a run has
        # failed.
        first = self.languages[row[0]]
        train = read_training_examples(row, self.languages)
        identity = task_identity(first.task, first.given, first.data_dir)
        cache = str(Workdir(self.workdir).features)
        data = TaskData(first.task, self.source, identity, cache, train)
        fine_tuner = FineTuner(Approach(data, self.machine), self.machine)
        folder = os.path.join(self.workdir, '+'.join(row))
        runs = sweep.run_sweep([(fine_tuner, point) for point in self.points], folder)
        failed = sum(bool(run.get('failed')) for run in runs)

        # Then each language by every model of the row.
        seen = self._list_pieces(first, train)
        cells = []
        for name, language in self.languages.items():
            examples, scores = self.scored[name], {}
            for point in self.points:
                self.machine.heed()
                run = os.path.join(folder, 'runs', point.name)
                scores[point.config.seed] = _score(run, language, examples)
            cells.append(
                Cell(
                    trained_on=row,
                    language=name,
                    split=language.split,
                    examples=len(examples),
                    scores=scores,
                    failed=failed,
                    overlap=compute_overlap(seen, self._list_pieces(language, examples)),
                    guess=language.task.constant_scores(examples).get(language.task.metric),
                )
            )
        return cells

    def _list_pieces(self, language: Language, examples: Sequence[Example]) -> np.ndarray:
        """Return the ids of all pieces in the rows of examples, each once, without special ones."""
        tokenizer, cache = self.source.tokenizer, str(Workdir(self.workdir).features)
        length = self.points[0].config.max_seq_length
        rows = load_features(language.task, examples, tokenizer, length, cache)
        ids = rows['input_ids'][rows['input_mask'] > 0]
        return np.setdiff1d(ids, np.array(sorted(tokenizer.special_ids), ids.dtype))


def read_scored_examples(language: Language) -> list[Example]:
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
        'config_hash': hash_config(workdir.config()),
        'examples_digest': hashlib.sha256(repr(examples).encode()).hexdigest()[:16],
    }
    metric = language.task.metric
    if workdir.result(name).exists():
        earlier = read_json(str(workdir.result(name)))
        if facts.items() <= earlier.items():
            return earlier['metrics'][metric]
    trained = TaskEvaluator(folder, language.given, language.data_dir, language.split)
    score = trained.record(name, facts)['metrics'][metric]
    logging.info(f'{folder}: {name} {metric} {score:.4f}')
    return score


def compute_overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Return |both| / |either|, as Pires et al. (section 3) take it of word pieces."""
    union = np.union1d(first, second).size
    if not union:
        return 0.0
    return np.intersect1d(first, second).size / union


def write_report(folder: str, metric: str, cells: Sequence[Cell]) -> str:
    """Write transfer.json, transfer.md and transfer.png; return what the table says."""
    report = {
        'metric': metric,
        'cells': [{**cell._asdict(), 'mean': cell.mean, 'sd': cell.sd} for cell in cells],
    }
    target = epath.Path(folder) / 'transfer'
    return plots.save_report(target, report, format_tables(metric, cells), draw(metric, cells))


def format_tables(metric: str, cells: Sequence[Cell]) -> str:
    """Write both tables as markdown: the scores, and the pieces that rows and columns share."""
    rows = list(dict.fromkeys(cell.trained_on for cell in cells))
    columns = list(dict.fromkeys(cell.language for cell in cells))
    by_name = {(cell.trained_on, cell.language): cell for cell in cells}

    def list_lines(write: Callable[[Cell], str]) -> list[str]:
        made = [f'| fine-tuned on | {" | ".join(columns)} |', f'|---{"|---:" * len(columns)}|']
        for row in rows:
            shown = (write(by_name[row, column]) for column in columns)
            made.append(f'| {" + ".join(row)} | {" | ".join(shown)} |')
        return made

    # What a row was trained on is in bold: the others are what it has carried over.
    def write_score(cell: Cell) -> str:
        text = f'{cell.mean:.4f}'
        if cell.sd is not None:
            text += f' ± {cell.sd:.4f}'
        return f'**{text}**' if cell.language in cell.trained_on else text

    seeds, over = len(cells[0].scores), 'one seed'
    if seeds > 1:
        over = f'mean ± sd of {seeds} seeds'
    text = [f'{metric}, {over}', '', *list_lines(write_score)]
    guesses = [by_name[rows[0], column].guess for column in columns]
    if None not in guesses:
        text.append(f'| guessing | {" | ".join(f"{guess:.4f}" for guess in guesses)} |')
    for row in rows:
        if failed := by_name[row, columns[0]].failed:
            text += ['', f'{" + ".join(row)}: {failed} of {seeds} runs FAILED: see sweep.json']
    text += ['', 'word pieces in common, of those that either has', '']
    return '\n'.join(text + list_lines(lambda cell: f'{cell.overlap:.1%}'))


def draw(metric: str, cells: Sequence[Cell]) -> plots.Chart:
    """Draw the score of each cell that was not trained on over its overlap."""
    curves = []
    for colour, row in enumerate(dict.fromkeys(cell.trained_on for cell in cells)):
        points = []
        for cell in cells:
            if cell.trained_on == row and cell.language not in row:
                points.append((100 * cell.overlap, cell.mean))
        if points:
            curves.append(plots.Curve(f'from {" + ".join(row)}', sorted(points), 'points', colour))
    return plots.Chart('Transfer', metric, curves, '% of word pieces in common')
