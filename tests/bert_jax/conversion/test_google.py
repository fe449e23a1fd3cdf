"""Google's TensorFlow 1 checkpoints: TensorFlow's files, its reading of ours, numpy by its names.

The last is a forward pass.
"""

from __future__ import annotations

import json
import math
import pathlib

import jax
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.conversion import google, huggingface, tensor_bundle
from bert_jax.conversion.parameters import Model
from bert_jax.inference import export
from bert_jax.model import heads
from bert_jax.runs.sources.source import load_source, read_source
from tests.helpers import tiny_models

SETTINGS = {
    'attention_probs_dropout_prob': 0.1,
    'hidden_act': 'gelu',
    'hidden_dropout_prob': 0.1,
    'hidden_size': 16,
    'initializer_range': 0.02,
    'intermediate_size': 24,
    'max_position_embeddings': 12,
    'num_attention_heads': 2,
    'num_hidden_layers': 2,
    'type_vocab_size': 2,
    'vocab_size': 40,
}
WORDS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(f'word{i}' for i in range(35))]
HEADS = {
    'classifier': {'output_weights': (3, 16), 'output_bias': (3,)},
    'span': {'cls/squad/output_weights': (2, 16), 'cls/squad/output_bias': (2,)},
}


def encoder_shapes() -> dict[str, tuple[int, ...]]:
    """The reference's variables of an encoder (modeling.py:171-232)."""
    shapes: dict[str, tuple[int, ...]] = {}

    def dense(name: str, into: int, out: int) -> None:
        shapes.update({f'{name}/kernel': (into, out), f'{name}/bias': (out,)})

    def norm(name: str) -> None:
        shapes.update({f'{name}/LayerNorm/beta': (16,), f'{name}/LayerNorm/gamma': (16,)})

    for table, rows in (('word', 40), ('token_type', 2), ('position', 12)):
        shapes[f'bert/embeddings/{table}_embeddings'] = (rows, 16)
    norm('bert/embeddings')
    for i in range(2):
        layer = f'bert/encoder/layer_{i}'
        for name in ('query', 'key', 'value'):
            dense(f'{layer}/attention/self/{name}', 16, 16)
        dense(f'{layer}/attention/output/dense', 16, 16)
        norm(f'{layer}/attention/output')
        dense(f'{layer}/intermediate/dense', 16, 24)
        dense(f'{layer}/output/dense', 24, 16)
        norm(f'{layer}/output')
    dense('bert/pooler/dense', 16, 16)
    return shapes


def pretraining_shapes() -> dict[str, tuple[int, ...]]:
    """And those of run_pretraining.py:243-305."""
    mlm = {'transform/dense/kernel': (16, 16), 'transform/dense/bias': (16,), 'output_bias': (40,)}
    mlm |= {'transform/LayerNorm/beta': (16,), 'transform/LayerNorm/gamma': (16,)}
    nsp = {'cls/seq_relationship/output_weights': (2, 16), 'cls/seq_relationship/output_bias': (2,)}
    return (
        encoder_shapes() | {f'cls/predictions/{name}': shape for name, shape in mlm.items()} | nsp
    )


