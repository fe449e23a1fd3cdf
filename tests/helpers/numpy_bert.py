"""The paper's forward pass written in numpy, and batches for it."""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
import scipy.special

from bert_jax.configs.schema import ModelConfig
from bert_jax.model import layout
from bert_jax.train.state import init_params


def make_batch(
    config: ModelConfig, rows: int = 4, length: int = 16, masked: int = 3, seed: int = 0
) -> dict[str, np.ndarray]:
    """Random ids, the later rows padded, both segments in use."""
    rng = np.random.RandomState(seed)
    lengths = rng.randint(length // 2, length + 1, rows)
    mask = (np.arange(length)[None] < lengths[:, None]).astype(np.int32)
    positions = np.stack([rng.choice(n, masked, replace=False) for n in lengths])
    return {
        'input_ids': (rng.randint(0, config.vocab_size, (rows, length)) * mask).astype(np.int32),
        'input_mask': mask,
        'segment_ids': ((np.arange(length)[None] >= lengths[:, None] // 2) * mask).astype(np.int32),
        'masked_lm_positions': positions.astype(np.int32),
        'masked_lm_ids': rng.randint(0, config.vocab_size, (rows, masked)).astype(np.int32),
        'masked_lm_weights': np.ones((rows, masked), np.float32),
        'next_sentence_labels': rng.randint(0, 2, rows).astype(np.int32),
        'example_weights': np.ones(rows, np.float32),
    }


def noisy_params(model, seed: int = 0):
    """Parameters away from their initial zeros and ones, so that every term shows.

    Rows that pad the vocabulary stay zero.
    """
    rng = np.random.RandomState(seed)

    def draw(path, leaf):
        return (path[-1].key == 'scale') + rng.normal(0, 0.1, leaf.shape).astype(np.float32)

    params = jax.tree_util.tree_map_with_path(draw, _shapes(model))
    if 'word' in (tables := params.get('encoder', {}).get('embeddings', {})):
        tables['word'][model.config.vocab_size :] = 0
    if 'bias' in (head := params.get('mlm', {})):
        head['bias'][model.config.vocab_size :] = 0
    return params


@functools.cache  # many tests of a file draw parameters of one model
def _shapes(model):
    return jax.eval_shape(lambda: init_params(model, 0))


ACTIVATION = {
    'gelu_tanh': lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    'gelu_erf': lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    'relu': lambda x: np.maximum(x, 0),
}


def numpy_bilstm(p, x, lengths):
    """Row by row over the real tokens alone, each direction from a zero state.

    Hochreiter and Schmidhuber's cell with a forget gate.
    """
    sigmoid = lambda z: 1 / (1 + np.exp(-z))
    D = len(p['forward']['hi']['kernel'])
    out = np.zeros((*x.shape[:2], 2 * D))
    for row, length in enumerate(lengths):
        for direction, columns, order in (
            ('forward', slice(D), range(length)),
            ('backward', slice(D, None), reversed(range(length))),
        ):
            w = p[direction]
            c, h = np.zeros(D), np.zeros(D)
            for t in order:
                i, f, g, o = (
                    x[row, t] @ w[f'i{n}']['kernel'] + h @ w[f'h{n}']['kernel'] + w[f'h{n}']['bias']
                    for n in 'ifgo'
                )
                c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(c)
                out[row, t, columns] = h
    return out


def norm(x, n, eps=1e-12):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + eps) * n['scale'] + n.get('bias', 0)


def dense(x, d):
    return x @ d['kernel'] + d.get('bias', 0)


def turned(x_BNTD, theta):
    """RoFormer's formula: pairs are complex numbers, multiplied by exp(i position speed)."""
    half = x_BNTD.shape[-1] // 2
    pairs = x_BNTD[..., :half] + 1j * x_BNTD[..., half:]
    speeds = np.array([theta ** (-2 * j / (2 * half)) for j in range(half)])
    pairs = pairs * np.exp(1j * np.arange(x_BNTD.shape[2])[:, None] * speeds)
    return np.concatenate([pairs.real, pairs.imag], -1)


def as64(tree):
    """A tree with its blocks in stacks, in float64."""
    return layout.stack_blocks(jax.tree.map(lambda x: np.asarray(x, np.float64), tree))


def numpy_encode(encoder, c: ModelConfig, batch, linear=None, residual=None):
    """Hidden states, and pooled output where there is a pooler, in float64, block by block.

    linear(layer, name, x) and residual(layer, name, x, out), where given, take the places of a
    block's product by the matrix `name`, and of the norm of the sum after it.
    """
    linear = linear or (lambda layer, name, x: dense(x, layer[name]))
    norms = {'attention_output': 'attention_norm', 'output': 'output_norm'}
    is_pre = c.norm == 'pre'
    residual = residual or (
        lambda layer, name, x, out: (
            x + out if is_pre else norm(x + out, layer[norms[name]], c.layer_norm_eps)
        )
    )
    read = lambda layer, name, x: norm(x, layer[norms[name]], c.layer_norm_eps) if is_pre else x
    encoder = as64({'encoder': encoder})['encoder']
    e, layers = encoder['embeddings'], encoder['layers']

    x = (
        e['word'][batch['input_ids']]
        + e['segment'][batch['segment_ids']]
        + (e['position'][: batch['input_ids'].shape[1]] if 'position' in e else 0)
    )
    x = norm(x, e['norm'], c.layer_norm_eps)
    x = dense(x, e['to_hidden']) if 'to_hidden' in e else x
    B, T, H = x.shape
    D = H // c.num_heads
    for i in range(c.num_layers):
        # The group of block i (google-research/albert modeling.py:1089-1110).
        layer = jax.tree.map(lambda w, i=i: w[i * len(w) // c.num_layers], layers)
        q, k, v = (
            linear(layer, n, read(layer, 'attention_output', x))
            .reshape(B, T, c.num_heads, D)
            .transpose(0, 2, 1, 3)
            for n in ('query', 'key', 'value')
        )
        is_local = c.local_window is not None and i % c.global_every != 0
        if c.positions == 'rotary':
            theta = c.local_rope_theta if is_local and c.local_rope_theta else c.rope_theta
            q, k = turned(q, theta), turned(k, theta)
        scores = (
            q @ k.transpose(0, 1, 3, 2) / math.sqrt(D)
            + (1 - batch['input_mask'][:, None, None, :]) * -10000.0
        )
        if c.attention == 'left_to_right':
            scores = np.where(np.arange(T)[:, None] >= np.arange(T), scores, -np.inf)
        if is_local:
            away = np.abs(np.arange(T)[:, None] - np.arange(T))
            scores = np.where(away <= c.local_window, scores, -np.inf)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        context = (probs @ v).transpose(0, 2, 1, 3).reshape(B, T, H)
        x = residual(layer, 'attention_output', x, linear(layer, 'attention_output', context))
        read_x = read(layer, 'output', x)
        h = ACTIVATION[c.hidden_act](linear(layer, 'intermediate', read_x))
        h = h * linear(layer, 'gate', read_x) if c.feed_forward == 'geglu' else h
        x = residual(layer, 'output', x, linear(layer, 'output', h))
    x = norm(x, encoder['final_norm'], c.layer_norm_eps) if is_pre else x
    if c.bilstm:
        x = numpy_bilstm(encoder['bilstm'], x, batch['input_mask'].sum(1))
    at = batch['input_mask'].sum(1) - 1 if c.attention == 'left_to_right' else 0
    pooler = encoder.get('pooler')
    return x, pooler and np.tanh(dense(x[np.arange(B), at], pooler))


def numpy_forward(p, c: ModelConfig, batch):
    """Hidden states, pooled output, masked-LM logits and NSP logits."""
    x, pooled = numpy_encode(p['encoder'], c, batch)
    p = as64(p)
    m, e = p['mlm'], p['encoder']['embeddings']
    # A left-to-right model says the next token: the one after the state that is read.
    before = c.attention == 'left_to_right' and not c.bilstm
    at = x[np.arange(len(x))[:, None], np.maximum(batch['masked_lm_positions'] - before, 0)]
    at = norm(ACTIVATION[c.hidden_act](dense(at, m['transform'])), m['norm'], c.layer_norm_eps)
    decoder = m['decoder'] if 'decoder' in m else e['word']
    logits = at @ decoder[: c.vocab_size].T + m['bias'][: c.vocab_size]
    return x, pooled, logits, dense(pooled, p['nsp'])


def mlm_loss(params, config: ModelConfig, batches) -> float:
    """The mean masked-LM loss of records over all of their masks."""
    total = weight = 0.0
    for batch in batches:
        log_p = scipy.special.log_softmax(numpy_forward(params, config, batch)[2], axis=-1)
        chosen = np.take_along_axis(log_p, batch['masked_lm_ids'][..., None], -1)[..., 0]
        weights = batch['masked_lm_weights'] * batch['example_weights'][:, None]
        total, weight = total - (chosen * weights).sum(), weight + weights.sum()
    return total / weight
