"""The engine: every row once and in its place, few programs, little padding, for any rows."""

from __future__ import annotations

import random
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.schema import RuntimeConfig
from bert_jax.inference import Bert
from bert_jax.inference.engine import DeviceWeights, InferenceEngine
from bert_jax.mesh import construction
from bert_jax.mesh.sharding import group_by_path
from bert_jax.runs.finetuning.data_collator import gather
from bert_jax.runs.sources.source import Source
from tests.helpers import tiny_models

NORMAL = np.random.default_rng(0).normal(30, 14, 600).clip(3, 120).astype(int)


def rows_of(lengths) -> dict[str, np.ndarray]:
    """Rows of these lengths whose ids are 1, 2, 3 ... and never a neighbour's."""
    mask = (np.arange(512) < np.array(lengths)[:, None]).astype(np.int32)
    ids = np.cumsum(mask, axis=1, dtype=np.int32) * mask + 1000 * np.arange(len(mask))[:, None]
    return {'input_ids': ids.astype(np.int32) * mask, 'input_mask': mask, 'segment_ids': 0 * mask}


@pytest.mark.parametrize(
    ('calls', 'programs', 'padding'),
    [
        ([[20]] * 3, 1, 1.2),  # the common question: by itself, without another row
        (np.split(NORMAL, 6), 24, 1.35),
        # What a long row brings along is little.
        ([[500, *[10] * 8000]], 5, 1.8),
    ],
)
def test_rows_are_answered_in_their_order_by_few_programs(calls, programs, padding, monkeypatch):
    def function(params, batch):
        time.sleep(0.05)  # so that a second batch of this shape comes while the program is made
        ids = batch['input_ids']
        return {'sum': params['scale'] * ids.sum(1), 'width': jnp.full(len(ids), ids.shape[1])}

    # Of several devices, batches are multiples: what is counted here is for a single one.
    alone = construction.make_mesh(RuntimeConfig(), jax.devices()[:1])
    monkeypatch.setattr(construction, 'make_mesh', lambda runtime: alone)
    engine = InferenceEngine(function, {'scale': np.ones((), np.int32)}, 512)
    computed, shapes = 0, set()
    for lengths in calls:
        rows = rows_of(lengths)
        results = list(engine(rows))
        found = gather(results, len(lengths))
        np.testing.assert_array_equal(found['sum'], rows['input_ids'].sum(1))
        assert (found['width'] >= lengths).all()
        made = [(len(outputs['sum']), int(outputs['width'][0])) for _, outputs in results]
        computed += sum(size * width for size, width in made)
        shapes.update(made)
    assert engine.compilations['predict'] == len(shapes) <= programs
    assert computed / sum(map(sum, calls)) <= padding


def test_a_text_has_its_vector_whatever_is_asked_with_it():
    draw, words = random.Random(0), tiny_models.WORDS[:14]
    texts = [' '.join(draw.choices(words, k=draw.randint(1, 28))) for _ in range(24)]
    bert = Bert(Source(tiny_models.model('BertModel'), tiny_models.tokenizer(), '', 0))
    together = bert.embed(texts)
    mixed = draw.sample(range(24), 24)
    np.testing.assert_allclose(bert.embed([texts[i] for i in mixed]), together[mixed], atol=1e-6)
    for i in range(0, 24, 8):
        np.testing.assert_allclose(bert.embed(texts[i]), together[i : i + 1], atol=1e-6)


def test_bfloat16_is_kept_as_such_and_what_it_gives_is_near():
    """Matrices of the blocks and word vectors take half; a cosine loses less than 1e-3."""
    model = tiny_models.model('BertModel')
    source = Source(model, tiny_models.tokenizer(), '', 0)
    texts = ['paris is the capital of france', 'who?', 'a good, bad film ' * 8]
    exact, near = (Bert(source, dtype).embed(texts) for dtype in ('float32', 'bfloat16'))
    assert np.abs(exact - near).max() > 1e-6
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(near, axis=1)
    assert ((exact * near).sum(axis=1) / lengths).min() > 1 - 1e-3

    weights = DeviceWeights('bfloat16')
    held, added = weights.place(model.params)
    halved = {path for path, leaf in group_by_path(held).items() if leaf.dtype == jnp.bfloat16}
    blocks = ('query', 'key', 'value', 'attention_output', 'intermediate', 'output')
    assert halved == {'encoder/embeddings/word'} | {
        f'encoder/layers/{i}/{name}/kernel' for i in range(2) for name in blocks
    }
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    assert added == whole - sum(leaf.nbytes for leaf in map(group_by_path(held).get, halved))
    # What is there already is not put there again, half or whole.
    assert weights.place(model.params)[1] == 0
