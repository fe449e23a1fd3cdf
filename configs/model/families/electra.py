"""ELECTRA, Clark et al. 2020; transformers models/electra of 5.23 (modeling_electra.py).

A generator and a discriminator are two models of the family: heads tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.configs.model.families import bert
from bert_jax.configs.model.families.family import (
    ClassHead,
    Family,
    MaskedLMHead,
    Recipe,
    TaskRecipe,
    TransformersNames,
)

# google-research/electra finetune/ and configure_finetuning.py, of the small and the base model;
# the large one has 5e-5, and layers decay by 0.9.
_TASKS = {
    name: TaskRecipe(1e-4, 32, 10.0 if name in ('rte', 'stsb') else 3.0, 0.1)
    for name in ('cola', 'sst2', 'mrpc', 'stsb', 'qqp', 'mnli', 'qnli', 'rte')
}


def _read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the width of the tables; as wide as the blocks they have no layer behind them."""
    width = settings['embedding_size']
    if width == settings['hidden_size']:
        width = None
    return {'embedding_size': width}


def _write(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the width of the tables, which is stated also where no layer follows."""
    return {'embedding_size': ours['embedding_size'] or ours['hidden_size']}


FAMILY = Family(
    'ELECTRA',
    TransformersNames(
        'electra',
        'Electra',
        bert.ARRAYS
        | {
            'encoder/embeddings/to_hidden': 'embeddings_project',
            'mlm/transform': 'generator_predictions.dense',
            'mlm/norm': 'generator_predictions.LayerNorm',
            'mlm/bias': 'generator_lm_head.bias',
            'detector/dense': 'discriminator_predictions.dense',
            'detector/out': 'discriminator_predictions.dense_prediction',
        },
        in_class={
            'ElectraForSequenceClassification': {
                'encoder/pooler': 'classifier.dense',
                'classifier': 'classifier.out_proj',
            },
            'ElectraForMultipleChoice': {'encoder/pooler': 'sequence_summary.summary'},
        },
        settings={'embedding_size': None},
        written={'pad_token_id': 0, 'summary_last_dropout': 0.1},
        fixed={
            'summary_type': ('first',),
            'summary_use_proj': (True,),
            'summary_activation': ('gelu',),
            'tie_word_embeddings': (True,),
        },
        read_with={
            'summary_type': 'classifier',
            'summary_use_proj': 'classifier',
            'summary_activation': 'classifier',
            'tie_word_embeddings': 'mlm',
        },
        defaults={
            'embedding_size': 128,
            'hidden_size': 256,
            'num_attention_heads': 4,
            'intermediate_size': 1024,
        },
        read=_read,
        write=_write,
        decoder='generator_lm_head',
    ),
    # Their block i of L has a rate of 0.8 to the power L + 1 - i, and here of L - i.
    recipe=Recipe(_TASKS, max_seq_length=128, optimizer={'layer_decay': 0.8}),
    has_peft=True,
    pairs=(),
    class_head=ClassHead('task', 'gelu_erf', drops_before=True, in_bare=False),
    masked_lm=MaskedLMHead(act='gelu_erf'),
)
