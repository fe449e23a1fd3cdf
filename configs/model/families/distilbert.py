"""DistilBERT, Sanh et al. 2019; transformers models/distilbert of 5.23."""

from __future__ import annotations

from bert_jax.configs.model.families import bert
from bert_jax.configs.model.families.family import ClassHead, Family, TransformersNames

FAMILY = Family(
    'DistilBERT',
    TransformersNames(
        'distilbert',
        'DistilBert',
        bert.ARRAYS
        | {
            'encoder/layers/query': 'transformer.layer.{}.attention.q_lin',
            'encoder/layers/key': 'transformer.layer.{}.attention.k_lin',
            'encoder/layers/value': 'transformer.layer.{}.attention.v_lin',
            'encoder/layers/attention_output': 'transformer.layer.{}.attention.out_lin',
            'encoder/layers/attention_norm': 'transformer.layer.{}.sa_layer_norm',
            'encoder/layers/intermediate': 'transformer.layer.{}.ffn.lin1',
            'encoder/layers/output': 'transformer.layer.{}.ffn.lin2',
            'encoder/layers/output_norm': 'transformer.layer.{}.output_layer_norm',
            'encoder/pooler': 'pre_classifier',
            'mlm/transform': 'vocab_transform',
            'mlm/norm': 'vocab_layer_norm',
            'mlm/bias': 'vocab_projector.bias',
        },
        settings={
            'hidden_size': 'dim',
            'num_layers': 'n_layers',
            'num_heads': 'n_heads',
            'intermediate_size': 'hidden_dim',
            'hidden_act': 'activation',
            'hidden_dropout': 'dropout',
            'attention_dropout': 'attention_dropout',
            'type_vocab_size': None,
            'layer_norm_eps': None,
        },
        # sinusoidal_pos_embds only says how the table began, and the table is in the files
        written={'pad_token_id': 0, 'qa_dropout': 0.1, 'sinusoidal_pos_embds': False},
        head_dropout=('seq_classif_dropout', 0.2),
        defaults={
            'dim': 768,
            'n_layers': 6,
            'n_heads': 12,
            'hidden_dim': 3072,
            'activation': 'gelu',
            'dropout': 0.1,
            'attention_dropout': 0.1,
        },
        shape={'type_vocab_size': 0, 'layer_norm_eps': 1e-12},
        read=lambda settings: {'attention_output_dropout': 0.0},
        decoder='vocab_projector',
        outside=('encoder/pooler',),
    ),
    pairs=(),
    class_head=ClassHead(place='task', act='relu', in_bare=False),
    drops_spans=True,
)
