"""Studies of the BERT paper: Tables 5 to 8, and its figure of accuracy after k steps.

Each function is a study by its scale: `bert-study --study` takes its name.
"""

from __future__ import annotations

import re
from dataclasses import replace

from bert_jax.configs.studies import scales
from bert_jax.configs.studies.study import Column, HeldOut, Row, Study

_NO_NSP = {'objective': 'full_sentences'}
# Every token is predicted, and each stands as it is.
_LTR = {**_NO_NSP, 'masked_lm_prob': 1.0, 'mask_mix': (0.0, 1.0, 0.0)}
_LEFT = {'model.attention': 'left_to_right'}

_TASK_ROWS = (
    Row('BERT'),
    Row('No NSP', records=_NO_NSP),
    Row('LTR & No NSP', records=_LTR, pretraining=_LEFT),
    Row('LTR & No NSP + BiLSTM', records=_LTR, pretraining=_LEFT, finetuning={'bilstm': True}),
    Row('No NSP in pairs', pretraining={'pair_loss': False}),
)


def pretraining_tasks() -> dict[str, Study]:
    """Return Table 5: what next-sentence prediction and looking both ways are worth.

    No NSP reads whole sentences of one document in place of pairs; the last row is the other
    reading of the paper, BERT's own pairs without the loss. LTR is a left-to-right language model:
    nothing is masked, and every token but [CLS] and [SEP] is predicted from those left of it ("we
    predict every input word and do not apply any masking"), so on the same sequences it trains six
    to seven times as many predictions as a masked model; in fine-tuning it sees the left alone too.
    The BiLSTM of the row after it is put on top of that model in fine-tuning, at random.
    """
    return {
        'paper': scales.paper_study(
            'Table 5: pre-training tasks, BERT-base',
            (scales.MNLI, scales.QNLI, scales.MRPC, scales.SST2, scales.SQUAD),
            _TASK_ROWS,
        ),
        'cpu': scales.cpu_study(
            'Table 5: pre-training tasks, 4 layers of 128',
            scales.CPU_TASKS,
            _TASK_ROWS,
            # Each pre-training is fine-tuned once: it is pre-trainings that rows differ by.
            seeds=(0, 1),
        ),
    }


def make_rows_of_steps(*checkpoints: int) -> tuple[Row, Row]:
    """Return the masked model and the left-to-right one, at these steps."""
    masked, _, left_to_right, *_ = _TASK_ROWS
    return (
        replace(masked, name='masked LM', checkpoints=checkpoints),
        replace(left_to_right, name='left to right', checkpoints=checkpoints),
    )


def steps() -> dict[str, Study]:
    """Return the figure of accuracy after k steps: masked beside left to right.

    Each is fine-tuned from checkpoints on the way of one pre-training, whose rate has not yet run
    out there, as in the paper. Left to right is as in `pretraining_tasks`.
    """
    return {
        'paper': scales.paper_study(
            'Accuracy after k steps, BERT-base',
            (scales.MNLI,),
            make_rows_of_steps(200_000, 400_000, 600_000, 800_000, 1_000_000),
        ),
        'cpu': scales.cpu_study(
            'Scores after k steps, 4 layers of 128',
            (scales.CPU_STSB, scales.CPU_NER),
            make_rows_of_steps(2200, 4400, 6600, 8800, 11_000),
            finetuning_seeds=(0, 1),
        ),
    }


_PERPLEXITY = HeldOut('mlm_perplexity', 'LM ppl')


def make_row_of_size(size: str) -> Row:
    """Return the row of a size, with a feed-forward layer 4 times as wide."""
    layers, width, heads = map(int, re.findall(r'\d+', size))
    settings = {
        'model.num_layers': layers,
        'model.hidden_size': width,
        'model.num_heads': heads,
        'model.intermediate_size': 4 * width,
    }
    return Row(size, pretraining=settings)


