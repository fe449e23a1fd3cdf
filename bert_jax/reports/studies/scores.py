"""What the runs of a study come to: scores, their means and spreads, and differences of rows.

Owns the statistics, each computed from the result files of the runs and from nothing else. It must
not know how a table looks (table.py).

A column's score of one pre-training seed is the mean over its fine-tuning seeds, at the learning
rate whose mean over all seeds of the line is highest on dev. Where there are several pre-training
seeds, the spread is over these means; with a single one it is over the fine-tuning seeds, and does
not hold what another pre-training would have changed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.schema import PretrainConfig
from bert_jax.configs.studies.study import Column, HeldOut
from bert_jax.reports.studies.inputs import no_metric
from bert_jax.reports.studies.plan import Line, Plan
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.workdir import Workdir


class Run(NamedTuple):
    """One score: of a pre-training seed, a fine-tuning seed and a learning rate.

    The latter two are None where there is no fine-tuning, or no grid.
    """

    seed: int
    finetuning_seed: int | None
    learning_rate: float | None
    score: float
    failed: bool


@dataclass(frozen=True)
class Cell:
    """The scores of a line in a column.

    Attributes:
      values: what the spread is over: seed -> score; `over` says of which seeds.
      learning_rate: the one that was chosen, where there was a choice.
      by_pair: (seed, fine-tuning seed) -> score at that rate.
      failed_runs: runs at that rate that have learnt nothing (bert_jax/runs/finetuning/sweep.py).
      missing: seeds of pre-training whose results are not there yet.
      failures: why steps of it failed.
    """

    values: Mapping[int, float]
    over: str
    learning_rate: float | None
    by_pair: Mapping[tuple[int, int | None], float]
    failed_runs: int
    missing: tuple[int, ...]
    failures: tuple[str, ...]

    @property
    def mean(self) -> float | None:
        """Return the mean; None without any score."""
        return statistics.fmean(self.values.values()) if self.values else None

    @property
    def sd(self) -> float | None:
        """Return the sample standard deviation; None of fewer than two."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None


class Difference(NamedTuple):
    """Of a cell to the first line's: its standard error, None where it cannot be told.

    pairs: how many seeds both have, whose differences these are; 0: none are shared, and the
    spreads of both sides make the error.
    """

    mean: float
    error: float | None
    pairs: int


def cells(plan: Plan) -> dict[tuple[str, str], Cell]:
    """Return the cells by (line's name, column's name), from what is there."""
    return {
        (line.name, column.name): _cell(plan, line, column)
        for line in plan.lines()
        for column in plan.study.columns
    }


def difference(first: Cell, other: Cell) -> Difference | None:
    """Return how much higher `other` is; None where one of them has no score.

    Paired by seed where both have the same: of the pre-training where they share several, else of
    the fine-tuning of the one that they share.
    """
    if first.mean is None or other.mean is None:
        return None
    shared = [seed for seed in first.values if seed in other.values]
    if first.over == other.over == 'pre-training' and len(shared) > 1:
        gaps = [other.values[seed] - first.values[seed] for seed in shared]
    else:
        # A pre-training seed at most is shared: its fine-tuning seeds are the pairs.
        pairs = [pair for pair in first.by_pair if pair in other.by_pair]
        gaps = [other.by_pair[pair] - first.by_pair[pair] for pair in pairs]
    if gaps:
        error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else None
        return Difference(statistics.fmean(gaps), error, len(gaps))
    error = None
    if first.sd is not None and other.sd is not None:
        error = math.sqrt(first.sd**2 / len(first.values) + other.sd**2 / len(other.values))
    return Difference(other.mean - first.mean, error, 0)


def _cell(plan: Plan, line: Line, column: Column | HeldOut) -> Cell:
    """Return the cell of a line and a column."""
    runs: list[Run] = []
    missing, failures = [], []
    for seed in plan.study.seeds:
        step = plan.cells[line.name, column.name, seed]
        if plan.folder.done(step):
            runs += _runs(plan, line, column, step, seed)
        else:
            missing.append(seed)
            if why := plan.folder.failure(step):
                failures.append(why)

    # One learning rate for the line: the best mean on dev, over all that is there.
    rates: dict[float | None, list[float]] = {}
    for run in runs:
        rates.setdefault(run.learning_rate, []).append(run.score)
    # NaN compares with nothing: it is worse than any other.
    means = {rate: statistics.fmean(rates[rate]) for rate in rates}
    best = max(means, key=lambda rate: (not math.isnan(means[rate]), means[rate]), default=None)
    chosen = [run for run in runs if run.learning_rate == best]
    by_pair = {(run.seed, run.finetuning_seed): run.score for run in chosen}
    failed = sum(run.failed for run in chosen)
    return Cell(*spread_over(by_pair), best, by_pair, failed, tuple(missing), tuple(failures))


def spread_over(
    by_pair: Mapping[tuple[int, int | None], float],
) -> tuple[dict[int, float], str]:
    """Return the scores that a spread is over, by seed, and what the seeds are of.

    They are the means of each pre-training seed where there are two or more, else the scores of the
    fine-tuning seeds of the only one.
    """
    by_seed: dict[int, list[float]] = {}
    for (seed, _), score in by_pair.items():
        by_seed.setdefault(seed, []).append(score)
    finetuned = {seed: score for (_, seed), score in by_pair.items() if seed is not None}
    if len(by_seed) == 1 and finetuned:
        return finetuned, 'fine-tuning'
    return {seed: statistics.fmean(scores) for seed, scores in by_seed.items()}, 'pre-training'


