"""A store: made once from the same inputs, gone on with after a stop, never over others' files."""

from __future__ import annotations

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.store import Store


@pytest.fixture
def store(tmp_path):
    said: list[str] = []
    store = Store(tmp_path / 'a/b', said.append)
    store.said = said
    return store


def fill(folder, name='made'):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text('x')


def test_equal_inputs_are_made_once_and_others_from_nothing(store):
    first = store.make('text', {'a': 1, 'b': (2,)}, fill)
    again = store.make('text', {'b': [2], 'a': 1}, lambda _: pytest.fail('made twice'))
    assert again == first == store.results['text'] and store.done('text')
    other = store.make('text', {'a': 2, 'b': (2,)}, lambda folder: fill(folder, 'new'))
    assert other.key != first.key and [p.name for p in other.folder.iterdir()] == ['new']
    assert 'text: reused, made from the same inputs in 0 s' in store.said
    assert 'text: made again, its inputs have changed (a)' in store.said


def test_an_interrupted_result_goes_on_in_its_folder(store):
    def interrupted(folder):
        fill(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.make('kind/1', {}, interrupted)
    assert not store.done('kind/1')
    result = store.make('kind/1', {}, lambda folder: fill(folder, 'more'))
    assert sorted(p.name for p in result.folder.iterdir()) == ['made', 'more']


def test_a_refusal_leaves_nothing_and_a_strangers_folder_is_left_alone(store):
    def refused(folder):
        fill(folder)
        raise UserError('no')

    with pytest.raises(UserError, match='no'):
        store.make('text', {}, refused)
    assert not store.path.exists()
    (store.path / 'text').mkdir(parents=True)
    with pytest.raises(UserError, match='was not made by this command: use another --workdir'):
        store.make('text', {}, fill)
