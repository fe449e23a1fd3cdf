"""Fine-tuning step by step, beside transformers' model in the loop of benchmarks.finetune.

Same weights and batches, no dropout.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.configs.schema import OptimizerConfig, RuntimeConfig
from bert_jax.runs.sources.source import load_source
from bert_jax.train import learning_rate, task_heads
from bert_jax.train.state import init_params, load_params_into, make_state
from bert_jax.train.step import make_train_step
from tests.parity import reference
from tests.parity.reference import torch, transformers

STEPS, B, T, V = 12, 8, 16, 50
# The first gradients are above clip_norm.
OPTIMIZER = OptimizerConfig(
    'adamw', peak_lr=3e-3, schedule='linear', weight_decay=1.0, clip_norm=1.0
)


@pytest.fixture
def encoder(tmp_path):
    """A Hugging Face directory of random weights."""
    shape = reference.sizes(vocab_size=V, max_position_embeddings=T)
    reference.random_model('BertModel', **shape).save_pretrained(tmp_path)
    (tmp_path / 'vocab.txt').write_text(
        '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(f'w{i}' for i in range(V - 5))])
        + '\n'
    )
    return str(tmp_path)


def batches(outputs: int) -> list[dict[str, np.ndarray]]:
    """Random rows of different lengths; labels are numbers for one output, else classes."""
    rng = np.random.default_rng(0)
    draw = lambda end, *shape: rng.integers(0, end, shape, dtype=np.int32)
    made = []
    for _ in range(STEPS):
        mask = (np.arange(T) < rng.integers(4, T + 1, (B, 1))).astype(np.int32)
        labels = rng.uniform(0, 5, B).astype('f') if outputs == 1 else draw(outputs, B)
        rows = {'input_ids': draw(V, B, T) * mask, 'segment_ids': draw(2, B, T) * mask}
        made.append({**rows, 'input_mask': mask, 'labels': labels})
    return made


def theirs(
    encoder: str, head: dict[str, np.ndarray], outputs: int, warmup: int
) -> tuple[list[float], list[float]]:
    """-> loss, and norm of the gradient before it is clipped, of every step."""
    from benchmarks.finetune import train  # here, since it defines flags

    problem = {'problem_type': 'regression'} if outputs == 1 else {}
    dtype = torch.float32 if outputs == 1 else torch.long
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        encoder,
        num_labels=outputs,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.0,
        **problem,
    )
    with torch.no_grad():
        model.classifier.weight.copy_(torch.tensor(head['kernel'].T))
        model.classifier.bias.copy_(torch.tensor(head['bias']))
    inputs = [
        reference.tensors(batch) | {'labels': torch.tensor(batch['labels']).to(dtype)}
        for batch in batches(outputs)
    ]
    losses, norms = zip(*train(model, inputs, OPTIMIZER, STEPS, warmup), strict=True)
    return [float(loss) for loss in losses], [float(norm) for norm in norms]


@pytest.mark.parametrize(('head', 'outputs'), [('classifier', 3), ('regressor', 1)])
def test_losses_and_gradients_of_every_step(encoder, head, outputs):
    source, warmup = load_source(encoder), 3
    config = dataclasses.replace(source.model, hidden_dropout=0.0, attention_dropout=0.0)
    model = task_heads.make_model(
        head, config, outputs, 0.0, RuntimeConfig(compute_dtype='float32')
    )
    params = init_params(model, np.uint32(0))
    params = load_params_into(params, {'encoder': source.params['encoder']}, encoder, 'encoder')
    want = theirs(encoder, jax.tree.map(np.array, dict(params['classifier'])), outputs, warmup)
    state, scalars = (
        make_state(params, OPTIMIZER),
        learning_rate.hparams_of(OPTIMIZER, 0, STEPS, warmup_steps=warmup),
    )
    step = jax.jit(make_train_step(task_heads.make_objective(head, model), OPTIMIZER))
    found = ([], [])
    for batch in batches(outputs):
        state, sums = step(state, batch | {'example_weights': np.ones(B, np.float32)}, scalars)
        for values, name in zip(found, ('loss', 'grad_norm'), strict=True):
            values.append(float(sums[name][0] / sums[name][1]))
    # Gradients were clipped, and the weights moved.
    assert max(want[1]) > 2 * OPTIMIZER.clip_norm and abs(want[0][-1] - want[0][0]) > 0.05
    # Rounding gives 1e-3 at most; decaying biases and norms as well, 1e-2.
    np.testing.assert_allclose(found, want, rtol=2e-3)
