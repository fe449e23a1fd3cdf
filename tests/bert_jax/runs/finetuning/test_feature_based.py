"""The feature-based approach: states against a numpy encoder, the BiLSTM against a numpy one.

Runs learnt, kept and refused.
"""

from __future__ import annotations

import dataclasses
import json
import types

import jax
import numpy as np
import pytest

from bert_jax.configs import schema
from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import choose_feature_recipe
from bert_jax.input_pipeline.tasks.tagging import TaggedExample, TaggingTask
from bert_jax.mesh import construction
from bert_jax.model.bilstm import FeatureTagger, find_layers
from bert_jax.runs.finetuning import encoder_cache
from bert_jax.runs.sources import source
from bert_jax.train import checkpoint
from tests.helpers import tiny_models
from tests.helpers.files import read_json
from tests.helpers.numpy_bert import numpy_bilstm, numpy_forward
from tests.helpers.processes import mistake, ok
from tests.helpers.refusals import refused

TASK = TaggingTask('names', ('O', 'B-X', 'I-X'), ('entity_f1',), {}, document_context=True)


pytestmark = pytest.mark.usefixtures('signal_handlers')


def rows_of_words():
    """Sentences with context, of two documents.

    Words have several pieces, one has none, and one sentence is longer than a row.
    """
    texts = [
        'the unables film',
        'paris \u200b is unable',
        'who is the capital of the film , unables ? a good bad film .',
        'a bad film',
    ]
    sentences = [tuple(text.split(' ')) for text in texts]
    tags = [tuple(place % 3 for place in range(len(sentence))) for sentence in sentences]
    examples = [
        TaggedExample(str(i), words, tags[i], str(i // 3)) for i, words in enumerate(sentences)
    ]
    return examples, TASK.features(examples, tiny_models.tokenizer(), 12)


def test_states_are_those_of_a_numpy_encoder_and_are_kept(tmp_path, monkeypatch):
    examples, rows = rows_of_words()
    model = tiny_models.model('BertForPreTraining')
    encoder = source.Source(model, tiny_models.tokenizer(), 'here', 0)
    mesh = construction.make_mesh(schema.RuntimeConfig(), jax.devices()[:1])
    batch = rows | {'masked_lm_positions': np.zeros((len(rows['input_ids']), 1), np.int32)}
    wanted = {}
    for layer in (0, 1, 2):  # an encoder of so many layers ends where this one passes by
        shape = types.SimpleNamespace(
            **{**dataclasses.asdict(tiny_models.CONFIG), 'num_layers': layer}
        )
        hidden = numpy_forward(model.params, shape, batch)[0]
        for row, place in zip(*np.nonzero(rows['word_index'] >= 0), strict=True):
            wanted[layer, rows['example_index'][row], rows['word_index'][row, place]] = hidden[
                row, place
            ]

    words = encoder_cache.WordStates(str(tmp_path), encoder, rows)
    assert words.sentences['input_mask'].sum(1).tolist() == [3, 3, 15, 3]
    assert words.sentences['word_index'][1, :4].tolist() == [0, 2, 3, -1] and words.sentences[
        'label_ids'
    ][1, :4].tolist() == [0, 2, 0, 0]
    stop = types.SimpleNamespace(count=0)

    def interrupt():
        stop.count += 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        words.compute([0, 1], mesh, interrupt)
    # What was done is not done again, by another process either.
    with monkeypatch.context() as patch:
        words = encoder_cache.WordStates(str(tmp_path), encoder, rows)
        patch.setattr(
            encoder_cache, '_compile_encoder', lambda *_: pytest.fail('the encoder runs again')
        )
        words.compute([0, 1], mesh, interrupt)
    assert stop.count == 1
    assert not words.lookup(words.sentences['input_ids'][2:3, :15], (1, 2)).any()
    words.compute(range(4), mesh, lambda: None)
    for row, example in enumerate(words.sentences['example_index']):
        real = words.sentences['input_mask'][row].astype(bool)
        found = words.lookup(words.sentences['input_ids'][row, real], (2, 0, 1))
        assert found.dtype == np.float16
        for k, layer in enumerate((2, 0, 1)):
            each = [
                wanted[layer, example, word] for word in words.sentences['word_index'][row, real]
            ]
            np.testing.assert_allclose(found[:, k], each, rtol=1e-3, atol=2e-3)
        labels = np.array(examples[example].label)[words.sentences['word_index'][row, real]]
        assert np.array_equal(labels, words.sentences['label_ids'][row, real])
    assert len(list(tmp_path.iterdir())) == 1
    other = jax.tree.map(np.copy, model.params)
    other['encoder']['layers']['output']['bias'][1, 0] += 1e-3
    encoder_cache.WordStates(str(tmp_path), encoder.changed(params=other), rows)
    assert len(list(tmp_path.iterdir())) == 2  # another encoder's states are not taken for these


@pytest.mark.parametrize('weigh', [True, False])
def test_the_tagger_equals_numpy(weigh):
    rng = np.random.default_rng(0)
    lengths = [4, 2, 1]
    mask = (np.arange(4) < np.array(lengths)[:, None]).astype(np.int32)
    batch = {'features': rng.normal(size=(3, 4, 3, 5)).astype(np.float16), 'input_mask': mask}
    model = FeatureTagger(outputs=3, weigh=weigh, width=2)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch))['params']
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    logits = np.asarray(jax.jit(model.apply)({'params': params}, batch))
    x = batch['features'].astype(np.float64)
    if weigh:
        weights = np.exp(params['mix']) / np.exp(params['mix']).sum() * params['scale']
        x = sum(weight * x[:, :, k] for k, weight in enumerate(weights))
    else:
        x = np.concatenate([x[:, :, k] for k in range(3)], -1)
    for layer in range(2):
        x = numpy_bilstm(params[f'bilstm_{layer}'], x, lengths)
    wanted = x @ params['classifier']['kernel'] + params['classifier']['bias']
    real = mask > 0
    np.testing.assert_allclose(logits[real], wanted[real], atol=2e-5)


