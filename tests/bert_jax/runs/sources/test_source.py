"""What pre-training goes on from: heads, new words, and sources that do not fit.

Heads are there, or made fresh.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.configs import schema
from bert_jax.inference import export
from bert_jax.inference.bert import MaskFiller
from bert_jax.input_pipeline.tokenizer import extension
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.runs.sources import fitting, source
from bert_jax.runs.workdir.workdir import Workdir
from tests.helpers.files import read_json, write_lines
from tests.helpers.refusals import refused
from tests.helpers.trees import equal
from tests.helpers.vocabularies import SPECIAL

GOLDEN = pathlib.Path(__file__).parents[3] / 'golden' / 'huggingface'
WORDS = '[unused0] [unused1] sea farm ##er'.split()
WORDS = [*SPECIAL, *WORDS, *(f'word{i}' for i in range(30))]


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    """The golden BertForPreTraining with a vocabulary that has [unused] slots."""
    there = tmp_path / 'there'
    there.mkdir()
    for name in ('config.json', 'model.safetensors'):
        shutil.copyfile(GOLDEN / name, there / name)
    write_lines(there / 'vocab.txt', WORDS)
    return there


def test_all_of_a_pretraining_model_is_taken(folder):
    there = source.read_source(str(folder))
    start = fitting.read_for_pretraining(str(folder), there.tokenizer, there.model, seed=1)
    assert sorted(start.params) == ['encoder', 'mlm', 'nsp'] and equal(start.params, there.params)
    other = dataclasses.replace(there.model, hidden_dropout=0.5)  # what a new run may choose anew
    begun = fitting.read_for_pretraining(str(folder), there.tokenizer, other, seed=1)
    assert equal(begun.params, there.params)


def test_heads_that_a_source_lacks_are_fresh_and_named_and_others_are_left(folder, caplog):
    whole = source.read_source(str(folder))
    head = {'qa_outputs.weight': np.ones((2, 16), 'f'), 'qa_outputs.bias': np.ones(2, 'f')}
    tensors = {
        n: a
        for n, a in load_file(folder / 'model.safetensors').items()
        if not n.startswith(('cls.seq', 'bert.pooler'))
    }
    save_file(tensors | head, folder / 'model.safetensors')
    with caplog.at_level('INFO'):
        start, other = (
            fitting.read_for_pretraining(str(folder), whole.tokenizer, whole.model, seed)
            for seed in (1, 2)
        )
    assert 'has no pooler, nsp: made fresh' in caplog.text and 'its span is not used' in caplog.text
    assert sorted(start.params) == ['encoder', 'mlm', 'nsp'] and equal(
        start.params['mlm'], whole.params['mlm']
    )
    assert equal(start.params['encoder']['layers'], whole.params['encoder']['layers'])
    # initializer_range is 0.4 there.
    assert (
        start.params['nsp']['kernel'].shape == (16, 2)
        and 0.2 < start.params['nsp']['kernel'].std() < 0.5
    )
    assert not np.array_equal(start.params['nsp']['kernel'], other.params['nsp']['kernel'])


def test_new_words_start_as_the_mean_of_their_pieces(folder, caplog):
    there = source.read_source(str(folder))
    tokenizer = extension.extend(
        there.tokenizer, ['farmer', 'storm', 'seaer', *(f'x{i}' for i in range(100))]
    ).tokenizer
    assert tokenizer.vocab_size == 141  # so the padded table grows too
    wanted = dataclasses.replace(there.model, vocab_size=141)
    with caplog.at_level('INFO'):
        start = fitting.read_for_pretraining(str(folder), tokenizer, wanted, seed=1)
    assert (
        '103 new words, 2 in [unused] slots, 101 appended' in caplog.text
        and '(101: of all rows)' in caplog.text
    )
    for old, new in (
        (
            there.params['encoder']['embeddings']['word'],
            start.params['encoder']['embeddings']['word'],
        ),
        (there.params['mlm']['bias'], start.params['mlm']['bias']),
    ):
        assert new.shape[0] == 256 and not new[141:].any()
        kept = [i for i in range(40) if i not in (5, 6)]
        np.testing.assert_array_equal(new[kept], old[kept])
        np.testing.assert_allclose(new[5], (old[8] + old[9]) / 2, rtol=1e-6)  # farm ##er
        np.testing.assert_allclose(new[40], (old[7] + old[9]) / 2, rtol=1e-6)  # sea ##er
        # storm: no piece fits.
        np.testing.assert_allclose(new[6], old[:40].mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(new[140], new[6])
    assert start.tokenizer.encode('Farmer') == [5] and start.model == wanted

    # Markers as words do; the vocabulary is of another kind then.
    marked = extension.mark(there.tokenizer, ['[E1]', '[E2]', '[E3]']).tokenizer
    grown = fitting.extend_vocabulary(there, marked)
    assert grown.model.vocab_size == 41 and grown.tokenizer.encode('[E2]sea [E3]') == [6, 7, 40]


def test_a_source_that_does_not_fit_is_refused(folder, tmp_path):
    there = source.read_source(str(folder))
    wanted = dataclasses.replace(there.model, hidden_act='relu', num_heads=8)
    with refused(
        'leave those settings out, or give --set model.num_heads=. --set model.hidden_act=gelu_erf$'
    ):
        fitting.read_for_pretraining(str(folder), there.tokenizer, wanted, seed=1)
    (tmp_path / 'vocab.txt').write_text('\n'.join(WORDS).replace('sea', 'tea') + '\n')
    with refused(
        r"not that of .*there, nor an extension of it: entry 7 is 'sea' there and 'tea' here"
    ):
        fitting.read_for_pretraining(str(folder), Tokenizer.load(tmp_path), there.model, seed=1)
    with refused('expected a workdir of bert-pretrain or bert-finetune, a Hugging Face'):
        source.read_source(str(tmp_path))
    with refused('nowhere: no such folder'):
        source.read_source(str(tmp_path / 'nowhere'))


def padded(folder: pathlib.Path, rows: int) -> None:
    """Gives the word table so many rows, as resize_token_embeddings does, and likely ones."""
    tensors, rng = load_file(folder / 'model.safetensors'), np.random.RandomState(0)
    for name in ('bert.embeddings.word_embeddings.weight', 'cls.predictions.bias'):
        more = rng.normal(3, 1, (rows - len(tensors[name]), *tensors[name].shape[1:]))
        tensors[name] = np.concatenate([tensors[name], more.astype(np.float32)])
    save_file(tensors, folder / 'model.safetensors')
    config = read_json(folder / 'config.json')
    (folder / 'config.json').write_text(json.dumps(config | {'vocab_size': rows}))


def test_rows_that_pad_a_word_table_are_kept_and_are_no_words(folder, tmp_path):
    rows = 64
    padded(folder, rows)
    there = source.read_source(str(folder))
    assert (there.tokenizer.vocab_size, there.model.vocab_size) == (40, rows)
    assert there.model == source.read_shape(str(folder))

    # Through an export of all of it, and of the encoder alone.
    for architecture in ('BertForPreTraining', 'BertModel'):
        out, bert = tmp_path / architecture, there.bert._replace(architecture=architecture)
        export.write(bert, there.tokenizer, 'huggingface', str(out))
        before, after = (load_file(f / 'model.safetensors') for f in (folder, out))
        assert all(
            np.array_equal(after[name], before.get(name, before.get(f'bert.{name}')))
            for name in after
        )
        assert source.read_source(str(out)).model == there.model

    # Into training, with the vocabulary as it is and with entries that take some of them.
    start = fitting.read_for_pretraining(str(folder), there.tokenizer, there.model, seed=1)
    assert equal(start.params, there.params)
    longer = extension.extend(there.tokenizer, ['a', 'b', 'c', 'seaer', 'storm']).tokenizer
    start = fitting.read_for_pretraining(str(folder), longer, there.model, seed=1)
    old, new = (one.params['encoder']['embeddings']['word'] for one in (there, start))
    assert longer.vocab_size == 43
    np.testing.assert_array_equal(new[43:], old[43:])
    np.testing.assert_allclose(new[41], (old[7] + old[9]) / 2, rtol=1e-6)
    np.testing.assert_allclose(new[42], old[:40].mean(0), rtol=1e-5, atol=1e-6)

    # Likely as they are, they stand in the softmax, as in transformers, and in no answer.
    (words,) = MaskFiller(there, rows)('word3 [MASK] sea')['masks']
    assert sorted(one['token'] for one in words) == sorted(WORDS)
    assert sum(one['probability'] for one in words) < 0.9


FINE_TUNED = schema.dumps(schema.FinetuneConfig())


@pytest.mark.parametrize(
    'config, data, message',
    [
        (FINE_TUNED, None, 'data.json: cannot be read .No such file .*: put it back from a copy'),
        (FINE_TUNED, b'{"model": {', 'data.json: not valid JSON'),
        (FINE_TUNED, b'{"model": 3}', "data.json: damaged, its 'model' is missing or of another"),
        ('{"kind": ["pretrain"]}', b'{}', 'config.json: '),
        (None, b'{}', 'no config.json in it; expected a workdir'),
    ],
)
def test_a_damaged_workdir_is_one_line(tmp_path, config, data, message):
    for name, content in (('config.json', config), ('data.json', data)):
        if content is not None:
            (tmp_path / name).write_bytes(
                bytes(content, 'utf-8') if name == 'config.json' else content
            )
    for read in (lambda: source.read_source(str(tmp_path)), Workdir(tmp_path).model_config):
        with refused(message) as caught:
            read()
        assert str(tmp_path) in str(caught.value)


def test_a_source_that_no_file_system_reads_is_one_line(folder, monkeypatch):
    with refused(
        'xx://a/b: cannot be read .no such kind of address is known.: correct the address'
    ):
        source.read_source('xx://a/b')
    with refused('model.safetensors is a file: name its folder'):
        source.read_source(str(folder / 'model.safetensors'))

    def gone(*_):
        raise OSError(116, 'Stale file handle')

    monkeypatch.setattr(source.huggingface, 'read', gone)
    with refused('cannot be read .*Stale file handle.*make it readable'):
        source.read_source(str(folder))


def test_a_step_is_named_by_its_checkpoint(encoder, tmp_path):
    """Beside the newest, and in one line where there is none of that step."""
    [step] = (pathlib.Path(encoder) / 'checkpoints').iterdir()
    assert source.read_source(str(step)).step == int(step.name)
    assert source.read_shape(str(step)) == source.read_shape(encoder)
    missing = f'{encoder}/checkpoints/99'
    with refused('no checkpoint that can be read'):
        source.read_source(missing)
