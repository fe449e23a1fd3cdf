"""Table 8: what masked tokens become: [MASK], themselves, or a random token.

The feature-based column reads the last four layers side by side, as there. One vocabulary serves
both columns: at the paper scale it keeps capitals, for named entities (there MNLI had another).
"""

from __future__ import annotations

import dataclasses

from bert_jax.configs.studies import scales
from bert_jax.configs.studies.study import Column, Row, Study

# Per cent of [MASK], of the same token and of a random one, in the paper's order of rows.
MIXES = ('80/10/10', '100/0/0', '80/0/20', '80/20/0', '0/20/80', '0/0/100')
ROWS = tuple(
    Row(mix, records={'mask_mix': tuple(int(share) / 100 for share in mix.split('/'))})
    for mix in MIXES
)


def _columns(task: Column, ner: Column) -> tuple[Column, ...]:
    features = dataclasses.replace(
        ner, name='NER by features', approach='concat_last4', learning_rates=()
    )
    return task, dataclasses.replace(ner, name='NER fine-tuned'), features


def get_studies() -> dict[str, Study]:
    """Return the table at both scales."""
    return {
        'paper': scales.paper_study(
            'Table 8: masking (MASK/SAME/RND), BERT-base',
            _columns(scales.MNLI, scales.NER),
            ROWS,
            scales.PAPER_CASED,
        ),
        'cpu': scales.cpu_study(
            'Table 8: masking (MASK/SAME/RND), 4 layers of 128',
            _columns(scales.CPU_STSB, scales.CPU_NER),
            ROWS,
            finetuning_seeds=(0, 1),
        ),
    }
