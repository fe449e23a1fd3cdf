"""A trained model between two formats, and the forms that formats ask of it.

Owns what a model is there: its shape, its arrays, its class and its labels. A format's file of
settings becomes a shape here, or is refused. A tuned run and its encoder become one model. Must not
know any program's names or files.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import VectorsConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.conversion.parameters import VOCABULARY, check_fit, find_shapes, join_names
from bert_jax.model.embeddings import pad_vocab
from bert_jax.model.tuning import choose_tuning_method, find_neutral, is_added
from bert_jax.train.head_base import PARTS, Head
from bert_jax.train.task_heads import CLASSES, HEADS, select_of_task

# Settings of the shape that no file of BERT's states.
_SHAPE = ('embedding_size', 'num_groups', 'num_kv_heads', 'convolution')
# Settings in which a family's classes are all alike: see `shape` of TransformersNames.
_FIXED = (
    'attention', 'bilstm', 'norm', 'use_bias', 'positions', 'feed_forward', 'pooling',
    'local_window', 'norm_class', 'block', 'embedding_norm',
)  # fmt: skip
# The bias of a word that is never predicted: finite, also in float16.
_NEVER = -1e4
_MEND = 'put its checkpoint back from a copy'


class Model(NamedTuple):
    """A BERT on its way from one format to another.

    params: {'encoder', and of the other parts of train/task_heads.py what is there}; an encoder
    may lack its pooler.
    architecture: the class of transformers, 'BertModel' and so on.
    labels: names of the classifier's outputs, empty where it has none.
    head_dropout: dropout before the classifier; None: the encoder's own.
    problem_type: what the classifier is for, where transformers is told: 'regression',
    'multi_label_classification', or None.
    sentence: what makes vectors of a text, of a model of vectors; else None.
    chosen: options of its task that were chosen on its dev split, JSON values by their names.
    beside: models that were trained with it, by their names.
    """

    config: ModelConfig
    params: dict[str, Any]
    architecture: str
    labels: tuple[str, ...] = ()
    head_dropout: float | None = None
    problem_type: str | None = None
    sentence: VectorsConfig | None = None
    chosen: Mapping[str, Any] = types.MappingProxyType({})
    beside: Mapping[str, Model] = types.MappingProxyType({})

    @property
    def parts(self) -> tuple[str, ...]:
        """What stands on the encoder: names of train/head_base.py's PARTS."""
        return tuple(p for p in PARTS if p in self.params or p in self.params['encoder'])

    @property
    def head(self) -> str:
        """The name of its head in train/task_heads.py's HEADS.

        Of the heads of its class that of its problem type; one number without a type is a
        regression, as transformers takes it. KeyError for a class that is not there.
        """
        # Several heads may have the class; the problem type tells them apart, and where it is
        # absent the number of outputs does. The first stands for it, unless it makes vectors.
        names: dict[str | None, str] = {}
        for name, head in HEADS.items():
            family = self.config.family
            if head.is_in(family) and head.class_in(family) == self.architecture:
                if head.vectors is not None and isinstance(self.sentence, head.vectors):
                    return name
                names.setdefault(head.problem_type, name)
        if self.problem_type is not None and self.problem_type in names:
            return names[self.problem_type]
        if self.outputs == 1 and 'regression' in names:
            return names['regression']
        return names[None]

    @property
    def row(self) -> Head:
        """Return its head, as its family has it. KeyError for a class that is not there."""
        return HEADS[self.head].of(self.config.family)

    @property
    def longest_row(self) -> int:
        """Return how many word pieces its task's rows have at most."""
        return self.chosen.get('max_seq_length', self.config.max_position)

    def under(self, head: str) -> Model:
        """Return the same weights as a model of the class that has this head of HEADS."""
        architecture = HEADS[head].class_in(self.config.family)
        vectors = self.sentence if HEADS[head].vectors else None
        return self._replace(architecture=architecture, sentence=vectors)

    @property
    def outputs(self) -> int:
        """How many outputs its task has; 2 for weights that are of no task."""
        for part in select_of_task(self.parts):
            return self.params[part]['kernel'].shape[-1]
        return 2


class Reading(NamedTuple):
    """What reading a model gave.

    The model, its names in the file -> ours, names left out on purpose, and remarks for the user.
    """

    model: Model
    names: dict[str, str]
    ignored: tuple[str, ...]
    remarks: tuple[str, ...]


def check_fixed(
    settings: Mapping[str, Any], fixed: Mapping[str, tuple[Any, ...]], file: Any
) -> None:
    """Check settings that change the model in ways that are not built here.

    Args:
      settings: those of a file.
      fixed: name -> the values that are built.
      file: the file, in errors.

    Raises:
      UserError: a setting has another value.
    """
    # What would change the model is refused, not ignored: better no answer than a wrong one.
    for name, allowed in fixed.items():
        if name in settings and settings[name] not in allowed:
            raise UserError(
                f'{file}: {name}={settings[name]!r} is not built here: only {allowed[0]!r} is'
            )


