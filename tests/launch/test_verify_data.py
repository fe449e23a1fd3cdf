"""bert-verify-data as a shell sees it: what it says of whole and of damaged records."""

from __future__ import annotations

import dataclasses

import pytest

from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from tests.helpers.processes import mistake, ok
from tests.helpers.shards import make_directory
from tests.helpers.vocabularies import write_vocabulary

WORDS = [f'w{i}' for i in range(30_517)]


@pytest.fixture
def directory(tmp_path):
    """Records that carry a tokenizer of their vocabulary."""
    manifest = make_directory(tmp_path)
    fingerprint = Tokenizer.load(write_vocabulary(tmp_path / 'tokenizer', WORDS)).fingerprint
    dataclasses.replace(manifest, tokenizer_fingerprint=fingerprint).save(tmp_path)
    return tmp_path


def test_whole_records_are_described(binary, directory):
    result = ok(binary('verify_data', directory))
    assert 'train: 2 shards, 820 records' in result.stdout and 'no faults' in result.stdout
    assert 'masked positions' in result.stdout and '(1 to 4)' in result.stdout


def test_every_fault_is_listed(binary, directory):
    first, second = (directory / f'train-0000{i}-of-00002.tfrecord' for i in (0, 1))
    text = bytearray(first.read_bytes())
    text[20] ^= 1
    first.write_bytes(text)
    second.unlink()
    write_vocabulary(directory / 'tokenizer', WORDS[:-1] + ['other'])
    result = binary('verify_data', directory)
    assert result.returncode == 2
    assert f'{first.name}: record 0 at byte 0: payload damaged' in result.stderr
    assert f'{second.name}: missing' in result.stderr
    assert 'not the tokenizer that the records were made with' in result.stderr
    assert '3 faults' in result.stdout and 'Traceback' not in result.stderr


def test_how_a_text_is_cut_is_shown_for_every_kind_of_folder(binary, directory):
    """By the tokenizer of records, which lies in them as in a run, and by one itself."""
    shown = [
        binary('verify_data', folder, '--show=W7  ünknown w12.', '--show=w0')
        for folder in (directory, directory / 'tokenizer')
    ]
    assert not any(result.returncode for result in shown), shown[0].stderr
    assert shown[0].stdout == shown[1].stdout
    first, second = (text.splitlines() for text in shown[0].stdout.split('\n\n'))
    assert [line.split() for line in first[1:5]] == [
        ['12', '0', '2', 'w7', 'W7'],
        ['1', '4', '11', '[UNK]', 'ünknown'],
        ['17', '12', '15', 'w12', 'w12'],
        ['1', '15', '16', '[UNK]', '.'],
    ]
    about = 'wordpiece, 30522 entries, lower case, accents stripped'
    assert first[5:] == [f'4 pieces of 3 words, 2 unknown; {about}']
    assert second[2] == f'1 pieces of 1 words, 0 unknown; {about}'
    failed = binary('verify_data', directory / 'nowhere', '--show=a')
    assert 'no such tokenizer directory' in mistake(failed)


def test_what_is_no_records_directory_is_refused(binary, tmp_path):
    for arguments in ((), (tmp_path,), (tmp_path, tmp_path)):
        result = binary('verify_data', *arguments)
        assert result.returncode == 2
        assert result.stderr.startswith('verify_data: error: ') and result.stderr.count('\n') == 1