def values(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.RandomState(seed)
    return {
        name: rng.normal(1.0 if name.endswith('gamma') else 0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def tensorflow_saves(prefix: str, variables: dict[str, np.ndarray], steps: bool) -> None:
    """A checkpoint as a run of the reference leaves.

    tf.train.Saver's, with Adam's moments and the step (optimization.py:117).
    """
    tf = pytest.importorskip('tensorflow')
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in variables.items():
            for slot in ('', '/adam_m', '/adam_v') if steps else ('',):
                tf.compat.v1.get_variable(
                    name + slot, initializer=tf.constant(value), use_resource=False
                )
        if steps:
            tf.compat.v1.train.get_or_create_global_step()
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, prefix)


def place(
    folder: pathlib.Path, variables: dict[str, np.ndarray] | None = None, **changes
) -> pathlib.Path:
    """A folder as Google released them.

    Where there are `variables`, its checkpoint is written by us.
    """
    folder.mkdir(exist_ok=True)
    (folder / 'bert_config.json').write_text(json.dumps(SETTINGS | changes))
    (folder / 'vocab.txt').write_text('\n'.join(WORDS) + '\n')
    if variables is not None:
        tensor_bundle.write(str(folder / 'bert_model.ckpt'), variables)
    return folder


def refused(where: str | pathlib.Path) -> str:
    """The one line with which a source is refused."""
    with pytest.raises(UserError) as caught:
        read_source(str(where))
    assert '\n' not in str(caught.value) and str(where) in str(caught.value)
    return str(caught.value)


def forward(
    v: dict[str, np.ndarray], ids: np.ndarray, mask: np.ndarray, segments: np.ndarray
) -> dict[str, np.ndarray]:
    """modeling.py and the heads of run_pretraining.py, in float64."""
    v = {name: value.astype(np.float64) for name, value in v.items()}
    gelu = lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    dense = lambda x, name: x @ v[f'{name}/kernel'] + v[f'{name}/bias']

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * v[f'{name}/LayerNorm/gamma'] + v[f'{name}/LayerNorm/beta']

    def split(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:2], 2, 8).transpose(0, 2, 1, 3)

    table = v['bert/embeddings/word_embeddings']
    x = (
        table[ids]
        + v['bert/embeddings/token_type_embeddings'][segments]
        + v['bert/embeddings/position_embeddings'][: ids.shape[1]]
    )
    x = norm(x, 'bert/embeddings')
    for i in range(2):
        layer = f'bert/encoder/layer_{i}'
        q, k, w = (
            split(dense(x, f'{layer}/attention/self/{name}')) for name in ('query', 'key', 'value')
        )
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(8) + (1 - mask[:, None, None]) * -10000.0
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        context = (
            (weights / weights.sum(-1, keepdims=True) @ w).transpose(0, 2, 1, 3).reshape(x.shape)
        )
        x = norm(dense(context, f'{layer}/attention/output/dense') + x, f'{layer}/attention/output')
        x = norm(
            dense(gelu(dense(x, f'{layer}/intermediate/dense')), f'{layer}/output/dense') + x,
            f'{layer}/output',
        )
    pooled = np.tanh(dense(x[:, 0], 'bert/pooler/dense'))
    transformed = norm(
        gelu(dense(x, 'cls/predictions/transform/dense')), 'cls/predictions/transform'
    )
    return {
        'hidden': x,
        'pooled': pooled,
        'mlm': transformed @ table.T + v['cls/predictions/output_bias'],
        'nsp': (
            pooled @ v['cls/seq_relationship/output_weights'].T
            + v['cls/seq_relationship/output_bias']
        ),
    }


def test_a_checkpoint_of_tensorflow_comes_in_and_goes_out(tmp_path, capsys):
    variables = values(pretraining_shapes())
    released = place(tmp_path / 'released')
    tensorflow_saves(str(released / 'bert_model.ckpt'), variables, steps=True)
    source = load_source(str(released / 'bert_model.ckpt'), print_map=True)
    assert source.bert.architecture == 'BertForPreTraining' and source.tokenizer.encode(
        'word3 Word0'
    ) == [8, 5]
    reading = google.read(str(released / 'bert_model.ckpt'))
    assert (
        len(reading.ignored) == 2 * len(variables) + 1
        and f'{len(reading.ignored)} variables of the optimizer' in reading.remarks[0]
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(variables) + len(reading.ignored) and 'global_step  (ignored)' in lines
    assert (
        'bert/encoder/layer_1/output/LayerNorm/gamma  encoder/layers/output_norm/scale[1]' in lines
    )

    rng = np.random.RandomState(1)
    mask = (np.arange(12) < np.array([[12], [7], [2]])).astype(np.int32)
    ids, segments = (
        rng.randint(5, 40, mask.shape).astype(np.int32) * mask,
        rng.randint(0, 2, mask.shape).astype(np.int32) * mask,
    )
    batch = {'input_ids': ids, 'input_mask': mask, 'segment_ids': segments}
    batch['masked_lm_positions'] = np.tile(np.arange(12, dtype=np.int32), (3, 1))
    hidden, pooled, _ = heads.Encoder(source.model).apply(
        {'params': source.params['encoder']}, ids, mask, segments
    )
    mlm, nsp = heads.Pretraining(source.model).apply({'params': source.params}, batch)
    wanted = forward(variables, ids, mask, segments)
    for name, found in {
        'hidden': hidden,
        'pooled': pooled,
        'mlm': mlm[..., :40],
        'nsp': nsp,
    }.items():
        np.testing.assert_allclose(found, wanted[name], atol=2e-5, rtol=0, err_msg=name)

    export.write(source.bert, source.tokenizer, 'google', str(tmp_path / 'ours'))
    assert json.loads((tmp_path / 'ours' / 'bert_config.json').read_text()) == SETTINGS
    assert (tmp_path / 'ours' / 'vocab.txt').read_text() == (released / 'vocab.txt').read_text()
    ours_read_there(tmp_path / 'ours', variables)


def ours_read_there(folder: pathlib.Path, variables: dict[str, np.ndarray]) -> None:
    """TensorFlow finds the very variables in a checkpoint that we wrote, bit by bit."""
    tf = pytest.importorskip('tensorflow')
    found = tf.train.load_checkpoint(str(folder / 'bert_model.ckpt'))
    assert found.get_variable_to_shape_map() == {
        name: list(value.shape) for name, value in variables.items()
    }
    assert all(
        found.get_tensor(name).tobytes() == value.tobytes() for name, value in variables.items()
    )


@pytest.mark.parametrize('head', HEADS)
def test_fine_tuned_heads(tmp_path, head):
    """run_classifier.py and run_squad.py name their variables beside the encoder's.

    Through our tree and back.
    """
    variables = values(encoder_shapes() | HEADS[head])
    folder = place(tmp_path / 'there', hidden_act='relu')
    tensorflow_saves(str(folder / 'model.ckpt-343'), variables, steps=False)
    source = read_source(str(folder))  # the only checkpoint in the folder
    np.testing.assert_array_equal(
        source.params[head]['kernel'], variables[next(iter(HEADS[head]))].T
    )
    assert (
        source.bert.architecture
        == {'classifier': 'BertForSequenceClassification', 'span': 'BertForQuestionAnswering'}[head]
    )
    _, left_out = export.write(source.bert, source.tokenizer, 'google', str(tmp_path / 'ours'))
    assert left_out == ()
    ours_read_there(tmp_path / 'ours', variables)
    export.write(source.bert, source.tokenizer, 'huggingface', str(tmp_path / 'hf'))
    again = read_source(str(tmp_path / 'hf'))
    assert again.model == source.model and np.array_equal(
        again.params[head]['bias'], variables[list(HEADS[head])[1]]
    )


def test_other_types_and_slices_of_tensorflow(tmp_path):
    tf = pytest.importorskip('tensorflow')
    variables, folder = values(encoder_shapes()), place(tmp_path / 'there')
    names, prefix = list(variables), str(folder / 'bert_model.ckpt')
    half = [tf.cast(value, tf.bfloat16) for value in variables.values()]
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=names, shape_and_slices=[''] * len(names), tensors=half
    )
    reading = google.read(prefix)
    assert (
        reading.remarks == ('bfloat16 variables are read as float32',)
        and reading.model.architecture == 'BertModel'
    )
    wanted = tf.cast(half[names.index('bert/pooler/dense/bias')], tf.float32)
    np.testing.assert_array_equal(reading.model.params['encoder']['pooler']['bias'], wanted)
    name = 'bert/pooler/dense/bias'  # a partitioned variable: two halves under one name
    halves = {
        'tensor_names': [name, name],
        'shape_and_slices': ['16 0,8', '16 8,8'],
        'tensors': list(variables.pop(name).reshape(2, 8)),
    }
    whole = {
        'tensor_names': list(variables),
        'shape_and_slices': [''] * len(variables),
        'tensors': list(variables.values()),
    }
    tf.raw_ops.SaveV2(prefix=prefix, **{field: halves[field] + whole[field] for field in whole})
    assert 'bert/pooler/dense/bias is saved in slices' in refused(prefix)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (
            lambda v: v | {'bert/extra': v['bert/pooler/dense/bias']},
            'missing nothing; not known here bert/extra',
        ),
        (
            lambda v: {f'model/{n}': a for n, a in v.items()},
            'not known here model/bert/embeddings/LayerNorm/beta,',
        ),
        (
            lambda v: {n: a for n, a in v.items() if 'layer_1/output/dense' not in n},
            'missing bert/encoder/layer_1/output/dense/bias,',
        ),
        (
            lambda v: v | {'output_weights': np.ones((3, 16), 'f')},
            'missing output_bias; not known here nothing',
        ),
        (
            lambda v: v | {'bert/pooler/dense/bias': np.ones(8, 'f')},
            'bert/pooler/dense/bias: (8,) in the file, (16,) by bert_config.json',
        ),
        (
            lambda v: v | {'bert/pooler/dense/bias': np.full(16, np.nan, 'f')},
            'bert/pooler/dense/bias: NaN or infinite values',
        ),
        (
            lambda v: {'save_counter/.ATTRIBUTES/VARIABLE_VALUE': np.ones(1, 'f')},
            'saved by TensorFlow 2 as a graph of objects',
        ),
    ],
    ids=[
        'unknown',
        'under another scope',
        'missing',
        'half a head',
        'wrong shape',
        'NaN',
        'TensorFlow 2',
    ],
)
def test_variables_that_do_not_fit_are_refused(tmp_path, change, message):
    folder = place(tmp_path / 'there', change(values(encoder_shapes())))
    assert message in refused(folder / 'bert_model.ckpt')


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'hidden_act': 'tanh'}, "hidden_act='tanh' is not built here: only gelu, relu are"),
        ({'num_attention_heads': 3}, 'num_heads=3: must be a divisor of hidden_size=16'),
        ({'num_hidden_layers': 3}, 'missing bert/encoder/layer_2/attention/output/LayerNorm/beta'),
        ({'vocab_size': None}, 'vocab_size=None: expected int'),
        ({'hidden_size': '16'}, "hidden_size='16': expected int"),
        ({'hidden_act': ['gelu']}, "hidden_act=['gelu'] is not built here"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, settings, message):
    assert message in refused(place(tmp_path / 'there', values(encoder_shapes()), **settings))


