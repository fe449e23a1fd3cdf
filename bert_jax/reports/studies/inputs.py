"""What a study reads: its texts, its tasks' files and, where one is given, its tokenizer.

Owns the flags that name them, and how they are known again by machines that share a study's folder:
by the names and sizes of files, wherever these lie. It must not know what they are for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.configs.errors import UserError, did_you_mean
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.files.store import changed, read_note, write_note
from bert_jax.configs.studies.study import Column, HeldOut, Study

# In a folder's study.json, and in place of what is not known to a --dry_run.
FILE = 'study.json'
_UNKNOWN = 'not given'


@dataclass(frozen=True)
class Input:
    """A text, a task or a tokenizer.

    identity: JSON values by which it is known again; flags: as its commands take it; path: the
    folder of a tokenizer; size: bytes of a text, 0 where they are not known.
    """

    identity: Any
    flags: tuple[str, ...] = ()
    path: str = ''
    size: int = 0


@dataclass(frozen=True)
class Inputs:
    """All that a study reads."""

    texts: Mapping[str, Input]
    tasks: Mapping[str, Input]
    tokenizer: Input | None


def given(
    study: Study,
    corpus: Sequence[str],
    data_dir: Sequence[str],
    tokenizer: str,
    needed: bool,
) -> Inputs:
    """Return what the flags name.

    Args:
      study: what reads it.
      corpus: PATTERN or NAME=PATTERN, as often as there are.
      data_dir: COLUMN=FOLDER or TASK=FOLDER.
      tokenizer: a folder, or ''.
      needed: whether all must be named.

    Raises:
      UserError: something is not there or, if `needed`, not named.
    """
    columns = _tasks_of(study)
    texts = _texts(study, corpus, needed)
    folders = {}
    names = {name for column in columns for name in (column.name, column.task)}
    for text in data_dir:
        name, _, folder = text.partition('=')
        if not name or not folder:
            raise UserError(
                f'--data_dir={text}: expected NAME=FOLDER, as in --data_dir=mrpc=glue/MRPC'
            )
        if name not in names:
            raise UserError(
                f'--data_dir={text}: the study has no column or task'
                f' {name!r}{did_you_mean(name, names)}'
            )
        folders[name] = folder

    tasks = {}
    for column in columns:
        folder = folders.get(column.name, folders.get(column.task, ''))
        tasks[column.name] = _task(study, column, folder, needed)
    vocabulary = None
    if tokenizer:
        if not Path(tokenizer).is_dir():
            raise UserError(f'--tokenizer={tokenizer}: no such folder')
        vocabulary = Input(_files(tokenizer), path=os.path.abspath(tokenizer))
    return Inputs(texts, tasks, vocabulary)


def remembered(folder: Path, study: Study) -> Inputs:
    """Return what was read before in a study's folder, for a table of what is there.

    Raises:
      UserError: that is nothing.
    """
    file = folder / FILE
    if not file.exists():
        raise UserError(f'--workdir={folder}: no study was run there (no {FILE} in it)')
    kept = read_object(file)
    noted = lambda kind, name: Input(kept[kind].get(name, _UNKNOWN))
    return Inputs(
        {row.text: noted('texts', row.text) for row in study.rows},
        {column.name: noted('tasks', column.task) for column in _tasks_of(study)},
        Input(kept['tokenizer']) if kept.get('tokenizer') else None,
    )


def remember(folder: Path, study: Study, inputs: Inputs) -> None:
    """Note what the studies of a folder read.

    Raises:
      UserError: they have read something else.
    """
    file = folder / FILE
    now: dict[str, Any] = {
        'texts': {name: text.identity for name, text in inputs.texts.items()},
        'tasks': {c.task: inputs.tasks[c.name].identity for c in _tasks_of(study)},
        'tokenizer': inputs.tokenizer.identity if inputs.tokenizer else None,
    }
    if before := read_note(file):
        for kind, flag in (('texts', 'corpus'), ('tasks', 'data_dir')):
            for name in changed(before[kind], before[kind] | now[kind]):
                if name in before[kind]:
                    raise UserError(
                        f'--{flag}: {name or "the text"} is not what the studies in {folder} have'
                        ' read (its files have other names or sizes): use another --workdir'
                    )
            now[kind] = before[kind] | now[kind]
        if 'tokenizer' in changed(before, now):
            raise UserError(
                f'--tokenizer: the studies in {folder} have read another, or trained their own:'
                ' use another --workdir'
            )
    write_note(file, now, 2)


def _tasks_of(study: Study) -> list[Column]:
    return [column for column in study.columns if isinstance(column, Column)]


def _texts(study: Study, corpus: Sequence[str], needed: bool) -> dict[str, Input]:
    """Return the texts that the rows name."""
    from bert_jax.input_pipeline.preprocess.languages import split_inputs
    from bert_jax.input_pipeline.text.listing import matching

    names = {row.text for row in study.rows}
    patterns: dict[str, list[str]] = {}
    for text in corpus:
        # A name is asked for by a row; else the = belongs to the path.
        name, equals, pattern = text.partition('=')
        if not (equals and name in names):
            name, pattern = '', text
        patterns.setdefault(name, []).append(pattern)
    texts = {}
    for name in names:
        if name in patterns:
            identity, size = [], 0
            by_language = split_inputs('corpus', patterns[name])
            for column in study.columns:
                language = column.language if isinstance(column, HeldOut) else ''
                if language and language not in by_language:
                    raise UserError(
                        f'column {column.name!r}: the text {name or "of --corpus"} has no language'
                        f' {language!r}: give it as --corpus={f"{name}=" if name else ""}'
                        f'{language}=GLOB'
                    )
            for language, given in by_language.items():
                listing = matching(given)
                at = f'{language}/' if language else ''
                files = zip(listing.names, listing.sizes)
                identity += [[at + file, bytes_] for file, bytes_ in files]
                size += sum(listing.sizes)
            flags = tuple(f'--input={pattern}' for pattern in patterns[name])
            texts[name] = Input(identity, flags, size=size)
        elif needed:
            raise UserError(f'--corpus={f"{name}=" if name else ""}GLOB is required: the text')
        else:
            texts[name] = Input(_UNKNOWN)
    if strange := patterns.keys() - names:
        raise UserError(
            f'--corpus={patterns[strange.pop()][0]}: all rows read a text with a name: give it as'
            f' --corpus=NAME=GLOB, with {", ".join(sorted(names))}'
        )
    return texts


def _task(study: Study, column: Column, folder: str, needed: bool) -> Input:
    """Return the task of a column and its files."""
    task, file = column.task, Path(column.task)
    described = task.endswith('.json')
    if not folder and described and file.is_file():
        _check_task(study, column, '')
        return Input([file.read_text(), _of_task(file)], (f'--task={task}',))

    # What a task that is known by name is scored by does not depend on its folder.
    by_name = not described and (not folder or folder.startswith('tfds:'))
    if by_name:
        _check_task(study, column, '.')
    if not folder:
        if needed:
            raise UserError(
                f'--data_dir={task}=FOLDER is required: the folder with the files of task {task}'
            )
        return Input(_UNKNOWN)
    if folder.startswith('tfds:'):
        return Input(folder, (f'--task={task}', f'--data_dir={folder}'))
    if not Path(folder).is_dir():
        raise UserError(f'--data_dir={task}={folder}: no such folder')
    _check_task(study, column, folder)
    return Input(_files(folder), (f'--task={task}', f'--data_dir={folder}'))


def _check_task(study: Study, column: Column, folder: str) -> None:
    """Check that there is such a task, with what the column asks of it.

    Raises:
      UserError: there is none, or it lacks that.
    """
    from bert_jax.input_pipeline.tasks import load_task

    task = load_task(column.task, folder)
    if column.metric and column.metric not in task.scores:
        raise no_metric(column, column.metric, task.scores)
    for row in study.rows:
        approach = row.approach or column.approach
        if approach != 'finetune' and task.kind != 'tagging':
            raise UserError(
                f'row {row.name!r}, column {column.name!r}: {approach} is for tasks of kind'
                f' tagging, and {column.task} is of kind {task.kind}'
            )


def no_metric(column: Column, name: str, names: Iterable[str]) -> UserError:
    """Return the refusal of a metric that the task of a column does not have."""
    return UserError(
        f'column {column.name!r}: {column.task} has no metric {name!r}, but'
        f' {", ".join(names)}{did_you_mean(name, names)}'
    )


def _of_task(file: Path) -> list[list[Any]]:
    """Return [name, size] of the files that a task file names, in its folder."""
    named = json.loads(file.read_text()).get('files', {}).values()
    names = [name for each in named for name in ([each] if isinstance(each, str) else each)]
    paths = [file.parent / name for name in names]
    return [[path.name, path.stat().st_size] for path in paths if path.is_file()]


def _files(folder: str | Path) -> list[list[Any]]:
    """Return [name, size] of the files in a folder, hidden ones aside."""
    return [
        [entry.name, entry.stat().st_size]
        for entry in sorted(Path(folder).iterdir())
        if entry.is_file() and not entry.name.startswith('.')
    ]
