"""Table 6: layers L, width H, heads A, with the perplexity on held-out masked tokens.

Scores are means of 5 random restarts of fine-tuning, as there. The cpu scale has a sixth of the
paper's width, a third of its layers up to the last row, and heads in proportion.
"""

from __future__ import annotations

from bert_jax.configs.studies import scales
from bert_jax.configs.studies.study import HeldOut, Row, Study

_PERPLEXITY = HeldOut('mlm_perplexity', 'LM ppl')


def sizes(*shapes: tuple[int, int, int]) -> tuple[Row, ...]:
    """Return a row for each (L, H, A), the feed-forward layer 4H wide."""
    return tuple(
        Row(
            f'L{layers} H{width} A{heads}',
            pretraining={
                'model.num_layers': layers,
                'model.hidden_size': width,
                'model.num_heads': heads,
                'model.intermediate_size': 4 * width,
            },
        )
        for layers, width, heads in shapes
    )


def get_studies() -> dict[str, Study]:
    """Return the table at both scales."""
    return {
        'paper': scales.paper_study(
            'Table 6: model size',
            (_PERPLEXITY, scales.MNLI, scales.MRPC, scales.SST2),
            sizes(
                (3, 768, 12),
                (6, 768, 3),
                (6, 768, 12),
                (12, 768, 12),
                (12, 1024, 16),
                (24, 1024, 16),
            ),
            finetuning_seeds=(0, 1, 2, 3, 4),
        ),
        'cpu': scales.cpu_study(
            'Table 6: model size, widths of 128 and 192',
            (_PERPLEXITY, scales.CPU_STSB, scales.CPU_MRPC, scales.CPU_SST2, scales.CPU_NER),
            sizes((1, 128, 2), (2, 128, 1), (2, 128, 2), (4, 128, 2), (4, 192, 3), (8, 192, 3)),
            finetuning_seeds=(0, 1),
        ),
    }
