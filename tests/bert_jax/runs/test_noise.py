"""--noise: what it may say, and which texts of an example have typos."""

from __future__ import annotations

import pytest

from bert_jax.input_pipeline.tasks.classification import TextExample
from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.input_pipeline.tasks.multiple_choice import ChoiceExample
from bert_jax.input_pipeline.tasks.squad_files import SpanExample
from bert_jax.input_pipeline.tasks.tagging import TaggedExample
from bert_jax.input_pipeline.text.typos import Typos
from bert_jax.runs.noise import add_typos, parse
from tests.helpers.refusals import refused

EVERY = Typos(1.0, 0, ('leet',))


def test_kinds_and_shares_are_read():
    noise = parse('typos:0.2,0.05,0.2')
    assert noise.shares == (0.05, 0.2) and noise.name == 'typos'
    assert noise.kinds == ('insertion', 'deletion', 'swap', 'keyboard', 'homoglyph', 'leet')
    assert (
        parse('swap+leet:1').kinds == ('swap', 'leet') and parse('swap+leet:1').name == 'swap+leet'
    )
    assert parse('leet+swap+deletion+insertion+homoglyph+keyboard:0').name == 'typos'


@pytest.mark.parametrize(
    'text, message',
    [
        ('typos', 'expected kinds and shares, as in --noise=typos:0.05,0.1'),
        ('typos:', 'expected kinds and shares'),
        ('typos:5', '5 is no share of the words: it must be from 0 to 1'),
        ('typos:nan', 'nan is no share'),
        ('typos:10%', "'10%' is no number"),
        ('swaps:0.1', r"no kind of typo is called 'swaps'; .*\(did you mean swap\?\)"),
    ],
)
def test_what_it_cannot_be_is_one_line(text, message):
    with refused(message) as error:
        parse(text)
    assert str(error.value).startswith(f'--noise={text}: ')


@pytest.mark.parametrize('task, text_b', [('sst2', None), ('rte', 'so')])
def test_labels_and_places_stay(task, text_b, tmp_path):
    example = TextExample('1', 'so so', text_b, 1)
    (noisy,), changed = add_typos(load_task(task, str(tmp_path)), [example], EVERY)
    assert (noisy.id, noisy.label, changed) == (example.id, example.label, 1)
    assert noisy.text != example.text and (noisy.text_b is None) == (text_b is None)
    assert noisy.text_b != 'so'


def test_each_choice_has_typos_of_its_own(tmp_path):
    example = ChoiceExample('1', 'is it so', '', ('yes', 'yes'), 1)
    (noisy,), changed = add_typos(load_task('swag', str(tmp_path)), [example], EVERY)
    assert noisy.label == 1 and noisy.start == '' and changed == 1
    assert noisy.context.split() != example.context.split() and 'yes' not in noisy.choices
    seeds = {add_typos(load_task('swag', str(tmp_path)), [example], Typos(1.0, seed))[0][0].choices
             for seed in range(9)}  # fmt: skip
    assert any(a != b for a, b in seeds)


def test_of_a_question_the_context_stays(tmp_path):
    """Its answers are places in it."""
    example = SpanExample('1', 'mum is it', 'it is so', (('so', 6),))
    (noisy,), changed = add_typos(load_task('squad_v1', str(tmp_path)), [example], EVERY)
    assert noisy.question != example.question and changed == 2 / 3  # mum has no such letter
    assert (noisy.context, noisy.answers) == (example.context, example.answers)


def test_every_word_keeps_its_tag(tmp_path):
    example = TaggedExample('1', ('Bob', 'is', '.'), (1, 0, 0), 'd')
    (noisy,), changed = add_typos(load_task('conll2003', str(tmp_path)), [example], EVERY)
    assert noisy.label == example.label and len(noisy.words) == 3
    assert noisy.words[0] in ('8ob', 'B0b', 'Bo8') and noisy.words[2] == '.' and changed == 1
