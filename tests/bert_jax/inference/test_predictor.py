"""The resident predictor: every class of model, and answers that do not depend on other records.

Nor do they depend on padding; programs are compiled once.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import shutil

import jax
import numpy as np
import pytest
from scipy.special import expit, softmax

from bert_jax.configs import schema
from bert_jax.inference import Predictor
from bert_jax.inference.pipelines import QuestionAnswering
from bert_jax.inference.predictor import check_windows
from bert_jax.input_pipeline.text.record_files import BadRecord
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.runs.sources.source import Source, load_plain
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import checkpoint, task_heads
from bert_jax.train.state import TrainState, init_params, split_frozen
from tests.helpers import tiny_models
from tests.helpers.numpy_bert import dense, numpy_encode, numpy_forward
from tests.helpers.refusals import refused

TEXTS = ['paris', 'who is unable?', 'the capital of france, a good film.', '', 'what ' * 40]


@functools.cache  # what it has compiled serves all tests
def predictor(architecture: str, **options) -> Predictor:
    return Predictor(
        Source(tiny_models.model(architecture), tiny_models.tokenizer(), '', 0), 64, options
    )


def row(*texts: str) -> dict[str, np.ndarray]:
    """One unpadded row, laid out by hand."""
    tokenizer = tiny_models.tokenizer()
    pieces = [[*tokenizer.encode(text), tokenizer.sep_id] for text in texts]
    ids = [tokenizer.cls_id, *sum(pieces, [])]
    segments = [0] * (1 + len(pieces[0])) + [1] * (len(ids) - 1 - len(pieces[0]))
    ids = np.array([ids], np.int32)
    return {
        'input_ids': ids,
        'input_mask': np.ones_like(ids),
        'segment_ids': np.array([segments], np.int32),
    }


def encoded(model, *texts: str) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states and pooled output of one unpadded row, by numpy."""
    return numpy_encode(model.params['encoder'], model.config, row(*texts))


def logits(model, *texts: str) -> np.ndarray:
    """What its layer on the pooled output gives."""
    return dense(encoded(model, *texts)[1], model.params['classifier'])[0]


def test_classes_whatever_stands_beside_a_text(caplog):
    architecture = 'BertForSequenceClassification'
    serve, model = predictor.__wrapped__(architecture), tiny_models.model(architecture)
    pairs = [(a, b) for a in TEXTS[1:3] for b in TEXTS[:2]]
    answers = serve([*TEXTS, *pairs])
    for texts, answer in zip([*((t,) for t in TEXTS), *pairs], answers, strict=True):
        wanted = softmax(logits(model, *texts))
        np.testing.assert_allclose(list(answer['probabilities'].values()), wanted, atol=1e-5)
        assert list(answer['probabilities']) == list(tiny_models.LABELS)
        assert answer['label'] == tiny_models.LABELS[int(wanted.argmax())]
        assert answer['probability'] == max(answer['probabilities'].values())
    assert len({a['label'] for a in answers}) > 1
    alone = serve(TEXTS[2])
    assert alone['probability'] == pytest.approx(answers[2]['probability'], abs=1e-5)
    assert serve([*TEXTS, *pairs]) == answers
    assert serve.compilations['predict'] <= 6  # two lengths, at most three sizes each
    assert serve([TEXTS[4] * 2, TEXTS[4]])[0]['label'] in tiny_models.LABELS
    assert caplog.messages[-1] == (
        'inputs: 1 of 2 texts are longer than max_seq_length=64 allows and cut: 15.00% of all word'
        ' pieces are lost'
    )


def test_masked_words_and_the_next_sentence():
    serve, model = predictor('BertForPreTraining'), tiny_models.model('BertForPreTraining')
    text, other = 'paris is the [MASK] of [MASK]', 'who is a film?'
    answer = serve((text, other))
    tokenizer = tiny_models.tokenizer()
    batch = row('paris is the bad of bad', other)
    places = [4, 6]
    batch['input_ids'][0, places] = tokenizer.mask_id
    batch |= {'masked_lm_positions': np.array([places])}
    _, _, mlm, nsp = numpy_forward(model.params, model.config, batch)
    for found, scores in zip(answer['masks'], mlm[0], strict=True):
        best = np.argsort(-scores)[:5]
        assert [word['token'] for word in found] == tokenizer.tokens(best)
        np.testing.assert_allclose(
            [word['probability'] for word in found], softmax(scores)[best], atol=1e-5
        )
    assert answer['next_probability'] == pytest.approx(softmax(nsp[0])[0], abs=1e-5)
    assert serve(('no mask here', other))['masks'] == []


