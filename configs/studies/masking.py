"""Table 8: what masked tokens become: [MASK], themselves, or a random token.

The feature-based column reads the last four layers side by side, as there. One vocabulary serves
both columns: at the paper scale it keeps capitals, for named entities (there MNLI had another).
"""

from __future__ import annotations

import dataclasses

from bert_jax.configs.studies import scales
from bert_jax.configs.studies.study import Column, Row, Study

# (share of [MASK], of the same token, of a random one), in the paper's order of rows.
MIXES = (
    (0.8, 0.1, 0.1),
    (1.0, 0.0, 0.0),
    (0.8, 0.0, 0.2),
    (0.8, 0.2, 0.0),
    (0.0, 0.2, 0.8),
    (0.0, 0.0, 1.0),
)
ROWS = tuple(
    Row('/'.join(f'{share:.0%}'[:-1] for share in mix), records={'mask_mix': mix}) for mix in MIXES
)


def _columns(task: Column, ner: Column) -> tuple[Column, ...]:
    features = dataclasses.replace(
        ner, name='NER by features', approach='concat_last4', learning_rates=()
    )
    return task, dataclasses.replace(ner, name='NER fine-tuned'), features


def get_studies() -> dict[str, Study]:
    """Return the table at both scales."""
    return {
        'paper': Study(
            'Table 8: masking (MASK/SAME/RND), BERT-base',
            scales.paper(),
            _columns(scales.MNLI, scales.NER),
            ROWS,
            scales.PAPER_CASED,
        ),
        'cpu': Study(
            'Table 8: masking (MASK/SAME/RND), 4 layers of 128',
            scales.cpu(),
            _columns(scales.CPU_STSB, scales.CPU_NER),
            ROWS,
            scales.CPU_VOCABULARY,
            scales.CPU_RECORDS,
            finetuning_seeds=(0, 1),
        ),
    }
