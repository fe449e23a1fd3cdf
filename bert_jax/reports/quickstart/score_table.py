"""What a quickstart came to: results.json, the table with its conclusions, the page, and what next.

Every number is read from a file that a stage has written, or counted from the records.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_jax.cli.commands import name_script
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.files.store import Store, write_note
from bert_jax.reports.quickstart.text_split import HELD_OUT
from bert_jax.runs.finetuning.sweep import align

# Masked words that are shown.
SAMPLES = 6
# How much longer the next pre-training is.
LONGER = 4


def report(store: Store, source: str) -> str:
    """Write results.json and report.html, and return what the terminal shows.

    Args:
      store: the finished stages.
      source: what the text is.
    """
    from bert_jax.reports.page.page import write_report

    folders = {name: stage.folder for name, stage in store.results.items()}
    results: dict[str, Any] = {
        'text': source,
        'pretraining': score_pretraining(folders['pretrain'], folders['records']),
        'samples': fill_masked_words(folders['pretrain']),
        'finetuning': score_finetuning(folders['text'], folders['finetune']),
        'seconds': {name: stage.seconds for name, stage in store.results.items()},
    }
    write_note(store.path / 'results.json', results, 2)
    page = write_report(
        [folders['pretrain'], folders['finetune']], store.path / 'report.html', SAMPLES
    )
    lines = [*format_table(results), '', *format_samples(results['samples'])]
    lines += ['', f'The runs as a page: {page}', '', 'What to do next']
    for meaning, command in list_next_steps(folders, results).items():
        lines += [f'  {meaning}:', f'    {command}']
    return '\n'.join(lines)


def score_pretraining(folder: Path, records: Path) -> dict[str, Any]:
    """Return the scores of a run on all held-out records, and what guessing scores on them."""
    from bert_jax.runs.pretraining.baselines import count_baselines
    from bert_jax.runs.workdir import notes
    from bert_jax.runs.workdir.workdir import Workdir

    # Over all records, not over the few that evaluations on the way read; noted for the page.
    guess = count_baselines(str(records))
    guessed = guess.by_metric(nsp=True)
    begun = max((noted.step for noted in notes.guesses(Workdir(folder))), default=0)
    notes.note_guess(str(folder), notes.Guess(begun, guessed, os.path.abspath(records)))

    final = read_object(folder / 'eval' / 'eval.json')
    return {
        'steps': final['step'],
        'final': final['metrics'],
        'guessing': {**guessed, 'mlm_perplexity': math.exp(guess.unigram_nll)},
        'nats_gained': guess.unigram_nll - final['metrics']['mlm_loss'],
    }


def fill_masked_words(folder: Path) -> dict[str, Any]:
    """Return held-out texts with what a run fills in before and after, or why there are none."""
    from bert_jax.reports.page.runs import Run, open_all
    from bert_jax.reports.page.samples import fill_samples

    try:
        (run,) = open_all([folder])
        assert isinstance(run, Run), 'the pre-training stage is one run'
        filled = fill_samples(run, SAMPLES)
    except UserError as error:  # a vocabulary may have no whole words, of Thai for one
        return {'texts': [], 'began': '', 'why': str(error)}
    texts = []
    for sample in filled.samples:
        texts.append({**sample.hidden._asdict(), 'first': sample.first, 'now': sample.now})
    return {'texts': texts, 'began': filled.began, 'why': ''}


def score_finetuning(text: Path, folder: Path) -> dict[str, Any]:
    """Return the accuracies of a sweep by training set size, and the most frequent label's."""
    with open(text / 'held_out.jsonl', encoding='utf-8') as file:
        labels = np.array([json.loads(line)['label'] for line in file])

    # Right or wrong, example by example: what the error of the difference is taken from.
    right = defaultdict[int, dict[str, list[Any]]](lambda: {'source': [], 'random': []})
    for run in read_object(folder / 'sweep.json')['runs']:
        predictions = folder / 'runs' / run['name'] / 'predictions' / 'dev' / 'predictions.tsv'
        answers = np.loadtxt(predictions, str, skiprows=1, usecols=1, encoding='utf-8')
        settings = run['settings']
        right[settings['train_examples']][settings['init']].append(answers == labels)

    return {
        'held_out_examples': len(labels),
        'majority': np.unique(labels, return_counts=True)[1].max().item() / len(labels),
        'rows': [
            {'train_examples': n, **compare(**by_init)} for n, by_init in sorted(right.items())
        ],
    }


