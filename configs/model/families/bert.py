"""BERT, Devlin et al. 2018: the names that the other families differ from.

Sources of Google's names: google-research/bert modeling.py, run_pretraining.py:243-305,
run_classifier.py:597-605, run_squad.py:573-579; of its defaults modeling.py:34-45. Our linear
layers are modules with 'kernel' and 'bias'; Google names those of the heads for pairs and tasks
singly, and so do the tables below.
"""

from __future__ import annotations

from bert_jax.configs.model.families.family import Family, GoogleNames, Name, TransformersNames

ARRAYS: dict[str, Name] = {
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
    'encoder/pooler': 'pooler.dense',
    'mlm/transform': 'cls.predictions.transform.dense',
    'mlm/norm': 'cls.predictions.transform.LayerNorm',
    'mlm/bias': 'cls.predictions.bias',
    'nsp': 'cls.seq_relationship',
    'classifier': 'classifier',
    'span': 'qa_outputs',
}
GOOGLE_ARRAYS: dict[str, Name] = {
    'encoder/embeddings/word': 'bert/embeddings/word_embeddings',
    'encoder/embeddings/position': 'bert/embeddings/position_embeddings',
    'encoder/embeddings/segment': 'bert/embeddings/token_type_embeddings',
    'encoder/embeddings/norm': 'bert/embeddings/LayerNorm',
    'encoder/layers/query': 'bert/encoder/layer_{}/attention/self/query',
    'encoder/layers/key': 'bert/encoder/layer_{}/attention/self/key',
    'encoder/layers/value': 'bert/encoder/layer_{}/attention/self/value',
    'encoder/layers/attention_output': 'bert/encoder/layer_{}/attention/output/dense',
    'encoder/layers/attention_norm': 'bert/encoder/layer_{}/attention/output/LayerNorm',
    'encoder/layers/intermediate': 'bert/encoder/layer_{}/intermediate/dense',
    'encoder/layers/output': 'bert/encoder/layer_{}/output/dense',
    'encoder/layers/output_norm': 'bert/encoder/layer_{}/output/LayerNorm',
    'encoder/pooler': 'bert/pooler/dense',
    'mlm/transform': 'cls/predictions/transform/dense',
    'mlm/norm': 'cls/predictions/transform/LayerNorm',
    'mlm/bias': 'cls/predictions/output_bias',
    'nsp/kernel': 'cls/seq_relationship/output_weights',
    'nsp/bias': 'cls/seq_relationship/output_bias',
    'classifier/kernel': 'output_weights',
    'classifier/bias': 'output_bias',
    'span/kernel': 'cls/squad/output_weights',
    'span/bias': 'cls/squad/output_bias',
}
GOOGLE_SETTINGS = {
    'vocab_size': ('vocab_size', None),
    'hidden_size': ('hidden_size', 768),
    'num_layers': ('num_hidden_layers', 12),
    'num_heads': ('num_attention_heads', 12),
    'intermediate_size': ('intermediate_size', 3072),
    'max_position': ('max_position_embeddings', 512),
    'type_vocab_size': ('type_vocab_size', 16),
    'hidden_act': ('hidden_act', 'gelu'),
    'hidden_dropout': ('hidden_dropout_prob', 0.1),
    'attention_dropout': ('attention_probs_dropout_prob', 0.1),
    'initializer_range': ('initializer_range', 0.02),
}

FAMILY = Family(
    'BERT',
    TransformersNames('bert', 'Bert', ARRAYS, written={'pad_token_id': 0}),
    GoogleNames(
        'google-research/bert',
        'bert_config.json',
        'bert_model.ckpt',
        GOOGLE_ARRAYS,
        GOOGLE_SETTINGS,
    ),
    has_peft=True,
)
