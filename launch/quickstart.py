"""From raw text to a scored model: text, vocabulary, records, pre-training, fine-tuning, one table.

  bert-quickstart [--corpus='texts/*.txt' --language=en] [--workdir=runs/quickstart]

Without --corpus the text is the documentation of the installed Python packages, and the fine-tuning
task is to tell which library a docstring comes from; with it the text is the user's, in any
language, and the task is to tell whole passages from mixed ones. Each stage runs the binary
that a user would run, prints its command, and is skipped where a run before made the same from the
same. The table, report.html, report.md, results.json and the plots are in the workdir.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option
from bert_jax.input_pipeline.text.lines import TextOptions

if TYPE_CHECKING:
    from bert_jax.configs.schema import PretrainConfig
    from bert_jax.reports.quickstart.stages import Done, Stage


@dataclass(frozen=True)
class Options:
    """The text, and how much is spent on it."""

    workdir: str = option('runs/quickstart', 'folder of everything that is made')
    corpus: tuple[str, ...] | None = option(
        None,
        'your own text, a glob, as often as there are texts; documents stand between blank lines '
        '(default: docstrings of the installed packages)',
    )
    language: str = option(
        'en', 'language code of --corpus: how sentences end, and whether --cased is meant'
    )
    cased: Literal['auto', 'yes', 'no'] = option(
        'auto',
        'whether the vocabulary keeps capitals and accents; auto: no for English in Latin letters,'
        ' yes for all else',
    )
    corpus_mb: float = option(
        12,
        'of a larger --corpus use about that many megabytes, documents chosen by a hash',
        bounds=(0.01, None),
    )
    vocab_size: int = option(8000, 'entries of the vocabulary', bounds=(100, 1 << 24))
    steps: int | None = option(
        None,
        "pre-training steps (default: as configs/presets/quickstart.py has, five minutes' worth on"
        ' 2 cores)',
        bounds=(1, None),
    )
    finetune_steps: int | None = option(
        None,
        'steps of a fine-tuning run (default: as configs/presets/quickstart_finetune.py has)',
        bounds=(1, None),
    )
    train_examples: tuple[int, ...] = option(
        (80, 400, 2000), 'sizes of the fine-tuning set', commas=True
    )
    finetune_runs: int = option(
        3, 'fine-tuning runs (seeds 0, 1, ...) for each size and starting point', bounds=(1, None)
    )
    seed: int = option(
        0,
        'seeds the records, and initialisation and data order of pre-training',
        bounds=(0, None),
    )


flags.define(Options)
flags.define(TextOptions, without=('segment', 'language'))

# Of English and Korean text alike, about; decides how many differently masked copies are made
BYTES_PER_TOKEN = 4.5


def main(argv: Sequence[str]) -> None:
    """Runs the stages in order, then prints the table."""
    del argv
    options = flags.read(Options)
    reading = flags.read(TextOptions, segment=True, language=options.language)
    from bert_jax.configs.load import load
    from bert_jax.input_pipeline.text.inputs.listing import refuse_inside
    from bert_jax.reports.quickstart import corpus, report
    from bert_jax.reports.quickstart.stages import Stages
    from bert_jax.runs.workdir.folder import lock

    # What can be refused, before the first of many minutes.
    sizes = training_sizes(options.train_examples)
    if '://' in options.workdir:
        raise UserError(f'--workdir={options.workdir}: the quickstart takes a local folder')

    made = ('text/train.txt', 'text/documents.jsonl', 'records/manifest.json')
    refuse_inside('workdir', options.workdir, options.corpus or (), made)

    # One process at a time: two would write the same stages.
    with lock(options.workdir):
        stages = Stages(options.workdir)
        source = corpus.source(options.corpus, reading, int(options.corpus_mb * 1e6))
        # The text first, for it is split there: what is held out is seen by no later stage. Each
        # stage names those before it by their keys, so that what they change makes it anew.
        text = stages.run('text', source.inputs, source.make)
        vocabulary = stages.run(*vocabulary_stage(options, source.cased(text.folder), text))
        made_of = {'text': text.key, 'vocabulary': vocabulary.key}
        config = cast('PretrainConfig', load('quickstart'))
        seq_len = config.phases[0].seq_len
        pieces = seq_len - 2  # beside [CLS] and [SEP]
        task = stages.run(
            'task',
            {**made_of, 'question': source.question, 'pieces': pieces},
            lambda folder: source.make_task(text.folder, vocabulary.folder, pieces, folder),
        )
        lines = text
        if source.line_pieces:
            lines = stages.run(*lines_stage(source.line_pieces, text, vocabulary))
        records = stages.run(*records_stage(options, config, text, lines, vocabulary))
        pretrained = stages.run(*pretrain_stage(options, config, records))
        for size in available(sizes, task.folder):
            stages.run(*finetune_stage(options, size, seq_len, task, pretrained))

        # The table only now: it needs all stages, whether made or found.
        print('\n' + report.write(stages, source.title, source.question))


def vocabulary_stage(options: Options, cased: bool, text: Done) -> Stage:
    """The vocabulary, learnt from the training side alone; `cased`: what --cased=auto means."""
    from bert_jax.reports.quickstart.stages import Stage, binary

    if options.cased != 'auto':
        cased = options.cased == 'yes'
    arguments = [
        f'--vocab_size={options.vocab_size}',
        '--nolower_case' if cased else '--lower_case',
    ]

    # `make` is a parameter of the stage and no input: only the arguments decide what is made.
    make = lambda folder: binary(
        'train_vocab', f'--input={text.folder}/train.txt', f'--output={folder}', *arguments
    )
    return Stage('vocabulary', {'text': text.key, 'arguments': arguments}, make)


def lines_stage(pieces: int, text: Done, vocabulary: Done) -> Stage:
    """The text in lines that are short against a row.

    Of sentences as long as a row next sentence prediction gets hardly any pair of neighbours: four
    of five pairs would be random ones.
    """
    from bert_jax.input_pipeline.tokenizer import Tokenizer
    from bert_jax.reports.quickstart.pieces import write_lines
    from bert_jax.reports.quickstart.stages import Stage

    make = lambda folder: write_lines(
        text.folder, folder, Tokenizer.load(vocabulary.folder), pieces
    )
    return Stage('lines', {'text': text.key, 'vocabulary': vocabulary.key, 'pieces': pieces}, make)


def records_stage(
    options: Options, config: PretrainConfig, text: Done, lines: Done, vocabulary: Done
) -> Stage:
    """TFRecords: as many copies of the text, each masked anew, as pre-training will read.

    `lines` is the text as it is to be read: its own folder, or `lines_stage`'s.
    """
    from bert_jax.reports.quickstart.stages import Stage, binary

    # Word pieces that pre-training will read, over those that the text holds: so many copies, each
    # with masks of its own. Ten are the original's dupe_factor, and enough.
    phase = config.phases[0]
    pieces_read = (options.steps or phase.steps) * phase.batch_size * phase.seq_len
    pieces_held = (
        json.loads((text.folder / 'counts.json').read_text())['train']['bytes'] / BYTES_PER_TOKEN
    )
    arguments = [
        f'--seq_len={phase.seq_len}',
        f'--dupe_factor={min(10, math.ceil(pieces_read / pieces_held))}',
        f'--seed={options.seed}',
    ]

    # Paths are left out of `inputs`: the keys of the stages stand for what lies there.
    files = [
        f'--input={lines.folder}/train.txt',
        f'--eval_input={lines.folder}/held_out.txt',
        f'--tokenizer={vocabulary.folder}',
    ]
    make = lambda folder: binary('preprocess', *files, f'--output={folder}', *arguments)
    inputs = {'lines': lines.key, 'vocabulary': vocabulary.key, 'arguments': arguments}
    return Stage('records', inputs, make)


def pretrain_stage(options: Options, config: PretrainConfig, records: Done) -> Stage:
    """BERT-Tiny, pre-trained by a preset.

    It is evaluated on all held-out records.
    """
    from bert_jax.configs.schema import to_dict
    from bert_jax.reports.quickstart.stages import Stage, binary

    # The vocabulary's real size: a small text may give fewer entries than were asked for.
    manifest = json.loads((records.folder / 'manifest.json').read_text())
    changes = [f'seed={options.seed}', f'model.vocab_size={manifest["vocab_size"]}']

    # Warm-up and evaluations in proportion, as in the preset.
    if options.steps:
        steps = options.steps
        changes += [
            f'phases.0.steps={steps}',
            f'optimizer.warmup_steps={steps // 15}',
            f'runtime.eval_every={math.ceil(steps / 6)}',
        ]

    # Two commands in one stage: the run, and its scores on all held-out records.
    def make(folder: Path) -> None:
        binary(
            'pretrain',
            f'--config={config.name}',
            f'--data={records.folder}',
            f'--workdir={folder}',
            *(f'--set={change}' for change in changes),
        )
        binary('evaluate', f'--workdir={folder}', f'--data={records.folder}')

    # The whole preset is an input, so that a changed one makes the run anew.
    inputs = {'records': records.key, 'config': to_dict(config), 'changes': changes}
    return Stage('pretrain', inputs, make)


def finetune_stage(
    options: Options, size: int, seq_len: int, task: Done, pretrained: Done
) -> Stage:
    """Fine-tuning on `size` examples, from the pre-trained and from random weights.

    With several seeds, and in the same number of steps at every size.
    """
    from bert_jax.configs.presets import quickstart_finetune as recipe
    from bert_jax.reports.quickstart.stages import Stage, binary

    # rounded down to whole steps there
    epochs = (options.finetune_steps or recipe.STEPS) * recipe.BATCH_SIZE / size * (1 + 1e-8)

    # Both starting points in one sweep: they share the compiled programs.
    sweep = f'init=source,random;seed={",".join(map(str, range(options.finetune_runs)))}'
    arguments = [
        f'--set=max_seq_length={seq_len}',
        f'--set=train_examples={size}',
        f'--set=epochs={epochs:.10f}',
        f'--sweep={sweep}',
    ]
    source = [
        '--config=quickstart_finetune',
        f'--task={task.folder}/task.json',
        f'--init_from={pretrained.folder}',
    ]
    make = lambda folder: binary('finetune', *source, f'--workdir={folder}', *arguments)
    inputs = {
        'task': task.key,
        'pretrain': pretrained.key,
        'config': Path(recipe.__file__).read_text(),
        'arguments': arguments,
    }
    return Stage(f'finetune_{size}', inputs, make)


def training_sizes(sizes: Sequence[int]) -> list[int]:
    """The sizes in --train_examples, ascending, each once."""
    # Sorted, for the table and for the curve.
    if not sizes or min(sizes) < 1:
        given = ','.join(map(str, sizes))
        raise UserError(
            f'--train_examples={given}: must be whole numbers above 0, separated by commas'
        )
    return sorted(set(sizes))


def available(sizes: Sequence[int], task: Path) -> list[int]:
    """The sizes that the task's training set has; its own size in place of those it has not."""
    with open(task / 'train.jsonl', encoding='utf-8') as file:
        # A size that the text cannot give is replaced by all there is.
        most = sum(1 for _ in file)
    return sorted({min(size, most) for size in sizes})


if __name__ == '__main__':
    app.run(main)
