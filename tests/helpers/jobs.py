"""Small texts, and the offline job run on them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from bert_jax.input_pipeline.preprocess.job import preprocess
from bert_jax.input_pipeline.preprocess.options import PreprocessOptions

SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
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


def digests(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(folder).glob('*.tfrecord')
    }
