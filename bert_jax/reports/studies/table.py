"""The table of a study: means and spreads of the scores of its runs, and differences of its rows.

Every number is computed from the result files of the runs. A column's score of one pre-training
seed is the mean over its fine-tuning seeds, at the learning rate whose mean over all seeds of the
line is highest on dev. Where there are several pre-training seeds, the spread is over these means;
with a single one it is over the fine-tuning seeds, and does not hold what another pre-training
would have changed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.schema import PretrainConfig
from bert_jax.configs.studies.study import Column, HeldOut
from bert_jax.costs.flops import count_training_flops
from bert_jax.reports.studies.runner import Plan
from bert_jax.runs.finetuning.sweep import align
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.workdir import Workdir

# Losses are below it; of scores in per cent not all are.
_FEW = 20


@dataclass(frozen=True)
class Cell:
    """The scores of a line in a column.

    Attributes:
      scores: (seed, fine-tuning seed or None) -> score, at the best learning rate.
      learning_rate: that rate, where there was a choice.
      over: of which seeds the spread is.
      values: what it is over: seed -> score.
      mean, sd: of the values, None where there are too few.
      failed_runs: how many of the runs have learnt nothing (bert_jax/runs/finetuning/sweep.py).
      missing: seeds of pre-training whose results are not there yet.
      failures: why steps of it failed.
    """

    scores: Mapping[tuple[int, int | None], float]
    learning_rate: float | None
    over: str
    values: Mapping[int, float]
    mean: float | None
    sd: float | None
    failed_runs: int
    missing: list[int]
    failures: list[str]


# (line, column) -> its cell.
Cells = Mapping[tuple[str, str], Cell]


def write_table(plan: Plan, folder: Path) -> str:
    """Write table.md and table.json into `folder`, and return the table for the terminal."""
    cells: dict[tuple[str, str], Cell] = {}
    for line in plan.lines:
        for column in plan.study.columns:
            cells[line, column.name] = read_cell(plan, line, column)
    notes = write_notes(cells)
    text, page = [plan.study.title], [f'# {plan.study.title}']
    for heading, rows in make_parts(plan, cells):
        text += ['', heading, *align(rows, left=(0,))]
        page += ['', f'{heading[0].upper()}{heading[1:]}:', '']
        rule = ['---', *['---:'] * (len(rows[0]) - 1)]
        page += [f'| {" | ".join(row)} |' for row in (rows[0], rule, *rows[1:])]
    page += ['', *(f'- {note}' for note in notes)]

    results = []
    for key, cell in cells.items():
        results.append({'cell': key, **vars(cell), 'scores': [*cell.scores.items()]})
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / 'table.md', '\n'.join(page) + '\n')
    atomic_write(folder / 'table.json', json.dumps(results, indent=2) + '\n')
    return '\n'.join([*text, '', *notes])


def read_cell(plan: Plan, line: str, column: Column | HeldOut) -> Cell:
    """Return the cell of a line and a column, from what is there."""
    by_rate: dict[float | None, dict[tuple[int, int | None], float]] = {}
    failed: list[float | None] = []
    missing: list[int] = []
    failures: list[str] = []
    for seed in plan.study.seeds:
        step = plan.cells[line, column.name, seed]
        if not plan.store.done(step):
            missing.append(seed)
            why = plan.failure(step)
            if why:
                failures.append(why)
        elif isinstance(column, HeldOut):
            for score in read_held_out(plan, step, column):
                by_rate.setdefault(None, {})[seed, None] = score
        else:
            for run in read_object(plan.store.of(step) / 'sweep.json')['runs']:
                rate, tuned = run['settings'].get('optimizer.peak_lr'), run['settings']['seed']
                score = run['metrics'][column.metric or run['metric']]
                by_rate.setdefault(rate, {})[seed, tuned] = score * column.factor
                if run.get('failed'):
                    failed.append(rate)

    # One learning rate for the line: the best mean on dev.
    best, best_mean = None, -math.inf
    for rate, scores in by_rate.items():
        mean = statistics.fmean(scores.values())
        if best not in by_rate or mean > best_mean or math.isnan(best_mean):
            best, best_mean = rate, mean
    chosen = by_rate.get(best, {})

    # The means of each pre-training seed, or the fine-tuning seeds of the only one.
    by_seed: dict[int, list[float]] = {}
    for (seed, _), score in chosen.items():
        by_seed.setdefault(seed, []).append(score)
    over, values = 'pre-training', {seed: statistics.fmean(by_seed[seed]) for seed in by_seed}
    if len(by_seed) == 1 and isinstance(column, Column):
        over, values = 'fine-tuning', {pair[1] or 0: chosen[pair] for pair in chosen}
    middle, sd = None, None
    if values:
        middle = statistics.fmean(values.values())
    if len(values) > 1:
        sd = statistics.stdev(values.values())
    return Cell(chosen, best, over, values, middle, sd, failed.count(best), missing, failures)


def read_held_out(plan: Plan, step: str, column: HeldOut) -> list[float]:
    """Return a measure of the held-out records; nothing where there are no such records."""
    result = Workdir(plan.store.of(step)).result('eval')
    if not result.exists():
        return []
    metrics = read_object(result)['metrics']
    if column.metric != 'bits_per_sentence':
        return [metrics[f'{column.metric}_{column.language}'.rstrip('_')] * column.factor]
    manifest = read_object(plan.store.of(plan.steps[step].needs[-1]) / 'manifest.json')
    text = manifest['statistics']['text']['eval']
    bits = metrics['mlm_loss'] / math.log(2) * text['tokens'] / text['sentences']
    return [bits * column.factor]


def make_parts(plan: Plan, cells: Cells) -> list[tuple[str, list[list[str]]]]:
    """Return (heading, rows of texts) of each part, the first row being the head."""
    columns = [column.name for column in plan.study.columns]
    means, gaps = [['', *columns]], [['', *columns]]
    costs = [['', 'word pieces', 'predictions', 'PFLOP', 'seconds', 'fine-tuning seconds']]
    digits = {}
    for column in columns:
        of_column = [cells[line, column].mean or 0 for line in plan.lines]
        digits[column] = 4 if all(abs(mean) < _FEW for mean in of_column) else 2
    first_row, first_line = plan.study.rows[0].name, next(iter(plan.lines))
    for line, (_, checkpoint) in plan.lines.items():
        # A line is compared with the first row at its checkpoint, if that has it.
        first = f'{first_row} @{checkpoint}'
        if first not in plan.lines:
            first = first_line
        means.append([line, *(write_score(cells[line, c], digits[c]) for c in columns)])
        if line != first:
            of_line = [write_gap(cells[first, c], cells[line, c], digits[c]) for c in columns]
            gaps.append([line, *of_line])
        costs.append([line, *write_costs(plan, line)])
    parts = [('dev scores: mean ± sd (seeds)', means), ('compute', costs)]
    if len(gaps) > 1:
        parts.insert(1, (f'difference to {first_row} ± standard error', gaps))
    return parts


def write_score(cell: Cell, digits: int) -> str:
    """Return '81.20 ± 0.31 (3)', the first with as much as there is."""
    if cell.mean is None:
        return 'FAILED' if cell.failures else '-'
    spread = '' if cell.sd is None else f' ± {cell.sd:.{digits}f}'
    mark = '!' * bool(cell.failed_runs) + '*' * bool(cell.missing)
    return f'{cell.mean:.{digits}f}{spread} ({len(cell.values)}){mark}'


def write_gap(first: Cell, other: Cell, digits: int) -> str:
    """Return how much higher `other` is, as '-1.20 ± 0.31', with 'u' where no seeds are shared.

    Paired by seed where both have the same: of the pre-training where they share several, else of
    the fine-tuning of the one that they share. Else the spreads of both sides make the error.
    """
    if first.mean is None or other.mean is None:
        return '-'
    shared = [seed for seed in first.values if seed in other.values]
    gaps = [other.values[seed] - first.values[seed] for seed in shared]
    if not first.over == other.over == 'pre-training' or len(gaps) < 2:
        pairs = [pair for pair in first.scores if pair in other.scores]
        gaps = [other.scores[pair] - first.scores[pair] for pair in pairs]
    error = None
    if len(gaps) > 1:
        error = statistics.stdev(gaps) / math.sqrt(len(gaps))
    elif not gaps and first.sd is not None and other.sd is not None:
        error = math.sqrt(first.sd**2 / len(first.values) + other.sd**2 / len(other.values))
    mean = statistics.fmean(gaps or [other.mean - first.mean])
    spread = '?' if error is None else f'{error:.{digits}f}'
    return f'{mean:+.{digits}f} ± {spread}{"" if gaps else " u"}'


def write_costs(plan: Plan, line: str) -> list[str]:
    """Return what the pre-training of a line took, the mean over seeds, and its fine-tuning."""
    row, checkpoint = plan.lines[line]
    steps = [plan.pretraining[row.name, seed] for seed in plan.study.seeds]
    steps = [step for step in steps if plan.store.done(step)]
    if not steps:
        return ['-'] * 5
    pieces = predictions = flops = seconds = tuned = 0.0
    last = left = checkpoint or math.inf

    # Seeds read the same records in the same number of steps: one stands for all.
    config = Workdir(plan.store.of(steps[0])).config()
    assert isinstance(config, PretrainConfig)
    for phase in config.phases:
        records = plan.store.of(plan.records[row.name, phase.seq_len])
        manifest = read_object(records / 'manifest.json')
        counts, limit = manifest['statistics'], manifest['max_predictions']
        read = counts['records']['train']
        sequences = min(phase.steps, left) * phase.batch_size
        left -= min(phase.steps, left)
        pieces += sequences * phase.seq_len * counts['text']['train']['fill']
        per_record = limit
        if 'masked' in read:
            per_record = read['masked'] / read['records']
        predictions += sequences * per_record
        flops += sequences * count_training_flops(config.model, phase.seq_len, limit)

    for step in steps:
        for metric in read_metrics(Workdir(plan.store.of(step)).metrics_file):
            if metric['split'] == 'train' and metric['step'] <= last:
                seconds += metric.get('seconds', 0.0) / len(steps)
    for step in {step for (name, _, _), step in plan.cells.items() if name == line}:
        file = plan.store.of(step) / 'sweep.json'
        if file.exists():
            tuned += sum(run['seconds'] for run in read_object(file)['runs'])
    pflop = f'{flops / 1e15:,.3g}'
    return [f'{pieces:,.0f}', f'{predictions:,.0f}', pflop, f'{seconds:,.0f}', f'{tuned:,.0f}']


def write_notes(cells: Cells) -> list[str]:
    """Return what must be said of the numbers: what they are over, and what is missing."""

    def list_cells(wanted: Callable[[Cell], object]) -> str:
        return '; '.join(' / '.join(key) for key, cell in cells.items() if wanted(cell))

    notes = []
    overs = {cell.over for cell in cells.values() if cell.values}
    some = ' (some cells)' if len(overs) > 1 else ''
    if 'pre-training' in overs:
        notes.append(
            f'sd and standard errors are over pre-training seeds{some}; a score of one is the mean'
            ' over its fine-tuning seeds.'
        )
    if 'fine-tuning' in overs:
        notes.append(
            f'sd and standard errors are over fine-tuning seeds{some} of one pre-training, and do'
            ' not hold what another pre-training would change.'
        )
    notes.append('Differences are paired by those seeds; u: no seed is shared; ?: one seed alone.')
    rates = []
    for key, cell in cells.items():
        if cell.learning_rate is not None:
            rates.append(f'{" / ".join(key)}: {cell.learning_rate:g}')
    if rates:
        notes.append(f'Learning rates, best mean on dev: {"; ".join(rates)}.')
    late = list_cells(lambda cell: cell.missing and cell.values)
    if late:
        notes.append(f'*: seeds are missing: {late}.')
    failed = list_cells(lambda cell: cell.failed_runs)
    if failed:
        notes.append(f'!: runs that have learnt nothing are among them: {failed}.')
    # A failed pre-training is named once, and not in each of the columns that it fails.
    for (line, _), cell in cells.items():
        notes += [f'FAILED: {line}: {why}' for why in cell.failures]
    return list(dict.fromkeys(notes))
