"""A tokenizer.json of somebody else that cannot be used is refused in one line."""

from __future__ import annotations

import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']


def folder_of(path, **vocabulary) -> object:
    """Write a byte-level BPE with the rows of ModernBERT, as the library does."""
    entries = {token: i for i, token in enumerate([*SPECIAL, 'a', 'b'])}
    engine = tokenizers.Tokenizer(models.BPE(entries, []))
    engine.add_special_tokens(SPECIAL)
    engine.pre_tokenizer = pre_tokenizers.ByteLevel()
    engine.post_processor = processors.TemplateProcessing(
        single='[CLS] $A [SEP]',
        pair='[CLS] $A [SEP] $B [SEP]',
        special_tokens=[('[CLS]', 2), ('[SEP]', 3)],
    )
    content = json.loads(engine.to_str())
    content['model']['vocab'] |= vocabulary
    (path / 'tokenizer.json').write_text(json.dumps(content))
    named = {'pad_token': '[PAD]', 'unk_token': '[UNK]', 'mask_token': '[MASK]'}
    named['tokenizer_class'] = 'PreTrainedTokenizerFast'
    (path / 'tokenizer_config.json').write_text(json.dumps(named))
    return content


def test_a_pattern_that_never_ends_is_refused_when_a_text_meets_it(tmp_path):
    content = folder_of(tmp_path)
    in_bytes = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True}
    split = {'type': 'Split', 'pattern': {'Regex': '(?:(a|aa)+)+\\1z'}}
    steps = [
        split | {'behavior': 'Isolated', 'invert': False},
        in_bytes | {'use_regex': False},
    ]
    content['pre_tokenizer'] = {'type': 'Sequence', 'pretokenizers': steps}
    (tmp_path / 'tokenizer.json').write_text(json.dumps(content))
    tokenizer = Tokenizer.load(tmp_path)
    for ask in (tokenizer.ids, lambda text: list(tokenizer.trace(text))):
        with pytest.raises(UserError, match='tokenizers library cannot encode it .*retry-limit'):
            ask('a' * 5000 + 'b')


def test_a_gap_in_the_ids_says_what_is_wrong(tmp_path):
    folder_of(tmp_path, z=2**31)
    with pytest.raises(UserError, match='8 entries have ids up to 2147483648: ids are missing'):
        Tokenizer.load(tmp_path)
