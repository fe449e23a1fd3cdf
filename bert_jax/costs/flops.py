"""Parameters and floating-point operations of a model, counted from its shapes alone.

Owns the arithmetic behind every "parameters", "FLOPs" and MFU that is printed. It computes no
array; the parts of a block say what they cost, and what tuning adds and leaves alone is
model/tuning.py's. Counts are logical: the rows that pad the vocabulary table for the hardware are
no parameters, and the decoder tied to the word embeddings is counted once.

    H hidden_size   L num_layers   F intermediate_size   V vocab_size   E embedding_size, or H
    S seq_len       P masked positions a sequence, gathered before the vocabulary projection
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.mesh.sharding import group_by_path
from bert_jax.model import heads
from bert_jax.model.blocks.block import make_parts
from bert_jax.model.tuning import choose_tuning_method
from bert_jax.train import state


@functools.lru_cache(maxsize=64)
def count_by_part(model: ModelConfig, pretraining: bool = True) -> dict[str, int]:
    """Return the number of parameters of each part of a model, by the shapes of its arrays.

    Computed vectors are no parameters.

    Args:
      model: the encoder; what tuning adds to it is not counted.
      pretraining: whether the heads of pre-training count, or the encoder and its pooler alone.
    """
    plain = model.tuned(TuningConfig())
    shapes = group_by_path(state.compute_parameter_shapes(heads.Pretraining(plain)))
    parts = dict[str, int]()
    for path, leaf in shapes.items():
        top, below, *_ = path.split('/')
        of_head = 'shared_head' if top == 'head' else f'{top}_head'
        part = below if top == 'encoder' else of_head
        if path not in model.words.computed and (pretraining or top == 'encoder'):
            parts[part] = parts.get(part, 0) + state.count_weights({path: leaf}, model)
    return parts


def count_parameters(model: ModelConfig, pretraining: bool = True) -> int:
    """Return the number of all parameters, or of the encoder and its pooler alone.

    BERT-base: 110,106,428 in pre-training, 109,482,240 for its encoder with pooler.
    """
    return sum(count_by_part(model, pretraining).values())


def count_flops_by_part(model: ModelConfig, seq_len: int, predictions: int) -> dict[str, int]:
    """Return the FLOPs of one sequence, forward and backward, by part.

    A multiplication by a weight is 2 FLOPs forward and 4 backward, half of them for the gradient of
    what it multiplies; so is one of two activations in attention, whose two products cost 2 S^2 H
    each. With tuning a frozen weight has no gradient of its own, and what lies below everything
    that is trained has none at all. Embedding look-ups, norms, softmax, dropout, scales and the NSP
    classifier (4H) are left out, and so is what rematerialisation repeats: this is the convention
    of model FLOPs utilisation. Left-to-right attention counts in full, because the masked half is
    multiplied too. Blocks that share their weights count each for itself: sharing saves no time.
    """
    H, L, S, E = model.hidden_size, model.num_layers, seq_len, model.embedding_width
    method = choose_tuning_method(model)
    whole = method.trains_matrices
    lowest = 0 if whole else model.tuning.option('frozen_layers')

    # The lowest block that is trained may have an input that nothing is trained below.
    embedded = method.trained_from('encoder/embeddings/norm/bias') is not None
    layers = attention = 0
    for number in range(L):
        reached = number > lowest or (embedded and number == lowest)
        of_block = _count_block(model, number, S, number >= lowest, reached)
        layers, attention = layers + of_block[0], attention + of_block[1]

    # The pooler sees one token a sequence, the MLM head P. The head's own product is trained with
    # any method; its decoder is the word table, which tuning leaves alone, where it is tied.
    of_table = 6 if whole or not model.traits.masked_lm.is_tied else 4
    has_dense = model.traits.masked_lm.has_transform or model.traits.class_head.place == 'all'
    parts = {
        'layers': layers,
        'attention': attention,
        'mlm_head': predictions * (6 * H * E * has_dense + of_table * E * model.vocab_size),
    }
    if model.traits.class_head.in_bare:
        is_trained = method.trained_from('encoder/pooler/kernel') is not None
        parts['pooler'] = (4 + 2 * is_trained) * H * H
    # Below it lie the embeddings: where those are left alone it is only run forward.
    if model.embedding_size:
        backward = 4 if whole else 2 * embedded
        parts['to_hidden'] = (2 + backward) * E * H * S
    if model.convolution:
        backward = 4 if whole else 2 * embedded
        parts['convolution'] = (2 + backward) * model.convolution * H * H * S
    of_words = model.words.flops(model)
    if of_words:
        parts['words'] = S * of_words
    # As in `count_by_part`: two directions of four gates.
    if model.bilstm:
        parts['bilstm'] = 6 * 2 * 4 * (H * H // 2 + (H // 2) ** 2) * S
    return parts


def _count_block(
    model: ModelConfig, number: int, seq_len: int, trained: bool, reached: bool
) -> tuple[int, int]:
    """Return the FLOPs of one sequence in block `number`.

    They are (of products with weights, of attention's two products).

    Args:
      model: the encoder.
      number: the block's.
      seq_len: S.
      trained: whether something in it is.
      reached: whether the gradient of the block's input is needed.
    """
    method, S = choose_tuning_method(model), seq_len
    of_matrix = 2 if method.trains_matrices else 0
    weights = attention = 0

    # In the order of the forward pass: behind the first that something is trained at, all need the
    # gradient of what they multiply.
    for part in make_parts(model, number):
        shapes = part.shapes()
        for names in (part.columns, part.rows):
            for name in names:
                inputs, outputs = shapes[name]
                weights += (2 + 2 * reached + of_matrix) * inputs * outputs * S
                weights += 6 * trained * method.weights(name, inputs, outputs) * S
            reached = reached or (trained and method.begins in names)
            # Products of activations come between the matrices, and have two gradients.
            if names is part.columns:
                attention += (1 + 2 * reached) * part.flops(S)
    return weights, attention


def count_models_flops(
    shapes: Iterable[tuple[ModelConfig, bool]], seq_len: int, predictions: int
) -> int:
    """Return the FLOPs of one sequence in several models, of which some predict masked words."""
    flops = 0
    for model, predicts in shapes:
        flops += count_training_flops(model, seq_len, predictions * predicts)
    return flops


def count_training_flops(model: ModelConfig, seq_len: int, predictions: int) -> int:
    """Return the FLOPs of one sequence: 69.9e9 for BERT-base, S=128, 20 predictions.

    The sum of `count_flops_by_part`.
    """
    return sum(count_flops_by_part(model, seq_len, predictions).values())
