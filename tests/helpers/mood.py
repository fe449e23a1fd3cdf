"""A task of good and bad words, to fine-tune small models on, and what is asked of them then."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.inference import Predictor
from tests.helpers import finetuning

GOOD, BAD = ('good', 'fine', 'great'), ('bad', 'poor', 'dull')
THINGS = ('film', 'book', 'play', 'song')
PAIR = {'text': 'the film', 'text_b': 'it was good'}


def pair(rng: np.random.Generator, word: str) -> dict[str, str]:
    """Two texts, of which the second holds the word."""
    return {'text': f'the {THINGS[rng.integers(4)]}', 'text_b': f'it was {word}'}


def write(
    folder: pathlib.Path,
    texts: Callable[[np.random.Generator, str], dict[str, str]] = pair,
    good: Sequence[str] = GOOD,
    bad: Sequence[str] = BAD,
    rows: tuple[int, int] = (192, 32),
    seed: int = 1,
) -> None:
    """mood.json: rows of what `texts` makes of a word, labelled by the word."""
    rng = np.random.default_rng(seed)
    columns: dict[str, str] = {}
    for split, count in zip(('train', 'dev'), rows, strict=True):
        lines = []
        for _ in range(count):
            word = (*good, *bad)[rng.integers(len(good) + len(bad))]
            lines.append(texts(rng, word) | {'label': 'good' if word in good else 'bad'})
        columns = {name: name for name in lines[0]}
        (folder / f'{split}.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    task = {
        'kind': 'pair' if 'text_b' in columns else 'classification',
        'files': {split: f'{split}.jsonl' for split in ('train', 'dev')},
        'columns': columns,
        'labels': ['bad', 'good'],
    }
    (folder / 'mood.json').write_text(json.dumps(task))


def finetune(
    folder: pathlib.Path, name: str, *changes: str, task: str = 'mood.json', length: int = 24
) -> dict:
    """The result of a run in `name` that begins with `pre`."""
    settings = [
        'batch_size=16',
        f'max_seq_length={length}',
        'optimizer.peak_lr=3e-3',
        'optimizer.algorithm=adamw',
        'hidden_dropout=0',
        'attention_dropout=0',
    ]
    return finetuning.finetune(folder / 'pre', folder / task, folder / name, *settings, *changes)


def dev_rows(folder: pathlib.Path) -> list[dict[str, str]]:
    """The rows of the dev split."""
    return [json.loads(line) for line in (folder / 'dev.jsonl').read_text().splitlines()]


def answers_as_the_run_did(tuned: pathlib.Path) -> Predictor:
    """The run's predictor, whose labels of the dev split are those that the run wrote."""
    written = (tuned / 'predictions/dev/predictions.tsv').read_text().splitlines()[1:]
    predict = Predictor.from_workdir(str(tuned))
    rows = [{n: t for n, t in row.items() if n != 'label'} for row in dev_rows(tuned.parent)]
    asked = [row if len(row) > 1 else row['text'] for row in rows]
    assert [predict(texts)['label'] for texts in asked] == [w.split('\t')[1] for w in written]
    return predict
