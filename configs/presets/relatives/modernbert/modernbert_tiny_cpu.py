r"""ModernBERT for two CPU cores (4 layers, H=256, F=384): 6,326,528 parameters.

    bert-train-vocab --model=byte_bpe --layout=modernbert --vocab_size=16000 \
        --input=text.txt --output=vocab
    bert-preprocess --input=text.txt --tokenizer=vocab --output=records128 --seq_len=128 \
        --objective=full_sentences --cut_sentences --short_seq_prob=0 --packing \
        --masked_lm_prob=0.3 --max_predictions=39
    bert-pretrain --config=modernbert_tiny_cpu --data=records128 --workdir=DIR

The architecture and the optimizer of modernbert_base, at the width and with the initial deviation
of bert_mini_cpu: windows of 16 tokens on each side in two of three layers, rows of 128 tokens.
Rate and deviation were tried in short runs (docs/results.md): 0.0625 leaves the unigram plateau
sooner than 0.02, and after 75 steps 3e-3 was behind 1e-3. 3,000 steps were never run.
"""

from __future__ import annotations

from bert_jax.configs.presets.relatives.modernbert import shape
from bert_jax.configs.schema import OptimizerConfig, Phase, PretrainConfig, RuntimeConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return PretrainConfig(
        name='modernbert_tiny_cpu',
        model=shape(
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
