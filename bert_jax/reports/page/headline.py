"""The head of the page: what came out, in the terminal's words, and of which model and text.

Owns these words alone; the numbers are those of the tables below.
"""

from __future__ import annotations

from collections.abc import Sequence

from bert_jax.configs import schema
from bert_jax.reports.page.parts import Part, Text
from bert_jax.reports.page.runs import Run, Sweep
from bert_jax.runs.pretraining import baselines
from bert_jax.runs.workdir import notes


def headline(opened: Sequence[Run | Sweep]) -> list[Part]:
    """Return for each run or sweep a line that says what came out, and one that says of what."""
    parts: list[Part] = []
    for entry in opened:
        run = _best(entry)
        outcome = _outcome(run) if run else 'no run is done'
        parts.append(Text(f'{entry.name}: {outcome}', 'headline'))
        parts += [Text(_subject(run))] if run else []
    return parts


def _best(entry: Run | Sweep) -> Run | None:
    """Return the run that speaks for an entry: of a sweep the best one that is done."""
    if isinstance(entry, Run):
        return entry
    score = lambda run: (not run.result['failed'], run.result['metrics'][run.result['metric']])
    return max((run for run in entry.runs if run.result), key=score, default=None)


def _outcome(run: Run) -> str:
    if run.pretraining:
        line = {'step': run.step, 'mlm_loss': run.final('mlm_loss')}
        guess, loss = run.guess('mlm_loss'), line['mlm_loss']
        if guess is not None and loss is not None:
            line['nats_gained'] = guess - loss
        before = [each for each in run.lines if each['step'] < run.step]
        return baselines.verdict([*before, line]) or f'{run.standing} steps, not compared'
    if run.result is None:
        return f'{run.standing} steps'
    return notes.verdict(run.result, run.guesses)


def _subject(run: Run) -> str:
    """Return which model, and which text."""
    if not isinstance(run.config, schema.PretrainConfig):
        return f'Model: {run.data.get("init_from", "unknown")}. Task: {run.data["task"]}.'
    c, records = run.config.model, [guess.records for guess in run.guesses if guess.records]
    text = f' Text: the records in {records[-1]}.' if records else ''
    size = f'{c.num_layers} layers, {c.hidden_size} wide, {c.vocab_size:,} entries'
    return f'Model: {run.config.name}, {size}.{text}'
