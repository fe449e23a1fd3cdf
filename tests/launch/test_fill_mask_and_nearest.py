"""bert-fill-mask and bert-nearest from the command line."""

from __future__ import annotations

import json
import pathlib

import pytest

from bert_jax.conversion import huggingface
from bert_jax.launch.fill_mask import write_answer
from tests.helpers import tiny_models

TEXTS = 'paris is the capital of france\na bad film\nhttps://a.film\n'


@pytest.fixture(scope='module')
def source(tmp_path_factory) -> pathlib.Path:
    """A Hugging Face directory of a masked-word model, with a file of sentences beside it."""
    folder = tmp_path_factory.mktemp('source')
    tiny_models.tokenizer().save(folder / 'model')
    huggingface.write(folder / 'model', tiny_models.model('BertForMaskedLM'))
    (folder / 'sentences.txt').write_text(TEXTS)
    return folder


def test_fill_mask_lists_words_for_people_and_for_machines(source, binary):
    command = ('fill_mask', f'--init_from={source}/model', '--top=2')
    texts = ('https://a.film is [MASK]', 'the [MASK] of [MASK]')
    for_machines = binary(*command, '--json', *texts)
    found = [json.loads(line) for line in for_machines.stdout.splitlines()]
    assert [one['text'] for one in found] == list(texts), for_machines.stderr
    assert [[len(words) for words in one['masks']] for one in found] == [[2], [2, 2]]
    lines = [texts[0]]
    lines += [f'  {word["probability"]:8.4f}  {word["token"]}' for word in found[0]['masks'][0]]
    for_people = binary(*command, texts[0])
    assert (for_people.returncode, for_people.stdout.splitlines()) == (0, lines)


def test_a_line_end_that_is_filled_in_is_shown_on_the_line_of_its_probability():
    words = [{'token': '\n\n', 'probability': 0.5}, {'token': ' der', 'probability': 0.25}]
    shown = write_answer({'text': 'a [MASK]', 'masks': [words]})
    assert shown.split('\n') == ['a [MASK]', '    0.5000  \\n\\n', '    0.2500   der']


def test_nearest_lists_sentences_for_people_and_for_machines(source, binary):
    command = ('nearest', f'--init_from={source}/model', f'--input={source}/sentences.txt')
    for_machines = binary(*command, '--top=1', '--json', 'a bad film', 'paris')
    found = [json.loads(line) for line in for_machines.stdout.splitlines()]
    assert [one['query'] for one in found] == ['a bad film', 'paris'], for_machines.stderr
    (near,) = found[0]['nearest']
    assert (near['line'], near['text']) == (2, 'a bad film') and abs(near['cosine'] - 1) < 1e-5
    for_people = binary(*command, 'a bad film')
    assert for_people.stdout.splitlines()[:2] == ['a bad film', '   1.0000  line 2: a bad film']
    assert len(for_people.stdout.splitlines()) == 4