def _runs(plan: Plan, line: Line, column: Column | HeldOut, step: str, seed: int) -> list[Run]:
    """Return the scores that a step's files hold."""
    folder = plan.folder.of(step)
    if isinstance(column, HeldOut):
        result = Workdir(folder).result('eval')
        if not result.exists():  # no held-out records
            return []
        score = _held_out(plan, line, column, read_object(result)['metrics'], seed)
        return [Run(seed, None, None, score * column.factor, False)]
    report = read_object(folder / 'sweep.json')
    runs = []
    for run in report['runs']:
        settings, metrics, name = run['settings'], run['metrics'], column.metric or run['metric']
        if name not in metrics:
            raise no_metric(column, name, metrics)
        rate, score = settings.get('optimizer.peak_lr'), metrics[name] * column.factor
        runs.append(Run(seed, settings['seed'], rate, score, bool(run.get('failed'))))
    return runs


def _held_out(
    plan: Plan, line: Line, column: HeldOut, metrics: Mapping[str, float], seed: int
) -> float:
    """Return a measure of the held-out records of a line."""
    if column.metric == 'bits_per_sentence':
        records = list(plan.pretraining[line.row.name, seed].records.values())[-1]
        manifest = read_object(plan.folder.of(records) / 'manifest.json')
        text = manifest['statistics']['text']['eval']
        return metrics['mlm_loss'] / math.log(2) * text['tokens'] / text['sentences']
    name = f'{column.metric}_{column.language}' if column.language else column.metric
    if name not in metrics:
        raise UserError(
            f'row {line.row.name!r} has no held-out text of {column.language!r}: name it in'
            f' --corpus={line.row.text}={column.language}=GLOB'
        )
    return metrics[name]


class Compute(NamedTuple):
    """What the pre-training of a row took, the mean over its seeds, and its fine-tuning in all.

    pieces: word pieces read, padding aside; predictions: tokens predicted; flops: forward and
    backward (bert_jax/costs/flops.py); seconds: of its training steps; finetuning_seconds: of all
    runs of all columns and seeds of the line.
    """

    pieces: float
    predictions: float
    flops: float
    seconds: float
    finetuning_seconds: float


def compute(plan: Plan, line: Line) -> Compute | None:
    """Return what a line took; None before its pre-training is done for any seed."""
    from bert_jax.costs.flops import training_flops_per_sequence

    of_row = [run for run in plan.pretraining.values() if run.row is line.row]
    done = [run for run in of_row if plan.folder.done(run.step)]
    if not done:
        return None
    pieces = predictions = flops = 0.0
    last = line.checkpoint or math.inf

    # Seeds read the same records in the same number of steps: one stands for all.
    workdirs = [Workdir(plan.folder.of(run.step)) for run in done]
    config, left = workdirs[0].config(), last
    assert isinstance(config, PretrainConfig)
    for phase in config.phases:
        manifest = read_object(plan.folder.of(done[0].records[phase.seq_len]) / 'manifest.json')
        steps = min(phase.steps, left)
        left -= steps
        sequences = steps * phase.batch_size
        sums, limit = manifest['statistics']['records']['train'], manifest['max_predictions']
        pieces += sequences * phase.seq_len * manifest['statistics']['text']['train']['fill']
        predictions += sequences * (sums['masked'] / sums['records'] if 'masked' in sums else limit)
        flops += sequences * training_flops_per_sequence(config.model, phase.seq_len, limit)
    seconds = statistics.fmean(
        sum(
            metric.get('seconds', 0.0)
            for metric in read_metrics(workdir.metrics_file)
            if metric['split'] == 'train' and metric['step'] <= last
        )
        for workdir in workdirs
    )
    of_line = {step for (name, _, _), step in plan.cells.items() if name == line.name}
    files = [plan.folder.of(step) / 'sweep.json' for step in of_line]
    sweeps = [read_object(file) for file in files if file.exists()]
    finetuning = sum(run['seconds'] for sweep in sweeps for run in sweep['runs'])
    return Compute(pieces, predictions, flops, seconds, finetuning)


def as_json(plan: Plan, cells: Mapping[tuple[str, str], Cell]) -> dict[str, Any]:
    """Return the whole table as JSON values, each number as it was computed."""
    lines = plan.lines()
    table = []
    for line in lines:
        in_line: dict[str, Any] = {}
        for column in plan.study.columns:
            cell = cells[line.name, column.name]
            base = cells[first_of(lines, line).name, column.name]
            gap = None if cell is base else difference(base, cell)
            in_line[column.name] = {
                'mean': cell.mean,
                'sd': cell.sd,
                'runs': len(cell.values),
                'over': cell.over,
                'learning_rate': cell.learning_rate,
                'scores': [[*pair, score] for pair, score in cell.by_pair.items()],
                'failed_runs': cell.failed_runs,
                'missing_seeds': list(cell.missing),
                'failures': list(cell.failures),
                'difference': gap._asdict() if gap else None,
            }
        used = compute(plan, line)
        table.append(
            {
                'row': line.row.name,
                'checkpoint': line.checkpoint,
                'cells': in_line,
                'compute': used._asdict() if used else None,
            }
        )
    return {'title': plan.study.title, 'lines': table}


def first_of(lines: Sequence[Line], line: Line) -> Line:
    """Return the first row's line that a line is compared with: at its checkpoint if it has it."""
    first, at = lines[0], line.checkpoint
    same = (other for other in lines if other.row is first.row and other.checkpoint == at)
    return next(same, first)
