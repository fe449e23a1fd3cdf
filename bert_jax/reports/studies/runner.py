"""What a study must make, and how it is made: step by step, each in a process of its own.

A step's folder has the name of what it is made from, so that rows, and studies, that need the same
thing share it, and what is done is passed over. Several runners may share the folder of a study.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.lock import take_lock
from bert_jax.configs.files.store import Store, digest, list_changes, read_note, write_note
from bert_jax.configs.studies.study import Column, HeldOut, Row, Study, as_text, check_name
from bert_jax.mesh.process_group import TRY_AGAIN
from bert_jax.runs.supervision.handlers import handlers_restored

NOTE = 'inputs.json'  # what was read, in the folder of a study
_HELD_OUT = 0.005  # share of the documents, where a study does not say
_POLL_S = 2.0  # between looks at what another process is making
_STARTS = 4  # of a run that ends with TRY_AGAIN
_FAILED = 'FAILED: '  # begins the last line of a failed step's log
# What is called for a kind of step, as MODULE:NAME.
FUNCTIONS = {
    'vocabulary': 'bert_jax:train_vocab',
    'records': 'bert_jax:preprocess',
    'pretraining': 'bert_jax.reports.studies.child:pretrain',
    'finetune': 'bert_jax:finetune',
    'feature_based': 'bert_jax.launch.feature_based:CompareFeatures',
}


class Inputs(NamedTuple):
    """What a study reads.

    Attributes:
      texts: the patterns of each text, by its name.
      folders: of the tasks' files, by the name of a column or of a task.
      tokenizer: a folder, or '' where vocabularies are trained.
    """

    texts: Mapping[str, Sequence[str]]
    folders: Mapping[str, str]
    tokenizer: str

    def folder(self, column: Column) -> str:
        """Return the folder of a column's task; '' where none is named."""
        return self.folders.get(column.name, self.folders.get(column.task, ''))


class Step(NamedTuple):
    """What makes one folder.

    Attributes:
      kind: of FUNCTIONS.
      name: the folder below the study's, KIND/DIGEST.
      title: what it is, in words.
      needs: names of the steps whose folders it reads.
      keywords: of the function that is called.
    """

    kind: str
    name: str
    title: str
    needs: Sequence[str]
    keywords: Mapping[str, Any]


