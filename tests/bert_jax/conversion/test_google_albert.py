"""Google's ALBERT checkpoints: names as its code gives them, TensorFlow's files, a folder as it was
released, with its SentencePiece model.
"""

from __future__ import annotations

import dataclasses
import io
import json
import pathlib

import jax
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.conversion import google, huggingface, tensor_bundle
from bert_jax.inference import export
from bert_jax.model import heads
from bert_jax.runs.sources.source import read_source
from tests.bert_jax.conversion.test_google import tensorflow_saves
from tests.helpers.numpy_bert import numpy_forward

# Those of albert_base_v2's albert_config.json, in small; some of them no code reads.
SETTINGS = {
    'attention_probs_dropout_prob': 0,
    'hidden_act': 'gelu',
    'hidden_dropout_prob': 0,
    'embedding_size': 6,
    'hidden_size': 16,
    'initializer_range': 0.02,
    'intermediate_size': 24,
    'max_position_embeddings': 12,
    'num_attention_heads': 2,
    'num_hidden_layers': 4,
    'num_hidden_groups': 2,
    'net_structure_type': 0,
    'gap_size': 0,
    'num_memory_blocks': 0,
    'inner_group_num': 1,
    'down_scale_factor': 1,
    'type_vocab_size': 2,
    'vocab_size': 40,
}
UNREAD = ('net_structure_type', 'gap_size', 'num_memory_blocks', 'down_scale_factor')


def shapes() -> dict[str, tuple[int, ...]]:
    """The variables of a pre-trained ALBERT, written down one by one."""
    found: dict[str, tuple[int, ...]] = {
        'bert/embeddings/word_embeddings': (40, 6),
        'bert/embeddings/token_type_embeddings': (2, 6),
        'bert/embeddings/position_embeddings': (12, 6),
        'bert/embeddings/LayerNorm/beta': (6,),
        'bert/embeddings/LayerNorm/gamma': (6,),
        'bert/encoder/embedding_hidden_mapping_in/kernel': (6, 16),
        'bert/encoder/embedding_hidden_mapping_in/bias': (16,),
        'bert/pooler/dense/kernel': (16, 16),
        'bert/pooler/dense/bias': (16,),
        'cls/predictions/transform/dense/kernel': (16, 6),
        'cls/predictions/transform/dense/bias': (6,),
        'cls/predictions/transform/LayerNorm/beta': (6,),
        'cls/predictions/transform/LayerNorm/gamma': (6,),
        'cls/predictions/output_bias': (40,),
        'cls/seq_relationship/output_weights': (2, 16),
        'cls/seq_relationship/output_bias': (2,),
    }
    for group in range(2):
        block = f'bert/encoder/transformer/group_{group}/inner_group_0'
        found |= {
            f'{block}/attention_1/self/query/kernel': (16, 16),
            f'{block}/attention_1/self/query/bias': (16,),
            f'{block}/attention_1/self/key/kernel': (16, 16),
            f'{block}/attention_1/self/key/bias': (16,),
            f'{block}/attention_1/self/value/kernel': (16, 16),
            f'{block}/attention_1/self/value/bias': (16,),
            f'{block}/attention_1/output/dense/kernel': (16, 16),
            f'{block}/attention_1/output/dense/bias': (16,),
            f'{block}/LayerNorm/beta': (16,),
            f'{block}/LayerNorm/gamma': (16,),
            f'{block}/ffn_1/intermediate/dense/kernel': (16, 24),
            f'{block}/ffn_1/intermediate/dense/bias': (24,),
            f'{block}/ffn_1/intermediate/output/dense/kernel': (24, 16),
            f'{block}/ffn_1/intermediate/output/dense/bias': (16,),
            f'{block}/LayerNorm_1/beta': (16,),
            f'{block}/LayerNorm_1/gamma': (16,),
        }
    return found


