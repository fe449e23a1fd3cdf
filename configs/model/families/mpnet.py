"""MPNet, Song et al. 2020; transformers models/mpnet of 5.23 (modeling_mpnet.py).

It was pre-trained on permuted words, which is not built here: masked words are.
"""

from __future__ import annotations

from bert_jax.configs.model.families import roberta
from bert_jax.configs.model.families.family import Family, TransformersNames

_ATTENTION = 'encoder.layer.{}.attention'
# Its heads are RoBERTa's: of a task, and for masked words.
_ROBERTA = roberta.FAMILY.transformers

FAMILY = Family(
    'MPNet',
    TransformersNames(
        'mpnet',
        'MPNet',
        {**_ROBERTA.arrays}
        | {
            'encoder/layers/query': f'{_ATTENTION}.attn.q',
            'encoder/layers/key': f'{_ATTENTION}.attn.k',
            'encoder/layers/value': f'{_ATTENTION}.attn.v',
            'encoder/layers/attention_output': f'{_ATTENTION}.attn.o',
            'encoder/layers/attention_norm': f'{_ATTENTION}.LayerNorm',
            'encoder/relative/table': 'encoder.relative_attention_bias.weight',
        },
        in_class={
            'MPNetForSequenceClassification': _ROBERTA.in_class['RobertaForSequenceClassification']
        },
        settings={'type_vocab_size': None},
        written={**_ROBERTA.written, 'relative_attention_num_buckets': 32},
        # Its code fixes both, whatever the settings say (modeling_mpnet.py:61,312).
        fixed={'relative_attention_num_buckets': (32,), 'pad_token_id': (1,)},
        defaults={'vocab_size': 30527, 'pad_token_id': 1},
        shape={'positions': 'relative_bias', 'type_vocab_size': 0},
        decoder='lm_head.decoder',
    ),
    first_position=roberta.FAMILY.first_position,
    pairs=(),
    class_head=roberta.FAMILY.class_head,
    masked_lm=roberta.FAMILY.masked_lm,
)
