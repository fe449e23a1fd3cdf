"""The paper's figure of accuracy after k steps: a masked model beside one from left to right.

Each is fine-tuned from checkpoints on the way of one pre-training, whose rate has not yet run out
there, as in the paper. Left to right is as in configs/studies/pretraining_tasks.py.
"""

from __future__ import annotations

from dataclasses import replace

from bert_jax.configs.studies import pretraining_tasks, scales
from bert_jax.configs.studies.study import Row, Study


def make_rows(*checkpoints: int) -> tuple[Row, Row]:
    """Return the masked model and the left-to-right one, at these steps."""
    masked, _, left_to_right, *_ = pretraining_tasks.ROWS
    return (
        replace(masked, name='masked LM', checkpoints=checkpoints),
        replace(left_to_right, name='left to right', checkpoints=checkpoints),
    )


def get_studies() -> dict[str, Study]:
    """Return the figure at both scales."""
    return {
        'paper': scales.paper_study(
            'Accuracy after k steps, BERT-base',
            (scales.MNLI,),
            make_rows(200_000, 400_000, 600_000, 800_000, 1_000_000),
        ),
        'cpu': scales.cpu_study(
            'Scores after k steps, 4 layers of 128',
            (scales.CPU_STSB, scales.CPU_NER),
            make_rows(2200, 4400, 6600, 8800, 11_000),
            finetuning_seeds=(0, 1),
        ),
    }
