"""DeBERTa-v2 and -v3, He et al. 2021; transformers models/deberta_v2 of 5.23.

Version 3 has the architecture of version 2 without the convolution; mDeBERTa is a version 3. Their
own masked-LM head, which goes through the last block twice, is not built: BERT's is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.configs.model.families import bert
from bert_jax.configs.model.families.family import ClassHead, Family, TransformersNames

_ATTENTION = 'encoder.layer.{}.attention.self'
# The activations of the convolution, by the names of transformers.
_ACTS = {'tanh': 'tanh', 'gelu': 'gelu_erf', 'gelu_new': 'gelu_tanh', 'relu': 'relu'}
_POOLED = {'encoder/pooler': 'pooler.dense'}


def _read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of distances, of the convolution, and the width of the embeddings."""
    width = settings['hidden_size']
    for name, wanted in (
        ('attention_head_size', width // settings['num_attention_heads']),
        ('pooler_hidden_size', width),
    ):
        if settings.get(name, wanted) != wanted:
            raise ValueError(f'{name}={settings[name]} is not built here: only {wanted} is')
    embedding = settings['embedding_size']
    normalised = str(settings['norm_rel_ebd']).lower().split('|')
    ours: dict[str, Any] = {
        'embedding_size': None if embedding == width else embedding,
        'relative_terms': _read_terms(settings['pos_att_type']),
        'relative_buckets': _read_count(settings['position_buckets']),
        'relative_max': _read_count(settings['max_relative_positions']),
        'relative_projections': 'shared' if settings['share_att_key'] else 'own',
        'relative_norm': 'layer_norm' in [word.strip() for word in normalised],
        'convolution': _read_count(settings['conv_kernel_size']),
    }
    if ours['convolution']:
        act = settings['conv_act']
        if act not in _ACTS:
            raise ValueError(f'conv_act={act!r} is not built here: only {", ".join(_ACTS)} are')
        ours['convolution_act'] = _ACTS[act]
    return ours


def _read_terms(stated: Any) -> str:
    """Return the products of tokens with distances that pos_att_type names."""
    words = stated
    if isinstance(stated, str):
        words = stated.lower().split('|')
    words = {str(word).strip() for word in words or ()}
    if not words or words - {'c2p', 'p2c'}:
        raise ValueError(
            f"pos_att_type={stated!r} is not built here: only 'c2p', 'p2c' or both are"
        )
    return '_'.join(sorted(words))


def _read_count(stated: Any) -> int | None:
    """Return a count; None where theirs says by 0 or less that there is none."""
    return None if isinstance(stated, int) and stated < 1 else stated


def _write(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that `_read` reads."""
    settings = {
        'embedding_size': ours['embedding_size'] or ours['hidden_size'],
        'pooler_hidden_size': ours['hidden_size'],
        'pos_att_type': ours['relative_terms'].replace('_', '|'),
        'position_buckets': ours['relative_buckets'] or -1,
        'max_relative_positions': ours['relative_max'] or -1,
        'share_att_key': ours['relative_projections'] == 'shared',
        'norm_rel_ebd': 'layer_norm' if ours['relative_norm'] else 'none',
    }
    if ours['convolution']:
        names = {our_name: name for name, our_name in _ACTS.items()}
        settings['conv_kernel_size'] = ours['convolution']
        settings['conv_act'] = names[ours['convolution_act']]
    return settings


FAMILY = Family(
    'DeBERTa-v2',
    TransformersNames(
        'deberta-v2',
        'DebertaV2',
        bert.ARRAYS
        | {
            'encoder/embeddings/to_hidden': 'embeddings.embed_proj',
            'encoder/relative/table': 'encoder.rel_embeddings.weight',
            'encoder/relative/norm': 'encoder.LayerNorm',
            'encoder/convolution': 'encoder.conv.conv',
            'encoder/convolution/norm': 'encoder.conv.LayerNorm',
            'encoder/layers/query': f'{_ATTENTION}.query_proj',
            'encoder/layers/key': f'{_ATTENTION}.key_proj',
            'encoder/layers/value': f'{_ATTENTION}.value_proj',
            'encoder/layers/position_key': f'{_ATTENTION}.pos_key_proj',
            'encoder/layers/position_query': f'{_ATTENTION}.pos_query_proj',
            # No file has it there: it lies beside the encoder, and in two classes alone.
            'encoder/pooler': 'encoder.pooler',
        },
        in_class={
            'DebertaV2ForSequenceClassification': _POOLED,
            'DebertaV2ForMultipleChoice': _POOLED,
        },
        settings={'embedding_size': None, 'convolution': None},
        written={
            'pad_token_id': 0,
            'relative_attention': True,
            'position_biased_input': False,
            'pooler_dropout': 0,
            'pooler_hidden_act': 'gelu',
            'legacy': True,
        },
        head_dropout=('cls_dropout', None),
        fixed={
            'relative_attention': (True,),
            'position_biased_input': (False,),
            'conv_groups': (1,),
            'pooler_dropout': (0,),
            'pooler_hidden_act': ('gelu',),
            'tie_word_embeddings': (True,),
        },
        read_with={
            'pooler_dropout': 'pooler',
            'pooler_hidden_act': 'pooler',
            'tie_word_embeddings': 'mlm',
        },
        defaults={
            'vocab_size': 128100,
            'hidden_size': 1536,
            'num_hidden_layers': 24,
            'num_attention_heads': 24,
            'intermediate_size': 6144,
            'type_vocab_size': 0,
            'layer_norm_eps': 1e-7,
            'embedding_size': None,
            'relative_attention': False,
            'position_biased_input': True,
            'pos_att_type': None,
            'position_buckets': -1,
            'max_relative_positions': -1,
            'share_att_key': False,
            'norm_rel_ebd': 'none',
            'conv_kernel_size': 0,
            'conv_act': 'tanh',
        },
        shape={'positions': 'disentangled'},
        read=_read,
        write=_write,
        base='deberta',
        # The Hub's files have the heads of pre-training, for the decoder that is not built.
        ignored=('lm_predictions.*', 'mask_predictions.*', 'embeddings.position_embeddings.*'),
    ),
    pairs=(),
    class_head=ClassHead('task', 'gelu_erf', in_bare=False),
    widens_first=True,
)
