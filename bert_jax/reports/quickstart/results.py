"""The quickstart's numbers, as results.json has them.

Each is read from a file that a stage has written (counts, manifest, metrics, sweep), or counted
from the records. Owns which numbers there are, with which baseline, and when pre-training is said
to have won. It must not know how any of them came about, nor what is said of them (report.py).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.files.store import Store

if TYPE_CHECKING:
    from bert_jax.reports.page.samples import Samples

# Of an evaluation on held-out records.
SCORES = ('mlm_accuracy', 'mlm_loss', 'mlm_perplexity', 'nsp_accuracy', 'nsp_loss')
# Masked words that are shown.
SAMPLES = 6


def gather(store: Store, title: str, question: str, filled: Samples | str) -> dict[str, Any]:
    """Return all results of finished stages, as JSON values.

    Accuracies are fractions, losses nats, times seconds.

    Args:
      store: the stages.
      title: what the text is.
      question: what the task asks.
      filled: what `fill_in` gave.
    """
    folders = {name: stage.folder for name, stage in store.results.items()}
    return {
        'text': {'source': title, **read_object(folders['text'] / 'counts.json')},
        'pretraining': pretraining(folders['pretrain'], folders['records']),
        'samples': filled_in(filled),
        'finetuning': finetuning(folders['task'], question, folders['finetune']),
        'seconds': {name: stage.seconds for name, stage in store.results.items()},
    }


def pretraining(folder: Path, records: Path) -> dict[str, Any]:
    """Return the scores of a run on all held-out records, and what guessing scores on them."""
    from bert_jax.runs.pretraining.baselines import baselines
    from bert_jax.runs.workdir import notes
    from bert_jax.runs.workdir.workdir import Workdir

    # What the run was, what it read, and its scores at the end.
    workdir = Workdir(folder)
    files = workdir.config_file, records / 'manifest.json', workdir.result('eval')
    config, manifest, final = map(read_object, files)
    # The baseline over all records, not over the few that evaluations on the way read.
    guess, metrics = baselines(str(records)), final['metrics']
    begun = max((noted.step for noted in notes.guesses(workdir)), default=0)
    # The page of the run has the same numbers then.
    guessed = guess.by_metric(nsp=True)
    notes.note_guess(str(folder), notes.Guess(begun, guessed, os.path.abspath(records)))
    guessed = guessed | {'mlm_perplexity': math.exp(guess.unigram_nll)}
    sequences = sum(phase['steps'] * phase['batch_size'] for phase in config['phases'])
    fill = manifest['statistics']['text']['train']['fill']
    return {
        'config': config['name'],
        'vocab_size': manifest['vocab_size'],
        'seq_len': manifest['seq_len'],
        'steps': final['step'],
        # On what machine, and with which versions.
        'starts': [dataclasses.asdict(start) for start in notes.starts(workdir)],
        'sequences': sequences,
        'tokens': round(sequences * manifest['seq_len'] * fill),
        'final': {
            **{name: metrics[name] for name in SCORES},
            'nats_gained': guess.unigram_nll - metrics['mlm_loss'],
            **{name: round(metrics[name]) for name in ('masked', 'examples')},
        },
        'guessing': {name: guessed[name] for name in SCORES},
    }


def fill_in(folder: Path) -> Samples | str:
    """Return what a run fills into masked words of held-out text, or why it cannot."""
    from bert_jax.reports.page.runs import Run, open_all
    from bert_jax.reports.page.samples import samples

    (run,) = open_all([folder])
    assert isinstance(run, Run), 'the pre-training stage is one run'
    try:
        return samples(run, SAMPLES)
    except UserError as error:  # a vocabulary may have no whole words, of Thai for one
        return str(error)


def filled_in(filled: Samples | str) -> dict[str, Any]:
    """Return what `fill_in` gave, as JSON values.

    Returns:
      texts: `before`, `word`, `after` are the text, `first` and `now` the likeliest words as
      (word, probability); began: what the first weights were; why: why there are no texts, else ''.
    """
    if isinstance(filled, str):
        return {'texts': [], 'began': '', 'why': filled}
    texts = [
        sample.hidden._asdict() | {'first': sample.first, 'now': sample.now}
        for sample in filled.samples
    ]
    return {'texts': texts, 'began': filled.began, 'why': ''}


def finetuning(task: Path, question: str, folder: Path) -> dict[str, Any]:
    """Return the accuracies of a sweep by training set size, and the most frequent label's."""
    # The labels in the order of the file; predictions have their indices.
    with open(task / 'held_out.jsonl', encoding='utf-8') as file:
        labels = [json.loads(line)['label'] for line in file]
    sweep = read_object(folder / 'sweep.json')

    # Right or wrong, example by example: what the error of the difference is taken from.
    right = defaultdict[tuple[int, str], list[list[bool]]](list)
    for run in sweep['runs']:
        predictions = folder / 'runs' / run['name'] / 'predictions' / 'dev' / 'predictions.tsv'
        settings = run['settings']
        right[settings['train_examples'], settings['init']].append(_right(predictions, labels))

    # Mean and spread as the sweep's own table has them; all runs take the same number of steps.
    rows: dict[int, dict[str, Any]] = {}
    for entry in sweep['summary']:
        size, init = (entry['settings'][name] for name in ('train_examples', 'init'))
        row = rows.setdefault(size, {'train_examples': size, 'steps': sweep['runs'][0]['step']})
        accuracy = entry['metrics']['accuracy']
        row[init] = {'mean': accuracy['mean'], 'sd': accuracy['sd'], 'runs': entry['runs']}
    return {
        'question': question,
        'labels': sorted(set(labels)),
        'held_out_examples': len(labels),
        'majority': max(map(labels.count, set(labels))) / len(labels),
        'rows': [
            {**row, **compare(right[size, 'source'], right[size, 'random'])}
            for size, row in rows.items()
        ],
    }


