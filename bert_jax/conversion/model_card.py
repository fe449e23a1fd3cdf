"""The model card of an exported directory: README.md, as the Hugging Face Hub shows it.

Owns its words: what the model is, how it was trained and scored as far as a run's notes say, and
the lines of Python that use it, which fit its head. Must not know workdirs: notes come from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.conversion.trained_model import Model

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
    atomic_write(folder / FILE, card(model, notes))


def card(model: Model, notes: Notes) -> str:
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
        facts.append(('numbers of a vector', sentence.truncate_dim or config.hidden_size))
        facts += [('pooling', sentence.pooling), ('vectors of length one', sentence.normalize)]
        facts.append(('compared by', sentence.similarity))
        facts += [(f'prompt {name}', json.dumps(text)) for name, text in sentence.prompts]
    parts = [
        # JSON's texts and lists are YAML's too.
        '\n'.join(
            ['---', *(f'{n}: {json.dumps(v)}' for n, v in header.items() if v is not None), '---']
        ),
        f'# {notes.name}',
        f'A{"n" if traits.name[0] in "AE" else ""} {traits.name} encoder that {uses.purpose},'
        f' {"trained" if notes.trained else "written"} by bert_jax.',
        '```python\n' + uses.example.format(tag=uses.task, name=notes.name) + '\n```',
        _table('Model', facts),
    ]
    if notes.trained:
        parts.append(_table('Training', notes.trained))
    if notes.scores:
        rows = [(f'{split}, {metric}', f'{value:.4f}') for split, metric, value in notes.scores]
        parts.append(_table('Scores', rows))
    return '\n\n'.join(parts) + '\n'


def _table(title: str, rows: Any) -> str:
    lines = [f'| {name} | {str(value).replace("|", "&#124;")} |' for name, value in rows]
    return '\n'.join([f'## {title}', '', '| | |', '|---|---|', *lines])
