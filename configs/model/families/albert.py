"""ALBERT, Lan et al. 2020; google-research/albert modeling.py:1083-1110, whose heads are BERT's.

Its narrow table and shared blocks are settings of their own. transformers has no class of it for
pairs alone.
"""

from __future__ import annotations

from bert_jax.configs.model.families import bert
from bert_jax.configs.model.families.family import (
    Family,
    GoogleNames,
    Recipe,
    TaskRecipe,
    TransformersNames,
)

# The one block of a group, in either code.
_GROUP = 'encoder.albert_layer_groups.{}.albert_layers.0.'
_GOOGLE_GROUP = 'bert/encoder/transformer/group_{}/inner_group_0/'


def _in_steps(
    peak_lr: float, steps: int, batch_size: int, warmup: int, examples: int
) -> TaskRecipe:
    """Return in epochs, and warm-up as a share, what counts in steps of so many examples in all."""
    return TaskRecipe(peak_lr, batch_size, steps * batch_size / examples, warmup / steps)


FAMILY = Family(
    'ALBERT',
    TransformersNames(
        'albert',
        'Albert',
        bert.ARRAYS
        | {
            'encoder/embeddings/to_hidden': 'encoder.embedding_hidden_mapping_in',
            'encoder/layers/query': f'{_GROUP}attention.query',
            'encoder/layers/key': f'{_GROUP}attention.key',
            'encoder/layers/value': f'{_GROUP}attention.value',
            'encoder/layers/attention_output': f'{_GROUP}attention.dense',
            'encoder/layers/attention_norm': f'{_GROUP}attention.LayerNorm',
            'encoder/layers/intermediate': f'{_GROUP}ffn',
            'encoder/layers/output': f'{_GROUP}ffn_output',
            'encoder/layers/output_norm': f'{_GROUP}full_layer_layer_norm',
            'encoder/pooler': 'pooler',
            'mlm/transform': 'predictions.dense',
            'mlm/norm': 'predictions.LayerNorm',
            'mlm/bias': 'predictions.bias',
            'nsp': 'sop_classifier.classifier',
        },
        settings={'embedding_size': 'embedding_size', 'num_groups': 'num_hidden_groups'},
        written={'pad_token_id': 0, 'bos_token_id': 2, 'eos_token_id': 3, 'inner_group_num': 1},
        head_dropout=('classifier_dropout_prob', 0.1),
        # A group of several blocks is gone through as a whole, which is not built here.
        fixed={'inner_group_num': (1,)},
        defaults={
            'vocab_size': 30000,
            'embedding_size': 128,
            'hidden_size': 4096,
            'num_attention_heads': 64,
            'num_hidden_groups': 1,
            'intermediate_size': 16384,
            'hidden_act': 'gelu_new',
            'hidden_dropout_prob': 0.0,
            'attention_probs_dropout_prob': 0.0,
        },
        decoder='predictions.decoder',
    ),
    GoogleNames(
        'google-research/albert',
        'albert_config.json',
        'model.ckpt-best',
        # The block is the first of its group and stands in a scope of its own.
        bert.GOOGLE_ARRAYS
        | {
            'encoder/embeddings/to_hidden': 'bert/encoder/embedding_hidden_mapping_in',
            'encoder/layers/query': f'{_GOOGLE_GROUP}attention_1/self/query',
            'encoder/layers/key': f'{_GOOGLE_GROUP}attention_1/self/key',
            'encoder/layers/value': f'{_GOOGLE_GROUP}attention_1/self/value',
            'encoder/layers/attention_output': f'{_GOOGLE_GROUP}attention_1/output/dense',
            'encoder/layers/attention_norm': f'{_GOOGLE_GROUP}LayerNorm',
            'encoder/layers/intermediate': f'{_GOOGLE_GROUP}ffn_1/intermediate/dense',
            'encoder/layers/output': f'{_GOOGLE_GROUP}ffn_1/intermediate/output/dense',
            'encoder/layers/output_norm': f'{_GOOGLE_GROUP}LayerNorm_1',
        },
        # its own defaults (modeling.py's AlbertConfig), and what BERT has not
        bert.GOOGLE_SETTINGS
        | {
            'hidden_size': ('hidden_size', 4096),
            'num_heads': ('num_attention_heads', 64),
            'intermediate_size': ('intermediate_size', 16384),
            'type_vocab_size': ('type_vocab_size', 2),
            'hidden_dropout': ('hidden_dropout_prob', 0),
            'attention_dropout': ('attention_probs_dropout_prob', 0),
            'embedding_size': ('embedding_size', 128),
            'num_groups': ('num_hidden_groups', 1),
        },
        {'inner_group_num': 1},
    ),
    # run_glue.sh: learning rate, steps, batch, warm-up steps; and the training examples that make
    # epochs of the steps.
    Recipe(
        {
            'cola': _in_steps(1e-5, 5336, 16, 320, 8551),
            'sst2': _in_steps(1e-5, 20935, 32, 1256, 67349),
            'mrpc': _in_steps(2e-5, 800, 32, 200, 3668),
            'stsb': _in_steps(2e-5, 3598, 16, 214, 5749),
            'qqp': _in_steps(5e-5, 14000, 128, 1000, 363846),
            'mnli': _in_steps(3e-5, 10000, 128, 1000, 392702),
            'qnli': _in_steps(1e-5, 33112, 32, 1986, 104743),
            'rte': _in_steps(3e-5, 800, 32, 200, 2490),
        },
        max_seq_length=512,
    ),
    pairs=('ForPreTraining',),
)
