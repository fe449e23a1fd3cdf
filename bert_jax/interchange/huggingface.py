"""Hugging Face BERT directories: config.json and safetensors, read and written.

Owns the correspondence of names, layouts and settings between transformers' BERT and this project's
parameter tree. Must not know tokenizers, workdirs or what the weights are for.

Theirs: one tensor for each block, kernels [out, in], word table of vocab_size rows, `bert.` before the
encoder's names in every class but BertModel. Ours: blocks stacked on a leading axis, kernels [in, out], the
vocabulary's axis padded to a multiple of 128 with rows of zeros, which leave here and come back here.
Nothing is left out silently: a name or shape that does not fit, on either side, is an error that lists it.
"""

from __future__ import annotations

import collections
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath

from bert_jax import heads
from bert_jax.model import padded_vocab
from bert_jax.sharding import path_of
from bert_jax.train_state import init_params
from configs.errors import UserError
from configs.schema import ModelConfig

# Settings: ours -> theirs. Where an old config.json leaves one out, transformers' default holds.
_SETTINGS = {
    'vocab_size': 'vocab_size',
    'hidden_size': 'hidden_size',
    'num_layers': 'num_hidden_layers',
    'num_heads': 'num_attention_heads',
    'intermediate_size': 'intermediate_size',
    'max_position': 'max_position_embeddings',
    'type_vocab_size': 'type_vocab_size',
    'hidden_act': 'hidden_act',
    'hidden_dropout': 'hidden_dropout_prob',
    'attention_dropout': 'attention_probs_dropout_prob',
    'initializer_range': 'initializer_range',
    'layer_norm_eps': 'layer_norm_eps',
}
_DEFAULTS = {theirs: getattr(ModelConfig(), ours) for ours, theirs in _SETTINGS.items()} | {'hidden_act': 'gelu'}
_ACTIVATION_OUT = {'gelu_tanh': 'gelu_new', 'gelu_erf': 'gelu', 'relu': 'relu'}
_ACTIVATION_IN = {theirs: ours for ours, theirs in _ACTIVATION_OUT.items()} | {
    'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_fast': 'gelu_tanh', 'gelu_python': 'gelu_erf',
}  # fmt: skip
# Settings of transformers' BERT that change the model in ways that are not built here, and the value they must have.
_FIXED = {
    'position_embedding_type': ('absolute', None),
    'is_decoder': (False, None),
    'add_cross_attention': (False, None),
    'pruned_heads': ({}, None),
}

# Modules and single arrays: ours -> theirs, {} for the block's number.
_NAMES = {
    'encoder/embeddings/word': 'embeddings.word_embeddings.weight',
    'encoder/embeddings/position': 'embeddings.position_embeddings.weight',
    'encoder/embeddings/segment': 'embeddings.token_type_embeddings.weight',
    'encoder/embeddings/norm': 'embeddings.LayerNorm',
    'encoder/layers/query': 'encoder.layer.{}.attention.self.query',
    'encoder/layers/key': 'encoder.layer.{}.attention.self.key',
    'encoder/layers/value': 'encoder.layer.{}.attention.self.value',
    'encoder/layers/attention_output': 'encoder.layer.{}.attention.output.dense',
    'encoder/layers/attention_norm': 'encoder.layer.{}.attention.output.LayerNorm',
    'encoder/layers/intermediate': 'encoder.layer.{}.intermediate.dense',
    'encoder/layers/output': 'encoder.layer.{}.output.dense',
    'encoder/layers/output_norm': 'encoder.layer.{}.output.LayerNorm',
    'encoder/pooler': 'pooler.dense',
    'mlm/transform': 'cls.predictions.transform.dense',
    'mlm/norm': 'cls.predictions.transform.LayerNorm',
    'mlm/bias': 'cls.predictions.bias',
    'nsp': 'cls.seq_relationship',
    'classifier': 'classifier',
    'span': 'qa_outputs',
}
_LEAVES = {'kernel': 'weight', 'scale': 'weight', 'bias': 'bias'}
_VOCABULARY = ('encoder/embeddings/word', 'mlm/bias')  # arrays whose first axis is the vocabulary
_PARTS = {'pooler': 'pooler.', 'mlm': 'cls.predictions.', 'nsp': 'cls.seq_relationship.', 'classifier': 'classifier.', 'span': 'qa_outputs.'}
_BUFFERS = ('embeddings.position_ids', 'embeddings.token_type_ids')  # not learned; files of some versions hold them

