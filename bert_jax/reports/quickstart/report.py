"""The quickstart's results in words: one table for the terminal, report.md and the plots.

Owns what is said of the numbers, and where they stand on the page. The numbers are results.py's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bert_jax.reports.quickstart.next_steps import Step, next_steps
from bert_jax.reports.quickstart.results import fill_in, gather
from bert_jax.reports.quickstart.stages import Stages, say

# The stages that are runs, or sweeps of them.
RUNS = ('pretrain', 'finetune_')


def write(stages: Stages, title: str, question: str) -> str:
    """Writes results.json, report.md, report.html and the plots; returns what the terminal shows.

    That is the table, masked words, and what to do next.
    """
    from bert_jax.reports.page.page import write_report
    from bert_jax.runs.workdir.plots import plot_run
    from bert_jax.runs.workdir.workdir import Workdir

    # Numbers first, as data; the page and the table are made of them.
    folder, pretrained = stages.workdir, Workdir(stages.done['pretrain'].folder)
    filled = fill_in(stages.done['pretrain'].folder)
    results = gather(stages, title, question, filled)
    (folder / 'results.json').write_text(json.dumps(results, indent=2) + '\n')

    # Paths on the page are relative, so that the folder can be moved.
    plots = [
        Path(path).relative_to(folder)
        for path in plot_run(pretrained.metrics_file, folder / 'plots')
    ]
    curves = _plot_finetuning(results['finetuning'], folder / 'plots' / 'finetuning.png')
    plots.append(curves.relative_to(folder))

    # The pages last, since one shows the pictures; the other is of the runs in general.
    (folder / 'report.md').write_text(markdown(results, plots))
    runs = [stages.done[name].folder for name in stages.done if name.startswith(RUNS)]
    known = {} if isinstance(filled, str) else {pretrained.name: filled}
    write_report(runs, folder / 'report.html', known=known)
    say(f'written: {folder}/report.html, {folder}/report.md, results.json, plots/*.png')
    steps = next_steps({name: done.folder for name, done in stages.done.items()}, results)
    return '\n'.join([table(results), *words_filled_in(results), '', *steps_in_words(steps)]) + '\n'


def table(results: dict[str, Any]) -> str:
    """The results as text, at most 100 columns wide."""
    # Each number beside what guessing gives: alone it says little.
    run, tuned = results['pretraining'], results['finetuning']
    last, guess = run['final'], run['guessing']
    lines = [
        f'Pre-training on {results["text"]["source"]}',
        (
            f'  {run["steps"]:,} steps of {run["sequences"] // run["steps"]} rows:'
            f' {run["tokens"] / 1e6:.1f} million word pieces in'
            f' {results["seconds"]["pretrain"]:.0f} s'
        ),
        '',
        *_columns(
            [
                [f'{last["examples"]:,} held-out rows', 'model', 'guessing', ''],
                [
                    'masked tokens, accuracy',
                    _percent(last['mlm_accuracy']),
                    _percent(guess['mlm_accuracy']),
                    'the most frequent token',
                ],
                [
                    'masked tokens, NLL (nats)',
                    f'{last["mlm_loss"]:.3f}',
                    f'{guess["mlm_loss"]:.3f}',
                    f'unigram; {last["nats_gained"]:.3f} nats gained over it',
                ],
                [
                    'masked tokens, perplexity',
                    f'{last["mlm_perplexity"]:.1f}',
                    f'{guess["mlm_perplexity"]:.1f}',
                    'unigram',
                ],
                [
                    'next sentence, accuracy',
                    _percent(last['nsp_accuracy']),
                    _percent(guess['nsp_accuracy']),
                    'the more frequent label (chance)',
                ],
            ]
        ),
        '',
        f'Fine-tuning: {tuned["question"]}',
        (
            f'  {tuned["held_out_examples"]:,} held-out examples of {len(tuned["labels"])} classes;'
            f' the most frequent class gives {_percent(tuned["majority"])}'
        ),
        '',
        *_columns([_FINETUNING_HEAD, *map(_finetuning_row, tuned['rows'])]),
        '',
        *conclusions(results),
    ]
    return '\n'.join(lines) + '\n'


def words_filled_in(results: dict[str, Any]) -> list[str]:
    """Held-out text with a word masked, and the likeliest words before and after pre-training."""
    found = results['samples']
    if not found['texts']:
        return [f'No masked words are shown: {found["why"]}.']
    lines = [
        f'Masked words of held-out text, the likeliest first, before pre-training'
        f' ({found["began"]}) and after it'
    ]
    for text in found['texts']:
        lines += [
            f'  {text["before"]}[{text["word"]}]{text["after"]}',
            *(
                f'    {when:6}  ' + ', '.join(token for token, _ in text[key])
                for when, key in (('before', 'first'), ('after', 'now'))
            ),
        ]
    return lines


def steps_in_words(steps: list[Step]) -> list[str]:
    """What to do next, each with the command that does it."""
    lines = ['What to do next']
    for step in steps:
        lines += [f'  {step.meaning}:', f'    {step.command}']
    return lines


def conclusions(results: dict[str, Any]) -> list[str]:
    """What the numbers say, in sentences: also where pre-training did not help."""
    # First whether pre-training learned anything, then whether it helped. Less than 0.05 nats, or
    # 0.02 of accuracy, is told as nothing learned.
    last = results['pretraining']['final']
    guess = results['pretraining']['guessing']
    rows = results['finetuning']['rows']
    gained = last['nats_gained']
    if gained > 0.05:
        lines = [f'Pre-training gained {gained:.2f} nats a masked token over the unigram baseline.']
    else:
        lines = [
            f'Pre-training learned hardly more than how frequent tokens are ({gained:+.2f} nats'
            ' over the unigram baseline): it needs more steps.'
        ]
    if last['nsp_accuracy'] < guess['nsp_accuracy'] + 0.02:
        lines.append('Next sentence prediction was not learned: it is at chance.')

    # A sentence for each verdict that occurs, with the sizes it holds at.
    wording = {
        'wins': 'Fine-tuning is better from the pre-trained weights',
        'loses': 'Fine-tuning is WORSE from the pre-trained weights',
        'no clear difference': 'Pre-training makes no clear difference',
    }
    for kind, words in wording.items():
        sizes = [f'{row["train_examples"]:,}' for row in rows if row['verdict'] == kind]
        if sizes:
            lines.append(f'{words} at {", ".join(sizes)} training examples.')
    return lines


def markdown(results: dict[str, Any], plots: list[Path]) -> str:
    """report.md: the table, and how each number came about."""
    run = results['pretraining']
    tuned = results['finetuning']
    text = results['text']
    machine = results['machine']
    last, seconds = run['final'], results['seconds']
    # The tables of the page.
    sides = [['side', 'held together', 'documents', 'sentences', 'MB']]
    for name in ('train', 'held_out'):
        side = text[name]
        sides.append(
            [
                name.replace('_', ' '),
                *(f'{side[key]:,}' for key in ('groups', 'documents', 'sentences')),
                f'{side["bytes"] / 1e6:.2f}',
            ]
        )
    curve = [
        ['step', 'rows', 'MLM accuracy', 'MLM NLL', 'perplexity', 'nats gained', 'NSP accuracy']
    ]
    curve += [
        [f'{line["step"]:,}', f'{line["examples"]:,}', *_scores(line)] for line in run['curve']
    ]
    curve += [
        ['the end', f'{last["examples"]:,}', *_scores(last)],
        ['guessing', f'{last["examples"]:,}', *_scores(run['guessing'])],
    ]
    times = [
        ['stage', 'seconds'],
        *([name, f'{value:.1f}'] for name, value in seconds.items()),
        ['all', f'{sum(seconds.values()):.1f}'],
    ]
    # A paragraph for each, which says how its numbers came about.
    words = {
        'text': (
            f"""
            Source: {text['source']}. Near-duplicates were dropped over the whole text before it was
            split: {text['dropped']['near_copy_documents']:,} documents and
            {text['dropped']['near_copy_sentences']:,} single sentences. The held-out side is
            chosen by a hash of the name of the module (of the document, in a corpus of yours),
            and seen neither in pre-training nor in fine-tuning."""
        ),
        'pretraining': (
            f"""
            Configuration `{run['config']}`, vocabulary {run['vocab_size']:,}, rows of
            {run['seq_len']}, {run['steps']:,} steps, {run['sequences']:,} rows,
            {run['tokens']:,} word pieces ({run['tokens_per_s']:,.0f} a second while training)
            out of {run['records']['train']:,} records. At the end all
            {run['records']['eval']:,} held-out records ({last['masked']:,} masked tokens) are
            scored, at intervals the first of them. Guessing gives each masked token its frequency
            in the training records (unigram), and always the more frequent label of next sentence
            prediction."""
        ),
        'finetuning': (
            f"""
            {tuned['question'].capitalize()} Same shape, recipe and {tuned['rows'][0]['steps']}
            steps from the pre-trained and from random weights; mean ± sample standard deviation
            over {tuned['rows'][0]['source']['runs']} seeds, on {tuned['held_out_examples']:,}
            held-out examples, by which nothing was selected. A difference is called clear beyond
            two standard errors, which count the seeds and the sampling of the held-out examples.
            Classes: {', '.join(tuned['labels'])}."""
        ),
        'machine': (
            f"""
            Python {machine['python']}, {machine['system']}, {machine['cpus']} CPUs;
            {', '.join(f'{name} {version}' for name, version in machine['packages'].items())}."""
        ),
    }

    # Written above as paragraphs of the source; on the page each is one line.
    words = {name: ' '.join(value.split()) for name, value in words.items()}
    # The page: the terminal's table as it stands there, then each part of the pipeline in its turn.
    lines = [
        '# Quickstart report',
        '',
        '```',
        table(results).rstrip(),
        '```',
        '',
        '## Text',
        '',
        words['text'],
        '',
        *_grid(sides),
        '',
    ]
    lines += ['## Pre-training', '', words['pretraining'], '', *_grid(curve), '']
    lines += ['## Masked words', '', '```', *words_filled_in(results), '```', '']
    lines += [
        '## Fine-tuning',
        '',
        words['finetuning'],
        '',
        *_grid([_FINETUNING_HEAD, *map(_finetuning_row, tuned['rows'])]),
        '',
    ]
    lines += [
        '## Time and machine',
        '',
        *_grid(times),
        '',
        words['machine'],
        '',
        *(f'![{plot.stem}]({plot.as_posix()})' for plot in plots),
    ]
    return '\n'.join(lines) + '\n'


def _scores(line: dict[str, float]) -> list[str]:
    """The cells of one evaluation."""
    # In the order of the curve's columns.
    mlm = [
        _percent(line['mlm_accuracy']),
        f'{line["mlm_loss"]:.3f}',
        f'{line["mlm_perplexity"]:.1f}',
        f'{line["nats_gained"]:.3f}',
    ]
    return [*mlm, _percent(line['nsp_accuracy'])]


_FINETUNING_HEAD = [
    'training examples',
    'pre-trained',
    'random weights',
    'difference',
    'pre-training',
]


def _finetuning_row(row: dict[str, Any]) -> list[str]:
    # A single run has no standard deviation.
    spread = lambda accuracy: (
        _percent(accuracy['mean'])
        + (f' ± {100 * accuracy["sd"]:.1f}' if accuracy['sd'] is not None else '')
    )
    return [
        f'{row["train_examples"]:,}',
        spread(row['source']),
        spread(row['random']),
        f'{100 * row["difference"]:+.1f}',
        row['verdict'],
    ]


def _percent(fraction: float) -> str:
    return f'{100 * fraction:.1f} %'


def _columns(rows: list[list[str]]) -> list[str]:
    """Rows with their columns aligned.

    The first to the left, numbers to the right, the last as it is.
    """
    # Columns as wide as their widest cell; the last is text, so it is left as it is.
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        numbers = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1])]
        cells = [row[0].ljust(widths[0]), *numbers, row[-1]]
        lines.append('  ' + '  '.join(cells).rstrip())
    return lines


def _grid(rows: list[list[str]]) -> list[str]:
    """A Markdown table; the first row is its head."""
    # Numbers to the right: Markdown has a colon for that.
    bar = lambda cells: '| ' + ' | '.join(cells) + ' |'
    return [bar(rows[0]), bar(['---'] + ['---:'] * (len(rows[0]) - 1)), *map(bar, rows[1:])]


def _plot_finetuning(results: dict[str, Any], path: Path) -> Path:
    """Accuracy against the number of training examples, from both starting points."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Without pyplot, which keeps global state and may look for a display.
    figure = Figure(figsize=(7, 4), layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(
        xlabel='training examples',
        ylabel='accuracy on held-out examples',
        xscale='log',
        title=results['question'],
    )

    # Sizes grow by factors, so the axis is logarithmic; bars are one standard deviation.
    sizes = [row['train_examples'] for row in results['rows']]
    for init, label in (('source', 'pre-trained'), ('random', 'random weights')):
        accuracies = [row[init] for row in results['rows']]
        axes.errorbar(
            sizes,
            [f['mean'] for f in accuracies],
            [f['sd'] or 0 for f in accuracies],
            marker='o',
            capsize=3,
            label=label,
        )

    # The line that anything must be above.
    axes.axhline(results['majority'], color='gray', linestyle=':', label='most frequent class')
    axes.set_xticks(sizes, [f'{size:,}' for size in sizes])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