def _right(predictions: Path, labels: list[str]) -> list[bool]:
    """Return which held-out examples a run answered as labelled, by its file of predictions."""
    # The first line names the columns.
    rows = (line.split('\t') for line in predictions.read_text(encoding='utf-8').splitlines()[1:])
    answers = {int(index): answer for index, answer in rows}
    return [answers[i] == label for i, label in enumerate(labels)]


def compare(source: list[list[bool]], random: list[list[bool]]) -> dict[str, Any]:
    """Return the difference of two mean accuracies, its standard error, and the verdict.

    Two things are up to chance, and both are counted: the seeds, by the spread of the runs'
    accuracies, and which examples happen to be held out, by the spread over examples of the
    difference (the same examples on both sides). A difference is clear beyond two standard errors;
    with one run a side, never.

    Args:
      source: for each run from the pre-trained weights, which examples were right.
      random: the same of the runs from random weights.

    Returns:
      'difference', 'standard_error', and 'verdict': 'wins', 'loses' or 'no clear difference'.
    """
    # With one run a side nothing is known of the spread over seeds.
    means = [[statistics.fmean(run) for run in runs] for runs in (source, random)]
    difference = statistics.fmean(means[0]) - statistics.fmean(means[1])
    error, verdict = None, 'no clear difference'
    if min(map(len, means)) > 1:
        # The same examples on both sides: the spread of their differences is smaller than that of
        # the sides, for an example that is hard is hard for both.
        by_example = [
            statistics.fmean(a) - statistics.fmean(b)
            for a, b in zip(zip(*source), zip(*random), strict=True)
        ]
        of_examples = statistics.variance(by_example) / len(by_example)
        of_seeds = sum(statistics.variance(runs) / len(runs) for runs in means)
        error = math.sqrt(of_examples + of_seeds)
        # About 95 %, were the errors normal.
        if abs(difference) > 2 * error:
            verdict = 'wins' if difference > 0 else 'loses'
    return {'difference': difference, 'standard_error': error, 'verdict': verdict}
