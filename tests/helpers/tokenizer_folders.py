"""Tokenizer directories as other programs leave them, and text on which their settings differ."""

from __future__ import annotations

import json
import pathlib
import unicodedata
from collections.abc import Sequence
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from bert_jax.input_pipeline.tokenizer import Tokenizer as Ours
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer

SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
_CHARS = 'abcdehilnoprstuvwxyzHé\u0301\u0308中国한어국,.-!<>ᄒ\u1161\u11ab한국어사전'
ENTRIES = list(
    dict.fromkeys(
        [*SPECIAL, *_CHARS, *(f'##{c}' for c in _CHARS), *(f'@@{c}' for c in _CHARS)]
        + [
            'hello',
            'Hello',
            'new',
            'york',
            'naïve',
            'naive',
            'cafe',
            'café',
            'Café',
            '中国',
            '##中国',
        ]
        + ['한국어', '사전', '<e1>', 'covid', '##covid', 'zu', '##rich']
    )
)
TEXTS = [
    'Hello, new york! NAÏVE café Café',
    unicodedata.normalize('NFD', 'Naïve café, Café! 한국어 사전을'),
    '中国hello中国 한국어中',
    'new-york covid covidnew COVID <e1>hello</e1> zurich',
    'a  tab\there \u200bnothing\u00a0else ' + 'h' * 30,
    '',
]
NFC_THEN_BERT = normalizers.Sequence(
    [normalizers.NFC(), normalizers.BertNormalizer(lowercase=False, strip_accents=False)]
)


def write(
    folder: pathlib.Path,
    normalizer: normalizers.Normalizer | None = None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None,
    added: Sequence[AddedToken] = (),
    config: dict[str, Any] | None = None,
    post_processor: Any = None,
    decoder: Any = None,
    **model: Any,
) -> pathlib.Path:
    """Writes a directory with a tokenizer.json; what is not given is as in BERT, cased.

    transformers is told to read that file.
    """
    ids = {token: i for i, token in enumerate(ENTRIES)}
    engine = Tokenizer(models.WordPiece(ids, **({'unk_token': '[UNK]'} | model)))
    engine.normalizer = normalizer or normalizers.BertNormalizer(lowercase=False)
    engine.pre_tokenizer = pre_tokenizer or pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoder or decoders.WordPiece()
    engine.add_special_tokens(SPECIAL)
    engine.add_tokens(list(added))
    engine.post_processor = post_processor or processors.BertProcessing(('[SEP]', 3), ('[CLS]', 2))
    folder.mkdir()
    engine.save(str(folder / 'tokenizer.json'))
    given = {
        'tokenizer_class': 'PreTrainedTokenizerFast',
        **dict(zip(_NAMES, SPECIAL, strict=True)),
        **(config or {}),
    }
    (folder / 'tokenizer_config.json').write_text(json.dumps(given))
    return folder


_NAMES = ('pad_token', 'unk_token', 'cls_token', 'sep_token', 'mask_token')
# What is read: name -> arguments of `write`.
FOREIGN: dict[str, dict[str, Any]] = {
    'cased': {},
    'lower-cased with accents': {
        'normalizer': normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    },
    'ideographs joined': {
        'normalizer': normalizers.BertNormalizer(lowercase=False, handle_chinese_chars=False)
    },
    'composed': {'normalizer': NFC_THEN_BERT},
    'not cleaned': {'normalizer': normalizers.BertNormalizer(lowercase=False, clean_text=False)},
    'another normalizer': {
        'normalizer': normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    },
    'another pre-tokenizer': {'pre_tokenizer': pre_tokenizers.WhitespaceSplit()},
    'another prefix': {'continuing_subword_prefix': '@@'},
    'another unknown': {'unk_token': '[PAD]'},
    'shorter words': {'max_input_chars_per_word': 20},
    'added tokens': {
        'added': [
            AddedToken('new york', normalized=False),
            AddedToken('covid', single_word=True),
            AddedToken('<e1>'),
        ]
    },
}


def wordpiece(entries: Sequence[str]) -> Ours:
    """A lower-cased WordPiece tokenizer of these entries behind the special ones."""
    content = '\n'.join([*SPECIAL, *entries]).encode()
    return Ours.of_kind('wordpiece', content, Normalizer(True, True))