def test_a_checkpoint_is_known_by_any_of_its_files(tmp_path):
    folder = place(tmp_path / 'there', values(encoder_shapes()))
    prefix = str(folder / 'bert_model.ckpt')
    for name in (
        'bert_model.ckpt',
        'bert_model.ckpt.index',
        'bert_model.ckpt.data-00000-of-00001',
        'bert_model.ckpt.meta',
        '',
    ):
        assert google.prefix_of(folder / name) == prefix
    assert google.prefix_of(folder / 'other.ckpt.index') is None


def test_a_left_over_bert_config_does_not_hide_a_model_of_hugging_face(tmp_path):
    tiny_models.tokenizer().save(tmp_path)
    huggingface.write(tmp_path, tiny_models.model('BertForSequenceClassification'))
    (tmp_path / 'bert_config.json').write_text(json.dumps(SETTINGS))
    assert read_source(str(tmp_path)).bert.architecture == 'BertForSequenceClassification'


@pytest.mark.parametrize(
    'slots',
    [
        ('lamb_m', 'lamb_v'),
        ('LAMB', 'LAMB_1'),
        ('adafactor_v', 'adafactor_vr'),
        ('m', 'v'),
        ('Momentum', 'RMSProp_1'),
    ],
    ids='/'.join,
)
def test_the_state_of_any_optimizer_is_left_out_and_said(tmp_path, slots):
    weights = values(encoder_shapes())
    state = {f'{name}/{slot}': value for name, value in weights.items() for slot in slots}
    names = ('global_step', 'beta1_power', 'current_loss_scale', 'good_steps', 'bad_steps')
    scalars = {name: np.ones((), 'f') for name in names}
    reading = google.read(
        str(place(tmp_path / 'there', weights | state | scalars) / 'bert_model.ckpt')
    )
    assert (
        set(reading.ignored) == {*state, *scalars}
        and 'variables of the optimizer' in reading.remarks[0]
    )


