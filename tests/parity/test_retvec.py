"""The bits of words against Google's package retvec, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.input_pipeline.tokenizer.wordpiece import spell_words
from bert_jax.model.retvec import spell_in_bits

_REASON = 'retvec is not installed: pip install --no-deps retvec, beside TensorFlow'
pytest.importorskip('retvec', reason=_REASON)
tf = pytest.importorskip('tensorflow', reason=_REASON)

WORDS = [
    'hello', 'Straße', 'привет', '한국어', '日本語', 'a\u0301', '😀x', '\U0010ffff', '',
    'internationalizations', 'ภาษาไทยไม่มีช่องว่าง',
]  # fmt: skip


def test_the_bits_of_words_in_any_script():
    from retvec.tf.layers.binarizer import RETVecBinarizer

    theirs = RETVecBinarizer(16, 24).binarize(tf.constant(WORDS)).numpy()
    assert theirs.shape == (len(WORDS), 16, 24)
    assert np.array_equal(spell_in_bits(spell_words(WORDS)), theirs)
