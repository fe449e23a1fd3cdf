"""Make what benchmarks.train_step measures ours beside: transformers' models and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make_bert_loss(model: Any, arrays: dict[str, Any], gathered: bool) -> Callable[[], Any]:
    """Return the loss of our batch, as people run it or of the masked positions alone."""
    import torch

    # They want the labels of masked words in place, -100 everywhere else.
    positions, ids = arrays['masked_lm_positions'], arrays['masked_lm_ids']
    labels = torch.full_like(arrays['input_ids'], -100).scatter(1, positions, ids)
    swapped = arrays['next_sentence_labels']
    inputs = {
        'input_ids': arrays['input_ids'],
        'attention_mask': arrays['input_mask'],
        'token_type_ids': arrays['segment_ids'],
    }

    def loss_as_people_run_it() -> Any:
        return model(**inputs, labels=labels, next_sentence_label=swapped).loss

    def loss_gathered() -> Any:
        # The encoder alone, then the head on the P masked positions: what ours does, in their code.
        hidden, pooled = model.bert(**inputs)[:2]
        indices = positions[..., None].expand(-1, -1, hidden.shape[-1])
        words, order = model.cls(hidden.gather(1, indices), pooled)
        entropy = torch.nn.functional.cross_entropy
        return entropy(words.flatten(0, 1).float(), ids.flatten()) + entropy(order.float(), swapped)

    return loss_gathered if gathered else loss_as_people_run_it


def make_modern_loss(model: Any, arrays: dict[str, Any], gathered: bool) -> Callable[[], Any]:
    """Return ModernBERT's masked-LM loss of our batch, packed or not, in both forms.

    With SDPA transformers packs no rows by itself: it takes a mask for each kind of block, and the
    positions. Its one dropout of attention would be on probabilities too: it is left out.
    """
    import torch

    positions, ids = arrays['masked_lm_positions'], arrays['masked_lm_ids']
    labels = torch.full_like(arrays['input_ids'], -100).scatter(1, positions, ids)
    inputs = {'input_ids': arrays['input_ids'], 'attention_mask': arrays.get('input_mask')}
    if 'pack_ids' in arrays:
        packs, places = arrays['pack_ids'], arrays['position_ids']
        shared = packs[:, None, :, None] == packs[:, None, None, :]
        distances = (places[:, None, :, None] - places[:, None, None, :]).abs()
        near = shared & (distances <= model.config.local_attention // 2)
        masks = {'full_attention': shared, 'sliding_attention': near}
        inputs |= {'attention_mask': masks, 'position_ids': places}

    def loss_as_people_run_it() -> Any:
        return model(**inputs, labels=labels).loss

    def loss_gathered() -> Any:
        hidden = model.model(**inputs).last_hidden_state
        indices = positions[..., None].expand(-1, -1, hidden.shape[-1])
        words = model.decoder(model.head(hidden.gather(1, indices)))
        return torch.nn.functional.cross_entropy(words.flatten(0, 1).float(), ids.flatten())

    return loss_gathered if gathered else loss_as_people_run_it


def make_model(shape: Any) -> Any:
    """Make the same model by transformers' names; gelu_new is the tanh form."""
    import transformers

    sizes = {
        'vocab_size': shape.vocab_size,
        'hidden_size': shape.hidden_size,
        'num_hidden_layers': shape.num_layers,
        'num_attention_heads': shape.num_heads,
        'intermediate_size': shape.intermediate_size,
        'max_position_embeddings': shape.max_position,
        'attn_implementation': 'sdpa',
    }
    if shape.family == 'modernbert':
        theta = {'rope_type': 'default', 'rope_theta': shape.rope_theta}
        local = theta | {'rope_theta': shape.local_rope_theta or shape.rope_theta}
        kinds = ('full_attention', 'sliding_attention')
        return transformers.ModernBertForMaskedLM(
            transformers.ModernBertConfig(
                **sizes,
                local_attention=2 * shape.local_window,
                layer_types=[kinds[shape.window(i) is not None] for i in range(shape.num_layers)],
                rope_parameters=dict(zip(kinds, (theta, local), strict=True)),
                attention_dropout=shape.attention_dropout,
                # Special tokens are in no batch here, and the defaults lie beyond small tables.
                **dict.fromkeys(('pad_token_id', 'bos_token_id', 'eos_token_id'), 0),
                **dict.fromkeys(('cls_token_id', 'sep_token_id'), 0),
            )
        )
    return transformers.BertForPreTraining(
        transformers.BertConfig(
            **sizes,
            hidden_act='gelu_new',
            hidden_dropout_prob=shape.hidden_dropout,
            attention_probs_dropout_prob=shape.attention_dropout,
        )
    )