def test_answers_in_contexts_longer_than_a_row():
    question = 'what is paris?'
    context = 'The film. ' * 30 + 'Paris,  is the capital of France.' + ' a bad film' * 20
    serve = predictor('BertForQuestionAnswering', doc_stride=8, max_answer_length=6)
    answer = serve((question, context))
    assert answer['answer'] and answer['answer'] in ' '.join(context.split())
    assert answer['nbest'][0]['text'] == answer['answer'] and len(answer['nbest']) == 5
    assert (
        answer['probability']
        == answer['nbest'][0]['probability']
        == max(item['probability'] for item in answer['nbest'])
    )
    beside = serve([('who?', 'Paris.'), (question, context)])
    assert (
        beside[1]['nbest'][0]['probability'] == pytest.approx(answer['probability'], abs=1e-5)
        and beside[1]['answer'] == answer['answer']
    )
    assert serve(('who?', ''))['answer'] == ''


def test_an_answer_is_between_the_likeliest_ends():
    """Of more word pieces than the ends that are tried."""
    tokenizer, record = tiny_models.tokenizer(), {'question': 'who?', 'context': 'film ' * 9 + LONG}
    serve = QuestionAnswering((), tokenizer, 64, 1, {'n_best': 2, 'max_answer_length': 5})
    rows = serve.rows([record])
    ids = rows['input_ids'][0].tolist()
    first = ids.index(tokenizer.encode(LONG)[2])
    outputs = {
        name: np.random.default_rng(0).normal(size=(1, len(ids))).astype(np.float32)
        for name in ('start_logits', 'end_logits')
    }
    # The likeliest end is a word too far.
    outputs['start_logits'][0, first], outputs['end_logits'][0, first + 4 : first + 6] = 9, (8, 9)
    (answer,) = serve.answers([record], rows, outputs)
    assert answer['answer'] == ' '.join(LONG.split()[2:7])


LONG = ' '.join(tiny_models.WORDS[:12] * 2)


@pytest.mark.parametrize('problem', ['multi_label', 'regression'])
def test_scores_of_a_text_longer_than_a_row_are_the_mean_of_its_windows(problem):
    labels = () if problem == 'regression' else tiny_models.LABELS
    model = tiny_models.model('BertForSequenceClassification', labels=labels)
    model = model._replace(problem_type=f'{problem}_classification' if labels else problem)
    serve = lambda options: Predictor(Source(model, tiny_models.tokenizer(), '', 0), 12, options)
    # Windows of ten pieces, five after each other; each word is a piece.
    windows = [' '.join(LONG.split()[i : i + 10]) for i in (0, 5, 10, 15)]
    mean = np.mean([logits(model, window) for window in windows], axis=0)
    wanted = expit(mean) if labels else mean
    values = lambda answer: list(answer.get('probabilities', answer).values())
    in_windows, cut = serve({'doc_stride': 5}), serve({})
    answers = in_windows(['a film', LONG, 'paris'])
    np.testing.assert_allclose(values(answers[1]), wanted, atol=1e-5)
    # What fits a row is answered as ever.
    np.testing.assert_allclose(values(answers[0]), values(cut('a film')), atol=1e-5)
    assert values(cut(LONG)) != pytest.approx(values(answers[1]), abs=1e-5)
    # Answers by windows are others, so a file of the former is not gone on with.
    assert in_windows.settings != cut.settings


def test_a_label_for_every_word_of_a_text_of_any_length():
    serve = predictor('BertForTokenClassification')
    answer = serve('Unables, who?')
    assert (
        answer['words'] == ['Unables', ',', 'who', '?']
        and len(answer['labels']) == len(answer['probabilities']) == 4
    )
    assert serve({'text': ['Unables', ',', 'who', '?']}) == answer
    model = tiny_models.model('BertForTokenClassification')
    states = encoded(model, 'Unables, who?')[0][0, [1, 4, 5, 6]]  # un ##able ##s , who ?
    p = softmax(dense(states, model.params['classifier']), axis=-1)
    assert answer['labels'] == [tiny_models.LABELS[i] for i in p.argmax(-1)]
    np.testing.assert_allclose(answer['probabilities'], p.max(-1), atol=1e-5)
    assert len(serve({'text': ['film'] * 150})['labels']) == 150
    assert serve({'text': []}) == {'words': [], 'labels': [], 'probabilities': []}


def test_choices_of_any_number():
    serve, model = predictor('BertForMultipleChoice'), tiny_models.model('BertForMultipleChoice')
    records = [
        {'text': 'what is paris', 'choices': ['the capital', 'a film']},
        {'text': 'who', 'start': 'unable', 'choices': ['a', 'is', 'films']},
    ]
    answers = serve(records)
    second = [logits(model, 'who', f'unable {choice}') for choice in records[1]['choices']]
    scores = np.concatenate(second)
    np.testing.assert_allclose(answers[1]['probabilities'], softmax(scores), atol=1e-5)
    assert answers[1]['choice'] == int(scores.argmax()) and len(answers[0]['probabilities']) == 2


