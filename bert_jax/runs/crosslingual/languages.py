"""A task in several languages: its files by language, and what is refused of them.

Owns LANGUAGE=TASK and LANGUAGE+LANGUAGE, and whether the tasks of all languages are one task. A
language is a name of a task's files here, whatever is written in them. It must not know models.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.configs.errors import UserError, did_you_mean
from bert_jax.input_pipeline.tasks.base import Example, Task
from bert_jax.input_pipeline.tasks.load_task import load_task


class Language(NamedTuple):
    """The task of one language, the names by which it was given, and the split that is scored."""

    name: str
    task: Task
    given: str
    data_dir: str
    split: str


def languages_of(
    tasks: Sequence[str], data_dirs: Sequence[str], split: str | None
) -> dict[str, Language]:
    """Return the languages of --task=LANGUAGE=TASK and --data_dir=LANGUAGE=FOLDER, in their order.

    Args:
      tasks: the values of --task.
      data_dirs: the values of --data_dir.
      split: which one is scored; None: dev, or test where a language has no dev.

    Raises:
      UserError: what is given is no such list, or no model could have the tasks in common.
    """
    given, folders = named('task', tasks), named('data_dir', data_dirs)
    for name in folders:
        if name not in given:
            raise _unknown('data_dir', f'{name}={folders[name]}', name, given)
    languages = {}
    for name, text in given.items():
        folder = folders.get(name, '')
        task = load_task(text, folder)
        task.require_split(split or task.selection_split)
        languages[name] = Language(name, task, text, folder, split or task.selection_split)

    # One head answers in all of them, so its labels are those of all.
    first, *others = languages.values()
    heads = {name: (it.task.head, list(it.task.labels)) for name, it in languages.items()}
    for other in others:
        if heads[other.name] != heads[first.name]:
            raise UserError(
                f'--task={other.name}={other.given}: its head and labels,'
                f' {" ".join(map(str, heads[other.name]))}, are not those of {first.name},'
                f' {" ".join(map(str, heads[first.name]))}: one model answers in all languages'
            )
    return languages


def rows_of(train: Sequence[str], languages: Mapping[str, Language]) -> list[tuple[str, ...]]:
    """Return the languages that each model is fine-tuned on, of --train=en --train=de+ko.

    By default each that has a split to train on, by itself.
    """
    trainable = [name for name in languages if 'train' in languages[name].task.files]
    rows = [tuple(text.split('+')) for text in train] or [(name,) for name in trainable]
    if not rows:
        raise UserError('--task: no language has a train split: give one to a task')
    for row in rows:
        for name in row:
            if name not in languages:
                raise _unknown('train', '+'.join(row), name, languages)
            if name not in trainable:
                raise UserError(
                    f'--train={"+".join(row)}: task {languages[name].given} of {name} has no train'
                    ' split'
                )
        if len(set(row)) < len(row) or rows.count(row) > 1:
            raise UserError(f'--train={"+".join(row)}: names a language twice')
    return rows


def training_examples(row: Sequence[str], languages: Mapping[str, Language]) -> list[Example]:
    """Return the examples to train on of all languages of a row, ids and documents told apart."""
    if len(row) == 1:
        return languages[row[0]].task.examples('train')
    return [
        _of_language(name, example)
        for name in row
        for example in languages[name].task.examples('train')
    ]


def _of_language(name: str, example: Any) -> Example:
    # Sentences of one document are each other's context; the first documents of two files have one
    # name.
    names = {field.name for field in dataclasses.fields(example)} & {'id', 'document'}
    return dataclasses.replace(
        example, **{field: f'{name}/{getattr(example, field)}' for field in names}
    )


def named(flag: str, given: Sequence[str]) -> dict[str, str]:
    """Parse LANGUAGE=VALUE, each language once, to {language: value}; UserError for else."""
    values: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition('=')
        if not equals or not value or not re.fullmatch(r'[A-Za-z][\w-]*', name):
            raise UserError(
                f'--{flag}={text}: name its language, as in --{flag}=de={value or name or "..."}'
            )
        if name in values:
            raise UserError(f'--{flag}={text}: {name} is named twice')
        values[name] = value
    return values


def _unknown(flag: str, given: str, name: str, names: Mapping[str, Any]) -> UserError:
    return UserError(
        f'--{flag}={given}: no --task is named {name!r}: there are {", ".join(names)}'
        f'{did_you_mean(name, names)}'
    )
