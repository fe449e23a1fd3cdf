"""A tokenizer.json: what it says of rows, and how ours is written for the tokenizers library.

Owns how texts stand in a row (`Layout`), which is a matter of the tokenizer; what every kind of
BERT's vocabulary has in common there, rows of [CLS] A [SEP] B [SEP] and special tokens; and the
rules of WordPiece in the library's terms. Those of SentencePiece are sentencepiece_model.py's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer

if TYPE_CHECKING:
    import tokenizers

WORD_MARK = '\u2581'  # begins the pieces of SentencePiece that begin a word
UNUSED = re.compile(r'\[unused\d+\]')  # an entry that no text has
MAX_WORD_CHARS = 200  # longer words are [UNK] (tokenization.py:303); Hugging Face has 100


def add_common_rules(tokenizer: tokenizers.Tokenizer, special_tokens: Sequence[str]) -> str:
    """Return a tokenizer.json with the rules of `tokenizer` and the common ones.

    These are added to it. `special_tokens`: [PAD], [UNK], [CLS], [SEP] and [MASK] in that order,
    all of them entries of its model.
    """
    from tokenizers import AddedToken, processors

    # Without `normalized` they are found in raw text, before casing takes [MASK] to [mask].
    cls, sep = special_tokens[2:4]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special_tokens]
    )

    # A has segment 0 with both of its special tokens, B has segment 1.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f'{cls}:0 $A:0 {sep}:0',
        pair=f'{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1',
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return tokenizer.to_str()


def add_marks(tokenizer: tokenizers.Tokenizer, special_tokens: Sequence[str]) -> str:
    """Return the tokenizer.json of some rules, which reads word marks and makes rows."""
    from tokenizers import decoders

    tokenizer.decoder = decoders.Metaspace(WORD_MARK, prepend_scheme='always')
    return add_common_rules(tokenizer, special_tokens)


def make_wordpiece_json(
    entries: Sequence[str], special_tokens: Sequence[str], normalizer: Normalizer
) -> str:
    """Return a tokenizer.json with our rules in the library's terms.

    Where it cannot follow Google to the letter, the head of wordpiece.py says so.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    ids = {token: i for i, token in enumerate(entries)}
    model = models.WordPiece(
        ids, unk_token=special_tokens[1], max_input_chars_per_word=MAX_WORD_CHARS
    )
    google = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=normalizer.ideographs,
        strip_accents=normalizer.strip_accents,
        lowercase=normalizer.lower_case,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.NFC(), google]) if normalizer.nfc else google
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return add_common_rules(tokenizer, special_tokens)


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


def read_rows(fast: Mapping[str, Any], file: Any) -> tuple[str, str, Layout]:
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


def iterate_steps(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part of a tokenizer.json, which may be a sequence of them."""
    if not part:
        return
    is_sequence = False
    for name in _STEPS:
        for step in part.get(name) or ():
            is_sequence = True
            yield from iterate_steps(step)
    if not is_sequence:
        yield part
