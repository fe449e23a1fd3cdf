"""Very small models of every class, for tests of what is done with trained models."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.conversion.trained_model import Model
from bert_jax.input_pipeline.tokenizer.directory import SPECIAL_TOKENS
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.model import heads
from bert_jax.train.state import init_params
from bert_jax.train.task_heads import CLASSES, HEADS
from tests.helpers.tiny import tiny_config

WORDS = 'paris is the capital of france who what ? . , a good bad film un ##able ##s'.split()
CONFIG = tiny_config(vocab_size=5 + len(WORDS), initializer_range=0.5)
LABELS = ('no', 'yes', 'maybe')

# Two blocks, of which the second has a window where there is one; rows are longer than it.
SHAPES = {
    'bert': {'hidden_act': 'gelu_erf'},
    'roberta': {'type_vocab_size': 1},
    'albert': {'embedding_size': 8, 'num_groups': 1},
    'modernbert': {
        'positions': 'rotary', 'feed_forward': 'geglu', 'norm': 'pre', 'use_bias': False,
        'type_vocab_size': 0, 'local_window': 3, 'global_every': 2, 'max_position': 900,
    },
    'mpnet': {'positions': 'relative_bias', 'type_vocab_size': 0},
    'deberta_v2': {
        'positions': 'disentangled', 'relative_buckets': 8, 'type_vocab_size': 0,
        'embedding_size': 8, 'convolution': 3,
    },
    'distilbert': {'type_vocab_size': 0},
    'electra': {'embedding_size': 8},
    'eurobert': {
        'positions': 'rotary', 'feed_forward': 'geglu', 'norm': 'pre', 'use_bias': False,
        'type_vocab_size': 0, 'norm_class': 'rms_norm', 'embedding_norm': False,
        'hidden_act': 'silu', 'num_kv_heads': 1, 'pooling': 'late',
    },
}  # fmt: skip


def tokenizer() -> Tokenizer:
    """The tokenizer of all these models: lower-cased WordPiece."""
    return Tokenizer.of_kind(
        'wordpiece',
        ('\n'.join([*SPECIAL_TOKENS.values(), *WORDS]) + '\n').encode(),
        Normalizer(True, True),
    )


@functools.cache
def _pretraining(seed: int) -> dict:
    return jax.device_get(jax.jit(lambda: init_params(heads.Pretraining(CONFIG), seed))())


def model(architecture: str, labels: tuple[str, ...] = LABELS, seed: int = 0) -> Model:
    """A random model of that class, its numbers large enough for answers to differ."""
    rng = np.random.default_rng(seed)
    parts = CLASSES[architecture].parts
    # Dictionaries of the model's own, which a test may change.
    shared = jax.tree.map(lambda leaf: leaf, _pretraining(seed))
    params = {name: value for name, value in shared.items() if name == 'encoder' or name in parts}
    if 'pooler' not in parts:
        params['encoder'] = {
            name: value for name, value in params['encoder'].items() if name != 'pooler'
        }
    outputs = {'BertForMultipleChoice': 1, 'BertForQuestionAnswering': 2}.get(
        architecture, max(len(labels), 1)
    )
    for head in {'classifier', 'span'} & set(parts):
        params[head] = {
            'kernel': rng.normal(size=(16, outputs)).astype(np.float32),
            'bias': rng.normal(size=outputs).astype(np.float32),
        }
    named = architecture in ('BertForSequenceClassification', 'BertForTokenClassification')
    return Model(CONFIG, params, architecture, labels if named else ())


def batch_of(model: Model, b: int = 3, t: int = 7, p: int = 2) -> dict[str, np.ndarray]:
    """Random rows as the model's class reads them, of all lengths."""
    rng, sizes = np.random.default_rng(t), {'b': b, 't': t, 'p': p, 'c': 2}
    shapes = {
        name: [sizes[axis] for axis in axes.split(', ')] for name, axes in model.row.inputs.items()
    }
    shape = shapes['input_ids']
    lengths = rng.integers(1, t + 1, shape[:-1])
    batch = {
        'input_ids': rng.integers(0, model.config.vocab_size, shape),
        'input_mask': np.arange(t) < lengths[..., None],
        'segment_ids': rng.integers(0, 2, shape),
    }
    if 'masked_lm_positions' in shapes:
        batch['masked_lm_positions'] = rng.integers(0, t, shapes['masked_lm_positions'])
    return {name: array.astype(np.int32) for name, array in batch.items()}


def of_family(family: str, head: str, **changes) -> Model:
    """A random model, its numbers large enough for answers to differ."""
    settings = {'initializer_range': 0.3} | SHAPES.get(family, {}) | changes
    config = tiny_config(family=family, **settings)
    row = HEADS[head].of(family)
    module = row.model(config, jnp.float32, 3)
    rng, shapes = np.random.default_rng(0), jax.eval_shape(lambda: init_params(module, 0))
    drawn = lambda leaf: (config.initializer_range * rng.normal(size=leaf.shape)).astype('f')
    params = jax.tree.map_with_path(
        lambda path, leaf: drawn(leaf) + np.float32('scale' in str(path[-1])), shapes
    )
    sentence = row.vectors and row.vectors()
    if head == 'embedding':
        sentence = SentenceConfig('mean', True)
    return Model(config, params, row.class_in(family), sentence=sentence)
