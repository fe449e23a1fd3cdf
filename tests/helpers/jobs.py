"""Small texts, the offline job run on them, killed at a stage, and the rows that it has made."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bert_jax.input_pipeline.preprocess.job import preprocess
from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
from bert_jax.input_pipeline.records import fields, shards
from tests.helpers.shards import split_frames
from tests.helpers.vocabularies import write_vocabulary

STAGES = 'bert_jax.input_pipeline.preprocess.job_stages'

PLAIN = [f'w{chr(97 + i)}{chr(97 + j)}' for i in range(10) for j in range(10)]


def write_text(path: Path, names, seed=0, sentences=(2, 12)):
    """A file of documents; each sentence of a document begins with the document's own name.

    Returns the texts.
    """
    random = np.random.RandomState(seed)
    texts = []
    for name in names:
        lines = []
        for _ in range(random.randint(*sentences)):
            words = [
                random.choice(PLAIN) + random.choice(['', '', 's', 'ing'])
                for _ in range(random.randint(3, 20))
            ]
            lines.append(' '.join([name, *words, '.']))
        texts.append('\n'.join(lines))
    path.write_text('\n\n'.join(texts) + '\n\n')
    return texts


def run(folder, vocabulary, **kwargs):
    options = {
        'input': f'{folder}/*.txt',
        'tokenizer': str(vocabulary[0]),
        'output': f'{folder}/out',
        'seq_len': 64,
        'workers': 1,
        'dupe_factor': 3,
    }
    return preprocess(PreprocessOptions(**{**options, **kwargs}))


def small_records(folder):
    """A vocabulary, a small text and its records in `folder`, every sentence with its document."""
    names = [f'doc{chr(97 + i)}{chr(97 + j)}' for i in range(8) for j in range(8)]
    vocabulary = write_vocabulary(folder / 'vocabulary', [*PLAIN, '##ing', '##s', '.', *names])
    write_text(folder / 'text.txt', names)
    return run(folder, [vocabulary], seq_len=32, max_predictions=5, eval_fraction=0.2)


def digests(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(folder).glob('*.tfrecord')
    }


class Killed(BaseException):
    """What no code of ours catches, as no code catches SIGKILL."""


@contextlib.contextmanager
def killed_at(name: str, module: str = STAGES) -> Iterator[pytest.MonkeyPatch]:
    """The block is killed where it calls that function of a module, if the name is not ''."""

    def kill(*_):
        raise Killed

    expected = pytest.raises(Killed) if name else contextlib.nullcontext()
    with pytest.MonkeyPatch.context() as patch, expected:
        if name:
            patch.setattr(f'{module}.{name}', kill)
        yield patch


def restored(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Rows of ids with the hidden tokens put back."""
    rows = columns['input_ids'].copy()
    if 'masked_lm_ids' in columns:
        row, rank = np.nonzero(columns['masked_lm_weights'])
        rows[row, columns['masked_lm_positions'][row, rank]] = columns['masked_lm_ids'][row, rank]
    return rows


def read(folder, split='train') -> tuple[dict[str, np.ndarray], np.ndarray, list[str]]:
    """The columns of a split, its rows with the original tokens, and the files these are in."""
    manifest, names, payloads = shards.Manifest.load(folder), [], []
    for shard in manifest.shards(split):
        frames = split_frames((Path(folder) / shard.file).read_bytes())
        payloads += frames
        names += [shard.file] * len(frames)
    columns = fields.decode_numpy(manifest.spec_of(split), payloads)
    return columns, restored(columns), names
