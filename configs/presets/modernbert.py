"""ModernBERT (Warner et al. 2024), and Ettin and mmBERT, which have its architecture."""

from __future__ import annotations

import dataclasses
from typing import Any

from bert_jax.configs.schema import (
    ModelConfig,
    OptimizerConfig,
    Phase,
    PretrainConfig,
    RuntimeConfig,
)


def make_shape(
    num_layers: int, hidden_size: int, intermediate_size: int, **others: Any
) -> ModelConfig:
    """Return an encoder of ModernBERT with heads of 64, but for `others`.

    Dropout is that of training: 0.1 on attention's output, and nowhere else.
    """
    settings: dict[str, Any] = {
        'vocab_size': 50368,
        'num_heads': hidden_size // 64,
        'max_position': 8192,
        'type_vocab_size': 0,
        'hidden_act': 'gelu_erf',
        'hidden_dropout': 0.0,
        'attention_dropout': 0.0,
        'attention_output_dropout': 0.1,
        'layer_norm_eps': 1e-5,
        'family': 'modernbert',
        'norm': 'pre',
        'use_bias': False,
        'positions': 'rotary',
        'local_window': 64,
        'feed_forward': 'geglu',
        'initialization': 'full_megatron',
    }
    return ModelConfig(
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        **settings | others,
    )


