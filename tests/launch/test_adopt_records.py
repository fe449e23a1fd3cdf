"""bert-adopt-records on records written byte by byte in the format of google-research/bert.

The writer here is protobuf's and TFRecord's own definition, and none of our code.
"""

from __future__ import annotations

import random
import re
import struct

import google_crc32c
import pytest

from bert_jax.input_pipeline.records import shards
from bert_jax.input_pipeline.records.stream import RecordStream
from tests.helpers.files import write_lines
from tests.helpers.processes import mistake, ok
from tests.helpers.vocabularies import SPECIAL, write_vocabulary

S, P = 32, 5
CLS, SEP, MASK = 2, 3, 4
WORDS = [f'w{i}' for i in range(195)]


def varint(number):
    out = b''
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def message(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(features):
    """A tf.train.Example; a list of floats is a FloatList, one of ints an Int64List."""
    entries = b''
    for name, numbers in features.items():
        if isinstance(numbers[0], float):
            value = message(2, message(1, struct.pack(f'<{len(numbers)}f', *numbers)))
        else:
            value = message(3, message(1, b''.join(map(varint, numbers))))
        entries += message(1, message(1, name.encode()) + message(2, value))
    return message(1, entries)


def frame(payload):
    def crc(data):
        value = google_crc32c.value(data)
        return struct.pack('<I', ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack('<Q', len(payload))
    return length + crc(length) + payload + crc(payload)


def features(rng, seq_len=S):
    """A record as create_pretraining_data.py makes it: pairs, masks, zeros behind both."""
    a, b = (rng.choices(range(5, 200), k=rng.randint(3, 12)) for _ in range(2))
    ids = [CLS, *a, SEP, *b, SEP]
    words = [i for i, token in enumerate(ids) if token not in (CLS, SEP)]
    places = sorted(rng.sample(words, min(P, max(1, round(0.15 * len(ids))))))
    labels = [ids[i] for i in places]
    for place in places:
        # 80 % [MASK], 10 % as it is, 10 % any entry of the vocabulary, special ones too
        if rng.random() < 0.8:
            ids[place] = MASK
        elif rng.random() < 0.5:
            ids[place] = rng.randrange(200)
    empty, unused = seq_len - len(ids), P - len(places)
    return {
        'input_ids': ids + [0] * empty,
        'input_mask': [1] * len(ids) + [0] * empty,
        'segment_ids': [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * empty,
        'masked_lm_positions': places + [0] * unused,
        'masked_lm_ids': labels + [0] * unused,
        'masked_lm_weights': [1.0] * len(places) + [0.0] * unused,
        'next_sentence_labels': [rng.randint(0, 1)],
    }


def write(path, records):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b''.join(frame(example(one)) for one in records))


@pytest.fixture
def folder(tmp_path):
    """Two files of records to train on and one to hold out, and a tokenizer as Google has it."""
    rng = random.Random(0)
    files = {}
    for name, count in (('train.tf_record', 300), ('train2.tf_record', 20), ('dev.tf_record', 40)):
        files[name] = [features(rng) for _ in range(count)]
        write(tmp_path / 'google' / name, files[name])
    write_vocabulary(tmp_path / 'vocab', WORDS)
    return tmp_path, files


@pytest.fixture
def adopt(binary, folder):
    """Runs the command on the records of `folder`."""

    def run(*others, **flags):
        place = folder[0]
        flags = {
            'input': f'{place}/google/train*.tf_record',
            'eval_input': f'{place}/google/dev.tf_record',
            'tokenizer': f'{place}/vocab',
            'output': f'{place}/records',
        } | flags
        return binary('adopt_records', *(f'--{k}={v}' for k, v in flags.items() if v), *others)

    return run


@pytest.mark.parametrize('beside', [False, True])
def test_the_manifest_says_what_the_records_hold(adopt, folder, beside):
    place, files = folder
    output = place / ('google' if beside else 'records')
    result = adopt(output=output)
    ok(result)
    manifest = shards.Manifest.load(output)
    assert (manifest.seq_len, manifest.max_predictions, manifest.vocab_size) == (S, P, 200)
    assert manifest.seed is None and {'seed', 'text', 'dupe_factor'} <= set(
        manifest.options['unknown']
    )
    train = files['train.tf_record'] + files['train2.tf_record']
    counts = manifest.statistics['records']['train']
    assert counts['records'] == manifest.records('train') == len(train)
    assert counts['tokens'] == sum(sum(one['input_mask']) for one in train)
    assert counts['masked'] == sum(sum(one['masked_lm_weights']) for one in train)
    assert counts['random_next'] == sum(one['next_sentence_labels'][0] for one in train)
    assert manifest.records('eval') == 40
    assert shards.verify(output).faults == []
    assert 'the first record: [CLS] ' in result.stdout and 'not known: seed' in result.stdout

    # every held-out record comes out of the stream as it was written
    stream = RecordStream(output, 'eval', 8, seed=0, decoder='numpy')
    for batch, start in zip(stream.evaluation(), range(0, 40, 8), strict=True):
        for row, one in enumerate(files['dev.tf_record'][start : start + 8]):
            for name, numbers in one.items():
                assert batch[name][row].tolist() == (
                    numbers[0] if name == 'next_sentence_labels' else numbers
                )
    again = adopt(output=output)
    assert 'has a manifest.json already' in mistake(again)


def changed(files, place, row, **values):
    """The first file again, with these values in one record."""
    files['train.tf_record'][row] |= values
    write(place / 'google' / 'train.tf_record', files['train.tf_record'])


def wrong_segments(record):
    return [1 - s if m else 0 for s, m in zip(record['segment_ids'], record['input_mask'])]


@pytest.mark.parametrize(
    'mistake, said',
    [
        ('cut', r'train2.tf_record: record 19 at byte \d+: cut before its end'),
        ('other vocabulary', r'begins with id 2 and not with \[CLS\], 3: made with another'),
        ('no label', 'record 7 .*feature next_sentence_labels is missing'),
        ('v2 names', 'has input_word_ids, as --use_v2_feature_names'),
        ('segments', 'record 7 .*segment_ids are not 0 up to a .SEP. and 1 behind it'),
        ('one name', 'train.tf_record: two files of this name'),
        ('a link', 'held.tf_record: holds the very records of .*train2.tf_record'),
        ('another tokenizer', 'records/tokenizer: holds something else already'),
    ],
)
def test_what_is_wrong_is_one_line(adopt, folder, mistake, said):
    place, files = folder
    flags, second = {}, place / 'google' / 'train2.tf_record'
    record = files['train.tf_record'][7]
    match mistake:
        case 'cut':
            second.write_bytes(second.read_bytes()[:-9])
        case 'other vocabulary':
            entries = ['[unused]', *SPECIAL, *WORDS]
            write_lines(write_vocabulary(place / 'other', ()) / 'vocab.txt', entries)
            flags = {'tokenizer': place / 'other'}
        case 'no label':
            del record['next_sentence_labels']
            changed(files, place, 7)
        case 'v2 names':
            write(place / 'google' / 'train.tf_record', [{'input_word_ids': [1] * S}])
        case 'segments':
            changed(files, place, 7, segment_ids=wrong_segments(record))
        case 'one name':
            flags = {'eval_input': f'{place}/google/train.tf_record'}
        case 'a link':
            flags = {'eval_input': place / 'held.tf_record'}
            flags['eval_input'].hardlink_to(second)
        case 'another tokenizer':
            write_vocabulary(place / 'records/tokenizer', ())
    result = adopt(**flags)
    assert result.returncode == 2 and result.stderr.strip().splitlines(), result.stdout
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith('adopt_records: error: ') and 'Traceback' not in result.stderr
    assert re.search(said, last), last
    assert not list((place / 'records').glob('*.tf_record'))


def test_a_folder_that_holds_something_else_is_left_alone(adopt, folder):
    output = folder[0] / 'records'
    output.mkdir()
    (output / 'dev.tf_record').write_bytes(b'mine')
    assert 'is neither a new folder' in adopt().stderr
    assert [path.read_bytes() for path in output.iterdir()] == [b'mine']
