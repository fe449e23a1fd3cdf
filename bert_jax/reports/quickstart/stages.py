"""The stages of the quickstart: from a text to fine-tuned models, each made once.

Owns what a stage is made from and by which commands; each names those before it by their keys, so
that what they change makes it again. It must not know where the text comes from (corpus.py), nor
what the results are (results.py).
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.files.store import Result, Store
from bert_jax.configs.options import option
from bert_jax.reports.quickstart.commands import run, say

if TYPE_CHECKING:
    from bert_jax.configs.schema import PretrainConfig
    from bert_jax.input_pipeline.tokenizer.vocabulary import Casing
    from bert_jax.reports.quickstart.corpus import Source

# Of English and Korean text alike, about; decides how many differently masked copies are made.
BYTES_PER_TOKEN = 4.5


@dataclasses.dataclass(frozen=True)
class Options:
    """The text, and how much is spent on it."""

    workdir: str = option('runs/quickstart', 'folder of everything that is made')
    corpus: tuple[str, ...] | None = option(
        None,
        'your own text, a glob, as often as there are texts; documents stand between blank lines '
        '(default: docstrings of the installed packages)',
    )
    language: str | None = option(
        None,
        'language code of --corpus: how sentences end (by default as in English), and whether'
        ' --cased is meant (by default told by the words)',
    )
    cased: Literal['auto', 'yes', 'no'] = option(
        'auto',
        'whether the vocabulary keeps capitals and accents; auto: no for English, yes for all else',
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

    def sizes(self) -> list[int]:
        """Return the sizes in --train_examples, ascending, each once.

        Raises:
          UserError: one of them is no size.
        """
        if not self.train_examples or min(self.train_examples) < 1:
            given = ','.join(map(str, self.train_examples))
            raise UserError(
                f'--train_examples={given}: must be whole numbers above 0, separated by commas'
            )
        return sorted(set(self.train_examples))


def make(options: Options, source: Source, store: Store) -> None:
    """Make all stages in their order, those that are done aside."""
    from bert_jax.configs.load import load
    from bert_jax.reports.quickstart.corpus import write_text

    # The text first, for it is split there: what is held out is seen by no later stage.
    config = cast('PretrainConfig', load('quickstart'))
    pieces = config.phases[0].seq_len - 2  # without [CLS] and [SEP]
    text = store.make('text', source.inputs, lambda folder: write_text(source, folder))
    vocabulary = _vocabulary(store, options, source.casing(text.folder), text)
    made_of = {'text': text.key, 'vocabulary': vocabulary.key}
    task = store.make(
        'task',
        {**made_of, 'question': source.question, 'pieces': pieces},
        lambda folder: source.make_task(text.folder, vocabulary.folder, pieces, folder),
    )
    lines = text
    if source.line_pieces:
        lines = _lines(store, source.line_pieces, text, vocabulary)
    records = _records(store, options, config, text, lines, vocabulary)
    pretrained = _pretrain(store, options, config, records)
    _finetune(store, options, pieces + 2, task, pretrained)


def _vocabulary(store: Store, options: Options, casing: Casing, text: Result) -> Result:
    """Learn the vocabulary from the training side alone; `casing`: what --cased=auto means."""
    automatic = options.cased == 'auto'
    cased = not casing.lower_case if automatic else options.cased == 'yes'
    case = '--nolower_case' if cased else '--lower_case'
    arguments = [f'--vocab_size={options.vocab_size}', case]
    files = [f'--input={text.folder}/train.txt']

    def fill(folder: Path) -> None:
        if automatic:
            say(str(casing).split(': --')[0])
        run('train_vocab', *files, f'--output={folder}', *arguments)

    return store.make('vocabulary', {'text': text.key, 'arguments': arguments}, fill)


def _lines(store: Store, pieces: int, text: Result, vocabulary: Result) -> Result:
    """Write the text in lines that are short against a row.

    Of sentences as long as a row next sentence prediction gets hardly any pair of neighbours: four
    of five pairs would be random ones.
    """
    from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
    from bert_jax.reports.quickstart.pieces import write_lines

    return store.make(
        'lines',
        {'text': text.key, 'vocabulary': vocabulary.key, 'pieces': pieces},
        lambda folder: write_lines(text.folder, folder, Tokenizer.load(vocabulary.folder), pieces),
    )


def _records(
    store: Store,
    options: Options,
    config: PretrainConfig,
    text: Result,
    lines: Result,
    vocabulary: Result,
) -> Result:
    """Write records: as many copies of the text, each with masks of its own, as will be read.

    `lines` is the text as it is to be read: its own folder, or that of `_lines`.
    """
    # Word pieces that pre-training will read, over those that the text has. Ten copies are the
    # original's dupe_factor, and enough.
    phase = config.phases[0]
    pieces_read = (options.steps or phase.steps) * phase.batch_size * phase.seq_len
    counts = read_object(text.folder / 'counts.json')
    pieces_held = counts['train']['bytes'] / BYTES_PER_TOKEN
    arguments = [
        f'--seq_len={phase.seq_len}',
        f'--dupe_factor={min(10, math.ceil(pieces_read / pieces_held))}',
        f'--seed={options.seed}',
    ]

    # Paths are left out of the inputs: the keys of the stages name what is there.
    files = [
        f'--input={lines.folder}/train.txt',
        f'--eval_input={lines.folder}/held_out.txt',
        f'--tokenizer={vocabulary.folder}',
    ]
    return store.make(
        'records',
        {'lines': lines.key, 'vocabulary': vocabulary.key, 'arguments': arguments},
        lambda folder: run('preprocess', *files, f'--output={folder}', *arguments),
    )


def _pretrain(store: Store, options: Options, config: PretrainConfig, records: Result) -> Result:
    """Pre-train BERT-Tiny by a preset, and evaluate it on all held-out records."""
    from bert_jax.configs.schema import to_dict

    # The vocabulary's real size: a small text may give fewer entries than were asked for.
    vocab_size = read_object(records.folder / 'manifest.json')['vocab_size']
    changes = [f'seed={options.seed}', f'model.vocab_size={vocab_size}']

    # Warm-up and evaluations in proportion, as in the preset.
    if options.steps:
        changes += [
            f'phases.0.steps={options.steps}',
            f'optimizer.warmup_steps={options.steps // 15}',
            f'runtime.eval_every={math.ceil(options.steps / 6)}',
        ]
    data = f'--data={records.folder}'

    def fill(folder: Path) -> None:
        workdir = f'--workdir={folder}'
        sets = [f'--set={change}' for change in changes]
        run('pretrain', f'--config={config.name}', data, workdir, *sets)
        run('evaluate', workdir, data)

    # The whole preset is an input, so that a changed one makes the run again.
    inputs = {'records': records.key, 'config': to_dict(config), 'changes': changes}
    return store.make('pretrain', inputs, fill)


def _finetune(
    store: Store, options: Options, seq_len: int, task: Result, pretrained: Result
) -> None:
    """Fine-tune on several numbers of examples, from the pre-trained and from random weights.

    With several seeds, and in the same number of steps at every size.
    """
    from bert_jax.configs.presets import quickstart_finetune as recipe

    # A size that the text cannot give is replaced by all there is.
    with open(task.folder / 'train.jsonl', encoding='utf-8') as file:
        available = sum(1 for _ in file)
    sizes = sorted({min(size, available) for size in options.sizes()})

    # All in one sweep: its runs share the compiled programs.
    points = {
        'train_examples': sizes,
        'init': ('source', 'random'),
        'seed': range(options.finetune_runs),
    }
    sweep = ';'.join(f'{name}={",".join(map(str, values))}' for name, values in points.items())
    arguments = [f'--set=max_seq_length={seq_len}', f'--sweep={sweep}']
    if options.finetune_steps:
        arguments.insert(1, f'--set=steps={options.finetune_steps}')
    files = [f'--task={task.folder}/task.json', f'--init_from={pretrained.folder}']
    command = ['finetune', '--config=quickstart_finetune', *files]
    inputs = {
        'task': task.key,
        'pretrain': pretrained.key,
        'config': Path(recipe.__file__).read_text(),
        'arguments': arguments,
    }
    store.make('finetune', inputs, lambda folder: run(*command, f'--workdir={folder}', *arguments))
