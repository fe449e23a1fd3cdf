"""A vocabulary as a tokenizer.json, which Hugging Face's tokenizers library reads.

Owns what every kind of BERT's vocabulary has in common there: rows of [CLS] A [SEP] B [SEP], and
special tokens. Must not know how words become pieces: wordpiece.py and spm.py say it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers


def content(tokenizer: tokenizers.Tokenizer, special_tokens: Sequence[str]) -> str:
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