PAPER_SIZES = (
    'L3 H768 A12',
    'L6 H768 A3',
    'L6 H768 A12',
    'L12 H768 A12',
    'L12 H1024 A16',
    'L24 H1024 A16',
)
CPU_SIZES = ('L1 H128 A2', 'L2 H128 A1', 'L2 H128 A2', 'L4 H128 A2', 'L4 H192 A3', 'L8 H192 A3')


def model_size() -> dict[str, Study]:
    """Return Table 6: layers L, width H, heads A, with the perplexity on held-out tokens.

    Scores are means of 5 random restarts of fine-tuning, as there. The cpu scale has a sixth of the
    paper's width, a third of its layers up to the last row, and heads in proportion.
    """
    return {
        'paper': scales.paper_study(
            'Table 6: model size',
            (_PERPLEXITY, scales.MNLI, scales.MRPC, scales.SST2),
            tuple(map(make_row_of_size, PAPER_SIZES)),
            finetuning_seeds=(0, 1, 2, 3, 4),
        ),
        'cpu': scales.cpu_study(
            'Table 6: model size, widths of 128 and 192',
            (_PERPLEXITY, *scales.CPU_TASKS),
            tuple(map(make_row_of_size, CPU_SIZES)),
            finetuning_seeds=(0, 1),
        ),
    }


_FEATURE_ROWS = (
    Row('fine-tuning'),
    Row('embeddings', approach='embeddings'),
    Row('second-to-last', approach='second_to_last'),
    Row('last', approach='last'),
    Row('weighted sum of last four', approach='sum_last4'),
    Row('concat of last four', approach='concat_last4'),
    Row('weighted sum of all', approach='sum_all'),
)


def feature_based() -> dict[str, Study]:
    """Return Table 7: fine-tuning beside a BiLSTM on what the frozen encoder says of words.

    All rows are of one pre-training, the study's own. At the paper scale scores are means of 5
    restarts, as there, and the vocabulary keeps capitals.
    """
    return {
        'paper': scales.paper_study(
            'Table 7: feature-based, BERT-base',
            (scales.NER,),
            _FEATURE_ROWS,
            vocabulary=scales.PAPER_CASED,
            finetuning_seeds=(0, 1, 2, 3, 4),
        ),
        'cpu': scales.cpu_study(
            'Table 7: feature-based, 4 layers of 128',
            (scales.CPU_NER,),
            _FEATURE_ROWS,
            finetuning_seeds=(0, 1),
        ),
    }


# Per cent of [MASK], of the same token and of a random one, in the paper's order of rows.
MIXES = ('100/0/0', '80/0/20', '80/20/0', '0/20/80', '0/0/100')


def make_row_of_mix(mix: str) -> Row:
    """Return the row of a mix."""
    shares = tuple(int(share) / 100 for share in mix.split('/'))
    return Row(mix, records={'mask_mix': shares})


# The first is what bert-preprocess does by itself: other studies have the same BERT.
_MASK_ROWS = (Row('80/10/10'), *map(make_row_of_mix, MIXES))


def tag_both_ways(ner: Column) -> tuple[Column, Column]:
    """Return the column of named entities fine-tuned, and by features."""
    features = replace(ner, name='NER by features', approach='concat_last4', learning_rates=())
    return replace(ner, name='NER fine-tuned'), features


def masking() -> dict[str, Study]:
    """Return Table 8: what masked tokens become: [MASK], themselves, or a random token.

    The feature-based column reads the last four layers side by side, as there. One vocabulary
    serves both columns: at the paper scale it keeps capitals, for named entities (there MNLI had
    another).
    """
    return {
        'paper': scales.paper_study(
            'Table 8: masking (MASK/SAME/RND), BERT-base',
            (scales.MNLI, *tag_both_ways(scales.NER)),
            _MASK_ROWS,
            vocabulary=scales.PAPER_CASED,
        ),
        'cpu': scales.cpu_study(
            'Table 8: masking (MASK/SAME/RND), 4 layers of 128',
            (scales.CPU_STSB, *tag_both_ways(scales.CPU_NER)),
            _MASK_ROWS,
            finetuning_seeds=(0, 1),
        ),
    }