def make_run(
    name: str,
    model: ModelConfig,
    peak_lr: float,
    batch: tuple[int, int],
    tokens: tuple[float, float, float],
    **optimizer: Any,
) -> PretrainConfig:
    """Return a run of the first phase: rows of 1,024 tokens, a constant rate after warm-up.

    Args:
      name: the preset's.
      model: the encoder.
      peak_lr: the rate.
      batch: rows of the first steps and of those at the end; it grows in multiples of the first.
      tokens: of the whole phase, of the rate's warm-up, and of the batch's growth.
      optimizer: settings that are not those of ModernBERT's base model.
    """
    first, whole = batch
    total, warmup, growth = tokens
    # Each size is kept for as many steps as the others.
    sizes = first * sum(range(1, whole // first))
    each = round(growth / (1024 * sizes))
    phase = Phase(
        seq_len=1024,
        steps=round(
            (total - growth) / (1024 * whole) + growth / (1024 * sizes) * (whole // first - 1)
        ),
        batch_size=whole,
        batch_warmup_from=first,
        batch_warmup_steps=each,
    )
    settings: dict[str, Any] = {
        'algorithm': 'stable_adamw',
        'schedule': 'constant',
        'warmup_steps': _count_steps(warmup / 1024, first, each, whole),
        'b2': 0.98,
        'decay': 'fully_decoupled',
        'weight_decay': 1e-5,
        'clip_norm': None,
    }
    return PretrainConfig(
        name=name,
        model=model,
        phases=(phase,),
        optimizer=OptimizerConfig(peak_lr=peak_lr, **settings | optimizer),
        runtime=RuntimeConfig(compute_dtype='bfloat16', accumulation=whole // first),
    )


def _count_steps(rows: float, first: int, each: int, whole: int) -> int:
    """Return how many steps read so many rows: `each` of `first` rows, of twice as many, ..."""
    steps = 0.0
    for size in range(first, whole, first):
        if rows <= each * size:
            return round(steps + rows / size)
        steps, rows = steps + each, rows - each * size
    return round(steps + rows / whole)


def make_mmbert_run(name: str, hidden_size: int) -> PretrainConfig:
    """Return mmBERT's first phase for an encoder of a width."""
    model = make_shape(22, hidden_size, 1152, vocab_size=256_000)
    differing = {'b2': 0.95, 'eps': 1e-8, 'weight_decay': 8e-5}
    return make_run(name, model, 8e-4, (768, 4608), (2e12, 3e9, 60e9), **differing)


# Tokens of a step of ModernBERT and mmBERT, in every phase.
_STEP_TOKENS = 4608 * 1024


def add_phases(run: PretrainConfig, name: str, *later: tuple[float, Phase]) -> PretrainConfig:
    """Return a run with further phases on rows of 8,192 tokens, each of so many tokens."""
    phases = list(run.phases)
    for tokens, phase in later:
        steps = round(tokens / _STEP_TOKENS)
        phases.append(dataclasses.replace(phase, seq_len=8192, steps=steps, batch_size=576))
    return dataclasses.replace(run, name=name, phases=tuple(phases))


def modernbert_base_recipe() -> PretrainConfig:
    """Return all of ModernBERT-base's pre-training: three phases.

    1.719 trillion tokens in rows of 1,024, then 250 billion in rows of 8,192 with another rotary
    base in global layers, and 50 billion over which the rate falls (AnswerDotAI/ModernBERT
    yamls/modernbert). The authors averaged checkpoints of the last phase. Never run here.
    """
    constant = Phase(
        schedule='constant',
        peak_lr=3e-4,
        warmup_steps=0,
        rope_theta=160_000.0,
        local_rope_theta=10_000.0,
    )
    decay = dataclasses.replace(
        constant, schedule='wsd', decay_fraction=1.0, decay_shape='one_minus_sqrt', end_lr=3e-7
    )
    return add_phases(modernbert_base(), 'modernbert_base_recipe', (250e9, constant), (50e9, decay))


def add_mmbert_phases(run: PretrainConfig, name: str) -> PretrainConfig:
    """Return a run of mmBERT with the two phases of more languages and fewer masks."""
    more = Phase(
        schedule='constant',
        warmup_steps=0,
        rope_theta=160_000.0,
        local_rope_theta=160_000.0,
        masked_lm_prob=0.15,
    )
    decay = dataclasses.replace(
        more,
        schedule='wsd',
        decay_fraction=1.0,
        decay_shape='one_minus_sqrt',
        end_lr=1.6e-5,
        masked_lm_prob=0.05,
    )
    return add_phases(run, name, (600e9, more), (100e9, decay))


def mmbert_base_recipe() -> PretrainConfig:
    """Return all of mmBERT-base's pre-training: three phases, of 60, 110 and 1,833 languages.

    Two trillion tokens, 600 and 100 billion; 30, 15 and 5 % of them masked, which takes records
    with --masking=dynamic (Marone et al. 2025 and its repository's configs, of which phase 1 says
    25 %). That the batch grows from 768 and the rate warms up over 3 billion tokens is ModernBERT's
    and not stated there. Never run here.
    """
    return add_mmbert_phases(mmbert_base(), 'mmbert_base_recipe')


def mmbert_small_recipe() -> PretrainConfig:
    """Return all of mmBERT-small's pre-training, as mmbert_base_recipe. Never run here."""
    return add_mmbert_phases(mmbert_small(), 'mmbert_small_recipe')


def modernbert_base() -> PretrainConfig:
    """Return ModernBERT-base, first phase (22 layers, H=768, F=1152): 149,014,272 parameters.

    149,655,232 with the masked-LM head. Recipe: AnswerDotAI/ModernBERT yamls/modernbert, 1.719
    trillion tokens in packed rows of 1,024, theta 10,000 everywhere; modernbert_base_recipe has
    the two phases on 8,192 tokens that follow. Hardware: 191 hours of eight H100 there; never run
    here.
    """
    return make_run(
        'modernbert_base', make_shape(22, 768, 1152), 8e-4, (768, 4608), (1.719e12, 3e9, 50e9)
    )


def modernbert_large() -> PretrainConfig:
    """Return ModernBERT-large, first phase (28 layers, H=1024, F=2624): 394,781,696 parameters.

    395,881,664 with the masked-LM head. Recipe: AnswerDotAI/ModernBERT yamls/modernbert; its
    weights began as those of modernbert_base, tiled. After 900 billion tokens the rate was lowered
    to 5e-5.

    Hardware: 420 hours of eight H100 there; never run here.
    """
    return make_run(
        'modernbert_large', make_shape(28, 1024, 2624), 5e-4, (448, 4928), (1.719e12, 2e9, 10e9)
    )


def ettin_17m() -> PretrainConfig:
    """Return Ettin-17m, the encoder (Weller et al. 2025; 7 layers, H=256, F=384).

    16,797,440 parameters, 16,913,600 with the masked-LM head. ModernBERT's architecture and
    vocabulary. Its own recipe has 1.7 trillion tokens; rate and batch here are modernbert_base's,
    which are not known to be Ettin's. Never run here.
    """
    return make_run('ettin_17m', make_shape(7, 256, 384), 8e-4, (768, 4608), (1.7e12, 3e9, 50e9))


def ettin_32m() -> PretrainConfig:
    """Return Ettin-32m, the encoder (Weller et al. 2025; 10 layers, H=384, F=576).

    31,883,136 parameters, 32,081,344 with the masked-LM head. ModernBERT's architecture and
    vocabulary. Its own recipe has 1.7 trillion tokens; rate and batch here are modernbert_base's,
    which are not known to be Ettin's. Never run here.
    """
    return make_run('ettin_32m', make_shape(10, 384, 576), 8e-4, (768, 4608), (1.7e12, 3e9, 50e9))


def ettin_68m() -> PretrainConfig:
    """Return Ettin-68m, the encoder (Weller et al. 2025; 19 layers, H=512, F=768).

    68,144,640 parameters, 68,457,664 with the masked-LM head. ModernBERT's architecture and
    vocabulary. Its own recipe has 1.7 trillion tokens; rate and batch here are modernbert_base's,
    which are not known to be Ettin's. Never run here.
    """
    return make_run('ettin_68m', make_shape(19, 512, 768), 8e-4, (768, 4608), (1.7e12, 3e9, 50e9))


def mmbert_base() -> PretrainConfig:
    """Return mmBERT-base, phase 1 (Marone et al. 2025; 22 layers, H=768, F=1152).

    306,939,648 parameters, 307,786,240 with the masked-LM head. ModernBERT's architecture with a
    vocabulary of 256,000 entries.

    Recipe: its repository's configs: rate 8e-4, batch 4,608, 2 trillion tokens on 60 languages at
    first; mmbert_base_recipe has the three phases. Never run here.
    """
    return make_mmbert_run('mmbert_base', 768)


def mmbert_small() -> PretrainConfig:
    """Return mmBERT-small, phase 1 (Marone et al. 2025; 22 layers, H=384, F=1152).

    140,493,696 parameters, 140,897,536 with the masked-LM head. ModernBERT's architecture with a
    vocabulary of 256,000 entries.

    Recipe: its repository's configs: rate 8e-4, batch 4,608, 2 trillion tokens on 60 languages at
    first; mmbert_base_recipe has the three phases. Never run here.
    """
    return make_mmbert_run('mmbert_small', 384)


def modernbert_tiny_cpu() -> PretrainConfig:
    r"""Return ModernBERT for two CPU cores (4 layers, H=256, F=384): 6,326,528 parameters.

        bert-train-vocab --model=byte_bpe --layout=modernbert --vocab_size=16000 \
            --input=text.txt --output=vocab
        bert-preprocess --input=text.txt --tokenizer=vocab --output=records128 --seq_len=128 \
            --objective=full_sentences --cut_sentences --short_seq_prob=0 --packing \
            --masked_lm_prob=0.3 --max_predictions=39
        bert-pretrain --config=modernbert_tiny_cpu --data=records128 --workdir=DIR

    The architecture and the optimizer of modernbert_base, at the width and with the initial
    deviation of bert_mini_cpu: windows of 16 tokens on each side in two of three layers, rows of
    128 tokens. Rate and deviation were tried in short runs (docs/results.md): 0.0625 leaves the
    unigram plateau sooner than 0.02, and after 75 steps 3e-3 was behind 1e-3. 3,000 steps were
    never run.
    """
    return PretrainConfig(
        name='modernbert_tiny_cpu',
        model=make_shape(
            4,
            256,
            384,
            vocab_size=16_000,
            max_position=1024,
            local_window=16,
            attention_output_dropout=None,
            initializer_range=0.0625,
        ),
        phases=(Phase(seq_len=128, steps=3000, batch_size=16),),
        optimizer=OptimizerConfig(
            'stable_adamw',
            peak_lr=1e-3,
            schedule='wsd',
            decay_shape='one_minus_sqrt',
            warmup_steps=100,
            b2=0.98,
            decay='fully_decoupled',
            weight_decay=1e-5,
            clip_norm=None,
        ),
        runtime=RuntimeConfig(log_every=100, eval_every=500, eval_batches=50, checkpoint_every=500),
    )
