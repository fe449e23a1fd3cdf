"""Span tasks: windows, positions, decoding and scores, against the reference spelled out."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from bert_jax.input_pipeline.tasks import squad_score
from bert_jax.input_pipeline.tasks.base import Predictions
from bert_jax.input_pipeline.tasks.load_task import load_task, score_file
from bert_jax.input_pipeline.tasks.squad import cut_windows
from bert_jax.input_pipeline.tasks.squad_files import find_answer
from tests.helpers.refusals import refused
from tests.helpers.tokenizer_folders import wordpiece

CONTEXT = "The Quick, brown   fox (it was Zoë's) jumped over 13 lazy dogs in 1999."


# Single characters: every letter of a word is a piece.
SIGNS = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
TOKENIZER = wordpiece([*SIGNS, *(f'##{sign}' for sign in SIGNS if sign.isalnum())])


def squad_file(tmp_path, questions, name='train-v1.1.json', context=CONTEXT):
    """Writes a file in the SQuAD format, of questions on one context.

    A question is (text, [answer text, ...]), or has [(answer text, offset)].
    """
    entries = []
    for number, (question, answers) in enumerate(questions):
        listed = [(a, context.index(a)) if isinstance(a, str) else a for a in answers]
        entries.append(
            {
                'id': f'q{number}',
                'question': question,
                'answers': [{'text': t, 'answer_start': s} for t, s in listed],
            }
        )
        if not answers:
            entries[-1]['is_impossible'] = True
    write_paragraph(tmp_path / name, {'context': context, 'qas': entries})


def write_paragraph(path, paragraph):
    path.write_text(json.dumps({'data': [{'paragraphs': [paragraph]}]}))


def perfect(features, k=5):
    """Outputs of a model that is sure of the labels.

    The true start and end first, then other positions.
    """
    rows = len(features['input_ids'])
    outputs = {}
    for side in ('start', 'end'):
        first = features[f'{side}_positions'][:, None]
        others = np.broadcast_to(np.arange(k - 1)[None], (rows, k - 1))
        outputs[f'{side}_indices'] = np.concatenate([first, others], 1).astype(np.int32)
        scores = np.concatenate([np.where(first > 0, 9.0, 0.0), np.zeros((rows, k - 1))], 1)
        outputs[f'{side}_scores'] = scores.astype(np.float32)
    outputs['null_scores'] = np.where(features['start_positions'] > 0, -9.0, 3.0).astype(np.float32)
    return outputs


def test_windows_are_those_of_the_reference():
    """run_squad.py:318-332 and :534-570, written out."""
    for length in (0, 1, 5, 12, 13, 29, 30, 31):
        for room, stride in ((5, 3), (12, 4), (12, 20), (1, 1), (30, 128)):
            spans, start = [], 0
            while start < length:
                size = min(room, length - start)
                spans.append((start, size))
                if start + size == length:
                    break
                start += min(size, stride)
            spans = spans or [(0, 0)]
            found = cut_windows(length, room, stride)
            assert [(w.start, w.stop - w.start) for w, _ in found] == spans
            for index, (start, size) in enumerate(spans):
                for piece in range(start, start + size):
                    scores = [
                        min(piece - s, s + n - 1 - piece) + 0.01 * n if s <= piece < s + n else -1
                        for s, n in spans
                    ]
                    assert found[index][1][piece - start] == (scores.index(max(scores)) == index)


def test_rows_by_hand(tmp_path):
    squad_file(tmp_path, [('a b ?', ['cd'])], context='ab cd ef gh')
    task = load_task('squad_v1', str(tmp_path))
    features = task.features(task.examples('train'), TOKENIZER, 12)
    rows = [' '.join(TOKENIZER.tokens(ids)) for ids in features['input_ids']]
    assert rows == [
        '[CLS] a b ? [SEP] a ##b c ##d e ##f [SEP]',
        '[CLS] a b ? [SEP] g ##h [SEP] [PAD] [PAD] [PAD] [PAD]',
    ]
    assert features['start_positions'].tolist() == [7, 0]
    assert features['end_positions'].tolist() == [8, 0]
    assert features['starts'][0].tolist() == [0, 0, 0, 0, 0, 0, 1, 3, 4, 6, 7, 0]
    assert features['ends'][1, 5:7].tolist() == [10, 11]
    squad_file(tmp_path, [('a ' * 40, ['fox'])])
    with refused('leaves no room'):
        task.features(task.examples('train'), TOKENIZER, 40)


def test_decoding_is_that_of_the_reference(tmp_path):
    """All pairs of the 20 best of each window, the rules of run_squad.py:765-800, in plain loops.

    Random logits.
    """
    squad_file(tmp_path, [('why ?', ['fox']), ('what is that thing ?', ['13'])], 'dev-v1.1.json')
    task = load_task('squad_v1', str(tmp_path))
    examples = task.examples('dev')
    features = task.features(examples, TOKENIZER, 40)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, *features['input_ids'].shape)) * features['input_mask'] * 3
    best = np.argsort(-logits, axis=-1, kind='stable')[..., :20]
    outputs = {'null_scores': logits[:, :, 0].sum(0)}
    for side in (0, 1):
        name = ('start', 'end')[side]
        outputs |= {
            f'{name}_indices': best[side],
            f'{name}_scores': np.take_along_axis(logits[side], best[side], -1),
        }
    predictions = task.decode(examples, features, outputs)
    starts, ends = features['starts'], features['ends']
    for index, example in enumerate(examples):
        spans = []
        for row in np.flatnonzero(features['example_index'] == index):
            for i, j in itertools.product(best[0, row], best[1, row]):
                inside = ends[row, i] and ends[row, j] and features['best_context'][row, i]
                if inside and i <= j and j - i + 1 <= 30:
                    text = ' '.join(example.context[starts[row, i] : ends[row, j]].split())
                    spans.append((-(logits[0, row, i] + logits[1, row, j]), text))
        ordered = sorted(spans, key=lambda span: span[0])
        texts = list(dict.fromkeys(text for _, text in ordered))[:20]
        nbest = predictions.extras['nbest'][example.id]
        assert [item['text'] for item in nbest] == texts
        assert predictions.answers[example.id] == texts[0]
        assert sum(item['probability'] for item in nbest) == pytest.approx(1)


def test_no_answer_is_the_smallest_null_score_against_the_best_span(tmp_path):
    squad_file(tmp_path, [('who ?', ['fox']), ('when ?', [])], 'dev-v2.0.json')
    task = load_task('squad_v2', str(tmp_path))
    examples = task.examples('dev')
    features = task.features(examples, TOKENIZER, 40)
    outputs = perfect(features)
    predictions = task.decode(examples, features, outputs)
    assert predictions.answers == {'q0': 'fox', 'q1': ''}
    assert predictions.extras['null_odds']['q0'] == pytest.approx(-9 - 18)
    scores = task.score(examples, predictions)
    assert scores['exact'] == scores['f1'] == scores['NoAns_exact'] == scores['best_f1'] == 100.0
    assert set(scores) == set(task.scores)
    # No span allowed at all: '' without a crash, and a file that any JSON reader takes.
    nothing = outputs | {'start_indices': np.zeros_like(outputs['start_indices'])}
    predictions = task.decode(examples, features, nothing)
    assert predictions.answers == {'q0': '', 'q1': ''}
    task.write_predictions(str(tmp_path / 'out'), examples, predictions)
    for name in ('predictions', 'nbest', 'null_odds'):
        json.loads(
            (tmp_path / f'out/{name}.json').read_text(),
            parse_constant=lambda constant: pytest.fail(constant),
        )
    assert task.read_predictions(str(tmp_path / 'out/predictions.json'), []) == predictions


def test_best_threshold_is_the_official_search():
    """find_best_thresh of evaluate-v2.0.py by brute force.

    Every threshold on the odds, '' above it, else the answer given.
    """
    rng = np.random.default_rng(0)
    for _ in range(8):
        names = [str(i) for i in range(30)]
        truths = {name: ['x'] if rng.random() < 0.6 else [] for name in names}
        answers = {name: ['x', 'y', ''][rng.integers(3)] for name in names[:25]}
        odds = {name: float(np.round(rng.normal(), 1)) for name in rng.permutation(names)}
        report = squad_score.score_version2(truths, answers, odds)
        unanswerable = sum(not truth for truth in truths.values())
        # as there, questions without a prediction count among the unanswerable but not in the mean
        gain = {
            n: float(answers[n] == 'x') if truths[n] else -float(answers[n] != '') for n in answers
        }
        order = [n for n in sorted(odds, key=odds.get) if n in gain]
        cumulative = unanswerable + np.cumsum([0.0, *(gain[n] for n in order)])
        assert report['best_exact'] == pytest.approx(100 * cumulative.max() / 25)
        # Those of the best are answered, up to the last one's odds.
        last = int(cumulative.argmax())
        assert report['best_exact_thresh'] == (odds[order[last - 1]] if last else 0.0)
        assert 'tuned_exact' not in report


def test_a_mark_that_contradicts_the_answers(tmp_path, caplog):
    """Scored by the answers, as by evaluate-v2.0.py, trained on by the mark, and said."""
    marked = QUESTION | {'answers': [{'text': 'fox', 'answer_start': 19}], 'is_impossible': True}
    for name in ('train-v2.0.json', 'dev-v2.0.json'):
        paragraph = {'context': CONTEXT, 'qas': [marked, marked | {'id': '2', 'answers': []}]}
        write_paragraph(tmp_path / name, paragraph)
    task = load_task('squad_v2', str(tmp_path))
    scores = task.score(task.examples('dev'), Predictions({'1': 'fox', '2': ''}))
    assert scores['exact'] == 100 and scores['HasAns_total'] == 1
    assert '1 of 2 questions list answers' in caplog.text
    assert task.examples('train')[0].answers == ()


def test_f1_counts_a_word_as_often_as_both_have_it():
    """Two of three words and of two are common; then one of two."""
    report = squad_score.score_version1({'q': ['the tall, tall tree']}, {'q': 'tall tree'})
    assert report == pytest.approx({'exact_match': 0.0, 'f1': 100 * 4 / 5})
    assert squad_score.score_version1({'q': ['tall tree']}, {'q': 'tall tall'})[
        'f1'
    ] == pytest.approx(50)


def test_korquad_counts_characters():
    """evaluate-korquad_v1.0.py by hand: 4 of 5 and of 6 characters are common.

    Its list of signs parts words.
    """
    scorer = squad_score.SCORERS['korquad']
    assert squad_score.normalize_korquad("《대한(민국)》 '서울', A.") == '대한 민국 서울 a'
    report = squad_score.score_version1({'q': ['대한민국 서울']}, {'q': '대한민국은'}, scorer)
    assert report == pytest.approx(
        {'exact_match': 0.0, 'f1': 100 * 2 * (4 / 5) * (4 / 6) / (4 / 5 + 4 / 6)}
    )
    assert squad_score.score_version1({'q': ['대한민국 서울']}, {'q': '대한민국은'})['f1'] == 0.0


def test_an_answer_beside_its_offset_is_taken_where_the_original_takes_it(tmp_path, caplog):
    """Offsets that are off by a little, by a word, and by much.

    What run_squad.py:274-296 does, written out.
    """
    there = CONTEXT.index("Zoë's")
    questions = [
        ('a ?', [('Zoë', there - 1)]),
        ('b ?', [("Zoë's", there + 2)]),
        ('c ?', [('brown fox', 13)]),
        ('d ?', [('Zoë', 0)]),
    ]
    squad_file(tmp_path, questions)
    examples = load_task('squad_v1', str(tmp_path)).examples('train')
    assert [(e.id, e.answers[0]) for e in examples] == [
        ('q0', ('Zoë', there)),
        ('q1', ("Zoë's", there)),
        ('q2', ('brown   fox', 11)),
    ]
    assert '3 of 4 questions have their answer beside its offset' in caplog.text
    assert '1 have it at another offset, 0 not in the context at all' in caplog.text
    squad_file(tmp_path, questions[3:])
    with refused('no question has its answer at its offset: 1 have it at'):
        load_task('squad_v1', str(tmp_path)).examples('train')

    words, word_of = [], []  # as run_squad.py:249-272 counts them
    for place, sign in enumerate(CONTEXT):
        if not sign.isspace():
            if place == 0 or CONTEXT[place - 1].isspace():
                words.append('')
            words[-1] += sign
        word_of.append(len(words) - 1)
    for text in ('Quick', 'brown fox', "Zoë's", '13', 'in', '(it was', '19'):
        for start in range(len(CONTEXT) - len(text) + 1):
            found = find_answer(CONTEXT, text, start)
            touched = ' '.join(words[word_of[start] : word_of[start + len(text) - 1] + 1])
            assert (found is not None) == (text in touched), (text, start)
            if found:
                assert CONTEXT[found[1] :].startswith(found[0]) and found[0].split() == text.split()


@pytest.mark.parametrize('version, answers', [('v1.1', None), ('v2.0', [])])
def test_questions_without_labels_are_not_taken_for_unanswerable_ones(tmp_path, version, answers):
    """Refused for train and dev; a test split of such questions is predicted but not scored."""
    entry = {'id': '1', 'question': 'who ?', 'answers': answers}
    for split in ('train', 'dev'):
        file = f'{split}-{version}.json'
        write_paragraph(tmp_path / file, {'context': CONTEXT, 'qas': [entry]})
        with refused('no labels: none of the 1 questions'):
            load_task(f'squad_v{version[1]}', str(tmp_path)).examples(split)
    description = {'kind': 'span', 'files': {'test': file}, 'unanswerable': version == 'v2.0'}
    (tmp_path / 'task.json').write_text(json.dumps(description))
    task = load_task(str(tmp_path / 'task.json'))
    examples = task.examples('test')
    assert examples[-1].answers is None and not task.labelled(examples)
    with refused('split has no labels'):
        task.score(examples, Predictions({'1': 'fox'}))


QUESTION = {'id': '1', 'question': 'who ?', 'answers': [{'text': 'a', 'answer_start': 0}]}


@pytest.mark.parametrize(
    'paragraph, problem',
    [
        (None, r"data\[0\].paragraphs\[0\]: 'context' must be a text"),
        ({'context': 'a', 'qas': [{'question': 'a'}]}, "'id' must be a text or a whole number"),
        (
            {'context': 'a', 'qas': [QUESTION, QUESTION | {'id': '2', 'answers': []}]},
            "question '2' has no answer; use squad_v2",
        ),
    ],
)
def test_a_field_of_the_wrong_type_is_named(tmp_path, paragraph, problem):
    write_paragraph(tmp_path / 'dev-v1.1.json', paragraph)
    with refused(f'dev-v1.1.json: .*{problem}'):
        load_task('squad_v1', str(tmp_path)).examples('dev')


@pytest.mark.parametrize(
    'name, content, message',
    [
        (
            'null_odds',
            {'q0': 0.1},
            "null_odds.json lacks 1 of the 2 questions that are answered, the first is 'q1'",
        ),
        ('predictions', {'q0': None, 'q1': ''}, "id -> answer text: 'q0' has something else"),
        ('predictions', {'other': 'fox'}, 'none of the 1 predictions is of one of the 2 questions'),
    ],
)
def test_predictions_that_cannot_be_scored_are_refused(tmp_path, name, content, message):
    """Each of the three files that a system gives for v2.0; the other two are right."""
    squad_file(tmp_path, [('who ?', ['fox']), ('when ?', [])], 'dev-v2.0.json')
    files = {
        'predictions': {'q0': 'fox', 'q1': ''},
        'null_odds': {'q0': -1.0, 'q1': 1.0},
        'nbest': {'q0': [{'text': 'fox'}], 'q1': [{'text': ''}]},
    }
    (tmp_path / 'answers').mkdir()
    for stem, right in (files | {name: content}).items():
        (tmp_path / f'answers/{stem}.json').write_text(json.dumps(right))
    task = load_task('squad_v2', str(tmp_path))
    with refused(message):
        task.score(
            task.examples('dev'),
            task.read_predictions(str(tmp_path / 'answers/predictions.json'), []),
        )


def test_a_span_task_of_tables(tmp_path):
    """A question a row, its answer told by its place or by its text.

    Several answers are in JSON; there is none where questions may have none.
    """

    def read(name, text, **changes):
        (tmp_path / name).write_text(text)
        columns = {'question': 'q', 'context': 'c', 'answer': 'a', 'start': 's', 'id': 'id'}
        (tmp_path / 'task.json').write_text(
            json.dumps({'kind': 'span', 'files': {'dev': name}, 'columns': columns} | changes)
        )
        return load_task(str(tmp_path / 'task.json')).examples('dev')

    assert read('dev.csv', 'id,q,c,a,s\n7,who ?,"a fox, a fox",fox,9\n')[0].answers == (('fox', 9),)
    flat = {'id': 1, 'q': 'who ?', 'c': 'a fox'}
    flat['answers'] = {'text': ['fox', 'a fox'], 'start': [2, 0]}
    columns = {'question': 'q', 'context': 'c', 'answer': 'answers.text', 'start': 'answers.start'}
    found = read('dev.jsonl', json.dumps(flat), columns=columns)
    assert found[0].answers == (('fox', 2), ('a fox', 0))
    three = {'question': 'q', 'context': 'c', 'answer': 'a'}
    found = read(
        'dev.tsv', 'q\tc\ta\nb\ta fox\tfox\nb\ta fox\t\n', columns=three, unanswerable=True
    )
    assert [e.answers for e in found] == [(('fox', 2),), ()]
    with refused('dev.csv:2: the start of an answer is not a whole number'):
        read('dev.csv', 'id,q,c,a,s\n7,b,a fox,fox,x\n')


V2 = {'exact': 75.8275, 'f1': 78.7778, 'HasAns_exact': 69.6188, 'HasAns_f1': 75.5277}


@pytest.mark.parametrize(
    'name, file, expected',
    [
        ('squad_v1', 'v1.1-match-lstm.json', {'exact_match': 67.6348, 'f1': 76.7556}),
        ('squad_v2', 'v2.0-nlnet.json', V2 | {'NoAns_f1': 82.0185}),
    ],
)
def test_published_predictions_have_their_official_figures(test_data, name, file, expected):
    predictions = str(test_data / 'squad/published_predictions' / file)
    report = score_file(predictions, name, str(test_data / 'squad'))['metrics']
    assert {metric: round(report[metric], 4) for metric in expected} == expected