def test_damaged_and_absent_files_are_refused(tmp_path):
    variables = values(encoder_shapes())
    folder = place(tmp_path / 'there', variables)
    index, data = folder / 'bert_model.ckpt.index', folder / 'bert_model.ckpt.data-00000-of-00001'
    content = data.read_bytes()
    claims = tensor_bundle.Bundle(str(index).removesuffix('.index'))
    name, variable = next(iter(claims.variables.items()))
    for size, shape in ((2**50, variable.shape), (2**50, (2**48,)), (2**70, (2**34, 2**34))):
        claims.variables[name] = variable._replace(size=size, shape=shape)
        with pytest.raises(UserError, match=f'damaged or cut off at {name}'):
            claims.read(name)
    data.write_bytes(content[:1000] + bytes([content[1000] ^ 4]) + content[1001:])
    assert 'damaged or cut off at bert/' in refused(folder)
    data.write_bytes(content[:-4])
    assert 'damaged or cut off at bert/pooler/dense/kernel' in refused(folder)
    data.unlink()
    assert 'data-00000-of-00001: no such file' in refused(folder)
    whole = index.read_bytes()
    for damaged in (
        whole[:-100],
        whole[:50],
        b'',
        whole[:100] + bytes([whole[100] ^ 1]) + whole[101:],
    ):
        index.write_bytes(damaged)
        assert 'not a whole index of a TensorFlow checkpoint' in refused(folder)
    index.unlink()
    assert '0 checkpoints in it (no .index file)' in refused(folder)
    for name in ('a.ckpt', 'b.ckpt'):
        tensor_bundle.write(str(folder / name), variables)
    assert '2 checkpoints in it (a.ckpt, b.ckpt): name one' in refused(folder)
    (folder / 'vocab.txt').write_text('\n'.join(WORDS[:-1]) + '\n')
    assert 'its tokenizer has 39 entries but its model 40' in refused(folder / 'a.ckpt')
    (folder / 'bert_config.json').write_text('[')
    with pytest.raises(UserError, match=r'bert_config\.json: not valid JSON'):
        read_source(str(folder / 'a.ckpt'))
    (folder / 'bert_config.json').unlink()
    with pytest.raises(UserError, match=r'bert_config\.json: no such file'):
        read_source(str(folder / 'a.ckpt'))