def values(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.RandomState(seed)
    return {
        name: (name.endswith('gamma') + rng.normal(0, 0.3, shape)).astype(np.float32)
        for name, shape in shapes().items()
    }


def spiece() -> bytes:
    """A SentencePiece model of 40 entries, trained as ALBERT's README says."""
    sentencepiece = pytest.importorskip('sentencepiece')
    model = io.BytesIO()
    text = (
        'the quick brown fox jumps over the lazy dog and the lazy fox runs over quick dogs'.split()
    )
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(' '.join(text[i:] + text[:i]) for i in range(len(text))),
        model_writer=model,
        model_type='unigram',
        vocab_size=40,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols='[CLS],[SEP],[MASK]',
        character_coverage=0.99995,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture
def released(tmp_path) -> pathlib.Path:
    """A folder as Google released them, its checkpoint written by us."""
    folder = tmp_path / 'albert_base'
    folder.mkdir()
    (folder / 'albert_config.json').write_text(json.dumps(SETTINGS))
    (folder / '30k-clean.model').write_bytes(spiece())
    tensor_bundle.write(str(folder / 'model.ckpt-best'), values())
    return folder


def flat(variables: dict[str, np.ndarray]) -> dict:
    """The tree that numpy's forward pass reads, put together here by hand."""
    v = variables
    dense = lambda name: {'kernel': v[f'{name}/kernel'], 'bias': v[f'{name}/bias']}
    norm = lambda name: {'scale': v[f'{name}/gamma'], 'bias': v[f'{name}/beta']}

    def block(group: int) -> dict:
        at = f'bert/encoder/transformer/group_{group}/inner_group_0'
        return {
            'query': dense(f'{at}/attention_1/self/query'),
            'key': dense(f'{at}/attention_1/self/key'),
            'value': dense(f'{at}/attention_1/self/value'),
            'attention_output': dense(f'{at}/attention_1/output/dense'),
            'attention_norm': norm(f'{at}/LayerNorm'),
            'intermediate': dense(f'{at}/ffn_1/intermediate/dense'),
            'output': dense(f'{at}/ffn_1/intermediate/output/dense'),
            'output_norm': norm(f'{at}/LayerNorm_1'),
        }

    embeddings = {
        'word': v['bert/embeddings/word_embeddings'],
        'segment': v['bert/embeddings/token_type_embeddings'],
        'position': v['bert/embeddings/position_embeddings'],
        'norm': norm('bert/embeddings/LayerNorm'),
        'to_hidden': dense('bert/encoder/embedding_hidden_mapping_in'),
    }
    layers = jax.tree.map(lambda *blocks: np.stack(blocks), block(0), block(1))
    return {
        'encoder': {
            'embeddings': embeddings,
            'layers': layers,
            'pooler': dense('bert/pooler/dense'),
        },
        'mlm': {
            'transform': dense('cls/predictions/transform/dense'),
            'norm': norm('cls/predictions/transform/LayerNorm'),
            'bias': v['cls/predictions/output_bias'],
        },
        'nsp': {
            'kernel': v['cls/seq_relationship/output_weights'].T,
            'bias': v['cls/seq_relationship/output_bias'],
        },
    }


def test_a_released_folder_comes_in(released):
    source = read_source(str(released))
    model = source.model
    assert source.bert.architecture == 'AlbertForPreTraining'
    assert (model.family, model.embedding_size, model.num_groups) == ('albert', 6, 2)
    assert source.tokenizer.tokens(source.tokenizer.special_ids) == [
        '<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]'
    ]  # fmt: skip
    rng = np.random.RandomState(1)
    mask = (np.arange(12) < np.array([[12], [7], [2]])).astype(np.int32)
    batch = {
        'input_ids': rng.randint(5, 40, mask.shape).astype(np.int32) * mask,
        'input_mask': mask,
        'segment_ids': rng.randint(0, 2, mask.shape).astype(np.int32) * mask,
        'masked_lm_positions': np.tile(np.arange(12, dtype=np.int32), (3, 1)),
    }
    mlm, order = heads.Pretraining(model).apply({'params': source.params}, batch)
    _, _, want_mlm, want_order = numpy_forward(flat(values()), model, batch)
    np.testing.assert_allclose(mlm[..., :40], want_mlm, atol=2e-5)
    np.testing.assert_allclose(order, want_order, atol=2e-5)


def test_tensorflow_writes_it_and_reads_ours(tmp_path):
    """With the moments of LAMB, which are left out; what we write has the same bits again."""
    tf = pytest.importorskip('tensorflow')
    there = tmp_path / 'there'
    there.mkdir()
    (there / 'albert_config.json').write_text(json.dumps(SETTINGS))
    tensorflow_saves(str(there / 'model.ckpt-best'), values(), steps=True)
    reading = google.read(str(there / 'model.ckpt-best'))
    assert len(reading.ignored) == 2 * len(values()) + 1
    google.write(tmp_path / 'ours', reading.model)
    written = json.loads((tmp_path / 'ours/albert_config.json').read_text())
    assert written == {name: value for name, value in SETTINGS.items() if name not in UNREAD}
    found = tf.train.load_checkpoint(str(tmp_path / 'ours/model.ckpt-best'))
    assert found.get_variable_to_shape_map() == {
        name: list(value.shape) for name, value in values().items()
    }
    for name, value in values().items():
        assert found.get_tensor(name).tobytes() == value.tobytes(), name


def test_from_google_to_hugging_face(released, tmp_path):
    source = read_source(str(released))
    export.write(source.bert, source.tokenizer, 'huggingface', str(tmp_path / 'hf'))
    again = read_source(str(tmp_path / 'hf'))
    assert again.tokenizer.fingerprint == source.tokenizer.fingerprint
    assert again.model == source.model and again.bert.architecture == source.bert.architecture
    assert again.bert.head_dropout == 0  # the encoder's; transformers' default is another
    assert jax.tree.all(jax.tree.map(np.array_equal, again.params, source.params))


def test_without_a_narrow_table_there_is_no_layer_to_the_blocks(released):
    """google-research/albert has that layer only between two widths."""
    wide = values()
    for name in [name for name in wide if 'hidden_mapping_in' in name]:
        del wide[name]
    rng = np.random.RandomState(2)
    for name, shape in shapes().items():
        if name.startswith(('bert/embeddings/', 'cls/predictions/transform/')):
            wider = tuple(16 if size == 6 else size for size in shape)
            wide[name] = rng.normal(0, 0.3, wider).astype(np.float32)
    tensor_bundle.write(str(released / 'model.ckpt-best'), wide)
    (released / 'albert_config.json').write_text(json.dumps(SETTINGS | {'embedding_size': 16}))
    model = google.read(str(released / 'model.ckpt-best')).model
    assert model.config.embedding_size is None
    google.write(released / 'again', model)
    again = tensor_bundle.Bundle(str(released / 'again/model.ckpt-best'))
    assert set(again.variables) == set(wide)

    # transformers' class always has it: the identity there, and none again on the way back.
    huggingface.write(released / 'hf', model)
    there = huggingface.read(released / 'hf').model
    assert (there.config.embedding_size, there.config.num_groups) == (16, 2)
    layer = there.params['encoder']['embeddings']['to_hidden']
    np.testing.assert_array_equal(layer['kernel'], np.eye(16))
    assert not layer['bias'].any()
    google.write(released / 'back', there)
    back = google.read(str(released / 'back/model.ckpt-best')).model
    assert back.config == model.config
    assert jax.tree.all(jax.tree.map(np.array_equal, back.params, model.params))
    layer['bias'][3] = 1
    with pytest.raises(UserError, match='as wide as the blocks, and google-research/albert has no'):
        google.write(released / 'no', there)


@pytest.mark.parametrize(
    ('changed', 'said'),
    [
        ({'inner_group_num': 2}, 'inner_group_num=2 is not built here: only 1 is'),
        ({'num_hidden_groups': 3}, 'num_groups=3: must be a divisor of num_layers=4'),
        ({'num_hidden_groups': 4}, 'missing bert/encoder/transformer/group_2/'),
    ],
)
def test_settings_that_are_not_built_are_one_line(released, changed, said):
    (released / 'albert_config.json').write_text(json.dumps(SETTINGS | changed))
    with pytest.raises(UserError, match=said) as caught:
        read_source(str(released))
    assert '\n' not in str(caught.value)


def test_berts_format_has_no_place_for_shared_blocks(tmp_path, released):
    model = google.read(str(released / 'model.ckpt-best')).model
    bert = model._replace(
        config=dataclasses.replace(model.config, family='bert'),
        architecture='BertForPreTraining',
    )
    for write in (google.write, huggingface.write):
        with pytest.raises(UserError, match=r'model\.embedding_size=6 has no place in other prog'):
            write(tmp_path / 'out', bert)
