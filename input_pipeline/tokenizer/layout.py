"""How texts stand in a row, which is a matter of the tokenizer.

Owns what a kind of tokenizer, or a file of one, says of it. Must not know which tokens stand there.
"""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """How a row is made of one text or two: cls A sep, cls A sep B sep.

    Attributes:
      separators: how many special tokens stand between A and B.
      second_segment: the segment of B and of the separator behind it.
      mask_takes_space: whether the mask token replaces a word with the space before it.
      second_cls: whether the last of those between is a cls, with which B begins.
    """

    separators: int = 1
    second_segment: int = 1
    mask_takes_space: bool = False
    second_cls: bool = False
