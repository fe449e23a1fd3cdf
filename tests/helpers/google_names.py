"""The variables of Google's releases by their names: their shapes, values, and a tree for numpy."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

# Where a block is, and its layers and norms there.
BERT = (
    'bert/encoder/layer_{}/',
    {
        'query': 'attention/self/query',
        'key': 'attention/self/key',
        'value': 'attention/self/value',
        'attention_output': 'attention/output/dense',
        'attention_norm': 'attention/output/LayerNorm',
        'intermediate': 'intermediate/dense',
        'output': 'output/dense',
        'output_norm': 'output/LayerNorm',
    },
)
ALBERT = (
    'bert/encoder/transformer/group_{}/inner_group_0/',
    {
        'query': 'attention_1/self/query',
        'key': 'attention_1/self/key',
        'value': 'attention_1/self/value',
        'attention_output': 'attention_1/output/dense',
        'attention_norm': 'LayerNorm',
        'intermediate': 'ffn_1/intermediate/dense',
        'output': 'ffn_1/intermediate/output/dense',
        'output_norm': 'LayerNorm_1',
    },
)
MLM, NSP = 'cls/predictions/', 'cls/seq_relationship/'
TO_HIDDEN = 'bert/encoder/embedding_hidden_mapping_in'


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f'{name}/kernel': (inputs, outputs), f'{name}/bias': (outputs,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f'{name}/beta': (width,), f'{name}/gamma': (width,)}


def encoder_shapes(family: tuple[str, dict[str, str]], width: int) -> dict[str, tuple[int, ...]]:
    """An encoder of 40 words, 12 positions, two blocks of 16; tables are `width` wide."""
    tables = (('word', 40), ('token_type', 2), ('position', 12))
    found = {f'bert/embeddings/{name}_embeddings': (rows, width) for name, rows in tables}
    found |= _norm('bert/embeddings/LayerNorm', width) | _linear('bert/pooler/dense', 16, 16)
    for number, (name, there) in ((n, pair) for n in range(2) for pair in family[1].items()):
        sizes = {'intermediate': (16, 24), 'output': (24, 16)}.get(name, (16, 16))
        at = family[0].format(number) + there
        found |= _norm(at, 16) if 'norm' in name else _linear(at, *sizes)
    return found if width == 16 else found | _linear(TO_HIDDEN, width, 16)


def pretraining_shapes(
    family: tuple[str, dict[str, str]], width: int = 16
) -> dict[str, tuple[int, ...]]:
    """With the heads of run_pretraining.py:243-305."""
    mlm = _linear(f'{MLM}transform/dense', 16, width) | _norm(f'{MLM}transform/LayerNorm', width)
    nsp = {f'{NSP}output_weights': (2, 16), f'{NSP}output_bias': (2,)}
    return encoder_shapes(family, width) | mlm | {f'{MLM}output_bias': (40,)} | nsp


def values(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    rng = np.random.RandomState(0)
    return {
        name: (name.endswith('gamma') + rng.normal(0, 0.3, shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def tree(v: dict[str, np.ndarray], family: tuple[str, dict[str, str]]) -> dict[str, Any]:
    """The tree that numpy's forward pass reads."""

    def layer(name: str) -> dict[str, np.ndarray]:
        scale = {'scale': v[f'{name}/gamma'], 'bias': v[f'{name}/beta']} if 'Norm' in name else {}
        return scale or {'kernel': v[f'{name}/kernel'], 'bias': v[f'{name}/bias']}

    at = 'bert/embeddings/'
    tables = {'word': 'word', 'segment': 'token_type', 'position': 'position'}
    embeddings: dict[str, Any] = {
        ours: v[f'{at}{name}_embeddings'] for ours, name in tables.items()
    }
    embeddings['norm'] = layer(f'{at}LayerNorm')
    if f'{TO_HIDDEN}/bias' in v:
        embeddings['to_hidden'] = layer(TO_HIDDEN)
    blocks = [{n: layer(family[0].format(i) + t) for n, t in family[1].items()} for i in range(2)]
    return {
        'encoder': {
            'embeddings': embeddings,
            'layers': jax.tree.map(lambda *leaves: np.stack(leaves), *blocks),
            'pooler': layer('bert/pooler/dense'),
        },
        'mlm': {
            'transform': layer(f'{MLM}transform/dense'),
            'norm': layer(f'{MLM}transform/LayerNorm'),
            'bias': v[f'{MLM}output_bias'],
        },
        'nsp': {'kernel': v[f'{NSP}output_weights'].T, 'bias': v[f'{NSP}output_bias']},
    }


def batch() -> dict[str, np.ndarray]:
    """Three rows, two of them padded, every position asked for."""
    rng = np.random.RandomState(1)
    mask = (np.arange(12) < np.array([[12], [7], [2]])).astype(np.int32)
    return {
        'input_ids': rng.randint(5, 40, mask.shape).astype(np.int32) * mask,
        'input_mask': mask,
        'segment_ids': rng.randint(0, 2, mask.shape).astype(np.int32) * mask,
        'masked_lm_positions': np.tile(np.arange(12, dtype=np.int32), (3, 1)),
    }


def tensorflow_saves(prefix: str, variables: dict[str, np.ndarray], steps: bool) -> None:
    """A checkpoint as a run of the reference leaves.

    tf.train.Saver's, with Adam's moments and the step (optimization.py:117).
    """
    tf = pytest.importorskip('tensorflow')
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in variables.items():
            for slot in ('', '/adam_m', '/adam_v') if steps else ('',):
                tf.compat.v1.get_variable(
                    name + slot, initializer=tf.constant(value), use_resource=False
                )
        if steps:
            tf.compat.v1.train.get_or_create_global_step()
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, prefix)


def tensorflow_finds(prefix: str, variables: dict[str, np.ndarray]) -> None:
    """TensorFlow finds the very variables in a checkpoint that we wrote, bit by bit."""
    tf = pytest.importorskip('tensorflow')
    found = tf.train.load_checkpoint(prefix)
    assert found.get_variable_to_shape_map() == {n: list(v.shape) for n, v in variables.items()}
    assert all(found.get_tensor(n).tobytes() == v.tobytes() for n, v in variables.items())