# What stands on the encoder in each class.
ARCHITECTURES = {
    'BertModel': ('pooler',),
    'BertForPreTraining': ('pooler', 'mlm', 'nsp'),
    'BertForMaskedLM': ('mlm',),
    'BertForNextSentencePrediction': ('pooler', 'nsp'),
    'BertForSequenceClassification': ('pooler', 'classifier'),
    'BertForMultipleChoice': ('pooler', 'classifier'),
    'BertForTokenClassification': ('classifier',),
    'BertForQuestionAnswering': ('span',),
}
_DTYPES = {'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'BF16': ml_dtypes.bfloat16, 'I64': np.int64, 'I32': np.int32}


class Model(NamedTuple):
    """A BERT as a directory of transformers holds it.

    params: {'encoder', and of 'mlm', 'nsp', 'classifier', 'span' what is there}; an encoder may lack its pooler.
    architecture: the class of transformers, 'BertModel' and so on.
    labels: names of the classifier's outputs, empty where it has none.
    head_dropout: dropout before the classifier; None: the encoder's own.
    problem_type: what the classifier is for, where transformers is told: 'regression', 'multi_label_classification', or None.
    """

    config: ModelConfig
    params: dict[str, Any]
    architecture: str
    labels: tuple[str, ...] = ()
    head_dropout: float | None = None
    problem_type: str | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """What stands on the encoder: some of pooler, mlm, nsp, classifier, span."""
        return tuple(p for p in _PARTS if p in self.params or p in self.params['encoder'])


class Reading(NamedTuple):
    """What `read` found: the model, its names in the file -> ours, names left out on purpose, and remarks for the user."""

    model: Model
    names: dict[str, str]
    ignored: tuple[str, ...]
    remarks: tuple[str, ...]


def is_directory(where: str | os.PathLike) -> bool:
    """Whether `where` holds a config.json that is not one of this project's workdirs."""
    path = epath.Path(where) / 'config.json'
    return path.exists() and 'kind' not in _read_json(path)


def read(where: str | os.PathLike) -> Reading:
    """Reads a directory. UserError, in one line, where it is no BERT, is damaged, or anything in it does not fit."""
    folder = epath.Path(where)
    settings = _settings(folder)
    config = _model_config(settings, folder / 'config.json')
    found, remarks = _tensors(folder)
    names = _canonical(found, folder)
    tensors = {canonical: found[name] for canonical, name in names.items()}
    ignored = tuple(names.pop(n) for n in _BUFFERS if n in names)
    _untie(tensors, names, folder)
    parts = [part for part, prefix in _PARTS.items() if any(name.startswith(prefix) for name in names)]
    architecture = (settings.get('architectures') or ['BertModel'])[0]
    labels = _labels(settings, folder)
    outputs = 1 if architecture == 'BertForMultipleChoice' else len(labels) or settings.get('num_labels', 2)
    wanted = _layout(config, parts, outputs)
    theirs = {name: shape for entry in wanted.values() for name, shape in entry.items()}
    if set(theirs) != set(names):
        missing, unknown = _brief(set(theirs) - set(names)), _brief(set(names) - set(theirs))
        raise UserError(f'{folder}: its weights are not those of config.json: missing {missing}; not known here {unknown}')
    if wrong := [f'{n}: {tensors[n].shape} in the file, {s} by config.json' for n, s in theirs.items() if tensors[n].shape != s]:
        raise UserError(f'{folder}: {"; ".join(wrong[:4])} ({len(wrong)} wrong shapes in all): config.json is of another model')
    if bad := [names[n] for n in theirs if not np.isfinite(tensors[n].astype(np.float32)).all()]:
        raise UserError(f'{folder}: {_brief(bad)}: NaN or infinite values: the file is damaged or its training diverged')
    params: dict[str, Any] = {}
    for path, entry in wanted.items():
        *above, leaf = path.split('/')
        node = params
        for step in above:
            node = node.setdefault(step, {})
        node[leaf] = _to_ours(path, [tensors[name] for name in entry], config)
    model = Model(
        config,
        params,
        architecture,
        labels if 'classifier' in parts else (),
        settings.get('classifier_dropout'),
        settings.get('problem_type') if 'classifier' in parts else None,
    )
    return Reading(model, {names[n]: path for path, entry in wanted.items() for n in entry}, ignored, tuple(remarks))


def write(where: str | os.PathLike, model: Model) -> tuple[str, ...]:
    """Writes model.safetensors, then config.json, into a directory; returns the parts that the class has no place for.

    UserError where the class needs a part that the model lacks.
    """
    if model.architecture not in ARCHITECTURES:
        raise UserError(f'{model.architecture} is none of the classes that can be written: {", ".join(ARCHITECTURES)}')
    parts = ARCHITECTURES[model.architecture]
    if lacking := [part for part in parts if part not in model.parts]:
        raise UserError(f'{where}: {model.architecture} needs {", ".join(lacking)}, which this model does not have: name another class')
    folder = epath.Path(where)
    folder.mkdir(parents=True, exist_ok=True)
    outputs = model.params['classifier']['bias'].shape[0] if 'classifier' in parts else 2
    tensors: dict[str, np.ndarray] = {}
    flat = {path_of(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(model.params)[0]}
    for path, entry in _layout(model.config, parts, outputs).items():
        for name, array in zip(entry, _to_theirs(path, flat[path], model.config), strict=True):
            prefix = 'bert.' if model.architecture != 'BertModel' and name.startswith(('embeddings.', 'encoder.', 'pooler.')) else ''
            tensors[prefix + name] = array
    _write_whole(folder / 'model.safetensors', safetensors.numpy.save(tensors, {'format': 'pt'}))
    _write_whole(folder / 'config.json', (json.dumps(_their_settings(model, outputs), indent=2) + '\n').encode())
    return tuple(part for part in model.parts if part not in parts)


def _settings(folder: epath.Path) -> dict[str, Any]:
    if not (folder / 'config.json').exists():
        raise UserError(f'{folder}: no config.json in it: not a Hugging Face model directory')
    settings = _read_json(folder / 'config.json')
    kind = settings.get('model_type', 'bert')  # BERT's first files had none
    architecture = (settings.get('architectures') or ['BertModel'])[0]
    if kind != 'bert' or not architecture.startswith('Bert'):
        raise UserError(f'{folder}: config.json describes {architecture} (model_type {kind!r}), which is not BERT: only model_type "bert" can be read')
    return settings


def _labels(settings: Mapping[str, Any], folder: epath.Path) -> tuple[str, ...]:
    named = settings.get('id2label') or {}
    try:
        return tuple(named[key] for key in sorted(named, key=int))
    except ValueError:
        raise UserError(f'{folder / "config.json"}: id2label has keys that are no numbers: {", ".join(named)}') from None


def _read_json(path: epath.Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f'{path}: not valid JSON ({error})') from error
    if not isinstance(data, dict):
        raise UserError(f'{path}: not a JSON object')
    return data


def _model_config(settings: Mapping[str, Any], file: epath.Path) -> ModelConfig:
    for name, allowed in _FIXED.items():
        if name in settings and settings[name] not in allowed:
            raise UserError(f'{file}: {name}={settings[name]!r} is not built here: only {allowed[0]!r} is')
    values = {ours: {**_DEFAULTS, **settings}[theirs] for ours, theirs in _SETTINGS.items()}
    if values['hidden_act'] not in _ACTIVATION_IN:
        raise UserError(f'{file}: hidden_act={values["hidden_act"]!r} is not built here: only {", ".join(_ACTIVATION_IN)} are')
    try:
        return ModelConfig(**{**values, 'hidden_act': _ACTIVATION_IN[values['hidden_act']]})
    except UserError as error:
        raise UserError(f'{file}: {error}') from None


def _their_settings(model: Model, outputs: int) -> dict[str, Any]:
    ours = {theirs: getattr(model.config, name) for name, theirs in _SETTINGS.items()}
    settings = {
        'architectures': [model.architecture],
        'model_type': 'bert',
        **ours,
        'hidden_act': _ACTIVATION_OUT[model.config.hidden_act],
        'position_embedding_type': 'absolute',
        'pad_token_id': 0,
        'tie_word_embeddings': True,
        'dtype': 'float32',
    }
    if 'classifier' in ARCHITECTURES[model.architecture]:
        labels = model.labels or tuple(f'LABEL_{i}' for i in range(outputs))
        if model.architecture != 'BertForMultipleChoice':
            settings |= {'id2label': {str(i): label for i, label in enumerate(labels)}, 'label2id': {label: i for i, label in enumerate(labels)}}
        settings |= {'classifier_dropout': model.head_dropout, 'problem_type': model.problem_type}
    return settings


def _tensors(folder: epath.Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Every tensor in the directory, by its name there, and what is to be said of them."""
    index = folder / 'model.safetensors.index.json'
    if (folder / 'model.safetensors').exists():
        tensors = _read_safetensors(folder / 'model.safetensors')
    elif index.exists():
        tensors, places = {}, _read_json(index).get('weight_map', {})
        for file in sorted(set(places.values())):
            if epath.Path(file).name != file or not (folder / file).exists():
                raise UserError(f'{index} names {file}, which is not beside it: download that shard too')
            tensors |= _read_safetensors(folder / file)
        if differ := set(places) ^ set(tensors):
            raise UserError(f'{index}: it and the shards do not hold the same names: {_brief(differ)}')
    elif (folder / 'pytorch_model.bin').exists():
        tensors = _read_pickle(folder / 'pytorch_model.bin')
    else:
        raise UserError(f'{folder}: no model.safetensors, model.safetensors.index.json or pytorch_model.bin in it: download the weights too')
    floats = collections.Counter(str(t.dtype) for t in tensors.values() if not np.issubdtype(t.dtype, np.integer))
    return tensors, [f'{count} tensors are {dtype}: read as float32' for dtype, count in floats.items() if dtype != 'float32']


def _read_safetensors(file: epath.Path) -> dict[str, np.ndarray]:
    try:
        views = safetensors.deserialize(file.read_bytes())
    except safetensors.SafetensorError as error:
        raise UserError(f'{file}: not a whole safetensors file ({error}): download it again') from error
    if other := {view['dtype'] for _, view in views} - set(_DTYPES):
        raise UserError(f'{file}: tensors of type {", ".join(sorted(other))}: only {", ".join(_DTYPES)} can be read')
    return {name: np.frombuffer(view['data'], _DTYPES[view['dtype']]).reshape(view['shape']) for name, view in views}


def _read_pickle(file: epath.Path) -> dict[str, np.ndarray]:
    """A .bin file through torch's reader of tensors alone, which runs no code."""
    try:
        import torch
    except ImportError:
        raise UserError(
            f'{file}: only safetensors are read without PyTorch: where torch and transformers are installed, convert it with '
            'AutoModel.from_pretrained(DIR).save_pretrained(DIR), or install torch here'
        ) from None
    try:
        tensors = torch.load(str(file), map_location='cpu', weights_only=True)
    except Exception as error:  # whatever damage or code in it raises
        raise UserError(f'{file}: torch cannot read it as plain tensors ({type(error).__name__}): it is damaged or not to be trusted') from error
    return {name: (t.numpy() if t.dtype != torch.bfloat16 else t.float().numpy()) for name, t in tensors.items()}


def _canonical(found: Iterable[str], folder: epath.Path) -> dict[str, str]:
    """{name without `bert.` and with weight and bias for gamma and beta: the name in the file}."""
    names: dict[str, str] = {}
    for name in found:
        canonical = re.sub(r'(?<=LayerNorm\.)(gamma|beta)$', lambda m: {'gamma': 'weight', 'beta': 'bias'}[m.group()], name.removeprefix('bert.'))
        if canonical in names:
            raise UserError(f'{folder}: {name} and {names[canonical]} are two names of one array: remove one of them')
        names[canonical] = name
    return names


def _untie(tensors: dict[str, np.ndarray], names: dict[str, str], folder: epath.Path) -> None:
    """Takes out the masked-LM decoder's own names, where they repeat the word table and the output bias. UserError where they do not."""
    for copy, kept in (('decoder.weight', 'embeddings.word_embeddings.weight'), ('decoder.bias', 'cls.predictions.bias')):
        copy = f'cls.predictions.{copy}'
        if copy in names and kept in names:
            if not np.array_equal(tensors[copy], tensors[kept]):
                raise UserError(f'{folder}: {names[copy]} differs from {names[kept]}, but here they are one array: this model cannot be represented')
            del names[copy]
        elif copy in names:
            names[kept], tensors[kept] = names.pop(copy), tensors[copy]


def _layout(config: ModelConfig, parts: Iterable[str], outputs: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """{our path: {their name: their shape}} of an encoder with these parts, blocks in order."""
    tree = jax.eval_shape(lambda: init_params(heads.Pretraining(config), 0))
    shapes = {path_of(path): leaf.shape for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}
    for head, size in (('classifier', outputs), ('span', 2)):
        shapes |= {f'{head}/kernel': (config.hidden_size, size), f'{head}/bias': (size,)}
    absent = tuple(f'encoder/{part}/' if part == 'pooler' else f'{part}/' for part in _PARTS if part not in parts)
    layout = {}
    for path, shape in shapes.items():
        if path.startswith(absent):
            continue
        module, _, leaf = path.rpartition('/')
        name = _NAMES[path] if path in _NAMES else f'{_NAMES[module]}.{_LEAVES[leaf]}'
        blocks = range(shape[0]) if '{}' in name else [None]
        shape = shape[1:] if '{}' in name else shape
        shape = (config.vocab_size, *shape[1:]) if path in _VOCABULARY else shape
        layout[path] = {name.format(i): shape[::-1] if leaf == 'kernel' else shape for i in blocks}
    return layout


def _to_ours(path: str, tensors: list[np.ndarray], config: ModelConfig) -> np.ndarray:
    arrays = [(t.T if path.endswith('/kernel') else t).astype(np.float32) for t in tensors]
    if path in _VOCABULARY:
        rows = padded_vocab(config.vocab_size) - config.vocab_size
        return np.pad(arrays[0], ((0, rows), *((0, 0),) * (arrays[0].ndim - 1)))
    return np.stack(arrays) if path.startswith('encoder/layers/') else np.ascontiguousarray(arrays[0])


def _to_theirs(path: str, array: np.ndarray, config: ModelConfig) -> list[np.ndarray]:
    array = array[: config.vocab_size] if path in _VOCABULARY else array
    arrays = list(array) if path.startswith('encoder/layers/') else [array]
    return [np.ascontiguousarray(a.T if path.endswith('/kernel') else a, np.float32) for a in arrays]


def _brief(names: Iterable[str]) -> str:
    """All of `names` in one line, blocks drawn together: 'encoder.layer.{3,4}.output.dense.bias'; 'nothing' for none."""
    groups: dict[str, list[int]] = {}
    for name in sorted(names):
        number = re.search(r'\.layer\.(\d+)\.', name)
        groups.setdefault(name if number is None else name.replace(number.group(), '.layer.{}.'), []).extend([int(number.group(1))] if number else [])
    merged = [n.replace('{}', str(ks[0]) if len(ks) == 1 else '{' + ','.join(map(str, sorted(ks))) + '}') for n, ks in groups.items()]
    return ', '.join(merged) or 'nothing'


def _write_whole(path: epath.Path, content: bytes) -> None:
    """A file that is whole or absent."""
    partial = path.with_name(f'{path.name}.partial-{os.getpid()}')
    with partial.open('wb') as f:
        f.write(content)
        f.flush()
        if '://' not in str(path):
            os.fsync(f.fileno())
    partial.replace(path)
