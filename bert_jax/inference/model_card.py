"""The model card of an exported directory: README.md, as the Hugging Face Hub shows it.

Owns its words: what the model is, how it was trained and scored as far as a run's notes say, and
the lines of Python that use it, which fit its head.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.schema import FinetuneConfig, PretrainConfig
from bert_jax.conversion import huggingface, model_hub
from bert_jax.conversion.trained_model import Model
from bert_jax.runs.sources import source as sources
from bert_jax.runs.workdir import metrics
from bert_jax.runs.workdir import notes as note_of
from bert_jax.runs.workdir.workdir import Workdir

FILE = 'README.md'


class Notes(NamedTuple):
    """What a run says of itself.

    Attributes:
      name: of the model.
      base: the model on the Hub that it began with, if it is there.
      trained: (what, value) of the training, in order.
      scores: (split, metric, value), in order.
      longest: word pieces of the longest row in training; None: unknown.
      languages: ISO codes of the languages of its texts.
      license: the Hub's name of its licence.
    """

    name: str
    base: str | None = None
    trained: tuple[tuple[str, Any], ...] = ()
    scores: tuple[tuple[str, str, float], ...] = ()
    longest: int | None = None
    languages: tuple[str, ...] = ()
    license: str | None = None


def check_origin(languages: Sequence[str], license: str | None) -> None:
    """Raise UserError for what is no code of a language, or no name of a licence, on the Hub."""
    for code in languages:
        # ISO 639, with a script or a region behind it; `code` and `multilingual` are the Hub's.
        if not re.fullmatch(r'[a-z]{2,3}(-[A-Za-z0-9]{2,4})*|code|multilingual', code):
            raise UserError(
                f'language={code!r}: must be an ISO 639 code, as en, pt-BR or yue, or multilingual'
            )
    if license is not None and not re.fullmatch(r'[a-z0-9][a-z0-9.+-]*', license):
        raise UserError(
            f"license={license!r}: must be one of the Hub's names, as apache-2.0, mit, cc-by-4.0 or"
            ' other, in small letters'
        )


def write(folder: epath.Path, model: Model, notes: Notes) -> None:
    """Write the card of a directory of transformers, or of sentence-transformers."""
    atomic_write(folder / FILE, make_card(model, notes))


def make_card(model: Model, notes: Notes) -> str:
    """Return the card's text."""
    uses, traits = model.row.card, model.config.traits
    of_vectors = model.sentence is not None
    header: dict[str, Any] = {
        'language': list(notes.languages) or None,
        'license': notes.license,
        'library_name': 'sentence-transformers' if of_vectors else 'transformers',
        'pipeline_tag': uses.task,
        'base_model': notes.base,
        'tags': ['bert_jax', traits.transformers.model_type],
    }
    if of_vectors:
        header['tags'].append('feature-extraction')
    config, sentence = model.config, model.sentence
    length = sentence.longest(config.max_position) if sentence else config.max_position
    facts = [
        ('family', traits.name),
        ('blocks', config.num_layers),
        ('width', config.hidden_size),
        ('vocabulary', config.vocab_size),
        ('longest row that it can read, in word pieces', length),
    ]
    if notes.longest is not None:
        facts.append(('longest row that it was trained on', notes.longest))
    if model.labels:
        facts.append(('labels', ', '.join(model.labels)))
    facts += [(name, json.dumps(value)) for name, value in model.chosen.items()]
    if sentence is not None:
        facts += sentence.describe(config.hidden_size)
        facts.append(('compared by', sentence.similarity))
        facts += [(f'prompt {name}', json.dumps(text)) for name, text in sentence.prompts]
    # JSON's texts and lists are YAML's too.
    lines = [f'{n}: {json.dumps(value)}' for n, value in header.items() if value is not None]
    article = 'An' if traits.name[0] in 'AE' else 'A'
    made = 'trained' if notes.trained else 'written'
    parts = [
        '\n'.join(['---', *lines, '---']),
        f'# {notes.name}',
        f'{article} {traits.name} encoder that {uses.purpose}, {made} by bert_jax.',
        '```python\n' + uses.example.format(tag=uses.task, name=notes.name) + '\n```',
        _format_table('Model', facts),
    ]
    if notes.trained:
        parts.append(_format_table('Training', notes.trained))
    if notes.scores:
        rows = [(f'{split}, {metric}', f'{value:.4f}') for split, metric, value in notes.scores]
        parts.append(_format_table('Scores', rows))
    return '\n\n'.join(parts) + '\n'


