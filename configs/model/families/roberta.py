"""RoBERTa, Liu et al. 2019; facebookresearch/fairseq models/roberta/model.py."""

from __future__ import annotations

import dataclasses
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

# examples/roberta/README.glue.md: learning rate, batch, epochs, and the share of the steps that
# warm up.
_TASKS = {
    'cola': TaskRecipe(1e-5, 16, 10.0, 0.06),
    'sst2': TaskRecipe(1e-5, 32, 10.0, 0.06),
    'mrpc': TaskRecipe(1e-5, 16, 10.0, 0.06),
    'stsb': TaskRecipe(2e-5, 16, 10.0, 0.06),
    'qqp': TaskRecipe(1e-5, 32, 10.0, 0.25),
    'mnli': TaskRecipe(1e-5, 32, 10.0, 0.06),
    'qnli': TaskRecipe(1e-5, 32, 10.0, 0.06),
    'rte': TaskRecipe(2e-5, 16, 10.0, 0.06),
}

FAMILY = Family(
    'RoBERTa',
    TransformersNames(
        'roberta',
        'Roberta',
        bert.ARRAYS
        | {
            'mlm/transform': 'lm_head.dense',
            'mlm/norm': 'lm_head.layer_norm',
            'mlm/bias': 'lm_head.bias',
        },
        in_class={
            'RobertaForSequenceClassification': {
                'encoder/pooler': 'classifier.dense',
                'classifier': 'classifier.out_proj',
            }
        },
        written={'pad_token_id': 1, 'bos_token_id': 0, 'eos_token_id': 2},
        defaults={'vocab_size': 50265, 'pad_token_id': 1},
        decoder='lm_head.decoder',
    ),
    recipe=Recipe(
        _TASKS,
        max_seq_length=512,
        optimizer={
            'algorithm': 'adamw',
            'schedule': 'linear',
            'b2': 0.98,
            'weight_decay': 0.1,
            'clip_norm': None,
        },
    ),
    has_peft=True,
    # its positions count on from the id of its padding token, which is 1 in its own vocabulary
    first_position=2,
    pairs=(),
    class_head=ClassHead(place='task', drops_before=True),
    masked_lm=MaskedLMHead(act='gelu_erf'),
)


def make_relative(name: str, model_type: str, prefix: str, **written: Any) -> Family:
    """Return a family whose classes are RoBERTa's under another name.

    `written`: settings of config.json that it has otherwise.
    """
    names = FAMILY.transformers
    in_class = {
        architecture.replace(names.prefix, prefix): arrays
        for architecture, arrays in names.in_class.items()
    }
    theirs = dataclasses.replace(
        names,
        model_type=model_type,
        prefix=prefix,
        in_class=in_class,
        written={**names.written, **written},
        defaults={'pad_token_id': 1},
        base=names.model_type,
    )
    return dataclasses.replace(FAMILY, name=name, transformers=theirs)
