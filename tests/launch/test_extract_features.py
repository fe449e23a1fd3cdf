"""bert-extract-features: what its arrays hold, and that parts make the whole.

Also which word each piece is of.
"""

from __future__ import annotations

import functools
import io
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.conversion import huggingface
from bert_jax.inference.feature_extraction import Extractor, FeatureFiles, FeatureOptions, make_row
from bert_jax.input_pipeline.text.record_files import BadRecord
from bert_jax.model.blocks.block import Block
from bert_jax.model.blocks.part import Rows
from bert_jax.model.embeddings import Embeddings
from bert_jax.runs.sources.source import Source
from tests.helpers import tiny_models
from tests.helpers.files import write_jsonl
from tests.helpers.processes import mistake, ok
from tests.helpers.refusals import refused

TEXTS = ['Unables, who?', 'paris', '', 'the  capital of France. ' * 14, 'what is a film']


@functools.partial(jax.jit, static_argnums=0)
def blocks(c, params, ids, segments):
    x, _ = Embeddings(c, jnp.float32).apply({'params': params['embeddings']}, ids, segments, None)
    states, rows = [x], Rows(jnp.ones_like(ids))
    for i in range(c.num_layers):
        block = jax.tree.map(lambda leaf: leaf[i], params['layers'])
        x, _ = Block(c, jnp.float32).apply({'params': block}, x, i, rows)
        states.append(x)
    return jnp.stack(states)


def by_hand(model, row) -> np.ndarray:
    """[T, L + 1, H]: the blocks one after the other on an unpadded row."""
    ids, segments = (jnp.asarray(x)[None] for x in (row.input_ids, row.segment_ids))
    return np.asarray(blocks(model.config, model.params['encoder'], ids, segments))[:, 0].swapaxes(
        0, 1
    )


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
    """A Hugging Face directory, and the texts."""
    folder = tmp_path_factory.mktemp('source')
    tiny_models.tokenizer().save(folder)
    huggingface.write(folder, tiny_models.model('BertModel'))
    write_jsonl(folder / 'in.jsonl', ({'text': text} for text in TEXTS))
    return folder


def test_every_token_of_every_layer(folder, tmp_path, binary):
    model, tokenizer = tiny_models.model('BertModel'), tiny_models.tokenizer()
    run = binary(
        'extract_features',
        f'--init_from={folder}',
        f'--input={folder}/in.jsonl',
        f'--output={tmp_path}/f.npz',
        '--layers=-1,0,1',
    )
    ok(run)
    assert ' texts are longer than max_seq_length=64 allows and cut: ' in run.stderr
    found = np.load(tmp_path / 'f.npz')
    assert found['layers'].tolist() == [-1, 0, 1] and found['lines'].tolist() == [1, 2, 3, 4, 5]
    assert found['features'].dtype == np.float32 and found['features'].shape == (
        found['offsets'][-1],
        3,
        16,
    )
    for i, text in enumerate(TEXTS):
        part = slice(found['offsets'][i], found['offsets'][i + 1])
        ids = [tokenizer.cls_id, *tokenizer.encode(text)[:62], tokenizer.sep_id]
        assert found['input_ids'][part].tolist() == ids and found['tokens'][
            part
        ].tolist() == tokenizer.tokens(ids)
        wanted = by_hand(model, make_row(text, None, tokenizer, 64))
        np.testing.assert_allclose(found['features'][part], wanted[:, [2, 0, 1]], atol=1e-5)
        for start, end, word in zip(
            *(found[name][part][1:-1] for name in ('starts', 'ends', 'word_index')), strict=True
        ):
            assert text[start:end] in text.split()[word]
    # [CLS] un ##able ##s , who ? [SEP]
    assert found['word_index'][:8].tolist() == [-1, 0, 0, 0, 0, 1, 1, -1]

    folders = [tmp_path / f'half{i}' for i in range(2)]
    for i, half in enumerate(folders):
        command = (
            'extract_features',
            f'--init_from={folder}',
            f'--input={folder}/in.jsonl',
            f'--output={half}',
            f'--shard={i}/2',
        )
        run = ok(binary(*command, '--layers=2', '--float16'))
    rows = np.load(folders[1] / 'features.npy', mmap_mode='r')
    assert rows.dtype == np.float16 and np.load(folders[1] / 'lines.npy').tolist() == [2, 4]
    first = slice(found['offsets'][1], found['offsets'][2])
    np.testing.assert_allclose(
        rows[: first.stop - first.start, 0], found['features'][first, 0], rtol=1e-3, atol=1e-3
    )
    assert 'is done already' in binary(*command, '--layers=2', '--float16').stderr
    # Other weights in the same place.
    huggingface.write(folder, tiny_models.model('BertModel', seed=1))
    assert 'made from other inputs' in binary(*command, '--layers=2', '--float16').stderr
    huggingface.write(folder, model)
    refused = binary(*command, '--layers=3')
    assert 'no layer 3: this encoder has 0 (the embeddings) to 2' in mistake(refused)


def test_pooling_is_over_real_positions(folder):
    source = Source(tiny_models.model('BertModel'), tiny_models.tokenizer(), '', 0)
    records = lambda: iter([(i, {'text': text}) for i, text in enumerate(TEXTS)])
    pooled = {}
    for pool in ('none', 'cls', 'mean', 'max'):
        (part,) = Extractor(source, FeatureOptions([-1], pool, 64))(records(), 'here')
        pooled[pool] = part.features
    for tokens, cls, mean, most in zip(*pooled.values(), strict=True):
        np.testing.assert_allclose(cls, tokens[0], atol=1e-5)
        np.testing.assert_allclose(mean, tokens.mean(0), atol=1e-5)
        np.testing.assert_allclose(most, tokens.max(0), atol=1e-5)


def test_a_bad_record_keeps_its_place_without_tokens():
    source = Source(tiny_models.model('BertModel'), tiny_models.tokenizer(), '', 0)
    records = [(1, {'text': 'paris'}), (2, BadRecord('not JSON')), (4, {'text': 'a film'})]
    for pool in ('none', 'mean'):
        extractor = Extractor(source, FeatureOptions([-1], pool, 64))
        with refused('here:2: not JSON; mend it, or leave such records out'):
            list(extractor(iter(records), 'here'))
        (part,) = extractor(iter(records), 'here', skip_bad=True)
        (wanted,) = extractor(iter(records[::2]), 'here')
        assert part.lines == [1, 2, 4] and part.bad == 1
        np.testing.assert_array_equal(part.features[0], wanted.features[0])
        np.testing.assert_array_equal(part.features[2], wanted.features[1])
        assert len(part.features[1]) == 0 if pool == 'none' else np.isnan(part.features[1]).all()
        files = FeatureFiles(extractor, 'here', True)
        lines = np.load(
            io.BytesIO(files.contents(part, first=True)['lines.npy'].replace(b'(0,)', b'(3,)'))
        )
        assert lines.tolist() == [1, 2, 4]
