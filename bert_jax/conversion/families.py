"""Transformers' names for what a family of encoders has: a row for each family.

Owns which class, module, array and setting is called what there, by FAMILIES of configs/model.py;
must not know files: huggingface.py reads and writes them. BERT's names of what stands on the
encoder are in train/task_heads.py's PARTS; a family states those by which it differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_jax.train.task_heads import PARTS

# Modules and single arrays: ours -> BERT's, {} for the block's number.
_BERT = {
    'encoder/embeddings/word': 'embeddings.word_embeddings.weight',
    'encoder/embeddings/position': 'embeddings.position_embeddings.weight',
    'encoder/embeddings/segment': 'embeddings.token_type_embeddings.weight',
    'encoder/embeddings/norm': 'embeddings.LayerNorm',
    'encoder/layers/query': 'encoder.layer.{}.attention.self.query',
    'encoder/layers/key': 'encoder.layer.{}.attention.self.key',
    'encoder/layers/value': 'encoder.layer.{}.attention.self.value',
    'encoder/layers/attention_output': 'encoder.layer.{}.attention.output.dense',
    'encoder/layers/attention_norm': 'encoder.layer.{}.attention.output.LayerNorm',
    'encoder/layers/intermediate': 'encoder.layer.{}.intermediate.dense',
    'encoder/layers/output': 'encoder.layer.{}.output.dense',
    'encoder/layers/output_norm': 'encoder.layer.{}.output.LayerNorm',
}
for _part in PARTS.values():
    _BERT |= _part.hugging_face
# A module's arrays: torch calls the scale of a norm its weight.
_LEAVES = {'kernel': 'weight', 'scale': 'weight', 'bias': 'bias'}
# What stands in the module that all classes but the bare encoder's have around it.
_IN_ENCODER = ('embeddings.', 'encoder.', 'pooler.')


@dataclass(frozen=True)
class Names:
    """A row of the table.

    Attributes:
      model_type: as config.json has it; also the module around the encoder, in all classes but that
        of the bare encoder, whose names are without it.
      bare: the class of the bare encoder.
      names: modules and single arrays, ours -> theirs, where they are not BERT's.
      in_class: class -> such names that it alone has.
      shape: settings of the shape that BERT has not, ours -> theirs.
      settings: further settings of config.json that we write.
      head_dropout: how it calls the dropout before a classifier, and what that is where it is not
        stated; None: the encoder's own.
      fixed: setting -> the values of it that are built here.
      defaults: settings that a config.json may leave out, where they are not BERT's.
    """

    model_type: str
    bare: str
    names: Mapping[str, str] = field(default_factory=dict)
    in_class: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shape: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    head_dropout: tuple[str, float | None] = ('classifier_dropout', None)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def naming(self, architecture: str, path: str) -> tuple[str, bool]:
        """(their name for the array at our path, without the module around the encoder; whether it
        lies transposed).
        """
        names = {**_BERT, **self.names, **self.in_class.get(architecture, {})}
        module, _, leaf = path.rpartition('/')
        name = names[path] if path in names else f'{names[module]}.{_LEAVES[leaf]}'
        return name, leaf == 'kernel'

    def full(self, architecture: str, name: str) -> str:
        """The name in a class for one without the module around the encoder."""
        inside = name.startswith(_IN_ENCODER) and architecture != self.bare
        return f'{self.model_type}.{name}' if inside else name

    def displaced(self, architecture: str) -> tuple[str, ...]:
        """Names of arrays that files of a class may hold and the class has no use for."""
        return tuple(
            f'{_BERT[path]}.{leaf}'
            for path in self.in_class.get(architecture, {})
            for leaf in ('weight', 'bias')
            if _BERT[path].startswith(_IN_ENCODER)
        )


# The one block of a group of ALBERT's.
_GROUP = 'encoder.albert_layer_groups.{}.albert_layers.0.'
NAMES = {
    'bert': Names('bert', 'BertModel', settings={'pad_token_id': 0}),
    'albert': Names(
        'albert',
        'AlbertModel',
        names={
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
        shape={'embedding_size': 'embedding_size', 'num_groups': 'num_hidden_groups'},
        settings={'pad_token_id': 0, 'bos_token_id': 2, 'eos_token_id': 3, 'inner_group_num': 1},
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
    ),
    'roberta': Names(
        'roberta',
        'RobertaModel',
        names={
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
        settings={'pad_token_id': 1, 'bos_token_id': 0, 'eos_token_id': 2},
        # Positions count on from it, so with another id they would begin elsewhere.
        fixed={'pad_token_id': (1,)},
        defaults={'vocab_size': 50265},
    ),
}
