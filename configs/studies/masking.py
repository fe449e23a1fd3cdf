"""Table 8: what masked tokens become: [MASK], themselves, or a random token.

The feature-based column reads the last four layers side by side, as there. One vocabulary serves
both columns: at the paper scale it keeps capitals, for named entities (there MNLI had another).
"""

from __future__ import annotations

from dataclasses import replace

from bert_jax.configs.studies import scales
from bert_jax.configs.studies.study import Column, Row, Study

# Per cent of [MASK], of the same token and of a random one, in the paper's order of rows.
MIXES = ('100/0/0', '80/0/20', '80/20/0', '0/20/80', '0/0/100')


def make_row(mix: str) -> Row:
    """Return the row of a mix."""
    shares = tuple(int(share) / 100 for share in mix.split('/'))
    return Row(mix, records={'mask_mix': shares})


# The first is what bert-preprocess does by itself: other studies have the same BERT.
ROWS = (Row('80/10/10'), *map(make_row, MIXES))


def tag_both_ways(ner: Column) -> tuple[Column, Column]:
    """Return the column of named entities fine-tuned, and by features."""
    features = replace(ner, name='NER by features', approach='concat_last4', learning_rates=())
    return replace(ner, name='NER fine-tuned'), features


def get_studies() -> dict[str, Study]:
    """Return the table at both scales."""
    return {
        'paper': scales.paper_study(
            'Table 8: masking (MASK/SAME/RND), BERT-base',
            (scales.MNLI, *tag_both_ways(scales.NER)),
            ROWS,
            vocabulary=scales.PAPER_CASED,
        ),
        'cpu': scales.cpu_study(
            'Table 8: masking (MASK/SAME/RND), 4 layers of 128',
            (scales.CPU_STSB, *tag_both_ways(scales.CPU_NER)),
            ROWS,
            finetuning_seeds=(0, 1),
        ),
    }
