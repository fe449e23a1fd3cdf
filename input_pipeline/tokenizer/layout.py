"""How texts stand in a row, which is a matter of the tokenizer.

Owns what a kind of tokenizer, or a file of one, says of it. Must not know how text is encoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from bert_jax.configs.errors import UserError

# Keys of the steps within a sequence of them.
_STEPS = ('normalizers', 'pretokenizers', 'processors', 'decoders')


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


def rows_of(fast: Mapping[str, Any], file: Any) -> tuple[str, str, Layout]:
    """Return what begins a row, what ends it, and how rows are made, by the post_processor.

    Raises:
      UserError: the rows are not CLS A SEP and CLS A ... B SEP.
    """
    # The library tells it best: what it puts around the texts of a vocabulary of one word.
    from tokenizers import Tokenizer, models

    probe = json.loads(Tokenizer(models.WordLevel({'a': 0}, unk_token='a')).to_str())
    probe['post_processor'] = fast.get('post_processor')
    try:
        engine = Tokenizer.from_str(json.dumps(probe))
    except Exception as error:
        raise UserError(f'{file}: its post_processor cannot be read ({error})') from error
    alone, both = engine.encode('a'), engine.encode('a', 'a')

    # CLS A SEP, and with B at least a separator between; B may have a CLS of its own.
    cls, sep = alone.tokens[0], alone.tokens[-1]
    middle = both.tokens[2:-2]
    has_cls = middle[-1:] == [cls] != [sep]
    separators = middle[: len(middle) - has_cls]
    types = set(both.type_ids[-2:])
    if (
        alone.sequence_ids != [None, 0, None]
        or both.sequence_ids != [None, 0, *[None] * len(middle), 1, None]
        or [both.tokens[0], both.tokens[-1]] != [cls, sep]
        or not separators
        or set(separators) != {sep}
        or any(both.type_ids[: 2 + len(separators)])
        or types not in ({0}, {1})
    ):
        kind = (fast.get('post_processor') or {}).get('type')
        raise UserError(
            f'{file}: its post_processor ({kind}) makes rows of {" ".join(alone.tokens)!r} and'
            f' {" ".join(both.tokens)!r}, and rows begin with one token and end with one here'
        )
    return cls, sep, Layout(len(middle), types.pop(), second_cls=has_cls)


def steps(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part of a tokenizer.json, which may be a sequence of them."""
    inner = [step for name in _STEPS for step in (part or {}).get(name) or ()]
    for step in inner:
        yield from steps(step)
    if part and not inner:
        yield part