def make_model_config(
    values: Mapping[str, Any], activations: Mapping[str, str], file: Any
) -> ModelConfig:
    """Return the shape that a file's settings give, by our names.

    Args:
      values: the settings; hidden_act by its name there.
      activations: {its name there: ours}.
      file: the file, in errors.

    Raises:
      UserError: a value is not possible.
    """
    act = values['hidden_act']
    if str(act) not in activations:
        raise UserError(
            f'{file}: hidden_act={act!r} is not built here: only {", ".join(activations)} are'
        )
    # ModelConfig refuses what does not fit; the file's name goes before its words.
    try:
        return ModelConfig(**{**values, 'hidden_act': activations[act]})
    except UserError as error:
        raise UserError(f'{file}: {error}') from None


def check_arrays(model: Model, source: str, settings: str) -> None:
    """Raise UserError unless the encoder, and each part that is there, has just its own arrays.

    Their shapes are those of model.config, which the file `settings` gave. A part may be absent as
    a whole; what beside the encoder has the name of no part is a user's own.
    """
    flat, parts, ours = traverse_util.flatten_dict(model.params, sep='/'), [], ['encoder/']
    for name, part in PARTS.items():
        if any(path.startswith(part.path) for path in flat):
            parts.append(name)
            ours.append(part.path)
    shapes = {path: np.shape(leaf) for path, leaf in flat.items() if path.startswith(tuple(ours))}

    # How many outputs a task has its labels say, or its own layer where they have no names.
    outputs, head = 2, CLASSES.get(model.architecture)
    if model.labels and head is not None and head.labelled:
        outputs = len(model.labels)
    else:
        for name in select_of_task(parts):
            kernel = shapes.get(f'{PARTS[name].path}kernel')
            if kernel:
                outputs = kernel[-1]
                break
    wanted = find_shapes(model.config, parts, outputs)
    if 'pooler' not in parts:
        wanted = {path: s for path, s in wanted.items() if not path.startswith('encoder/pooler/')}
    check_fit(wanted, shapes, {}, source, settings)


def list_left_out(model: Model, source: str, shape: Collection[str] | None = ()) -> tuple[str, ...]:
    """Return the parts of a model that its class has no place for.

    shape: the settings that its format states; None: any. UserError where the class needs a part
    that the model lacks, and where its encoder is none that other programs have.
    """
    # What other programs' classes of the family lack: a causal mask, a BiLSTM, other blocks.
    always = model.config.traits.transformers.shape
    if shape is not None:
        for name in (*always, *_FIXED, *_SHAPE):
            value = getattr(model.config, name)
            is_stated = name in shape and name not in always
            if not is_stated and value != always.get(name, getattr(ModelConfig(), name)):
                raise UserError(
                    f"{source}: model.{name}={value} has no place in other programs'"
                    f' {model.config.traits.name}: this model cannot be written for them;'
                    ' --format=stablehlo writes it'
                )
    family = model.config.family
    classes = dict.fromkeys(head.class_in(family) for head in HEADS.values() if head.is_in(family))
    if shape is not None:
        for end in model.config.traits.lacks:
            del classes[model.config.traits.class_of(end)]
    if model.architecture not in classes:
        raise UserError(
            f'{model.architecture} is none of the classes that can be written: {", ".join(classes)}'
        )
    check_parts(model, source, 'name another class')
    # The opposite is no error: what the class has no place for is left out, and said.
    # A program has what its own head reads; of other formats the class says it.
    taken = (model.row if shape is None else CLASSES[model.architecture]).parts
    return tuple(part for part in model.parts if part not in taken)


def check_parts(model: Model, source: str, mend: str) -> None:
    """Raise UserError, which ends with `mend`, where the model's class needs a part it lacks."""
    lacking = []
    if model.architecture in CLASSES:
        lacking = [p for p in CLASSES[model.architecture].parts if p not in model.parts]
    if lacking:
        raise UserError(
            f'{source}: {model.architecture} needs {", ".join(lacking)}, which this model does not'
            f' have: {mend}'
        )


def store_words(model: Model, source: str) -> Model:
    """Return a model that computes its word vectors as one that has them in a table.

    So other programs have them. Its masked-LM head, whose decoder is not that table, is left out.
    Any other model is returned as it is.

    Raises:
      UserError: the model's class needs that head.
    """
    words = model.config.words
    if not words.computed:
        return model
    if model.architecture in CLASSES and 'mlm' in CLASSES[model.architecture].parts:
        encoder = HEADS['encoder'].class_in(model.config.family)
        raise UserError(
            f'{source}: its masked-LM head has a decoder of its own, and that of'
            f' {model.architecture} is the word table: --architecture={encoder} writes the encoder'
        )
    defaults = {name: getattr(ModelConfig, name) for name in ('embedding', *words.options)}
    params = {name: part for name, part in model.params.items() if name != 'mlm'}
    return model._replace(config=dataclasses.replace(model.config, **defaults), params=params)


