"""A vocabulary as a tokenizer.json, which Hugging Face's tokenizers library reads.

Owns what every kind of BERT's vocabulary has in common there: rows of [CLS] A [SEP] B [SEP], and
special tokens; and the rules of WordPiece in the library's terms, for spm.py says SentencePiece's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer

if TYPE_CHECKING:
    import tokenizers

WORD_MARK = '\u2581'  # begins the pieces of SentencePiece that begin a word
MAX_WORD_CHARS = 200  # longer words are [UNK] (tokenization.py:303); Hugging Face has 100


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


def with_marks(tokenizer: tokenizers.Tokenizer, special_tokens: Sequence[str]) -> str:
    """Return the tokenizer.json of some rules, which reads word marks and makes rows."""
    from tokenizers import decoders

    tokenizer.decoder = decoders.Metaspace(WORD_MARK, prepend_scheme='always')
    return content(tokenizer, special_tokens)


def wordpiece_json(
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
    return content(tokenizer, special_tokens)
