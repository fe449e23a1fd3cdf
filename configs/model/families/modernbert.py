"""ModernBERT, Warner et al. 2024; transformers models/modernbert of 5.24 (modeling_modernbert.py).

mmBERT and Ettin are encoders of the same family with other sizes and vocabularies.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from bert_jax.configs.model.families.family import (
    ClassHead,
    Family,
    MaskedLMHead,
    Name,
    Piece,
    Recipe,
    TaskRecipe,
    TransformersNames,
    check_rope,
)

_ARRAYS: dict[str, Name] = {
    'encoder/embeddings/word': 'embeddings.tok_embeddings.weight',
    'encoder/embeddings/norm': 'embeddings.norm',
    'encoder/layers/attention_norm': 'layers.{}.attn_norm',
    'encoder/layers/query': Piece('layers.{}.attn.Wqkv', 0, 3),
    'encoder/layers/key': Piece('layers.{}.attn.Wqkv', 1, 3),
    'encoder/layers/value': Piece('layers.{}.attn.Wqkv', 2, 3),
    'encoder/layers/attention_output': 'layers.{}.attn.Wo',
    'encoder/layers/output_norm': 'layers.{}.mlp_norm',
    'encoder/layers/intermediate': Piece('layers.{}.mlp.Wi', 0, 2),
    'encoder/layers/gate': Piece('layers.{}.mlp.Wi', 1, 2),
    'encoder/layers/output': 'layers.{}.mlp.Wo',
    'encoder/final_norm': 'final_norm',
    'head/dense': 'head.dense',
    'head/norm': 'head.norm',
    'mlm/bias': 'decoder.bias',
    'classifier': 'classifier',
    'span': 'qa_outputs',
}
# Warner et al. 2024, appendix: rate, batch, epochs and decay of the base model; RTE, MRPC and STS-B
# began from MNLI. The share that warms up is not stated there: 6 % is RoBERTa's.
_TASKS = {
    'cola': TaskRecipe(8e-5, 64, 5.0, 0.06, 1e-6),
    'sst2': TaskRecipe(8e-5, 64, 2.0, 0.06, 1e-5),
    'mrpc': TaskRecipe(5e-5, 64, 10.0, 0.06, 5e-6),
    'stsb': TaskRecipe(8e-5, 64, 10.0, 0.06, 5e-6),
    'qqp': TaskRecipe(5e-5, 64, 10.0, 0.06, 5e-6),
    'mnli': TaskRecipe(5e-5, 64, 1.0, 0.06, 5e-6),
    'qnli': TaskRecipe(8e-5, 64, 2.0, 0.06, 5e-6),
    'rte': TaskRecipe(5e-5, 64, 3.0, 0.06, 1e-5),
}
# The kinds of attention in layer_types and rope_parameters.
_GLOBAL, _LOCAL = 'full_attention', 'sliding_attention'
# What config.json leaves out (configuration_modernbert.py).
_THETAS = {_GLOBAL: ('global_rope_theta', 160_000.0), _LOCAL: ('local_rope_theta', 10_000.0)}


def _read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return windows, thetas and dropout, by the old names of the settings or the new ones."""
    activation = settings['hidden_activation']
    of_head = settings.get('classifier_activation', activation)
    if of_head != activation:
        raise ValueError(
            f'classifier_activation={of_head!r} is not built here: only that of hidden_activation'
            f' is ({activation!r})'
        )
    every = _read_global_every(settings)
    thetas = _read_thetas(settings)
    of_mlp, of_attention = settings['mlp_dropout'], settings['attention_dropout']
    of_embedding = settings['embedding_dropout']
    if of_embedding != of_mlp:
        logging.getLogger(__name__).warning(
            'embedding_dropout=%s is not built here: mlp_dropout=%s is taken for embeddings too',
            of_embedding,
            of_mlp,
        )
    ours: dict[str, Any] = {
        'hidden_dropout': of_mlp,
        'attention_output_dropout': None if of_mlp == of_attention else of_attention,
        'local_window': None,
        'global_every': 3,
        'rope_theta': thetas[_GLOBAL],
        'local_rope_theta': None,
    }
    if every > 1:
        if settings['local_attention'] < 2:
            raise ValueError(
                f'local_attention={settings["local_attention"]}: half of it is the window on each'
                ' side, so it must be 2 or more'
            )
        ours['local_window'] = settings['local_attention'] // 2
        ours['global_every'] = every
        if thetas[_LOCAL] != thetas[_GLOBAL]:
            ours['local_rope_theta'] = thetas[_LOCAL]
    return ours


def _read_global_every(settings: Mapping[str, Any]) -> int:
    """Return of how many layers one attends to the whole row; the new names win."""
    count, types = settings['num_hidden_layers'], settings.get('layer_types')
    every = settings.get('global_attn_every_n_layers', 3)
    if every < 1:
        raise ValueError(f'global_attn_every_n_layers={every} is not built here: only 1 and more')
    if types is None:
        return every
    if len(types) != count:
        raise ValueError(f'num_hidden_layers={count}, but layer_types has {len(types)}')
    if list(types) == _list_kinds(every, count):
        return every
    # The second global layer tells; where there is none all layers but the first are local.
    every = count
    if _GLOBAL in types[1:]:
        every = types.index(_GLOBAL, 1)
    if list(types) != _list_kinds(every, count):
        raise ValueError(
            f'layer_types={types!r} is not built here: only {_GLOBAL!r} in the first of every so'
            f' many layers, and {_LOCAL!r} in the others'
        )
    return every