class Plan:
    """All steps of a study, each once, in an order in which they can be made.

    Attributes:
      study, inputs: what it is the plan of.
      store: the folder of all steps.
      steps: by name.
      lines: of the table: its name -> (row, a step of its pre-training, or None for the last).
      records: (row's name, length) -> the step that makes them.
      pretraining: (row's name, seed) -> the step.
      cells: (line's name, column's name, seed) -> the step whose results stand there.
    """

    def __init__(self, study: Study, folder: Path, inputs: Inputs):
        self.study, self.inputs, self.store = study, inputs, Store(folder, say)
        self.steps: dict[str, Step] = {}
        self.lines: dict[str, tuple[Row, int | None]] = {}
        self.records: dict[tuple[str, int], str] = {}
        self.pretraining: dict[tuple[str, int], str] = {}
        self.cells: dict[tuple[str, str, int], str] = {}
        for row in study.rows:
            for step in row.checkpoints or [None]:
                self.lines[f'{row.name} @{step}' if step else row.name] = (row, step)

        # Seed by seed and not row by row: a study that is cut off has all rows of the first seed.
        for seed in study.seeds:
            for row in study.rows:
                self._add_pretraining(row, seed)
                for line in self.lines:
                    if self.lines[line][0] is row:
                        for column in study.columns:
                            self._add_cell(line, column, seed)

    def log(self, step: str) -> Path:
        """Return the file of what a step has printed."""
        return self.store.path / 'logs' / f'{step}.log'

    def read_last_line(self, step: str) -> str:
        """Return the last line that a step has printed; '' where there is none."""
        log = self.log(step)
        if not log.exists():
            return ''
        return log.read_text(errors='replace').strip().rpartition('\n')[2]

    def failure(self, step: str) -> str:
        """Return why a step, or one that it needs, failed when it was last tried; or ''."""
        for name in (*self.steps[step].needs, step):
            line = self.read_last_line(name)
            if line.startswith(_FAILED) and not self.store.done(name):
                return line.removeprefix(_FAILED)
        return ''

    def _add(
        self, kind: str, title: str, inputs: Any, needs: Sequence[str], **keywords: Any
    ) -> str:
        """Add a step, unless there is the same already, and return its name."""
        name = f'{kind}/{digest(inputs)[:12]}'
        output = 'output' if kind in ('vocabulary', 'records') else 'workdir'
        keywords[output] = str(self.store.of(name))
        self.steps.setdefault(name, Step(kind, name, title, needs, keywords))
        return name

    def _add_pretraining(self, row: Row, seed: int) -> None:
        """Add the vocabulary, the records and the pre-training of a row."""
        text, tokenizer = self.inputs.texts.get(row.text, ()), self.inputs.tokenizer
        vocabulary = {**self.study.vocabulary, **row.vocabulary}
        if vocabulary.get('model') != 'byte_bpe':
            vocabulary.setdefault('lower_case', True)
        needs, records = [], []
        if not tokenizer:
            made_from, title = [row.text, vocabulary], f'vocabulary of {row.name}'
            needs = [self._add('vocabulary', title, made_from, [], input=text, **vocabulary)]
            tokenizer = str(self.store.of(needs[0]))

        # What is held out is said: bert-preprocess by itself holds nothing out where that would be
        # too little for pairs, and rows with and without pairs would then read other text.
        options = {**self.study.records, **row.records}
        if 'eval_input' not in options:
            options.setdefault('eval_fraction', _HELD_OUT)
        config = self.study.config(row, seed)
        for length in dict.fromkeys(phase.seq_len for phase in config.phases):
            options['seq_len'] = length
            made_from = [row.text, vocabulary, options]
            title = f'records of {row.name}, {length} word pieces a row'
            read = {'input': text, 'tokenizer': tokenizer}
            name = self._add('records', title, made_from, needs, **read, **options)
            self.records[row.name, length] = name
            records.append(name)
        self.pretraining[row.name, seed] = self._add(
            'pretraining',
            f'pre-training of {row.name}, seed {seed}',
            [records, schema.to_dict(config)],
            records,
            config=schema.to_dict(config),
            data=[str(self.store.of(name)) for name in records],
        )

    def _add_cell(self, line: str, column: Column | HeldOut, seed: int) -> None:
        """Add what scores a line in a column."""
        row, checkpoint = self.lines[line]
        source = pretrained = self.cells[line, column.name, seed] = self.pretraining[row.name, seed]
        if isinstance(column, HeldOut):
            return
        # The last step has no number here, so that it is the same cell with and without.
        if checkpoint and checkpoint < self.study.config(row).total_steps:
            source += f'/checkpoints/{checkpoint}'
        seeds = tuple(map(str, self.study.finetuning_seeds))
        approach = row.approach or column.approach
        changes: dict[str, Any] = {'approaches': (approach,), 'seeds': seeds}
        changes['set_bilstm'] = tuple(as_text(column.bilstm))
        kind = 'feature_based'
        if approach == 'finetune':
            kind, sweep = 'finetune', f'seed={",".join(seeds)}'
            if column.learning_rates:
                rates = ','.join(map(str, column.learning_rates))
                sweep = f'optimizer.peak_lr={rates};{sweep}'
            changes = {'settings': self.study.finetuning(row, column), 'sweep': sweep}
        self.cells[line, column.name, seed] = self._add(
            kind,
            f'{column.name} of {line}, seed {seed}',
            [source, column.task, changes],
            [pretrained],
            task=column.task,
            data_dir=self.inputs.folder(column),
            init_from=str(self.store.of(source)),
            **changes,
        )


def name_texts(study: Study, corpus: Sequence[str]) -> dict[str, list[str]]:
    """Return the patterns of --corpus by the names of texts, which are those that rows ask for."""
    texts: dict[str, list[str]] = {}
    for given in corpus:
        name, equals, pattern = given.partition('=')
        if not equals or name not in [row.text for row in study.rows]:
            name, pattern = '', given
        texts.setdefault(name, []).append(pattern)
    return texts


def check_names(plan: Plan) -> None:
    """Raise UserError for an option or a folder of a name that there is not."""
    from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
    from bert_jax.input_pipeline.text.lines import TextOptions
    from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions

    of_records = [field.name for field in dataclasses.fields(PreprocessOptions)]
    of_vocabulary = [field.name for field in dataclasses.fields(VocabularyOptions)]
    of_vocabulary += [field.name for field in dataclasses.fields(TextOptions)]
    of_vocabulary += ['language_exponent', 'language_repeats']
    parts: list[Study | Row] = [plan.study, *plan.study.rows]
    for part in parts:
        for name in part.records:
            check_name('an option of records', name, of_records)
        for name in part.vocabulary:
            check_name('an option of the vocabulary', name, of_vocabulary)
    named = [c.name for c in plan.study.columns]
    named += [c.task for c in plan.study.columns if isinstance(c, Column)]
    for name in plan.inputs.folders:
        check_name('--data_dir', name, named)


