"""Files of text, and what is read of them."""

from __future__ import annotations

import random

from bert_jax.input_pipeline.text.corpus import TextOptions, read_documents


def read(pattern, report=None, **options):
    return [d.sentences for d in read_documents(str(pattern), TextOptions(**options), report)]


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def documents(words, count, seed=0, length=8):
    """A text of documents of eight sentences, each of so many of the words."""
    rng = random.Random(seed)
    sentence = lambda: ' '.join(rng.choices(words, k=length)) + ' .'
    return '\n\n'.join('\n'.join(sentence() for _ in range(8)) for _ in range(count)) + '\n'
