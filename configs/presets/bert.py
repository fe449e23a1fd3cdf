"""BERT (Devlin et al. 2018): the paper's two models, smaller ones, and many languages.

Each function is a preset: `--config` takes its name.
"""

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


def make_encoder(num_layers: int, hidden_size: int, **others: Any) -> ModelConfig:
    """Return an encoder with heads of 64 and a feed-forward part 4H wide, but for `others`."""
    proportions = {'num_heads': hidden_size // 64, 'intermediate_size': 4 * hidden_size}
    return ModelConfig(num_layers=num_layers, hidden_size=hidden_size, **proportions | others)


def make_small_run(
    name: str, model: ModelConfig, steps: int, peak_lr: float, warmup_steps: int = 5_000
) -> PretrainConfig:
    """Return a run of one phase at S=128, of 256 sequences a step.

    Shapes are those of google-research/bert, README, "smaller BERT models" (H/64 heads,
    feed-forward 4H). Their recipe is not published: the optimizer is the paper's (appendix A.2)
    with a higher peak for the smaller width. On a CPU take fewer steps: --steps=N, of which the
    same share warms up.
    """
    return PretrainConfig(
        name=name,
        model=model,
        phases=(Phase(seq_len=128, steps=steps, batch_size=256),),
        optimizer=OptimizerConfig(peak_lr=peak_lr, warmup_steps=warmup_steps),
    )


def bert_base() -> PretrainConfig:
    r"""Return BERT-Base (12 layers, H=768, A=12).

    110,106,428 pre-training parameters (the paper's 110M).

        bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
        bert-preprocess --input=GLOB --tokenizer=DIR --output=records512 --seq_len=512 \
            --max_predictions=76
        bert-pretrain --config=bert_base --data=records128 --data=records512 --workdir=DIR

    Recipe: paper, appendix A.2: 256 sequences a step, 900,000 steps at S=128 and 100,000 at S=512,
    one schedule over both; Adam 1e-4, 10,000 steps of warm-up, linear decay, dropout 0.1.

    Hardware: the paper's run took 4 days on 4 Cloud TPUs (16 chips); a step is 69.9 GFLOP a
    sequence at S=128 with 20 predictions and 300.9 at S=512 with 76 (bert_jax/costs/flops.py). The
    paper reports, from 3.3 billion words, a GLUE test average of 79.6 (without WNLI) and SQuAD 1.1
    dev EM/F1 of 80.8/88.5.
    """
    return PretrainConfig(
        name='bert_base',
        model=make_encoder(12, 768),
        phases=(
            Phase(seq_len=128, steps=900_000, batch_size=256),
            Phase(seq_len=512, steps=100_000, batch_size=256),
        ),
        optimizer=OptimizerConfig(peak_lr=1e-4, warmup_steps=10_000),
        runtime=RuntimeConfig(compute_dtype='bfloat16'),
    )


def bert_large() -> PretrainConfig:
    r"""Return BERT-Large (24 layers, H=1024, A=16).

    336,226,108 pre-training parameters (the paper's 340M).

        bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
        bert-preprocess --input=GLOB --tokenizer=DIR --output=records512 --seq_len=512 \
            --max_predictions=76
        bert-pretrain --config=bert_large --data=records128 --data=records512 --workdir=DIR

    Recipe: paper, appendix A.2: 256 sequences a step, 900,000 steps at S=128 and 100,000 at S=512,
    one schedule over both; Adam 1e-4, 10,000 steps of warm-up, linear decay, dropout 0.1.

    Hardware: the paper's run took 4 days on 16 Cloud TPUs (64 chips); a step is 240.6 GFLOP a
    sequence at S=128 with 20 predictions and 1019.8 at S=512 with 76 (bert_jax/costs/flops.py). The
    paper reports, from 3.3 billion words, a GLUE test average of 82.1 (without WNLI) and SQuAD 1.1
    dev EM/F1 of 84.1/90.9.
    """
    return dataclasses.replace(bert_base(), name='bert_large', model=make_encoder(24, 1024))


def bert_multilingual() -> PretrainConfig:
    r"""Return Multilingual BERT, cased (12 layers, H=768, A=12).

    177,853,440 parameters with its pooler.

        bert-train-vocab --input=de=GLOB --input=ko=GLOB ... --vocab_size=119547 \
            --nolower_case --output=DIR
        bert-preprocess --input=de=GLOB --input=ko=GLOB ... --tokenizer=DIR \
            --output=records128 --seq_len=128
        bert-pretrain --config=bert_multilingual --data=records128 --data=records512 ...

    178,566,653 in pre-training. The shape is that of the released multi_cased_L-12_H-768_A-12:
    BERT-Base with 119,547 entries, 99 of them [unused]. Its page (google-research/bert
    multilingual.md) names no recipe but the sampling of languages, S=0.7, the default of both
    commands above; the one here is BERT-Base's.

    Its checkpoints, Google's and Hugging Face's, are read by --init_from as BERT's are.
    """
    base = bert_base()
    model = dataclasses.replace(base.model, vocab_size=119_547)
    return dataclasses.replace(base, name='bert_multilingual', model=model)


def bert_medium() -> PretrainConfig:
    """Return BERT-Medium (8 layers, H=512, A=8): 41,668,412 pre-training parameters.

        bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
        bert-pretrain --config=bert_medium --data=records128 --workdir=DIR

    One phase at S=128: 128 million sequences, 22.0 GFLOP each (bert_jax/costs/flops.py): one
    accelerator.
    """
    return make_small_run(
        'bert_medium', make_encoder(8, 512), steps=500_000, peak_lr=3e-4, warmup_steps=10_000
    )


def bert_small() -> PretrainConfig:
    """Return BERT-Small (4 layers, H=512, A=8): 29,058,876 pre-training parameters.

        bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
        bert-pretrain --config=bert_small --data=records128 --workdir=DIR

    One phase at S=128: 128 million sequences, 12.0 GFLOP each (bert_jax/costs/flops.py): one
    accelerator.
    """
    return make_small_run(
        'bert_small', make_encoder(4, 512), steps=500_000, peak_lr=5e-4, warmup_steps=10_000
    )


def bert_mini() -> PretrainConfig:
    """Return BERT-Mini (4 layers, H=256, A=4): 11,267,900 pre-training parameters.

        bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
        bert-pretrain --config=bert_mini --data=records128 --workdir=DIR

    One phase at S=128: 51.2 million sequences, 3.6 GFLOP each (bert_jax/costs/flops.py): a large
    CPU or any accelerator.
    """
    return make_small_run('bert_mini', make_encoder(4, 256), steps=200_000, peak_lr=7e-4)


def bert_tiny() -> PretrainConfig:
    """Return BERT-Tiny (2 layers, H=128, A=2): 4,433,468 pre-training parameters.

        bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
        bert-pretrain --config=bert_tiny --data=records128 --workdir=DIR

    One phase at S=128: 25.6 million sequences, 0.8 GFLOP each (bert_jax/costs/flops.py): any
    hardware.
    """
    return make_small_run('bert_tiny', make_encoder(2, 128), steps=100_000, peak_lr=1e-3)


def bert_mini_cpu() -> PretrainConfig:
    r"""Return BERT-Mini for 2 CPU cores, about an hour, English Wikipedia: 11,267,900 parameters.

        bert-preprocess --input=wiki_en.txt --segment --tokenizer=vocab \
            --output=records32 --seq_len=32 --max_predictions=5 --dupe_factor=1
        bert-preprocess --input=wiki_en.txt --segment --tokenizer=vocab \
            --output=records256 --seq_len=256 --max_predictions=39 --dupe_factor=1
        bert-pretrain --config=bert_mini_cpu --data=records32 --data=records256 \
            --workdir=DIR

    The recipe of configs/presets/quickstart.py at twice the width: most steps on short rows, where
    context is learnt soonest, then a few on rows of 256, so that SQuAD finds its positions trained.
    Two things had to differ before it left the unigram plateau: initializer_range is 1 / sqrt(H),
    at which no layer makes its input smaller, and the learning rate is a third: with 160
    predictions a step over 30,522 words the gradient is mostly noise, and what Adam makes of noise
    grows with the rate (at 1e-3 the loss after 700 steps was that of 4e-4 after 400; at 2e-3 on
    half the batch it stayed above both). What was measured is in docs/results.md.
    """
    return PretrainConfig(
        name='bert_mini_cpu',
        model=make_encoder(
            4,
            256,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            initializer_range=0.0625,
        ),
        phases=(
            Phase(seq_len=32, steps=5000, batch_size=32),
            Phase(seq_len=256, steps=500, batch_size=8),
        ),
        optimizer=OptimizerConfig(
            peak_lr=4e-4, warmup_steps=100, schedule='linear', b2=0.98, eps=1e-8
        ),
        runtime=RuntimeConfig(log_every=100, eval_every=500, eval_batches=50, checkpoint_every=500),
    )
