"""Table 5: what next-sentence prediction and looking both ways are worth.

No NSP reads whole sentences of one document in place of pairs; the last row is the other reading of
the paper, BERT's own pairs without the loss. LTR is a left-to-right language
model: nothing is masked, and every token but [CLS] and [SEP] is predicted from those left of it
("we predict every input word and do not apply any masking"), so on the same sequences it trains six
to seven times as many predictions as a masked model; in fine-tuning it sees the left alone too. The
BiLSTM of the row after it is put on top of that model in fine-tuning, at random.
"""

from __future__ import annotations

from bert_jax.configs.studies import scales
from bert_jax.configs.studies.study import Row, Study

_NO_NSP = {'objective': 'full_sentences'}
# Every token is predicted, and each stands as it is.
_LTR = {**_NO_NSP, 'masked_lm_prob': 1.0, 'mask_mix': (0.0, 1.0, 0.0)}
_LEFT = {'model.attention': 'left_to_right'}

ROWS = (
    Row('BERT'),
    Row('No NSP', records=_NO_NSP),
    Row('LTR & No NSP', records=_LTR, pretraining=_LEFT),
    Row('LTR & No NSP + BiLSTM', records=_LTR, pretraining=_LEFT, finetuning={'bilstm': True}),
    Row('No NSP in pairs', pretraining={'pair_loss': False}),
)


def get_studies() -> dict[str, Study]:
    """Return the table at both scales."""
    return {
        'paper': scales.paper_study(
            'Table 5: pre-training tasks, BERT-base',
            (scales.MNLI, scales.QNLI, scales.MRPC, scales.SST2, scales.SQUAD),
            ROWS,
        ),
        'cpu': scales.cpu_study(
            'Table 5: pre-training tasks, 4 layers of 128',
            scales.CPU_TASKS,
            ROWS,
            # Each pre-training is fine-tuned once: it is pre-trainings that rows differ by.
            seeds=(0, 1),
        ),
    }
