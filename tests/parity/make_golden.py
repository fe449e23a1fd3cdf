"""Writes tests/golden/huggingface: a tiny BertForPreTraining as transformers saves it.

Beside it what transformers makes of a batch.
"""

from __future__ import annotations

import pathlib

from safetensors.numpy import save_file

from tests.parity import reference

FOLDER = pathlib.Path(__file__).parents[1] / 'golden' / 'huggingface'
SETTINGS = {
    'vocab_size': 40,
    'hidden_size': 16,
    'num_hidden_layers': 2,
    'num_attention_heads': 2,
    'intermediate_size': 32,
    'max_position_embeddings': 12,
    'initializer_range': 0.4,
}


def main() -> None:
    batch = reference.inputs(40, rows=4, length=12)
    expected = {f'batch/{name}': value for name, value in batch.items()}
    for act in ('gelu_new', 'relu', 'gelu'):
        model = reference.random_model('BertForPreTraining', hidden_act=act, **SETTINGS)
        found = reference.call(model, batch)
        pooled = reference.call(model.bert, batch)['pooler_output']
        names = {
            'hidden': 'last_hidden_state',
            'mlm': 'prediction_logits',
            'nsp': 'seq_relationship_logits',
        }
        expected |= {f'{act}/{ours}': found[theirs] for ours, theirs in names.items()} | {
            f'{act}/pooled': pooled
        }
    model.save_pretrained(FOLDER)
    save_file(expected, FOLDER / 'expected.safetensors')


if __name__ == '__main__':
    main()
