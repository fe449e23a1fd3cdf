"""The words that the small encoder of the tests knows."""

from __future__ import annotations

ENCODER_WORDS = (
    'good fine great bad poor dull film book the was a who is ? red blue green fox dog cat'.split()
)
