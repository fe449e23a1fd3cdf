"""Directories of sentence-transformers, written and read, and what is refused of them."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest
import tokenizers
from etils import epath
from safetensors.numpy import save_file

from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.conversion import sentence_transformers
from bert_jax.conversion.trained_model import Reading
from bert_jax.inference import Predictor, export, model_card
from bert_jax.inference.model_card import Notes
from bert_jax.runs.sources import source as sources
from bert_jax.train.task_heads import HEADS
from tests.helpers import tiny_models
from tests.helpers.refusals import refused

PLAIN = SentenceConfig(max_seq_length=30)


def written(folder, sentence: SentenceConfig = PLAIN) -> epath.Path:
    folder = epath.Path(folder)
    folder.mkdir(exist_ok=True)
    sentence_transformers.write(folder, tiny_models.model('BertModel')._replace(sentence=sentence))
    return folder


def read(folder) -> tuple[SentenceConfig, tuple[str, ...]]:
    reading = Reading(tiny_models.model('BertModel'), {}, (), ())
    reading = sentence_transformers.add_modules(folder, reading)
    return reading.model.sentence, reading.remarks


def change(file, **settings) -> None:
    held = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({name: v for name, v in (held | settings).items() if v is not ...}))


@pytest.mark.parametrize('pooling', ['cls', 'weighted_mean'])
def test_settings_are_read_as_they_were_written(pooling, tmp_path):
    prompts = (('query', 'ask: '), ('document', ''))
    sentence = SentenceConfig(pooling, pooling != 'cls', 4, prompts, 30, 'dot')
    assert read(written(tmp_path, sentence)) == (sentence, ())


def test_the_spelling_of_later_releases_is_read(tmp_path):
    folder = written(tmp_path, SentenceConfig('mean', True))
    (folder / 'modules.json').write_text(modules('1_Pooling', 'Normalize'))
    (folder / '1_Pooling' / 'config.json').write_text('{"pooling_mode": "weightedmean"}')
    (folder / 'sentence_bert_config.json').unlink()
    change(folder / 'tokenizer_config.json', model_max_length=20)
    change(folder / 'config_sentence_transformers.json', default_prompt_name='query')
    sentence, remarks = read(folder)
    assert sentence == SentenceConfig('weighted_mean', True, max_seq_length=20)
    assert remarks == ("the prompt 'query' is not taken by itself here: name it",)


POOLING, SETTINGS = '1_Pooling/config.json', 'config_sentence_transformers.json'


def modules(pooling='1_Pooling', *more: str) -> str:
    """The text of modules.json: the folder of the pooling, and a module after it."""
    rows = enumerate(zip(('', pooling, '2'), ('Transformer', 'Pooling', *more)))
    return json.dumps([{'idx': n, 'path': path, 'type': f'x.{kind}'} for n, (path, kind) in rows])


@pytest.mark.parametrize(
    ('file', 'content', 'message'),
    [
        (POOLING, {'pooling_mode_max_tokens': True}, 'max_tokens: one of'),
        (POOLING, {'pooling_mode_mean_tokens': False}, 'pooling of no kind'),
        (POOLING, {'include_prompt': False}, 'include_prompt=false'),
        (SETTINGS, {'similarity_fn_name': 'euclidean'}, 'euclidean'),
        (SETTINGS, {'prompts': ['a']}, 'each name a text'),
        ('sentence_bert_config.json', {'do_lower_case': True}, 'tells cases apart'),
        ('modules.json', '{', 'no list of modules'),
        ('modules.json', modules('1_Pooling', 'Dense'), 'dense layer'),
        ('modules.json', modules('../other'), 'folder beside it'),
        ('modules.json', modules('..'), 'folder beside it'),
        ('modules.json', modules('/etc'), 'folder beside it'),
        ('modules.json', modules('1_Pooling/../..'), 'folder beside it'),
        ('modules.json', modules('a\0'), 'folder beside it'),
        ('modules.json', modules(5), 'folder beside it'),
    ],
)
def test_what_is_not_built_here_is_refused_in_a_line(file, content, message, tmp_path):
    folder = written(tmp_path, SentenceConfig(prompts=(('query', 'ask: '),)))
    change(folder / 'tokenizer_config.json', do_lower_case=False)
    if isinstance(content, str):
        (folder / file).write_text(content)
    else:
        change(folder / file, **content)
    with refused(message):
        read(folder)


def test_an_exported_directory_is_a_source_of_a_sentence_encoder(tmp_path):
    out = str(tmp_path / 'out')
    model = tiny_models.model('BertModel')._replace(sentence=PLAIN)
    export.write(model, tiny_models.tokenizer(), 'sentence_transformers', out)
    bert = sources.read_source(out).bert
    assert bert.sentence == PLAIN
    assert bert.head == 'embedding'


@pytest.mark.parametrize('form', ['huggingface', 'sentence_transformers'])
def test_a_directory_has_the_tokenizer_for_programs_that_read_json_alone(form, tmp_path):
    ours = tiny_models.tokenizer()
    model = tiny_models.model('BertModel')._replace(sentence=PLAIN)
    export.write(model, ours, form, str(tmp_path / 'out'))
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / 'out' / 'tokenizer.json'))
    text = 'Unables, who? FRANCE.Paris is  unseen'
    assert theirs.encode(text).ids == [ours.cls_id, *ours.encode(text), ours.sep_id]
    assert sources.read_source(str(tmp_path / 'out')).tokenizer.fingerprint == ours.fingerprint


@pytest.mark.parametrize('head', HEADS)
def test_a_card_says_how_its_head_is_used(head, capsys):
    model = tiny_models.model(HEADS[head].architecture)
    model = model._replace(problem_type=HEADS[head].problem_type)
    model = model._replace(sentence=PLAIN if head == 'embedding' else None)
    notes = Notes('mini', 'owner/base', (('batch', 32),), (('dev', 'accuracy', 0.9),))
    card = model_card.make_card(model, notes)
    assert card.startswith('---\nlibrary_name: ')
    header, _, body = card.removeprefix('---\n').partition('---\n')
    values = {n: json.loads(v) for n, v in (line.split(': ', 1) for line in header.splitlines())}
    assert values['base_model'] == 'owner/base' and values['tags'][:2] == ['bert_jax', 'bert']
    code = body.partition('```python\n')[2].partition('```')[0]
    compile(code, 'card', 'exec')
    assert "'mini'" in code
    assert '| batch | 32 |' in body and '| dev, accuracy | 0.9000 |' in body


CROSS = {'model_type': 'CrossEncoder', 'activation_fn': 'torch.nn.modules.activation.Sigmoid'}


def cross_encoder(folder, labels=('score',), **settings) -> epath.Path:
    model = tiny_models.model('BertForSequenceClassification', labels=labels)
    export.write(model, tiny_models.tokenizer(), 'huggingface', str(folder))
    change(folder / 'config_sentence_transformers.json', **(CROSS | settings))
    modules = '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.T.Transformer"}]'
    (folder / 'modules.json').write_text(modules)
    return epath.Path(folder)


def test_a_cross_encoder_has_the_activation_that_its_folder_names(tmp_path):
    folder = cross_encoder(tmp_path / 'new')
    pair = ('paris', 'is the capital of france')
    with_sigmoid = Predictor.from_workdir(folder)(pair)['value']
    change(folder / 'config_sentence_transformers.json', activation_fn=...)
    nothing = {'sentence_transformers': ..., 'sbert_ce_default_activation_function': ...}
    change(folder / 'config.json', **nothing)
    assert Predictor.from_workdir(folder)(pair)['value'] == with_sigmoid  # as where none is named
    change(folder / 'config_sentence_transformers.json', activation_fn='torch.nn.Identity')
    plain = Predictor.from_workdir(folder)(pair)['value']
    assert abs(with_sigmoid - 1 / (1 + np.exp(-plain))) < 1e-6
    assert abs(with_sigmoid - plain) > 0.01

    # Folders from before: config.json alone, in two spellings.
    for name in ('modules.json', 'config_sentence_transformers.json'):
        (folder / name).unlink()
    assert Predictor.from_workdir(folder)(pair)['value'] == plain
    change(folder / 'config.json', sbert_ce_default_activation_function='torch.nn.Sigmoid')
    assert Predictor.from_workdir(folder)(pair)['value'] == with_sigmoid
    later = {'activation_fn': 'torch.nn.modules.linear.Identity'}
    change(folder / 'config.json', sentence_transformers=later)
    assert Predictor.from_workdir(folder)(pair)['value'] == plain


def test_the_longest_row_of_a_cross_encoder_is_kept(tmp_path):
    folder = cross_encoder(tmp_path / 'new')
    change(folder / 'sentence_bert_config.json', max_seq_length=9)
    assert Predictor.from_workdir(folder).settings[0] == 9
    export.export(str(folder), 'huggingface', str(tmp_path / 'out'))
    assert json.loads((tmp_path / 'out/tokenizer_config.json').read_text())['model_max_length'] == 9


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'activation_fn': 'os.system'}, 'activation of its scores'),
        ({'activation_fn': 'my_pkg.Act'}, 'activation of its scores'),
        ({'activation_fn': 'torch.nn.Tanh'}, 'activation of its scores'),
        ({'activation_fn': {'a': 1}}, 'activation of its scores'),
        ({'model_type': 'Router'}, 'a Router'),
        ({'default_prompt_name': 'ask'}, 'default_prompt_name'),
    ],
)
def test_a_folder_of_another_kind_is_refused_and_nothing_of_it_imported(
    settings, message, tmp_path, monkeypatch
):
    (tmp_path / 'my_pkg.py').write_text('raise SystemExit("imported")')
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = cross_encoder(tmp_path / 'new', **settings)
    with refused(message):
        sources.read_source(str(folder))
    assert 'my_pkg' not in sys.modules

    # So is a folder from before, whose settings stand in config.json, and one without that file.
    if 'activation_fn' in settings:
        (folder / 'modules.json').unlink()
        change(folder / 'config.json', sentence_transformers=settings)
    if 'model_type' in settings:
        (folder / 'config.json').unlink()
    with refused(message):
        sources.read_source(str(folder))


def test_a_cross_encoder_of_other_modules_is_refused(tmp_path):
    folder = cross_encoder(tmp_path / 'new')
    (folder / 'modules.json').write_text('[]')
    with refused('one module is a Transformer'):
        sources.read_source(str(folder))


@pytest.mark.parametrize(
    'name', ['config.json', 'model.safetensors', 'tokenizer.json', 'vocab.txt', 'modules.json']
)
def test_a_pipe_or_a_device_in_place_of_a_file_is_refused_at_once(name, tmp_path):
    folder = cross_encoder(tmp_path / 'new')
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with refused(f'{name}: is no file but a pipe'):
        sources.read_source(str(folder))
    (folder / name).unlink()
    os.symlink('/dev/zero', folder / name)
    for read_it in (sources.read_source, sources.read_shape):
        with refused(f'{name}: is no file but a pipe'):
            read_it(str(folder))


def test_links_to_files_are_read(tmp_path):
    folder = cross_encoder(tmp_path / 'new')
    (tmp_path / 'cache').mkdir()
    for file in list(folder.iterdir()):
        (tmp_path / 'cache' / file.name).symlink_to(file)
    assert sources.read_source(str(tmp_path / 'cache')).bert.chosen['activation'] == 'sigmoid'


@pytest.mark.parametrize(
    'name', ['num_hidden_layers', 'hidden_size', 'vocab_size', 'max_position_embeddings',
             'type_vocab_size', 'intermediate_size', 'num_attention_heads']
)  # fmt: skip
def test_a_size_that_is_not_that_of_the_arrays_is_refused(name, tmp_path):
    folder = cross_encoder(tmp_path / 'new')
    for value in (10**9, 2**31 - 2, -1, '8', 1e9, float('nan'), None, [1]):
        change(folder / 'config.json', **{name: value})
        with refused('config.json'):
            sources.read_source(str(folder))


def test_a_card_says_where_the_model_is_from_and_what_its_vectors_are():
    sentence = SentenceConfig('cls', True, 4, max_seq_length=30, similarity='dot')
    model = tiny_models.model('BertModel')._replace(sentence=sentence)
    notes = Notes('m', languages=('en', 'pt-BR'), license='apache-2.0', longest=9)
    text = model_card.make_card(model, notes)
    assert 'language: ["en", "pt-BR"]\nlicense: "apache-2.0"\n' in text
    for row in (
        'numbers of a vector | 4',
        'longest row that it was trained on | 9',
        'longest row that it can read, in word pieces | 30',
        'compared by | dot',
    ):
        assert f'| {row} |' in text


@pytest.mark.parametrize(
    'language, license', [('english', None), ('EN', None), ('', None), ('en', 'Apache 2.0')]
)
def test_what_is_no_code_of_the_hub_is_refused(language, license):
    with refused('must be'):
        model_card.check_origin([language], license)
    model_card.check_origin(['zh-Hans', 'yue', 'multilingual'], 'cc-by-sa-4.0')


LENGTHS = 'sentence_bert_config.json'


@pytest.fixture
def token_vectors(tmp_path):
    """A folder of late interaction."""
    model = tiny_models.of_family('bert', 'late_interaction', vocab_size=23)
    export.write(model, tiny_models.tokenizer(), 'sentence_transformers', str(tmp_path / 'it'))
    return tmp_path / 'it'


@pytest.mark.parametrize(
    ('file', 'settings', 'message'),
    [
        (SETTINGS, {'similarity_fn_name': 'meanmaxsim'}, "only 'maxsim'"),
        (SETTINGS, {'query_prefix': 5}, 'query_prefix=5: must be a text'),
        ('2_MultiVectorMask/config.json', {'keep_only_token_ids': [3]}, r'token_ids=\[3\] is not'),
        ('2_MultiVectorMask/config.json', {'skiplist_words': [3]}, 'must be a list of words'),
        ('1_Dense/config.json', {'bias': True}, 'a dense layer that has more than'),
        ('1_Dense/config.json', {'activation_function': ...}, 'a dense layer that has more than'),
        ('3_Normalize/config.json', {'module_input_name': 'it'}, "module_input_name='it' is not"),
        (LENGTHS, {'document_length': 99}, 'rows of 99 tokens, and max_seq_length=64 is'),
        (LENGTHS, {'query_expansion': {'strategy': 'all'}}, "query_expansion='all': expected"),
        (LENGTHS, {'query_expansion': {'token': 'paris'}}, "token='paris' is not built here"),
        (LENGTHS, {'query_expansion': 'fixed'}, 'query_expansion=.fixed.: must be an object'),
    ],
)
def test_what_late_interaction_has_no_counterpart_for(file, settings, message, token_vectors):
    change(token_vectors / file, **settings)
    with refused(message):
        sources.read_source(str(token_vectors))


def test_modules_that_late_interaction_has_no_counterpart_for(token_vectors):
    kernel = {'linear.weight': np.ones((3, 7), np.float32)}
    save_file(kernel, token_vectors / '1_Dense' / 'model.safetensors')
    with refused('linear.weight of 16 columns'):
        sources.read_source(str(token_vectors))
    # A module that is not built is none that is left out.
    modules = (token_vectors / 'modules.json').read_text()
    changed = modules.replace('Normalize"', 'HierarchicalTokenPooling"')
    (token_vectors / 'modules.json').write_text(changed)
    with refused('HierarchicalTokenPooling: only Transformer, Dense, MultiVectorMask, Normalize'):
        sources.read_source(str(token_vectors))
