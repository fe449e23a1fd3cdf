"""transformers' BERT and its relatives with random weights: the oracle of these tests.

Also its inputs, and what it makes of them.
"""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.conversion import huggingface
from bert_jax.conversion.trained_model import Model
from bert_jax.model import heads
from bert_jax.train.losses import masked_lm

_REASON = 'PyTorch and transformers are not installed: bash launch/test.sh --parity'
torch = pytest.importorskip('torch', reason=_REASON)
transformers = pytest.importorskip('transformers', reason=_REASON)

# These models are tiny, and threads that wait for each other crawl where cores are shared.
torch.set_num_threads(1)


def random_model(architecture: str, seed: int = 0, **settings) -> torch.nn.Module:
    """A model in evaluation mode whose every array is away from its initial value.

    Biases and norms included.
    """
    kind = getattr(transformers, architecture)
    config = kind.config_class(**{'initializer_range': 0.1, **settings})
    torch.manual_seed(seed)
    model = kind(config).eval()
    # transformers starts [PAD] at zero, and RoBERTa's position of it.
    padding = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            padding[f'{name}.weight'] = module.padding_idx
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
            elif name in padding:
                parameter[padding[name]] = 0.1 * torch.randn(parameter.shape[1])
    return model


def inputs(
    vocab_size: int, rows: int, length: int, seed: int = 0, masked: int = 3
) -> dict[str, np.ndarray]:
    """Random ids in both segments; the first row is full, one of the others has two tokens.

    All but the first are padded.
    """
    rng = np.random.RandomState(seed)
    lengths = np.concatenate([[length], rng.randint(masked, length + 1, rows - 2), [masked]])
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    return {
        'input_ids': (rng.randint(5, vocab_size, (rows, length)) * mask).astype(np.int32),
        'input_mask': mask,
        'segment_ids': ((np.arange(length) >= lengths[:, None] // 2) * mask).astype(np.int32),
        'masked_lm_positions': (
            np.stack([np.sort(rng.choice(n, masked, replace=False)) for n in lengths]).astype(
                np.int32
            )
        ),
        'masked_lm_ids': rng.randint(0, vocab_size, (rows, masked)).astype(np.int32),
        'masked_lm_weights': (rng.rand(rows, masked) < 0.8).astype(np.float32),
        'next_sentence_labels': rng.randint(0, 2, rows).astype(np.int32),
        'example_weights': np.ones(rows, np.float32),
    }


def tensors(batch: dict[str, np.ndarray], segments: bool = True) -> dict[str, Any]:
    """The rows of a batch as torch's, by transformers' names; without segments if they are none."""
    names = {'input_ids': 'input_ids', 'attention_mask': 'input_mask'}
    names |= {'token_type_ids': 'segment_ids'} if segments else {}
    return {theirs: torch.from_numpy(batch[ours]).long() for theirs, ours in names.items()}


def sizes(**changes: Any) -> dict[str, Any]:
    """Settings of a small model, with changes."""
    small = {'vocab_size': 100, 'hidden_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 4}
    return small | {'intermediate_size': 64, 'max_position_embeddings': 32} | changes


def call(model: torch.nn.Module, batch: dict[str, np.ndarray], **more) -> dict[str, np.ndarray]:
    """All that the model gives back for the batch, as numpy arrays by transformers' names."""
    with torch.no_grad():
        found = model(**tensors(batch), output_hidden_states=True, **more)
    return {k: v.numpy() for k, v in found.items() if isinstance(v, torch.Tensor)} | {
        'last_hidden_state': found.hidden_states[-1].numpy()
    }


def gradients(
    model: torch.nn.Module, batch: dict[str, np.ndarray]
) -> tuple[float, torch.nn.Module]:
    """The pre-training loss, and the model with its gradients in the place of its weights."""
    labels = np.full(batch['input_ids'].shape, -100, np.int64)
    rows, places = np.nonzero(batch['masked_lm_weights'])
    labels[rows, batch['masked_lm_positions'][rows, places]] = batch['masked_lm_ids'][rows, places]
    order = 'sentence_order' if model.config.model_type == 'albert' else 'next_sentence'
    loss = model(
        **tensors(batch),
        labels=torch.from_numpy(labels),
        **{f'{order}_label': torch.from_numpy(batch['next_sentence_labels']).long()},
    ).loss
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    return loss.item(), model


def same_gradients(theirs, model: Model, batch, folder: pathlib.Path) -> tuple[Any, float]:
    """Asserts the loss of pre-training and all its slopes; returns ours, and the norm of theirs."""
    objective = masked_lm.make_pretraining_objective(heads.Pretraining(model.config), nsp=True)

    def loss(params):
        sums, weights = objective.sums(params, batch, None), objective.weights(batch)
        return sum(sums[name][0] / weight for name, weight in weights.items())

    value, found = jax.jit(jax.value_and_grad(loss))(model.params)
    wanted_value, slopes = gradients(theirs, batch)
    assert abs(float(value) - wanted_value) < 2e-5
    # Saved as if they were weights, so that reading them brings them into our tree.
    slopes.save_pretrained(folder)
    wanted = huggingface.read(folder).model.params
    norm = np.sqrt(sum(np.square(w).sum() for w in jax.tree.leaves(wanted)))
    bound = jax.tree.map(lambda w: 1e-4 * max(np.abs(w).max(), 1e-3 * norm), wanted)
    fits = jax.tree.map(lambda g, w, b: bool(np.abs(g - w).max() <= b), found, wanted, bound)
    assert jax.tree.all(fits), fits
    return found, norm
