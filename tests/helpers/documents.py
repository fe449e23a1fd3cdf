"""Documents of random tokens."""

from __future__ import annotations

import numpy as np

from bert_jax.input_pipeline.examples.documents import Documents
from bert_jax.input_pipeline.randomness import mix


def make_documents(count=300, seed=0, most_sentences=30, most_tokens=40):
    random = np.random.RandomState(seed)
    sentences = random.randint(1, most_sentences + 1, count)
    lengths = random.randint(1, most_tokens + 1, sentences.sum())
    tokens = random.randint(10, 1000, lengths.sum()).astype(np.int32)
    return Documents(
        tokens,
        np.append(0, np.cumsum(lengths)),
        np.append(0, np.cumsum(sentences)),
        mix(np.arange(count), seed),
        np.zeros(count, np.int64),
    )
