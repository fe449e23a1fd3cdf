"""bert-verify-data as a shell sees it: what it says of whole and of damaged records."""

from __future__ import annotations

import dataclasses

import pytest

from bert_jax.input_pipeline.tokenizer import Tokenizer
from tests.helpers.shards import make_directory

WORDS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(f'w{i}' for i in range(30_517))]


@pytest.fixture
def directory(tmp_path):
    """Records that carry a tokenizer of their vocabulary."""
    manifest = make_directory(tmp_path)
    (tmp_path / 'tokenizer').mkdir()
    (tmp_path / 'tokenizer' / 'vocab.txt').write_text('\n'.join(WORDS) + '\n')
    (tmp_path / 'tokenizer' / 'tokenizer_config.json').write_text('{"do_lower_case": true}')
    fingerprint = Tokenizer.load(tmp_path / 'tokenizer').fingerprint
    dataclasses.replace(manifest, tokenizer_fingerprint=fingerprint).save(tmp_path)
    return tmp_path


def test_whole_records_are_described(binary, directory):
    result = binary('verify_data', directory)
    assert result.returncode == 0, result.stderr
    assert 'train: 2 shards, 820 records' in result.stdout and 'no faults' in result.stdout
    assert 'masked positions' in result.stdout and '(1 to 4)' in result.stdout


def test_every_fault_is_listed(binary, directory):
    first, second = (directory / f'train-0000{i}-of-00002.tfrecord' for i in (0, 1))
    text = bytearray(first.read_bytes())
    text[20] ^= 1
    first.write_bytes(text)
    second.unlink()
    (directory / 'tokenizer' / 'vocab.txt').write_text('\n'.join(WORDS[:-1] + ['other']) + '\n')
    result = binary('verify_data', directory)
    assert result.returncode == 2
    assert f'{first.name}: record 0 at byte 0: payload damaged' in result.stderr
    assert f'{second.name}: missing' in result.stderr
    assert 'not the tokenizer that the records were made with' in result.stderr
    assert '3 faults' in result.stdout and 'Traceback' not in result.stderr


def test_what_is_no_records_directory_is_refused(binary, tmp_path):
    for arguments in ((), (tmp_path,), (tmp_path, tmp_path)):
        result = binary('verify_data', *arguments)
        assert result.returncode == 2
        assert result.stderr.startswith('verify_data: error: ') and result.stderr.count('\n') == 1