def _list_kinds(every: int, count: int) -> list[str]:
    """Return the kind of attention of each layer, of which the first of every so many is global."""
    return [_LOCAL if i % every else _GLOBAL for i in range(count)]


def _read_thetas(settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the base of rotary angles by kind of layer; the new names win, as in transformers."""
    ropes = settings.get('rope_parameters') or {}
    if ropes.keys() - _THETAS:
        raise ValueError(f'rope_parameters={ropes!r} is not built here: only by kind of layer')
    thetas: dict[str, float] = {}
    for kind, (old, default) in _THETAS.items():
        rope = {**(settings.get('rope_scaling') or {}), **(ropes.get(kind) or {})}
        check_rope(rope)
        theta = rope.get('rope_theta', settings.get(old, default))
        # 4.48 takes null in local layers for the theta of the global ones
        if theta is None and kind == _LOCAL:
            theta = thetas[_GLOBAL]
        thetas[kind] = float(theta)
    return thetas


def _write(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for kinds of layers, by the old names, which 4.48 reads, and the new."""
    # Without a window every layer is a global one.
    window, every = 128, 1
    if ours['local_window']:
        window, every = 2 * ours['local_window'], ours['global_every']
    local = ours['local_rope_theta'] or ours['rope_theta']
    thetas = {_GLOBAL: ours['rope_theta'], _LOCAL: local}
    rate = ours['attention_output_dropout']
    if rate is None:
        rate = ours['hidden_dropout']
    return {
        # theirs is one rate for the probabilities and for the output
        'attention_dropout': max(rate, ours['attention_dropout']),
        'classifier_activation': ours['hidden_act'],
        'embedding_dropout': ours['hidden_dropout'],
        'mlp_dropout': ours['hidden_dropout'],
        'local_attention': window,
        'global_attn_every_n_layers': every,
        'layer_types': _list_kinds(every, ours['num_layers']),
        'global_rope_theta': thetas[_GLOBAL],
        'local_rope_theta': thetas[_LOCAL],
        'rope_parameters': {
            kind: {'rope_type': 'default', 'rope_theta': theta} for kind, theta in thetas.items()
        },
    }


FAMILY = Family(
    'ModernBERT',
    TransformersNames(
        'modernbert',
        'ModernBert',
        _ARRAYS,
        in_class={
            # Both classes call their own layer so, and no class has both.
            'ModernBertForQuestionAnswering': {'span': 'classifier', 'classifier': 'unused'}
        },
        settings={
            'layer_norm_eps': 'norm_eps',
            'hidden_act': 'hidden_activation',
            'attention_dropout': 'attention_dropout',
            'pooling': 'classifier_pooling',
            'type_vocab_size': None,
            'hidden_dropout': None,
            'local_window': None,
        },
        written={
            'pad_token_id': 50283,
            'bos_token_id': 50281,
            'eos_token_id': 50282,
            'cls_token_id': 50281,
            'sep_token_id': 50282,
            'norm_bias': False,
            'attention_bias': False,
            'mlp_bias': False,
            'classifier_bias': False,
            'decoder_bias': True,
        },
        head_dropout=('classifier_dropout', 0.0),
        fixed={
            # Not read by its classes: every file of the family has rotary positions.
            'position_embedding_type': ('absolute', 'sans_pos', 'rope', None),
            'norm_bias': (False,),
            'attention_bias': (False,),
            'mlp_bias': (False,),
            'classifier_bias': (False,),
            'decoder_bias': (True,),
            'tie_word_embeddings': (True,),
        },
        read_with={
            'classifier_activation': 'head',
            'classifier_bias': 'head',
            'decoder_bias': 'mlm',
            'tie_word_embeddings': 'mlm',
        },
        defaults={
            'vocab_size': 50368,
            'num_hidden_layers': 22,
            'intermediate_size': 1152,
            'hidden_activation': 'gelu',
            'classifier_activation': 'gelu',
            'max_position_embeddings': 8192,
            'norm_eps': 1e-5,
            'attention_dropout': 0.0,
            'embedding_dropout': 0.0,
            'mlp_dropout': 0.0,
            'local_attention': 128,
            'classifier_pooling': 'cls',
        },
        shape={
            'norm': 'pre',
            'use_bias': False,
            'positions': 'rotary',
            'feed_forward': 'geglu',
            'type_vocab_size': 0,
        },
        read=_read,
        write=_write,
        base='model',
        decoder='decoder',
    ),
    recipe=Recipe(
        _TASKS,
        max_seq_length=512,
        optimizer={
            'algorithm': 'adamw',
            'schedule': 'linear',
            'b2': 0.98,
            'decay': 'fully_decoupled',
            'clip_norm': None,
        },
    ),
    pairs=(),
    class_head=ClassHead(place='all', act=None, in_bare=False),
    masked_lm=MaskedLMHead(has_transform=False),
    has_first_norm=False,
)
