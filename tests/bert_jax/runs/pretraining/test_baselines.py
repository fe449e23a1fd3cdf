"""What guessing scores, against counts taken by hand."""

from __future__ import annotations

import collections
import json
import math

import numpy as np
import pytest

from bert_jax.input_pipeline.records import fields, shards
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.runs.pretraining.baselines import count_baselines, log_baselines
from tests.helpers.files import write_lines
from tests.helpers.records import encoded

WORDS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdefghij']
CLS, SEP, MASK = 2, 3, 4


def row(original: list[int], masked: dict[int, int], label: int) -> dict[str, np.ndarray]:
    """A record of S=8, P=3: [CLS] original [SEP], masked.

    masked: what is shown at each masked position.
    """
    ids = [CLS, *original, SEP]
    shown = [masked.get(i, token) for i, token in enumerate(ids)]
    pad = lambda values, size: np.array([*values, *[0] * (size - len(values))])
    return {
        'input_ids': pad(shown, 8),
        'input_mask': pad([1] * len(ids), 8),
        'segment_ids': np.zeros(8, int),
        'masked_lm_positions': pad(list(masked), 3),
        'masked_lm_ids': pad([ids[i] for i in masked], 3),
        'masked_lm_weights': pad([1.0] * len(masked), 3).astype(np.float32),
        'next_sentence_labels': np.array(label),
    }


TRAIN = [
    row([5, 5, 5, 6], {1: MASK, 4: MASK}, 0),
    row([5, 6, 7], {2: 9}, 1),
    row([5, 5, 8], {1: 5}, 1),
]
HELD_OUT = [
    row([5, 5, 9], {1: MASK, 3: MASK}, 1),
    row([6, 5], {1: MASK}, 1),
    row([7, 7, 5], {3: 8}, 0),
]


@pytest.fixture
def record_folder(tmp_path):
    folder = tmp_path / 'records'
    (folder / 'tokenizer').mkdir(parents=True)
    write_lines(folder / 'tokenizer' / 'vocab.txt', WORDS)
    (folder / 'tokenizer' / 'tokenizer_config.json').write_text(
        json.dumps(
            {'tokenizer_class': 'BertTokenizer', 'do_lower_case': True, 'strip_accents': None}
        )
    )
    spec = fields.RecordSpec(8, 3, 'static')
    infos = []
    for split, rows in (('train', TRAIN), ('eval', HELD_OUT)):
        rows = encoded(spec, {name: np.stack([r[name] for r in rows]) for name in rows[0]})
        infos.append(shards.write_shard(folder / f'{split}-00000-of-00001.tfrecord', rows))
    tokenizer = Tokenizer.load(folder / 'tokenizer')
    statistics = {'text': {'train': {'fill': 0.75}}}
    shards.Manifest(
        8, 3, 'static', 'nsp', len(WORDS), tokenizer.fingerprint, 0, {}, statistics, tuple(infos)
    ).save(folder)
    return folder


def test_baselines(record_folder):
    """Against counts taken by hand: 5 stands 6 times, 6 twice, 7 and 8 once, masked or not.

    Specials do not count.
    """
    counts = collections.Counter({5: 6, 6: 2, 7: 1, 8: 1})
    held_out = [5, 9, 6, 5]  # what the masked places of HELD_OUT hid
    p = lambda token: (counts[token] + 1) / (sum(counts.values()) + len(WORDS))
    found = count_baselines(str(record_folder))
    assert found.unigram_nll == pytest.approx(-sum(math.log(p(token)) for token in held_out) / 4)
    assert found.unigram_accuracy == 2 / 4
    assert found.nsp_accuracy == pytest.approx(2 / 3)
    assert found.nsp_nll == pytest.approx(-(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)))
    assert (found.masked, found.examples) == (4, 3)
    first_two = count_baselines(str(record_folder), examples=2)
    assert (first_two.masked, first_two.examples, first_two.nsp_accuracy) == (3, 2, 1.0)
    assert first_two.unigram_accuracy == pytest.approx(1 / 3)


@pytest.mark.parametrize('nsp', [False, True])
def test_pairs_are_logged_only_where_they_are_trained_on(record_folder, caplog, nsp):
    tokenizer = Tokenizer.load(record_folder / 'tokenizer')
    with caplog.at_level('INFO'):
        log_baselines(str(record_folder), 0, tokenizer, nsp)
    assert 'mlm_accuracy 0.500' in caplog.text and ('nsp' in caplog.text) == nsp