@pytest.mark.parametrize(
    ('settings', 'architecture', 'message'),
    [
        (
            {'hidden_act': 'gelu_erf'},
            'BertModel',
            'hidden_act=gelu_erf cannot be written .* --hidden_act=gelu_tanh',
        ),
        ({'layer_norm_eps': 1e-5}, 'BertModel', 'layer_norm_eps=1e-05 cannot be written'),
        (
            {},
            'BertForTokenClassification',
            'BertForTokenClassification cannot be written for google-research/bert',
        ),
        ({}, 'BertForMaskedLM', 'BertForMaskedLM needs mlm, which this model does not have'),
    ],
)
def test_what_the_reference_does_not_have_is_refused_by_name(
    tmp_path, settings, architecture, message
):
    model = google.read(
        str(
            place(tmp_path / 'there', values(encoder_shapes() | HEADS['classifier']))
            / 'bert_model.ckpt'
        )
    ).model
    model = Model(
        type(model.config)(**{**vars(model.config), **settings}), model.params, architecture
    )
    with pytest.raises(UserError, match=message):
        google.write(tmp_path / 'ours', model)
    assert not (tmp_path / 'ours').exists()


@pytest.mark.slow
def test_through_the_command_line(tmp_path, binary):
    """Google -> Hugging Face -> Google: the same bits, and the whole name map on stdout."""
    variables = values(pretraining_shapes())
    place(tmp_path / 'there', variables)
    run = binary(
        'export',
        f'--init_from={tmp_path}/there/bert_model.ckpt',
        f'--output={tmp_path}/hf',
        '--print_map',
    )
    assert run.returncode == 0, run.stderr
    assert (
        'cls/seq_relationship/output_weights  nsp/kernel' in run.stdout
        and 'cls.seq_relationship.weight  nsp/kernel' in run.stdout
    )
    assert len(run.stdout.splitlines()) == 2 * len(variables) + 1
    run = binary(
        'export', f'--init_from={tmp_path}/hf', '--format=google', f'--output={tmp_path}/back'
    )
    assert run.returncode == 0, run.stderr
    for end in ('index', 'data-00000-of-00001'):
        before, after = (tmp_path / name / f'bert_model.ckpt.{end}' for name in ('there', 'back'))
        assert before.read_bytes() == after.read_bytes()
    assert jax.tree.all(
        jax.tree.map(
            np.array_equal,
            read_source(f'{tmp_path}/there').params,
            read_source(f'{tmp_path}/back').params,
        )
    )
