"""What classes weigh in the loss, from the setting class_weights.

Owns its spelling, and scikit-learn's rule for balanced weights. It must not know losses.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.files.predictions import number


def class_weights(setting: str, labels: Sequence[str], given: Iterable[int]) -> tuple[float, ...]:
    """Return the weight of each label; () where all weigh the same.

    Args:
      setting: '', 'balanced', or LABEL=NUMBER,... where labels that are not named weigh 1.
      labels: the task's.
      given: the labels of the training examples, by their places, for balanced weights: a label
        weighs all examples / (labels * examples that have it).

    Raises:
      UserError: it is anything else.
    """
    if not setting:
        return ()
    if setting == 'balanced':
        counts = collections.Counter(given)
        # A label that no example has is in no loss, whatever it weighs.
        return tuple(
            counts.total() / (len(labels) * counts[i]) if counts[i] else 1.0
            for i in range(len(labels))
        )
    weights = dict.fromkeys(labels, 1.0)
    for part in setting.split(','):
        label, equals, value = part.rpartition('=')
        if not equals or label not in weights:
            raise UserError(
                f'class_weights={setting}: write balanced, or LABEL=NUMBER with commas between, of'
                f' the labels {", ".join(labels)[:100]}'
            )
        weights[label] = number(value, f'class_weights={setting}')
        if weights[label] <= 0:
            raise UserError(f'class_weights={setting}: a weight must be above 0')
    return tuple(weights.values())
