"""Train a sentence encoder of scored pairs with sentence-transformers, for benchmarks.finetune.

It needs sentence-transformers with its extra `train`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any


def dropout_rates(config: Any) -> dict[str, float]:
    """Return a run's dropouts as transformers names them; without a setting the encoder's own."""
    rates = {
        'hidden_dropout_prob': config.hidden_dropout,
        'attention_probs_dropout_prob': config.attention_dropout,
    }
    return {name: rate for name, rate in rates.items() if rate is not None}


def run(task: Any, config: Any, seed: int, init_from: str) -> dict[str, float]:
    """Train with the settings of one of our runs; return the dev scores after the last step.

    The program's own trainer shuffles by its own seed, decays no bias and no norm, and learns in
    float32. Scores are those of its own evaluator.
    """
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, losses
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
    from sentence_transformers.training_args import SentenceTransformerTrainingArguments

    from bert_jax.input_pipeline.tasks.batching import draw_subset
    from bert_jax.runs.finetuning.finetuner import total_steps

    model = SentenceTransformer(init_from, device='cpu', config_kwargs=dropout_rates(config))
    model.max_seq_length = config.max_seq_length
    loss = {'cosent': losses.CoSENTLoss, 'cosine': losses.CosineSimilarityLoss}[
        config.embedding.loss
    ](model)
    examples = draw_subset(task.examples('train'), config.train_examples, seed)
    train, dev = _columns(examples), _columns(task.examples(task.selection_split))
    steps, o = total_steps(len(train['score']), config), config.optimizer
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            seed=seed,
            per_device_train_batch_size=config.batch_size,
            max_steps=steps,
            learning_rate=o.peak_lr,
            warmup_steps=int(steps * config.warmup_fraction),
            weight_decay=o.weight_decay,
            adam_beta1=o.b1,
            adam_beta2=o.b2,
            adam_epsilon=o.eps,
            max_grad_norm=o.clip_norm or 0.0,  # 0: never
            dataloader_drop_last=True,
            save_strategy='no',
            report_to='none',
            disable_tqdm=True,
            use_cpu=True,
        )
        SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=Dataset.from_dict(train), loss=loss
        ).train()
    scores = EmbeddingSimilarityEvaluator(dev['sentence1'], dev['sentence2'], dev['score'])(model)
    return {name: scores[f'{name}_cosine'] for name in task.metrics}


def _columns(examples: Sequence[Any]) -> dict[str, list[Any]]:
    """Lay out scored pairs under the names that the losses read them by: by their order."""
    return {
        'sentence1': [example.texts[0] for example in examples],
        'sentence2': [example.texts[1] for example in examples],
        'score': [example.label for example in examples],
    }
