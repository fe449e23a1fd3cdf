"""A task in several languages, and parallel texts: the files by language, and what is refused.

Text N of one file of parallel texts is the translation of text N of the others. Owns LANGUAGE=TASK,
LANGUAGE=FILE and LANGUAGE+LANGUAGE, and whether the tasks, or files, of all languages go together.
A language is a name of files here, whatever is written in them. It must not know models.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.configs.errors import UserError, suggest
from bert_jax.input_pipeline.tasks.base import Example, Task
from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.input_pipeline.text.encodings import plain_name, read_json, read_utf8
from bert_jax.input_pipeline.text.formats import detect_lines


class Language(NamedTuple):
    """The task of one language, the names by which it was given, and the split that is scored."""

    name: str
    task: Task
    given: str
    data_dir: str
    split: str


def load_languages(
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
    given, folders = parse_named('task', tasks), parse_named('data_dir', data_dirs)
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


def list_rows(train: Sequence[str], languages: Mapping[str, Language]) -> list[tuple[str, ...]]:
    """Return the languages that each model is fine-tuned on, of --train=en --train=de+ko.

    By default each that has a split to train on, by itself.
    """
    trainable = [name for name in languages if 'train' in languages[name].task.files]
    if train:
        rows = [tuple(text.split('+')) for text in train]
    elif trainable:
        rows = [(name,) for name in trainable]
    else:
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


def read_training_examples(row: Sequence[str], languages: Mapping[str, Language]) -> list[Example]:
    """Return the examples to train on of all languages of a row, ids and documents told apart."""
    if len(row) == 1:
        return languages[row[0]].task.examples('train')

    # Sentences of one document are each other's context; the first documents of two files have one
    # name.
    examples: list[Any] = []
    for name in row:
        for example in languages[name].task.examples('train'):
            told_apart = {}
            for field in dataclasses.fields(example):
                if field.name in ('id', 'document'):
                    told_apart[field.name] = f'{name}/{getattr(example, field.name)}'
            examples.append(dataclasses.replace(example, **told_apart))
    return examples


def parse_named(flag: str, given: Sequence[str]) -> dict[str, str]:
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


def read_parallel(given: Sequence[str], flag: str = 'input') -> dict[str, list[str]]:
    """Read the texts of --FLAG=LANGUAGE=FILE, by language, in their order.

    A file ending in .conllu has its sentences (the lines "# text = ..."), one in .json its
    paragraphs (SQuAD's format, as of XQuAD), any other a text a line.

    Raises:
      UserError: there are fewer than two languages, or files do not have as many texts.
    """
    texts = {language: _read_texts(path) for language, path in parse_named(flag, given).items()}
    if len(texts) < 2:
        raise UserError(f'--{flag}: name the files of two languages or more')

    # One by one, so they must be as many; what an empty line would stand for nobody knows.
    (first, of_first), *others = texts.items()
    for language, translations in others:
        if len(translations) != len(of_first):
            raise UserError(
                f'--{flag}={language}: {len(translations)} texts, and {first} has {len(of_first)}:'
                ' the Nth text of a file must be the translation of the Nth of the others'
            )
    for language, lines in texts.items():
        for number, text in enumerate(lines, start=1):
            if not text.strip():
                raise UserError(
                    f'--{flag}={language}: text {number} is empty: leave it out of all files'
                )
    if len(of_first) < 2:
        raise UserError(f'--{flag}={first}: one text only: there is nothing to choose from')
    return texts


def _read_texts(path: str) -> list[str]:
    """Read the texts of a file."""
    if plain_name(path).endswith('.json'):
        try:
            articles = read_json(path)['data']
            contexts = []
            for article in articles:
                contexts += [paragraph['context'] for paragraph in article['paragraphs']]
            return contexts
        except (LookupError, TypeError):
            raise UserError(
                f'{path}: has no paragraphs: expected the format of SQuAD (data, paragraphs,'
                ' context)'
            ) from None
    lines = read_utf8(path).removesuffix('\n').split('\n')
    if plain_name(path).endswith('.conllu'):
        mark = '# text = '
        texts = [line.rstrip('\r').removeprefix(mark) for line in lines if line.startswith(mark)]
        if not texts:
            raise UserError(f'{path}: no line begins with {json.dumps(mark)}')
        return texts
    kind = detect_lines(path, '\n'.join(lines[:1000]).encode(), path)
    if kind != 'text':
        raise UserError(f'{path}: its lines are {kind}: give a file of one text a line')
    return [line.rstrip('\r') for line in lines]


def _unknown(flag: str, given: str, name: str, names: Mapping[str, Any]) -> UserError:
    return UserError(
        f'--{flag}={given}: no --task is named {name!r}: there are {", ".join(names)}'
        f'{suggest(name, names)}'
    )
