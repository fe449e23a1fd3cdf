"""Parameters and floating-point operations of a model, counted from its shapes alone.

Owns the arithmetic behind every "parameters", "FLOPs" and MFU that is printed. It builds no
model; what tuning adds and leaves alone is model/added.py's. Counts are logical: the rows that pad
the vocabulary table for the hardware are no parameters, and the decoder tied to the word embeddings
is counted once.

    H hidden_size   L num_layers   F intermediate_size   V vocab_size   E embedding_size, or H
    S seq_len       P masked positions a sequence, gathered before the vocabulary projection
"""

from __future__ import annotations

from bert_jax.configs.schema import ModelConfig
from bert_jax.model.added import added_by, trained_from


def parameters(model: ModelConfig, pretraining: bool = True) -> dict[str, int]:
    """Number of parameters of each part; without `pretraining` of the encoder and its pooler alone.

    Shapes: google-research/bert modeling.py:150-234, run_pretraining.py:243-305.
    """
    H, F, V, E = (
        model.hidden_size,
        model.intermediate_size,
        model.vocab_size,
        model.embedding_width,
    )

    def dense(inputs: int, outputs: int) -> int:
        return inputs * outputs + outputs

    # scale and bias; then of a block: query, key, value and output, a norm, the feed-forward part,
    # a norm.
    norm, narrow_norm = 2 * H, 2 * E
    layer = 4 * dense(H, H) + norm + dense(H, F) + dense(F, H) + norm
    to_hidden = dense(E, H) if model.embedding_size else 0
    rows = model.position_rows + model.type_vocab_size
    parts = {
        'embeddings': model.words.parameters(model) + rows * E + narrow_norm + to_hidden,
        'layers': model.own_blocks * layer,
        'pooler': dense(H, H),
    }
    # Two directions of four gates, each of H / 2 from H inputs and the H / 2 of its own state.
    if model.bilstm:
        parts['bilstm'] = 2 * 4 * (dense(H, H // 2) + (H // 2) ** 2)
    # A decoder that is the word table is counted above: of its own it has a bias for each word.
    if pretraining:
        decoder = V * E - model.words.table(model)
        parts['mlm_head'] = dense(H, E) + narrow_norm + decoder + V
        if model.traits.pairs:
            parts['nsp_head'] = dense(H, 2)
    return parts


def parameter_count(model: ModelConfig, pretraining: bool = True) -> int:
    """Number of all parameters; without `pretraining` of the encoder and its pooler alone.

    BERT-base: 110,106,428 in pre-training, 109,482,240 for its encoder with pooler.
    """
    return sum(parameters(model, pretraining).values())


def training_flops(model: ModelConfig, seq_len: int, predictions: int) -> dict[str, int]:
    """FLOPs of one sequence, forward and backward, by part.

    A multiplication by a weight is 2 FLOPs forward and 4 backward, half of them for the gradient of
    what it multiplies; so is one of two activations in attention, whose two products cost 2 S^2 H
    each. With tuning a frozen weight has no gradient of its own, and what lies below everything
    that is trained has none at all. Embedding look-ups, norms, softmax, dropout, scales and the NSP
    classifier (4H) are left out, and so is what rematerialisation repeats: this is the convention
    of model FLOPs utilisation. Left-to-right attention counts in full, because the masked half is
    multiplied too. Blocks that share their weights count each for itself: sharing saves no time.
    """
    H, L, S, E = model.hidden_size, model.num_layers, seq_len, model.embedding_width
    whole = model.tuning.method == 'full'
    lowest = 0 if whole else model.tuning.option('frozen_layers')

    # The lowest block that is trained may have an input that nothing is trained below.
    embedded = trained_from('encoder/embeddings/norm/bias', model) is not None
    first, rest = _block(model, S, embedded), _block(model, S, True)
    forward = 2 * (4 * H * H + 2 * H * model.intermediate_size) * S, 4 * H * S * S
    layers, attention = (
        lowest * below + at_first + (L - lowest - 1) * above
        for below, at_first, above in zip(forward, first, rest, strict=True)
    )

    # The pooler sees one token a sequence, the MLM head P. The head's own product is trained with
    # any method; its decoder is the word table, which tuning leaves alone.
    pooler = 6 if trained_from('encoder/pooler/kernel', model) is not None else 4
    parts = {
        'layers': layers,
        'attention': attention,
        'mlm_head': predictions * (6 * H * E + (6 if whole else 4) * E * model.vocab_size),
        'pooler': pooler * H * H,
    }
    # Below it lie the embeddings: where those are left alone it is only run forward.
    if model.embedding_size:
        backward = 4 if whole else 2 * embedded
        parts['to_hidden'] = (2 + backward) * E * H * S
    if of_words := model.words.flops(model):
        parts['words'] = S * of_words
    # As in `parameters`: two directions of four gates.
    if model.bilstm:
        parts['bilstm'] = 6 * 2 * 4 * (H * H // 2 + (H // 2) ** 2) * S
    return parts


def _block(model: ModelConfig, seq_len: int, reached: bool) -> tuple[int, int]:
    """FLOPs of one sequence in a block that is trained: (of weights, of attention's two products).

    reached: whether the gradient of its input is needed.
    """
    H, F, S = model.hidden_size, model.intermediate_size, seq_len
    added, own = added_by(model), 2 if model.tuning.method == 'full' else 0
    weights = attention = 0

    # In the order of the forward pass: behind the first that something is trained at, all need the
    # gradient of what they multiply.
    for names, inputs, outputs in (
        (('query', 'key', 'value'), H, H),
        (('attention_output',), H, H),
        (('intermediate',), H, F),
        (('output',), F, H),
    ):
        for name in names:
            weights += (2 + 2 * reached + own) * inputs * outputs * S
            weights += 6 * added.weights(name, inputs, outputs) * S
        reached = reached or added.begins in names
        if 'query' in names:
            attention = (4 + 8 * reached) * H * S * S
    return weights, attention


def training_flops_per_sequence(model: ModelConfig, seq_len: int, predictions: int) -> int:
    """FLOPs of one sequence, forward and backward: 69.9e9 for BERT-base, S=128, 20 predictions.

    The sum of `training_flops`.
    """
    return sum(training_flops(model, seq_len, predictions).values())