def _format_table(title: str, rows: Any) -> str:
    lines = [f'| {name} | {str(value).replace("|", "&#124;")} |' for name, value in rows]
    return '\n'.join([f'## {title}', '', '| | |', '|---|---|', *lines])


def read_notes(
    init_from: str, output: str, languages: Sequence[str] = (), license: str | None = None
) -> Notes:
    """Return what a model card says of the training, as far as the source says it.

    Args:
      init_from: the model, any source that `read_source` takes.
      output: the folder of the card, whose name the model has there.
      languages: of its texts, by their ISO codes.
      license: its licence, as the Hub calls it.
    """
    notes = Notes(epath.Path(output).name, languages=tuple(languages), license=license)
    workdir, _ = sources.split_step(init_from)
    if not workdir.config_file.exists() or huggingface.is_directory(init_from):
        return notes._replace(base=_find_hub_name(init_from))
    config, trained = workdir.config(), []
    base, longest = None, None
    if isinstance(config, FinetuneConfig):
        data = workdir.data(init_from=str)
        base = _find_hub_name(data['init_from'])
        trained += [
            ('task', epath.Path(data.get('task', '')).stem),
            ('begun from', base or epath.Path(data['init_from']).name),
            ('batch', config.batch_size),
        ]
        if not config.steps:
            trained.append(('epochs', f'{config.epochs:g}'))
        longest = config.max_seq_length
    if isinstance(config, PretrainConfig):
        trained += _list_phases(config, workdir.newest_step())
        longest = max(phase.seq_len for phase in config.phases)
    if isinstance(config, FinetuneConfig | PretrainConfig):
        trained += [
            ('optimizer', config.optimizer.algorithm),
            ('learning rate', f'{config.optimizer.peak_lr:g}'),
            ('seed', config.seed),
        ]
    trained.append(('steps', workdir.newest_step()))
    scores = []
    for file in sorted((workdir.path / 'eval').glob('*.json')):
        of_split = read_object(file).get('metrics') or {}
        for metric, value in of_split.items():
            if isinstance(value, int | float):
                scores.append((file.stem, metric, value))
    scores += _read_last_scores(workdir)
    return notes._replace(base=base, trained=tuple(trained), scores=tuple(scores), longest=longest)


def _list_phases(config: PretrainConfig, step: int) -> list[tuple[str, Any]]:
    """Return what each phase of pre-training has read until a step."""
    facts: list[tuple[str, Any]] = []
    for number, phase in enumerate(config.phases):
        steps = min(phase.steps, step)
        step -= steps
        if steps:
            pieces = steps * phase.batch_size * phase.seq_len
            row = f'rows of {phase.seq_len}, batch {phase.batch_size}, {steps:,} steps'
            facts.append((f'phase {number}', f'{row}, at most {pieces:,} word pieces'))
    return facts


def _read_last_scores(workdir: Workdir) -> list[tuple[str, str, float]]:
    """Return the last scores on held-out rows, each beside what guessing has, if that is known."""
    file = workdir.path / metrics.FILE
    lines = metrics.read_metrics(file) if file.exists() else []
    held_out = [line for line in lines if line.get('split') == 'eval']
    if not held_out:
        return []
    guessed: dict[str, float] = {}
    for guess in note_of.guesses(workdir):
        guessed |= guess.scores
    scores = []
    for name, value in held_out[-1].items():
        if isinstance(value, int | float) and name not in ('step', 'phase'):
            scores.append((f'held out at step {held_out[-1]["step"]}', name, float(value)))
            if name in guessed:
                scores.append(('guessing', name, guessed[name]))
    return scores


def _find_hub_name(name: str) -> str | None:
    """Return the name of a model on the Hub without its revision, or None for what lies here."""
    if '/' in name and model_hub.is_name(name) and not epath.Path(name).exists():
        return name.partition('@')[0]
    return None