CLASSES, MASKED = 'BertForSequenceClassification', 'BertForMaskedLM'


@pytest.mark.parametrize(
    ('architecture', 'options', 'asked', 'message'),
    [
        (CLASSES, {}, {'sentence': 'a'}, "a record needs text: no 'text' in"),
        (CLASSES, {}, ('a', 'b', 'c'), '3 texts, where this model reads text and text_b alone'),
        # As many as it was trained on.
        (CLASSES, {'texts': 2}, 'a', "a record needs text and text_b: no 'text_b' in"),
        (CLASSES, {'texts': 1}, {'text': 'a', 'text_b': ''}, "'text_b' is none of"),
        (MASKED, {}, ['no mask here'], r'inputs.0.: no \[MASK\] in the pieces that are read'),
        (MASKED, {}, [('no mask here', 'nor here')], r'inputs.0.: no \[MASK\] in the pieces'),
        ('BertForPreTraining', {}, ['no mask here'], r'inputs.0.: no \[MASK\] in the pieces'),
        ('BertModel', {}, 'a', 'BertModel has no head that answers'),
    ],
)
def test_what_a_model_does_not_read_is_refused(architecture, options, asked, message):
    with refused(message):
        predictor(architecture, **options)(asked)


@pytest.mark.parametrize(
    ('architecture', 'stride', 'message'),
    [
        ('BertForPreTraining', 8, 'BertForPreTraining is not read in windows'),
        ('BertForTokenClassification', 8, 'BertForTokenClassification is not read in windows'),
        ('BertForQuestionAnswering', 0, 'doc_stride=0: must be a whole number from 1'),
    ],
)
def test_windows_are_refused_where_there_are_none(architecture, stride, message):
    with refused(message):
        check_windows(tiny_models.model(architecture), stride)


def test_what_cannot_be_answered_stands_in_its_place_between_the_answers():
    """Asked with errors=True; without it, the first such input is named when its turn comes."""
    asked = {
        'BertForSequenceClassification': (
            ['paris', {'text': ['a', 'list']}, BadRecord('not JSON'), 'film'],
            [1, 2],
        ),
        'BertForTokenClassification': (['', 'paris', '\x00 \t', {'text': ['a', 'film']}], [0, 2]),
        'BertForPreTraining': (
            ['[MASK] ' * 20, '[MASK] ' * 21, {'text': 'paris', 'text_b': ['is']}],
            [1, 2],
        ),
        'BertForMaskedLM': (['a [MASK]', 'no mask here'], [1]),
        'BertForMultipleChoice': (
            [
                {'text': 'a', 'choices': ['b']},
                {'text': 'a', 'choices': ['b', 'c']},
                {'text': 'a', 'choices': ['b', 'c'], 'start': ['d']},
            ],
            [0, 2],
        ),
        'BertForQuestionAnswering': ([('who ' * 70, 'a'), ('who', 'paris'), ('who', '')], [0]),
    }
    for architecture, (inputs, bad) in asked.items():
        options = {'max_query_length': 70} if architecture == 'BertForQuestionAnswering' else {}
        serve = predictor(architecture, **options)
        found = list(serve.stream(inputs, errors=True))
        assert [i for i, answer in enumerate(found) if 'error' in answer] == bad, architecture
        good = [item for i, item in enumerate(inputs) if i not in bad]
        assert serve(good) == [answer for answer in found if 'error' not in answer]
        with refused(rf'inputs\[{bad[0]}\]: '):
            serve(inputs)
    assert found[0]['error'].startswith('a question of 70 word pieces leaves no room')


def test_the_same_place_with_another_model_in_it_has_another_fingerprint():
    """Answers and features that are there are never taken for those of another model.

    Another one has other weights, labels or entries.
    """
    model, tokenizer = tiny_models.model('BertForSequenceClassification'), tiny_models.tokenizer()
    here = Source(model, tokenizer, 'here', 0).fingerprint()
    assert Source(model, tokenizer, 'there', 7).fingerprint() == here
    changed = jax.tree.map(np.array, model.params)
    changed['classifier']['bias'][1] += 1e-6
    words = ''.join(f'{word}\n' for word in reversed(tokenizer.tokens(range(tokenizer.vocab_size))))
    others = [
        Source(model._replace(params=changed), tokenizer, 'here', 0),
        Source(model._replace(labels=('no', 'maybe', 'yes')), tokenizer, 'here', 0),
        Source(
            model, Tokenizer.of_kind('wordpiece', words.encode(), tokenizer.normalizer), 'here', 0
        ),
    ]
    assert len({here, *(source.fingerprint() for source in others)}) == 4