def add_unused_rows(model: Model, entries: int, unused: int) -> Model:
    """Return a model whose word table has at least so many rows behind its entries.

    Those that it lacked are zeros, and a masked-LM head never chooses any of them.
    """
    size = max(model.config.vocab_size, entries + unused)
    flat = traverse_util.flatten_dict(model.params, sep='/')
    for path in VOCABULARY:
        if path in flat:
            rows = np.zeros((pad_vocab(size), *flat[path].shape[1:]), np.float32)
            rows[: model.config.vocab_size] = flat[path][: model.config.vocab_size]
            flat[path] = rows
    if 'mlm/bias' in flat:
        flat['mlm/bias'][entries:] = _NEVER
    config = dataclasses.replace(model.config, vocab_size=size)
    return model._replace(config=config, params=traverse_util.unflatten_dict(flat, sep='/'))


def add_mapping(model: Model) -> Model:
    """Return the same model with its groups and the width of its word table stated.

    So transformers' ALBERT has them; a model of another family is returned as it is.
    Blocks that share nothing are groups of one. Where the table is as wide as the blocks, the layer
    between them is the identity.
    """
    if 'num_groups' not in model.config.traits.transformers.settings:
        return model
    config = dataclasses.replace(model.config, num_groups=model.config.own_blocks)
    if config.embedding_size is not None:
        return model._replace(config=config)
    width = config.hidden_size
    layer = {'kernel': np.eye(width, dtype=np.float32), 'bias': np.zeros(width, np.float32)}
    encoder = dict(model.params['encoder'])
    encoder['embeddings'] = {**encoder['embeddings'], 'to_hidden': layer}
    config = dataclasses.replace(config, embedding_size=width)
    return model._replace(config=config, params={**model.params, 'encoder': encoder})


def drop_mapping(model: Model) -> Model:
    """Return the same model without such a layer, where it is the identity; any other as it is."""
    embeddings = dict(model.params['encoder']['embeddings'])
    layer = embeddings.pop('to_hidden', None)
    if layer is None or model.config.embedding_size != model.config.hidden_size:
        return model
    if layer['bias'].any() or not np.array_equal(layer['kernel'], np.eye(len(layer['kernel']))):
        return model
    params = {**model.params, 'encoder': {**model.params['encoder'], 'embeddings': embeddings}}
    config = dataclasses.replace(model.config, embedding_size=None)
    return model._replace(config=config, params=params)


def assemble_tuned(
    encoder: dict[str, Any], tuned: dict[str, Any], config: ModelConfig, name: str
) -> tuple[dict[str, Any], ModelConfig]:
    """Return (parameters, shape) of the model of an encoder's own weights and those of a tuned run.

    encoder: of the source, all numpy; tuned: the run's parameters; config: its model. `name` is the
    run in UserError, where a shape does not fit.
    """
    encoder_leaves = traverse_util.flatten_dict({'encoder': encoder}, sep='/')
    given = traverse_util.flatten_dict(tuned, sep='/')
    # What tuning trains must be there: else the encoder's own would stand for it.
    trained_from = choose_tuning_method(config).trained_from
    trained = {path for path in encoder_leaves if trained_from(path) is not None}
    missing = trained - given.keys() - config.words.computed
    if missing:
        raise UserError(f'{name}: missing {join_names(missing)}, which its tuning trains: {_MEND}')
    whole = dict(encoder_leaves)
    for path, leaf in given.items():
        leaf, before = np.asarray(leaf), encoder_leaves.get(path)
        if '/layers/' in path:
            # Blocks that have the leaf: some lack a norm. The lowest of them may be frozen.
            rows = config.own_blocks if before is None else len(before)
            below, start = rows - leaf.shape[0], trained_from(path)
            if start is None or below != max(start - (config.own_blocks - rows), 0):
                raise UserError(f'{name}: {path} has {leaf.shape[0]} blocks: {_MEND}')
            if below and is_added(path):
                frozen = np.full((below, *leaf.shape[1:]), find_neutral(path), leaf.dtype)
                leaf = np.concatenate([frozen, leaf])
            elif below and before is not None:
                leaf = np.concatenate([before[:below], leaf])
        if before is not None and before.shape != leaf.shape:
            raise UserError(
                f'{name}: {path} is {leaf.shape} and {before.shape} in its encoder:'
                ' it was tuned on another'
            )
        whole[path] = leaf

    # Where all blocks stand in one stack there are no groups of them.
    tuning = dataclasses.replace(config.tuning, frozen_layers=0)
    if tuning.bias_layers:
        tuning = dataclasses.replace(tuning, bias_layers=0)
    return traverse_util.unflatten_dict(whole, sep='/'), config.tuned(tuning)


def fold_tuned(params: dict[str, Any], config: ModelConfig) -> tuple[dict[str, Any], ModelConfig]:
    """Return the same model in BERT's own weights, where its method allows that; in float32.

    AdaMix's adapters become one, their mean. Others stay: they are a part of the computation.
    """
    method = choose_tuning_method(config)
    layers = method.fold(params['encoder']['layers'])
    encoder = {**params['encoder'], 'layers': layers}
    return {**params, 'encoder': encoder}, config.tuned(method.left())
