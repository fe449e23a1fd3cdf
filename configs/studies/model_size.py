"""Table 6: layers L, width H, heads A, with the perplexity on held-out masked tokens.

Scores are means of 5 random restarts of fine-tuning, as there. The cpu scale has a sixth of the
paper's width, a third of its layers up to the last row, and heads in proportion.
"""

from __future__ import annotations

import re

from bert_jax.configs.studies import scales
from bert_jax.configs.studies.study import HeldOut, Row, Study

_PERPLEXITY = HeldOut('mlm_perplexity', 'LM ppl')


def make_row(size: str) -> Row:
    """Return the row of a size, with a feed-forward layer 4 times as wide."""
    layers, width, heads = map(int, re.findall(r'\d+', size))
    settings = {
        'model.num_layers': layers,
        'model.hidden_size': width,
        'model.num_heads': heads,
        'model.intermediate_size': 4 * width,
    }
    return Row(size, pretraining=settings)


PAPER = (
    'L3 H768 A12',
    'L6 H768 A3',
    'L6 H768 A12',
    'L12 H768 A12',
    'L12 H1024 A16',
    'L24 H1024 A16',
)
CPU = ('L1 H128 A2', 'L2 H128 A1', 'L2 H128 A2', 'L4 H128 A2', 'L4 H192 A3', 'L8 H192 A3')


def get_studies() -> dict[str, Study]:
    """Return the table at both scales."""
    return {
        'paper': scales.paper_study(
            'Table 6: model size',
            (_PERPLEXITY, scales.MNLI, scales.MRPC, scales.SST2),
            tuple(map(make_row, PAPER)),
            finetuning_seeds=(0, 1, 2, 3, 4),
        ),
        'cpu': scales.cpu_study(
            'Table 6: model size, widths of 128 and 192',
            (_PERPLEXITY, *scales.CPU_TASKS),
            tuple(map(make_row, CPU)),
            finetuning_seeds=(0, 1),
        ),
    }