def note_inputs(plan: Plan) -> None:
    """Check what a study reads, and note it in its folder by the names and sizes of files.

    Raises:
      UserError: something is not there, or the studies in the folder have read something else.
    """
    from bert_jax.input_pipeline.preprocess.language_mixture import split_inputs
    from bert_jax.input_pipeline.tasks.load_task import load_task

    texts, _, tokenizer = plan.inputs
    check_names(plan)
    now: dict[str, Any] = {'--tokenizer': list_files(tokenizer)}
    for row in plan.study.rows:
        flag = f'--corpus={row.text}=' if row.text else '--corpus='
        if row.text not in texts:
            raise UserError(f'{flag}GLOB is required: the text')
        if tokenizer and row.vocabulary:
            raise UserError(f'--tokenizer: row {row.name!r} trains a vocabulary: leave it out')
        for language, patterns in split_inputs('corpus', texts[row.text]).items():
            now[flag + language] = list_files(patterns)
    for column in plan.study.columns:
        if isinstance(column, Column):
            folder, flag = plan.inputs.folder(column), f'--data_dir={column.task}'
            if not folder and not column.task.endswith('.json'):
                raise UserError(f'{flag}=FOLDER is required: the folder of its files')
            scores = load_task(column.task, folder).scores
            if column.metric and column.metric not in scores:
                names = ', '.join(scores)
                raise UserError(f'column {column.name!r}: no {column.metric!r}, but {names}')
            now[flag] = list_files(folder)

    file = plan.store.path / NOTE
    before = read_note(file) or {}
    for flag in list_changes(before, before | now):
        if flag in before:
            raise UserError(f'{flag}: {file} has other files: use another --workdir')
    write_note(file, before | now, 2)


def list_files(patterns: str | Sequence[str]) -> Any:
    """Return the names and sizes of files; of a data set of tensorflow-datasets its name."""
    from bert_jax.input_pipeline.text.listing import matching

    if not patterns or str(patterns).startswith('tfds:'):
        return patterns
    files = matching(patterns)
    return [list(files.names), list(files.sizes)]


def run_steps(plan: Plan) -> bool:
    """Make all steps that are not done, each after those it needs; tell whether all are made.

    What needs a step that failed is left out; the others are made. Another process may make steps
    of the same folder: what it has taken is waited for only when nothing else is left. Ends the
    program with 128 + the signal that asks it to stop.
    """
    # What failed before is tried again: the cause may be gone.
    left, failed = dict(plan.steps), set[str]()
    while left:
        waiting = True
        for name, step in list(left.items()):
            if not failed.isdisjoint(step.needs):
                failed.add(name)
            elif not left.keys().isdisjoint(step.needs):
                continue
            else:
                with take_lock(plan.store.path / 'locks' / f'{name}.lock') as lock:
                    if lock is None:
                        continue
                    if not plan.store.done(name) and not make_step(plan, step, lock):
                        failed.add(name)
            del left[name]
            waiting = False
        if waiting:
            time.sleep(_POLL_S)
    return not failed


def make_step(plan: Plan, step: Step, lock: int) -> bool:
    """Make one step, and tell whether it is made."""
    say(step.title)
    log = plan.log(step.name)
    log.parent.mkdir(parents=True, exist_ok=True)

    def fill(folder: Path) -> None:
        if step.kind == 'vocabulary':
            shutil.rmtree(folder, ignore_errors=True)  # it is made in one go
        # A run that stood still goes on from its last checkpoint when it is started again.
        for _ in range(_STARTS):
            code = run_child(step, log, lock)
            if code != TRY_AGAIN:
                break
        if code:
            how = f'exit code {code}' if code > 0 else f'signal {-code}'
            raise ChildProcessError(
                f'{step.title} ended with {how}: {plan.read_last_line(step.name)}'
            )

    try:
        plan.store.make(step.name, {}, fill)
    except ChildProcessError as error:
        say(f'{_FAILED}{error}; see {log}')
        with open(log, 'a') as output:
            output.write(f'\n{_FAILED}{error}\n')
        return False
    return True


def run_child(step: Step, log: Path, lock: int) -> int:
    """Call the function of a step in a process of its own, and return its exit code.

    The process holds `lock` too: it may outlive this program, which may be killed, and nobody may
    take its step until it has ended.
    """
    from bert_jax.runs.supervision.signals import StopSignal

    call = json.dumps([FUNCTIONS[step.kind], step.keywords]).encode()
    with handlers_restored(), open(log, 'ab') as output:
        stop = StopSignal()
        output.write(call + b'\n')
        output.flush()
        child = subprocess.Popen(
            [sys.executable, '-P', '-m', 'bert_jax.reports.studies.child'],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(lock,),
            env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        )
        with cast(BinaryIO, child.stdin) as pipe:
            pipe.write(call)
        while child.poll() is None and stop.received is None:
            time.sleep(0.1)
        if stop.received is not None:
            child.terminate()
            child.wait()
            say(f'stopped by signal {stop.received}; the same command goes on from here')
            sys.exit(128 + stop.received)
        return child.returncode


def say(message: str) -> None:
    """Print a line of progress."""
    print(f'[{time.strftime("%H:%M:%S")}] {message}', flush=True)
