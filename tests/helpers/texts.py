"""Files of text, and what is read of them."""

from __future__ import annotations

from bert_jax.input_pipeline.text.corpus import TextOptions, read_documents


def read(pattern, report=None, **options):
    return [d.sentences for d in read_documents(str(pattern), TextOptions(**options), report)]


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
