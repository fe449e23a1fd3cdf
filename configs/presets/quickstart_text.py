"""The quickstart's run on a text of the user's: the one of quickstart.py in rows of 64.

    bash launch/quickstart.sh --corpus=... --language=...

Half as many rows a step, so that it reads as many word pieces in about the same time. Sentences of
books and articles have about 35 pieces: a row of 64 holds a passage, and two lines of a pair.
"""

from __future__ import annotations

import dataclasses

from configs.presets import quickstart
from configs.schema import Phase, PretrainConfig

SEQ_LEN = 64


def get_config() -> PretrainConfig:
    """The run described above."""
    base = quickstart.get_config()
    return dataclasses.replace(
        base,
        name='quickstart_text',
        model=dataclasses.replace(base.model, max_position=SEQ_LEN),
        phases=(Phase(seq_len=SEQ_LEN, steps=base.total_steps, batch_size=16),),
    )
