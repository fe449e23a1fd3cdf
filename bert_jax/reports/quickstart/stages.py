"""The stages of the quickstart: from a text to fine-tuned models, each made once.

A stage is made by the function that a user would call, and says the command that stands for it. It
names the stages before it by their keys, so that what they change makes it again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from absl import logging

import bert_jax
from bert_jax.cli.flags import format_command
from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.store import Result, Store, read_note, write_note
from bert_jax.configs.load import load
from bert_jax.configs.options import option
from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.reports.quickstart import pace

# Of a word piece in English and Korean text alike, about.
PIECE_BYTES = 4.5


@dataclass(frozen=True, kw_only=True)
class QuickstartOptions(TextOptions):
    """The text, and how much is spent on it.

    Attributes:
      workdir: folder of everything that is made.
      corpus: your own text, a glob, as often as there are texts; documents stand between blank
        lines (default: docstrings of the packages that bert_jax needs).
      language: language code of --corpus: how sentences end (by default as in English), and whether
        --cased is meant (by default told by the words).
      cased: whether the vocabulary keeps capitals and accents; auto: no for English, yes for all
        else.
      corpus_mb: of a larger --corpus use about that many megabytes, documents chosen by a hash.
      vocab_size: entries of the vocabulary.
      steps: pre-training steps (default: as the preset quickstart has, five minutes' worth on 2
        cores).
      minutes: in place of --steps: as many as let all stages take about so long on this machine,
        whose pace is measured first, once.
      finetune_steps: steps of a fine-tuning run (default: as the preset quickstart_finetune has).
      train_examples: sizes of the fine-tuning set.
      finetune_runs: fine-tuning runs (seeds 0, 1, ...) for each size and starting point.
      seed: seeds the records, and initialisation and data order of pre-training.
    """

    workdir: str = 'runs/quickstart'
    corpus: tuple[str, ...] = ()
    language: str = ''
    cased: Literal['auto', 'yes', 'no'] = 'auto'
    corpus_mb: float = option(12, bounds=(0.01, None))
    vocab_size: int = option(8000, bounds=(100, 1 << 24))
    steps: int | None = option(None, bounds=(1, None))
    minutes: float | None = option(None, bounds=(1, None))
    finetune_steps: int | None = option(None, bounds=(1, None))
    train_examples: tuple[int, ...] = option((80, 400, 2000), commas=True)
    finetune_runs: int = option(3, bounds=(1, None))
    seed: int = option(0, bounds=(0, None))
    segment: bool | None = field(default=True, init=False)

    def __post_init__(self) -> None:
        _ = self.text  # which checks itself
        if self.minutes is not None and self.steps is not None:
            raise UserError('--minutes and --steps both say how long: give one of them')
        if not self.train_examples or min(self.train_examples) < 1:
            given = join(self.train_examples)
            raise UserError(
                f'--train_examples={given}: must be whole numbers above 0, separated by commas'
            )


class Stages:
    """All stages of a quickstart; `store` is their folder, and knows which are done."""

    def __init__(self, options: QuickstartOptions, store: Store):
        """Take what the user asked for, and the folder."""
        self.options, self.store = options, store
        self.steps = options.steps

    def make_all(self) -> None:
        """Make all stages in their order, those that are done aside."""
        # The text first, for it is split there: no later stage learns from what is held out.
        text = self.make_text()
        self.choose_steps()
        vocabulary = self.make(
            'vocabulary',
            'train_vocab',
            input=text.folder / 'train.txt',
            vocab_size=self.options.vocab_size,
            language=self.options.language if self.options.corpus else 'en',
            lower_case={'auto': None, 'yes': False, 'no': True}[self.options.cased],
        )
        records = self.make_records(text, vocabulary)
        pretrained = self.pretrain(records)
        self.finetune(text, pretrained)

    def choose_steps(self) -> None:
        """Measure the machine where nothing is made yet; say how long it takes, and fit the steps.

        What --minutes came to is kept in the folder, so that a run that goes on has the same steps.
        """
        options, file = self.options, self.store.path / 'pace.json'
        asked = {'minutes': options.minutes, 'steps': options.steps}
        noted = read_note(file) or {}
        if noted.get('asked') == asked:
            self.steps = noted['steps']
            return
        count = pace.count_finetuning_steps(
            len(options.train_examples), options.finetune_runs, options.finetune_steps
        )
        step_s = pace.measure_step()
        if options.minutes is not None:
            self.steps = pace.fit_steps(options.minutes, step_s, count)
        steps = self.steps or cast(schema.PretrainConfig, load('quickstart')).total_steps
        minutes = pace.forecast(step_s, steps, count) / 60
        logging.info(
            f'a step takes {step_s * 1e3:.0f} ms here: all stages take about {minutes:.0f} minutes,'
            f' with {steps:,} steps of pre-training'
        )
        write_note(file, {'asked': asked, 'steps': self.steps, 'step_s': step_s}, 1)

    def make_text(self) -> Result:
        """Read the user's text or the docstrings, hold a part out, and cut the task from both."""
        from bert_jax.reports.quickstart import docstrings, mixed_passages, text_split

        options = self.options
        inputs: dict[str, Any]
        if options.corpus:
            limit = int(options.corpus_mb * 1e6)
            files = text_split.list_files(options.corpus, options.text)
            inputs = {'files': files, 'options': asdict(options.text), 'limit': limit}
            documents = text_split.iterate_own_text(options.corpus, options.text, limit)
        else:
            distributions = docstrings.find_distributions()
            inputs = {'packages': {each.name: each.version for each in distributions}}
            documents = docstrings.iterate_docstrings(distributions)

        def fill(folder: Path) -> None:
            text_split.write_split(documents, folder)
            mixed_passages.write_task(folder)

        return self.store.make('text', inputs, fill)

    def make_records(self, text: Result, vocabulary: Result) -> Result:
        """Write as many copies of the text, each with masks of its own, as will be read."""
        phase = cast(schema.PretrainConfig, load('quickstart')).phases[0]
        pieces_read = (self.steps or phase.steps) * phase.batch_size * phase.seq_len
        pieces = (text.folder / 'train.txt').stat().st_size / PIECE_BYTES
        return self.make(
            'records',
            'preprocess',
            input=text.folder / 'train.txt',
            eval_input=text.folder / 'held_out.txt',
            tokenizer=vocabulary.folder,
            seq_len=phase.seq_len,
            dupe_factor=min(10, math.ceil(pieces_read / pieces)),  # the original has 10
            seed=self.options.seed,
        )

    def pretrain(self, records: Result) -> Result:
        """Pre-train BERT-Tiny by the preset, and evaluate it on all held-out records."""
        settings: dict[str, Any] = {'seed': self.options.seed}
        steps = self.steps
        if steps:
            # Warm-up and evaluations in proportion, as in the preset.
            settings['phases.0.steps'] = steps
            settings['optimizer.warmup_steps'] = steps // 15
            settings['runtime.eval_every'] = math.ceil(steps / 6)
        pretrained = self.make(
            'pretrain', 'pretrain', config='quickstart', data=records.folder, settings=settings
        )
        if not (pretrained.folder / 'eval' / 'eval.json').exists():
            call('evaluate', workdir=pretrained.folder, data=records.folder)
        return pretrained

    def finetune(self, text: Result, pretrained: Result) -> None:
        """Fine-tune on several numbers of examples, from the pre-trained and from random weights.

        Several seeds of each, and as many steps for few examples as for many.
        """
        # A size that the text cannot give is replaced by all there is.
        rows = (text.folder / 'train.jsonl').read_text(encoding='utf-8').count('\n')
        sizes = sorted({min(size, rows) for size in self.options.train_examples})
        seeds = range(self.options.finetune_runs)
        settings = {}
        if self.options.finetune_steps:
            settings['steps'] = self.options.finetune_steps
        # All in one sweep: its runs share the compiled programs.
        self.make(
            'finetune',
            'finetune',
            config='quickstart_finetune',
            task=text.folder / 'task.json',
            init_from=pretrained.folder,
            settings=settings,
            sweep=f'train_examples={join(sizes)};init=source,random;seed={join(seeds)}',
        )

    def make(self, stage: str, name: str, **options: Any) -> Result:
        """Make a stage by a call of the function `name` of bert_jax with these options."""
        inputs = dict(options)
        for option_name, value in options.items():
            if isinstance(value, Path):
                # Of another stage: its key says what is there, wherever the folder lies.
                other = value.relative_to(self.store.path).parts[0]
                inputs[option_name] = self.store.results[other].key
        if 'config' in options:  # the whole preset, so that a changed one makes the stage again
            inputs['config'] = schema.to_dict(load(options['config']))
        target = 'output' if name in ('train_vocab', 'preprocess') else 'workdir'
        return self.store.make(
            stage, inputs, lambda folder: call(name, **options, **{target: folder})
        )


def call(name: str, **options: Any) -> None:
    """Call the function `name` of bert_jax, and print the command that stands for it.

    Where a signal has stopped it, this program ends as the command would.
    """
    flags = {option: value for option, value in options.items() if value is not None}
    flags['set'] = flags.pop('settings', {})
    print('$', format_command(name, flags), flush=True)
    result = getattr(bert_jax, name)(**options)
    signal = getattr(result, 'signal', None)
    if signal is not None:
        sys.exit(128 + signal)


def join(numbers: Iterable[int]) -> str:
    """Return numbers with commas between."""
    return ','.join(map(str, numbers))