def save_weights(folder, params, kind: str, step: int = 1) -> None:
    """Makes `params` the run's one checkpoint."""
    shutil.rmtree(folder / 'checkpoints', ignore_errors=True)
    with checkpoint.Checkpoints(folder) as checkpoints:
        checkpoints.save(TrainState(params, {}, np.int32(step), np.int32(0)), {'kind': kind})


def tuned_run(folder, encoder: str, **options) -> str:
    """A workdir as tuning an encoder leaves it, with weights at random; what it trained is alone in
    its checkpoint.
    """
    source, rng = load_plain(encoder), np.random.default_rng(len(str(options)))
    config = schema.FinetuneConfig(max_seq_length=32, tuning=schema.TuningConfig(**options))
    shape = config.encoder(source.model)
    model = task_heads.make_model('classifier', shape, 2, 0.0, schema.RuntimeConfig())
    fresh, _ = jax.eval_shape(lambda: split_frozen(init_params(model, 0), shape))
    trained = jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), fresh)
    data = {'head': 'classifier', 'labels': ['bad', 'good'], 'options': {}}
    data |= {'init_from': source.where, 'init_fingerprint': source.fingerprint()}
    Workdir(folder).create_or_resume(config, {**data, 'model': schema.to_dict(source.model)})
    source.tokenizer.save(folder / 'tokenizer')
    save_weights(folder, trained, 'finetune')
    return str(folder)


def test_many_tasks_have_one_encoder_in_memory(tmp_path, encoder):
    runs = [
        tuned_run(tmp_path / 'lora', encoder, method='lora', rank=3),
        tuned_run(tmp_path / 'adapters', encoder, method='houlsby', width=5),
    ]
    texts = ['the film was good', 'who is bad ?', 'a dull book']
    want = {run: Predictor.from_workdir(run)(texts) for run in runs}
    held = lambda: sum(array.nbytes for array in jax.live_arrays())
    gc.collect()
    before = held()
    served = Predictor.on_one_encoder(runs)
    after = held()
    assert {run: served[run](texts) for run in runs} == want and list(served) == runs
    assert want[runs[0]] != want[runs[1]]

    # What is on the devices in all: the encoder once, and what each run has trained, of which its
    # checkpoint says how much that is.
    size = lambda tree: sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    once = size(load_plain(encoder).params['encoder'])
    for run in runs:
        assert served[run].added_bytes == size(checkpoint.load_params(run)[0])
    assert after - before == once + sum(one.added_bytes for one in served.values())
    tables = {
        one._engine._params['encoder']['embeddings']['word'].addressable_data(0)
        .unsafe_buffer_pointer()
        for one in served.values()
    }  # fmt: skip
    assert len(tables) == 1


def test_a_tuned_run_that_is_not_whole_or_names_itself_is_one_line(tmp_path, encoder):
    run = tuned_run(tmp_path / 'bitfit', encoder, method='bitfit')
    trained, step = checkpoint.load_params(run)
    del trained['encoder']['layers']['query']
    save_weights(tmp_path / 'bitfit', trained, 'finetune', step)
    with refused('missing encoder/layers/query/bias, which its tuning train'):
        Predictor.from_workdir(run)

    # Its encoder, as data.json names it, is the run itself.
    data = json.loads((tmp_path / 'bitfit/data.json').read_text()) | {'init_from': run}
    (tmp_path / 'bitfit/data.json').write_text(json.dumps(data))
    with refused('bitfit names itself as the encoder that it belongs to'):
        Predictor.from_workdir(run)


def test_a_forked_process_is_told_to_load_the_model_itself(monkeypatch):
    serve = predictor('BertForSequenceClassification')
    here = os.getpid()
    monkeypatch.setattr('os.getpid', lambda: here + 1)
    for ask in (lambda: serve('paris'), lambda: Predictor.from_workdir('nowhere')):
        with refused('forked .* by multiprocessing.get_context."spawn".'):
            ask()


def test_what_shares_no_encoder_is_refused_by_name(tmp_path, encoder):
    first = tuned_run(tmp_path / 'first', encoder, method='bitfit')
    shutil.copytree(encoder, tmp_path / 'other')
    params, step = checkpoint.load_params(tmp_path / 'other')
    params['encoder']['embeddings']['norm']['bias'] += 1
    save_weights(tmp_path / 'other', params, 'pretrain', step)
    other = tuned_run(tmp_path / 'second', str(tmp_path / 'other'), method='lora')
    message = r'second was tuned on the encoder of .*other, and .*first on another, that of .*encod'
    with refused(message):
        Predictor.on_one_encoder([first, other])
    with refused('has trained all of its weights, and so has none to share'):
        Predictor.on_one_encoder([first, encoder])
