"""DistilBERT's losses against torch's, as transformers' distiller.py puts them together."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.configs.model.tuning_config import DistillationConfig
from bert_jax.train.losses.distillation import METHODS, Outputs
from tests.bert_jax.train.test_distillation import batch, learnt, model_of

torch = pytest.importorskip('torch', reason='torch is not installed: launch/test.sh --parity')


def test_distilbert_has_the_losses_of_its_program():
    rows, student, teacher = batch(), model_of(0, num_layers=1), model_of(1, num_layers=1)
    value, _ = learnt('distilbert', student[0], teacher, rows)[0](student[1])
    rows |= METHODS['distilbert'](DistillationConfig()).columns(*teacher, rows)
    ours = Outputs(*student, rows)
    of = lambda array: torch.from_numpy(np.array(array))
    kept = of(rows['masked_lm_weights'] * rows['example_weights'][:, None]) > 0
    logits, theirs = of(ours.logits_BPV)[kept], of(rows['teacher_logits'])[kept]
    functional = torch.nn.functional
    soft = torch.nn.KLDivLoss(reduction='batchmean')(
        functional.log_softmax(logits / 2.0, -1), functional.softmax(theirs / 2.0, -1)
    ) * (2.0**2)
    labels = of(rows['masked_lm_ids']).long()[kept]
    real = of(rows['input_mask'] * rows['example_weights'][:, None]) > 0
    states, wanted = of(ours.hidden[-1])[real], of(rows['teacher_states'])[real]
    cosine = torch.nn.CosineEmbeddingLoss(reduction='mean')(states, wanted, torch.ones(len(states)))
    whole = 5 * soft + 2 * functional.cross_entropy(logits, labels) + cosine
    np.testing.assert_allclose(value, float(whole), rtol=1e-4)
