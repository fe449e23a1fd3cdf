"""RETVec's network written in numpy, and words for it."""

from __future__ import annotations

import numpy as np

from tests.helpers.numpy_bert import ACTIVATION, dense


def code_points(*words: str) -> np.ndarray:
    return np.array([[*map(ord, word), *[0] * (16 - len(word))] for word in words], np.int32)


def numpy_network(p, characters: np.ndarray) -> np.ndarray:
    """The published layers, word by word and character by character, in float64."""
    gelu = ACTIVATION['gelu_erf']
    vectors = []
    for word in characters.reshape(-1, 16):
        rows = []
        for point in word:
            bits = np.array([int(bit) for bit in format(point, '024b')], np.float64)
            rows.append(gelu(dense(gelu(dense(bits, p['character_1'])), p['character_2'])))
        vectors.append(np.tanh(dense(gelu(dense(np.concatenate(rows), p['word'])), p['output'])))
    return np.array(vectors).reshape(*characters.shape[:-1], 256)
