"""Table 7: fine-tuning beside a BiLSTM on what the frozen encoder says of words.

All rows are of one pre-training, the study's own. At the paper scale scores are means of 5
restarts, as there, and the vocabulary keeps capitals.
"""

from __future__ import annotations

from bert_jax.configs.studies import scales
from bert_jax.configs.studies.study import Row, Study

ROWS = (
    Row('fine-tuning'),
    Row('embeddings', approach='embeddings'),
    Row('second-to-last', approach='second_to_last'),
    Row('last', approach='last'),
    Row('weighted sum of last four', approach='sum_last4'),
    Row('concat of last four', approach='concat_last4'),
    Row('weighted sum of all', approach='sum_all'),
)


def get_studies() -> dict[str, Study]:
    """Return the table at both scales."""
    return {
        'paper': scales.paper_study(
            'Table 7: feature-based, BERT-base',
            (scales.NER,),
            ROWS,
            vocabulary=scales.PAPER_CASED,
            finetuning_seeds=(0, 1, 2, 3, 4),
        ),
        'cpu': scales.cpu_study(
            'Table 7: feature-based, 4 layers of 128',
            (scales.CPU_NER,),
            ROWS,
            finetuning_seeds=(0, 1),
        ),
    }