def test_layers():
    assert [find_layers(name, 12) for name in ('embeddings', 'second_to_last', 'last')] == [
        (0,),
        (11,),
        (12,),
    ]
    assert find_layers('sum_last4', 6) == find_layers('concat_last4', 6) == (
        3,
        4,
        5,
        6,
    ) and find_layers('sum_all', 3) == (1, 2, 3)
    with refused('features=concat_last4 needs an encoder of 4 layers or more, and this one has 3'):
        find_layers('concat_last4', 3)
    for change in ('init=random', 'hidden_dropout=0.2', 'optimizer.freeze_layers=1'):
        with refused('for fine-tuning'):
            apply(choose_feature_recipe('names', 'last'), [change])


@pytest.fixture
def task_file(tmp_path):
    """Tags that other words decide.

    The word after `the` is an X, and so is the one after that if it is an animal.
    """
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(24):
        colour, animals = (
            ['red', 'blue', 'green'][rng.integers(3)],
            ['fox', 'dog', 'cat'][: rng.integers(2)],
        )
        lines += [
            'a O',
            f'{colour} O',
            'was O',
            'the O',
            f'{colour} B-X',
            *(f'{word} I-X' for word in animals),
            'film O',
            '',
        ]
    for name in ('train.txt', 'dev.txt'):
        (tmp_path / name).write_text('\n'.join(lines))
    task = {
        'kind': 'tagging',
        'files': {'train': 'train.txt', 'dev': 'dev.txt'},
        'labels': ['O', 'B-X', 'I-X'],
    }
    (tmp_path / 'names.json').write_text(json.dumps(task))
    return str(tmp_path / 'names.json')


@pytest.mark.slow
def test_one_command_prints_one_table(tmp_path, encoder, task_file, binary):
    where = (f'--task={task_file}', f'--init_from={encoder}', f'--workdir={tmp_path}/run')
    settings = ('--set=max_seq_length=32', '--set=batch_size=8', '--set=epochs=4')
    small = ('--seeds=0,1', *settings, '--profile=1', '--set_bilstm=lstm_width=8')
    command = ('feature_based', *where)
    short = binary(*command, *small)
    assert short.returncode == 2
    assert 'features=second_to_last needs an encoder of 2 layers or more' in short.stderr
    run = ok(binary(*command, *small, '--approaches=finetune,last'))
    lines = [line.split() for line in run.stdout.splitlines()]
    assert [line[:2] for line in lines[:3]] == [
        ['approach', 'runs'],
        ['finetune', '2'],
        ['last', '2'],
    ]
    report = read_json(tmp_path / 'run/sweep.json')
    for line in lines[1:3]:
        scores = [
            row['metrics']['entity_f1']
            for row in report['runs']
            if row['settings']['approach'] == line[0]
        ]
        assert len(scores) == 2 and float(line[3]) == pytest.approx(np.mean(scores), abs=1e-4)
    # Of the encoder there is nothing to train.
    last = f'{tmp_path}/run/runs/last,seed=0'
    assert sorted(checkpoint.load_params(last)[0]) == ['bilstm_0', 'bilstm_1', 'classifier']
    with refused(f'holds a BiLSTM .* a frozen encoder.* which is {encoder}'):
        source.load_source(last)
    traced = (tmp_path / 'run/runs').glob('*/profile/**/*.xplane.pb')
    assert len({file.relative_to(tmp_path).parts[2] for file in traced}) == 4
    again = binary(*command, *small, '--approaches=finetune,last')
    assert again.stdout == run.stdout and 'compilations: none' in again.stderr
    for wrong, message in {
        '--approaches=first': "--approaches: 'first' is none of finetune, embeddings",
        '--seeds=0,0': '--seeds=0,0: write different numbers',
        '--set=lstm_width=8': 'lstm_width',
    }.items():
        bad = binary(*command, *small[wrong.startswith('--seeds') :], wrong)
        assert message in mistake(bad)
