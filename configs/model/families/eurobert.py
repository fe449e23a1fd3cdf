"""EuroBERT, Boizard et al. 2025; transformers models/eurobert of 5.23 (modeling_eurobert.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.configs.model.families.family import (
    ClassHead,
    Family,
    MaskedLMHead,
    Name,
    TransformersNames,
    check_rope,
)

_ARRAYS: dict[str, Name] = {
    'encoder/embeddings/word': 'embed_tokens.weight',
    'encoder/layers/attention_norm': 'layers.{}.input_layernorm',
    'encoder/layers/query': 'layers.{}.self_attn.q_proj',
    'encoder/layers/key': 'layers.{}.self_attn.k_proj',
    'encoder/layers/value': 'layers.{}.self_attn.v_proj',
    'encoder/layers/attention_output': 'layers.{}.self_attn.o_proj',
    'encoder/layers/output_norm': 'layers.{}.post_attention_layernorm',
    'encoder/layers/intermediate': 'layers.{}.mlp.gate_proj',
    'encoder/layers/gate': 'layers.{}.mlp.up_proj',
    'encoder/layers/output': 'layers.{}.mlp.down_proj',
    'encoder/final_norm': 'norm',
    'encoder/pooler': 'dense',
    'mlm/decoder': 'lm_head.weight',
    'classifier': 'classifier',
    'span': 'qa_outputs',
}
# What classifier_pooling means here, and the other way.
_POOLINGS = {'bos': 'cls', 'mean': 'mean', 'late': 'late'}
_POOLINGS_OUT = {ours: theirs for theirs, ours in _POOLINGS.items()}


def _read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return heads, angles and pooling; of a rope's settings the new names win."""
    heads, kv_heads = settings['num_attention_heads'], settings.get('num_key_value_heads')
    width = settings.get('head_dim')
    if width is not None and width * heads != settings['hidden_size']:
        raise ValueError(f'head_dim={width} is not built here: only hidden_size / heads is')
    rope = {**(settings.get('rope_scaling') or {}), **(settings.get('rope_parameters') or {})}
    check_rope(rope)
    pooling = settings['classifier_pooling']
    if pooling not in _POOLINGS:
        raise ValueError(f'classifier_pooling={pooling!r} must be one of {", ".join(_POOLINGS)}')
    return {
        'hidden_dropout': 0.0,
        'num_kv_heads': None if kv_heads == heads else kv_heads,
        'pooling': _POOLINGS[pooling],
        'rope_theta': float(rope.get('rope_theta', settings['rope_theta'])),
    }


def _write(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not one for one."""
    theta = ours['rope_theta']
    return {
        'num_key_value_heads': ours['num_kv_heads'] or ours['num_heads'],
        'classifier_pooling': _POOLINGS_OUT[ours['pooling']],
        'rope_theta': theta,
        'rope_parameters': {'rope_type': 'default', 'rope_theta': theta},
    }


FAMILY = Family(
    'EuroBERT',
    TransformersNames(
        'eurobert',
        'EuroBert',
        _ARRAYS,
        settings={
            'layer_norm_eps': 'rms_norm_eps',
            'attention_dropout': 'attention_dropout',
            'type_vocab_size': None,
            'hidden_dropout': None,
            'num_kv_heads': None,
            'pooling': None,
        },
        written={
            'pad_token_id': 128001,
            'bos_token_id': 128000,
            'eos_token_id': 128001,
            'mask_token_id': 128002,
            'attention_bias': False,
            'mlp_bias': False,
        },
        head_dropout=('classifier_dropout', 0.0),
        fixed={
            'attention_bias': (False,),
            'mlp_bias': (False,),
            'tie_word_embeddings': (False,),
        },
        read_with={'tie_word_embeddings': 'mlm'},
        defaults={
            'vocab_size': 128256,
            'hidden_act': 'silu',
            'max_position_embeddings': 8192,
            'rms_norm_eps': 1e-5,
            'attention_dropout': 0.0,
            'rope_theta': 10_000.0,
            'classifier_pooling': 'late',
        },
        shape={
            'norm': 'pre',
            'norm_class': 'rms_norm',
            'embedding_norm': False,
            'use_bias': False,
            'positions': 'rotary',
            'feed_forward': 'geglu',
            'type_vocab_size': 0,
        },
        read=_read,
        write=_write,
        base='model',
        outside=('encoder/pooler',),
    ),
    pairs=(),
    lacks=('BertForQuestionAnswering', 'BertForMultipleChoice'),
    class_head=ClassHead(place='task', act='gelu_erf', in_bare=False),
    masked_lm=MaskedLMHead(has_transform=False, is_tied=False, has_bias=False),
)