def compare(source: Sequence[NDArray], random: Sequence[NDArray]) -> dict[str, Any]:
    """Return the mean accuracies of two sides, their difference, its standard error, a verdict.

    Both have for each run which examples were right. Two things are up to chance: the seeds, and
    which examples happen to be held out, which are the same on both sides. A difference is clear
    beyond two standard errors, about 95 %; with one run a side, never.
    """
    row: dict[str, Any] = {}
    by_example = np.mean(source, axis=0) - np.mean(random, axis=0)
    variance = by_example.var(ddof=1) / len(by_example)
    for name, runs in (('source', source), ('random', random)):
        accuracies = np.mean(runs, axis=1)
        row[name] = {'mean': accuracies.mean().item(), 'sd': None, 'runs': len(runs)}
        if len(runs) > 1:
            row[name]['sd'] = accuracies.std(ddof=1).item()
            variance += accuracies.var(ddof=1) / len(runs)

    row['difference'] = by_example.mean().item()
    row['standard_error'], row['verdict'] = None, 'no clear difference'
    if len(source) > 1:
        row['standard_error'] = math.sqrt(variance)
        if abs(row['difference']) > 2 * row['standard_error']:
            row['verdict'] = 'wins' if row['difference'] > 0 else 'loses'
    return row


def format_table(results: Mapping[str, Any]) -> list[str]:
    """Return the scores as lines, each beside what guessing has: alone it says little."""
    run, tuned = results['pretraining'], results['finetuning']
    gained = f'unigram; {run["nats_gained"]:.3f} nats gained over it'
    scores = [[f'{run["final"]["examples"]:,.0f} held-out rows', 'model', 'guessing', '']]
    for label, name, form, how in (
        ('masked tokens, accuracy', 'mlm_accuracy', '.1%', 'the most frequent token'),
        ('masked tokens, NLL (nats)', 'mlm_loss', '.3f', gained),
        ('masked tokens, perplexity', 'mlm_perplexity', '.1f', 'unigram'),
        ('next sentence, accuracy', 'nsp_accuracy', '.1%', 'the more frequent label (chance)'),
    ):
        numbers = [f'{run[side][name]:{form}}' for side in ('final', 'guessing')]
        scores.append([label, *numbers, how])

    rows = [['training examples', 'pre-trained', 'random weights', 'difference', 'pre-training']]
    for row in tuned['rows']:
        cells = [f'{row["train_examples"]:,}']
        for init in ('source', 'random'):
            sd = row[init]['sd']
            spread = '' if sd is None else f' ± {100 * sd:.1f}'
            cells.append(f'{row[init]["mean"]:.1%}{spread}')
        rows.append([*cells, f'{100 * row["difference"]:+.1f}', row['verdict']])
    return [
        f'Pre-training on {results["text"]}',
        f'  {run["steps"]:,} steps in {results["seconds"]["pretrain"]:.0f} s',
        '',
        *(f'  {line}' for line in align(scores, left=(0, 3))),
        '',
        'Fine-tuning: is a passage whole, or mixed with another?',
        f'  {tuned["held_out_examples"]:,} dev examples; the most frequent class gives'
        f' {tuned["majority"]:.1%}',
        '',
        *(f'  {line}' for line in align(rows, left=(0, 4))),
    ]


def format_samples(samples: Mapping[str, Any]) -> list[str]:
    """Return held-out text with a word masked, and the words before and after pre-training."""
    if not samples['texts']:
        return [f'No masked words are shown: {samples["why"]}.']
    lines = [
        'Masked words of held-out text, the likeliest first, before pre-training'
        f' ({samples["began"]}) and after it'
    ]
    for text in samples['texts']:
        lines.append(f'  {text["before"]}[{text["word"]}]{text["after"]}')
        for when, key in (('before', 'first'), ('after', 'now')):
            lines.append(f'    {when:6}  ' + ', '.join(token for token, _ in text[key]))
    return lines


def list_next_steps(folders: Mapping[str, Path], results: Mapping[str, Any]) -> dict[str, str]:
    """Return four commands on what was made, by what they do; they run as they are written."""
    pretrained, held_out = folders['pretrain'], folders['text'] / HELD_OUT
    with open(held_out, encoding='utf-8') as file:
        sentence = file.readline().strip()
    masked = f'{sentence} [MASK]'
    for text in results['samples']['texts'][:1]:
        masked = f'{text["before"]}[MASK]{text["after"]}'
    # Of most examples the run of the first seed: nothing was selected.
    largest = results['finetuning']['rows'][-1]['train_examples']
    tuned = folders['finetune'] / 'runs' / f'train_examples={largest},init=source,seed=0'
    commands = {
        'fill in a masked word': ['fill_mask', f'--workdir={pretrained}', masked],
        'find held-out sentences near to one': [
            'nearest', f'--workdir={pretrained}', f'--input={held_out}', sentence,
        ],
        'answer a file of texts with a fine-tuned model': [
            'predict', f'--workdir={tuned}', f'--input={folders["text"]}/held_out.jsonl',
            f'--output={pretrained.parent}/answers.jsonl',
        ],
        f'pre-train {LONGER} times as long': [
            'pretrain', '--config=quickstart', f'--data={folders["records"]}',
            f'--workdir={pretrained.parent}/longer',
            f'--steps={LONGER * results["pretraining"]["steps"]}',
        ],
    }  # fmt: skip
    for words in commands.values():
        # Of this environment, which need not be active.
        script = Path(sys.executable).with_name(name_script(words[0]))
        words[0] = os.path.relpath(script)
    return {meaning: shlex.join(words) for meaning, words in commands.items()}
