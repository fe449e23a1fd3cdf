"""The stages of the quickstart: from a text to fine-tuned models, each made once.

A stage is made by the function that a user would call, and says the command that stands for it. It
names the stages before it by their keys, so that what they change makes it again.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import bert_jax
from bert_jax.cli.commands import script_name
from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.files.store import Result, Store
from bert_jax.configs.load import load
from bert_jax.configs.options import option
from bert_jax.input_pipeline.text.lines import TextOptions

# Of English and Korean text alike, about.
BYTES_PER_PIECE = 4.5


@dataclasses.dataclass(frozen=True)
class Options:
    """The text, and how much is spent on it."""

    workdir: str = option('runs/quickstart', 'folder of everything that is made')
    corpus: tuple[str, ...] | None = option(
        None,
        'your own text, a glob, as often as there are texts; documents stand between blank lines '
        '(default: docstrings of the packages that this one needs)',
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

    def __post_init__(self) -> None:
        if not self.train_examples or min(self.train_examples) < 1:
            given = join(self.train_examples)
            raise UserError(
                f'--train_examples={given}: must be whole numbers above 0, separated by commas'
            )


class Stages:
    """All stages of a quickstart, in the order in which they are made.

    Attributes:
      options: what the user asked for.
      store: the folder of all; it knows which stages are done.
    """

    def __init__(self, options: Options, store: Store):
        """Take the options; `store`: where the stages are made."""
        self.options, self.store = options, store

    def make_all(self, reading: TextOptions) -> None:
        """Make all stages, those that are done aside; `reading`: how a text of the user is read."""
        from bert_jax.reports.quickstart.mixed_passages import write_task
        from bert_jax.reports.quickstart.text_split import write_lines

        # The text first, for it is split there: no later stage learns from what is held out.
        text = self.make_text(reading)
        task = self.store.make(
            'task', {'text': text.key}, lambda folder: write_task(text.folder, folder)
        )
        lines = self.store.make(
            'lines', {'text': text.key}, lambda folder: write_lines(text.folder, folder)
        )
        records = self.make_records(text, lines)
        self.finetune(task, self.pretrain(records))

    def make_text(self, reading: TextOptions) -> Result:
        """Read the user's text or the docstrings, and hold a part of it out."""
        from bert_jax.reports.quickstart import docstrings, text_split

        corpus, limit = self.options.corpus, int(self.options.corpus_mb * 1e6)
        inputs: dict[str, Any]
        if corpus:
            documents = text_split.iterate_own_text(corpus, reading, limit)
            files = text_split.list_files(corpus, reading)
            inputs = {'corpus': files, 'options': dataclasses.asdict(reading), 'limit': limit}
        else:
            distributions = docstrings.find_distributions()
            documents = docstrings.iterate_docstrings(distributions)
            inputs = {'packages': {each.name: each.version for each in distributions}}
        return self.store.make(
            'text', inputs, lambda folder: text_split.write_split(documents, folder)
        )

    def make_records(self, text: Result, lines: Result) -> Result:
        """Write records of the lines, by a vocabulary of the training side alone."""
        options = self.options
        vocabulary = self.run(
            'vocabulary',
            'train_vocab',
            [text],
            {'input': (f'{text.folder}/train.txt',)},
            vocab_size=options.vocab_size,
            language=options.language if options.corpus else 'en',
            lower_case={'auto': None, 'yes': False, 'no': True}[options.cased],
        )

        # As many copies, each with masks of its own, as will be read; ten are the original's.
        phase = cast(schema.PretrainConfig, load('quickstart')).phases[0]
        pieces_read = (options.steps or phase.steps) * phase.batch_size * phase.seq_len
        text_bytes = read_object(text.folder / 'counts.json')['train.txt']['bytes']
        copies = math.ceil(pieces_read * BYTES_PER_PIECE / text_bytes)
        return self.run(
            'records',
            'preprocess',
            [lines, vocabulary],
            {
                'input': f'{lines.folder}/train.txt',
                'eval_input': f'{lines.folder}/held_out.txt',
                'tokenizer': f'{vocabulary.folder}',
            },
            seq_len=phase.seq_len,
            dupe_factor=min(10, copies),
            seed=options.seed,
        )

    def pretrain(self, records: Result) -> Result:
        """Pre-train BERT-Tiny by the preset, and evaluate it on all held-out records."""
        settings: dict[str, Any] = {'seed': self.options.seed}
        if steps := self.options.steps:
            # Warm-up and evaluations in proportion, as in the preset.
            settings |= {
                'phases.0.steps': steps,
                'optimizer.warmup_steps': steps // 15,
                'runtime.eval_every': math.ceil(steps / 6),
            }
        data = f'{records.folder}'
        pretrained = self.run(
            'pretrain',
            'pretrain',
            [records],
            {'data': data},
            config='quickstart',
            settings=settings,
        )
        if not (pretrained.folder / 'eval' / 'eval.json').exists():
            call('evaluate', workdir=f'{pretrained.folder}', data=data)
        return pretrained

    def finetune(self, task: Result, pretrained: Result) -> None:
        """Fine-tune on several numbers of examples, from the pre-trained and from random weights.

        Several seeds of each, and as many steps for few examples as for many.
        """
        # A size that the text cannot give is replaced by all there is.
        rows = (task.folder / 'train.jsonl').read_text(encoding='utf-8').count('\n')
        sizes = sorted({min(size, rows) for size in self.options.train_examples})
        seeds = range(self.options.finetune_runs)
        settings = {}
        if self.options.finetune_steps:
            settings['steps'] = self.options.finetune_steps
        # All in one sweep: its runs share the compiled programs.
        self.run(
            'finetune',
            'finetune',
            [task, pretrained],
            {'task': f'{task.folder}/task.json', 'init_from': f'{pretrained.folder}'},
            config='quickstart_finetune',
            settings=settings,
            sweep=f'train_examples={join(sizes)};init=source,random;seed={join(seeds)}',
        )

    def run(
        self, stage: str, name: str, needs: list[Result], paths: dict[str, Any], **options: Any
    ) -> Result:
        """Make a stage by one call.

        Args:
          stage: its name, and that of its folder.
          name: the function of `bert_jax`.
          needs: the stages that it reads.
          paths: what it is to read; the keys of `needs` stand for it in the stage's inputs.
          **options: all else that it is told.
        """
        inputs = {need.folder.name: need.key for need in needs} | options
        if 'config' in options:  # the whole preset, so that a changed one makes the stage again
            inputs['config'] = schema.to_dict(load(options['config']))
        output = 'output' if name in ('train_vocab', 'preprocess') else 'workdir'
        return self.store.make(
            stage, inputs, lambda folder: call(name, **paths, **{output: f'{folder}'}, **options)
        )


def join(numbers: Iterable[int]) -> str:
    """Return numbers with commas between."""
    return ','.join(map(str, numbers))


def call(name: str, **options: Any) -> None:
    """Call a function of `bert_jax`, and print the command that stands for it.

    Where a signal has stopped it, this program ends as the command would.
    """
    print('$', format_command(name, options), flush=True)
    result = getattr(bert_jax, name)(**options)
    if signal := getattr(result, 'signal', None):
        sys.exit(128 + signal)


def format_command(name: str, options: Mapping[str, Any]) -> str:
    """Return the command line of a call, as a shell takes it."""
    words = [script_name(name)]
    for flag, value in options.items():
        if flag == 'settings':
            words += [f'--set={setting}={each}' for setting, each in value.items()]
        elif isinstance(value, bool):
            words.append(f'--{flag}' if value else f'--no{flag}')
        elif isinstance(value, tuple):
            words += [f'--{flag}={each}' for each in value]
        elif value is not None:
            words.append(f'--{flag}={value}')
    return shlex.join(words)
