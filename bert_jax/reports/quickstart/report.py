"""The quickstart's results in words: one table for the terminal, and the page of its runs.

Owns what is said of the numbers. The numbers are results.py's, the page is
bert_jax/reports/page's.
"""

from __future__ import annotations

import json
from typing import Any

from bert_jax.configs.files.store import Store
from bert_jax.reports.quickstart.commands import say
from bert_jax.reports.quickstart.next_steps import next_steps
from bert_jax.reports.quickstart.results import fill_in, gather
from bert_jax.runs.finetuning.sweep import aligned


def write(store: Store, title: str, question: str) -> str:
    """Write results.json and report.html, and return what the terminal shows.

    That is the table, masked words, and what to do next.

    Args:
      store: the finished stages.
      title: what the text is.
      question: what the task asks.
    """
    from bert_jax.reports.page.page import Text, write_report

    # Numbers first, as data; the page and the table are made of them.
    folders = {name: result.folder for name, result in store.results.items()}
    pretrained = folders['pretrain']
    filled = fill_in(pretrained)
    results = gather(store, title, question, filled)
    (store.path / 'results.json').write_text(json.dumps(results, indent=2) + '\n')

    summary, told = table(results), conclusions(results)
    write_report(
        [pretrained, folders['finetune']],
        store.path / 'report.html',
        filled={} if isinstance(filled, str) else {str(pretrained): filled},
        result=[
            *(Text(line, 'headline') for line in told),
            Text(summary, 'report'),
        ],
        title=f'Quickstart: {title}',
    )
    say(f'written: {store.path}/report.html and results.json')
    lines = [summary, '', *told, '', *words_filled_in(results), '', 'What to do next']
    for meaning, command in next_steps(folders, results).items():
        lines += [f'  {meaning}:', f'    {command}']
    return '\n'.join(lines) + '\n'


def table(results: dict[str, Any]) -> str:
    """Return the results as text, at most 100 columns wide."""
    # Each number with what guessing gives: alone it says little.
    run, tuned = results['pretraining'], results['finetuning']
    final, guess = run['final'], run['guessing']
    seconds = results['seconds']
    percents = lambda name: [_percent(final[name]), _percent(guess[name])]
    numbers = lambda name, digits: [f'{final[name]:.{digits}f}', f'{guess[name]:.{digits}f}']
    gained = f'unigram; {final["nats_gained"]:.3f} nats gained over it'
    scores = [
        [f'{final["examples"]:,} held-out rows', 'model', 'guessing', ''],
        ['masked tokens, accuracy', *percents('mlm_accuracy'), 'the most frequent token'],
        ['masked tokens, NLL (nats)', *numbers('mlm_loss', 3), gained],
        ['masked tokens, perplexity', *numbers('mlm_perplexity', 1), 'unigram'],
        ['next sentence, accuracy', *percents('nsp_accuracy'), 'the more frequent label (chance)'],
    ]
    head = ['training examples', 'pre-trained', 'random weights', 'difference', 'pre-training']
    rows = [
        [
            f'{row["train_examples"]:,}',
            *(_spread(row[init]) for init in ('source', 'random')),
            f'{100 * row["difference"]:+.1f}',
            row['verdict'],
        ]
        for row in tuned['rows']
    ]
    lines = [
        f'Pre-training on {results["text"]["source"]}',
        (
            f'  {run["steps"]:,} steps of {run["sequences"] // run["steps"]} rows:'
            f' {run["tokens"] / 1e6:.1f} million word pieces in {seconds["pretrain"]:.0f} s'
        ),
        f'  the model {run["config"]}, with {run["vocab_size"]:,} entries',
        '',
        *(f'  {line}' for line in aligned(scores, left=(0, 3))),
        '',
        f'Fine-tuning: {tuned["question"]}',
        (
            f'  {tuned["held_out_examples"]:,} dev examples of {len(tuned["labels"])} classes;'
            f' the most frequent class gives {_percent(tuned["majority"])}'
        ),
        '',
        *(f'  {line}' for line in aligned([head, *rows], left=(0, 4))),
    ]
    return '\n'.join(lines)


def words_filled_in(results: dict[str, Any]) -> list[str]:
    """Return held-out text with a word masked, and the words before and after pre-training."""
    samples = results['samples']
    if not samples['texts']:
        return [f'No masked words are shown: {samples["why"]}.']
    lines = [
        f'Masked words of held-out text, the likeliest first, before pre-training'
        f' ({samples["began"]}) and after it'
    ]
    for text in samples['texts']:
        lines.append(f'  {text["before"]}[{text["word"]}]{text["after"]}')
        for when, key in (('before', 'first'), ('after', 'now')):
            lines.append(f'    {when:6}  ' + ', '.join(token for token, _ in text[key]))
    return lines


def conclusions(results: dict[str, Any]) -> list[str]:
    """Return what the numbers say, in sentences: also where pre-training did not help."""
    # First whether pre-training learned anything, then whether it helped. Less than 0.05 nats, or
    # 0.02 of accuracy, counts as nothing learned.
    final = results['pretraining']['final']
    guess = results['pretraining']['guessing']
    gained = final['nats_gained']
    if gained > 0.05:
        lines = [f'Pre-training gained {gained:.2f} nats a masked token over the unigram baseline.']
    else:
        what = 'less than' if gained < 0 else 'hardly more than'
        lines = [
            f'Pre-training learned {what} how frequent tokens are ({gained:+.2f} nats over the'
            ' unigram baseline): it needs more steps.'
        ]
    if final['nsp_accuracy'] < guess['nsp_accuracy'] + 0.02:
        lines.append('Next sentence prediction was not learned: it is at chance.')

    # A sentence for each verdict that occurs, with the sizes it holds at.
    wording = {
        'wins': 'Fine-tuning is better from the pre-trained weights',
        'loses': 'Fine-tuning is WORSE from the pre-trained weights',
        'no clear difference': 'Pre-training makes no clear difference',
    }
    for verdict, words in wording.items():
        rows = [row for row in results['finetuning']['rows'] if row['verdict'] == verdict]
        if sizes := ', '.join(f'{row["train_examples"]:,}' for row in rows):
            lines.append(f'{words} at {sizes} training examples.')
    return lines


def _percent(fraction: float) -> str:
    return f'{100 * fraction:.1f} %'


def _spread(accuracy: dict[str, Any]) -> str:
    """Return the mean with its standard deviation, which a single run does not have."""
    sd = '' if accuracy['sd'] is None else f' ± {100 * accuracy["sd"]:.1f}'
    return _percent(accuracy['mean']) + sd
