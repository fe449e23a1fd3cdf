"""Directories of sentence-transformers' CrossEncoder: a classifier with an activation.

Owns where the activation stands, and its names. The weights are those of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.conversion.module_folders import (
    IDENTITY,
    MODULES,
    SETTINGS,
    FolderKind,
    read_max_length,
    read_modules,
    read_settings,
)
from bert_jax.conversion.trained_model import Model, Reading
from bert_jax.train.task_heads import HEADS

# What may stand on a cross-encoder's outputs: its name -> ours.
_ACTIVATIONS = {
    IDENTITY: 'identity',
    'torch.nn.modules.activation.Sigmoid': 'sigmoid',
    'torch.nn.Identity': 'identity',
    'torch.nn.Sigmoid': 'sigmoid',
}


class CrossEncoderFolder(FolderKind):
    """A classifier of pairs with its activation and its longest row."""

    model_type = 'CrossEncoder'
    package = 'sentence_transformers.base.modules.transformer'

    def add(self, folder: epath.Path, reading: Reading) -> Reading:
        """Return a cross-encoder: a classifier with its activation and its longest row."""
        model, file = reading.model, folder / SETTINGS
        architecture = HEADS['classifier'].class_in(model.config.family)
        if read_modules(folder) != [('Transformer', '')] or model.architecture != architecture:
            raise UserError(
                f'{folder / MODULES}: a {self.model_type} is read here whose one module is a'
                f' Transformer in the folder itself, of the class {architecture}'
            )
        settings = read_settings(file)
        name = settings.get('default_prompt_name')
        if name:
            raise UserError(
                f'{file}: default_prompt_name={name!r}: a {self.model_type} has no prompts here:'
                ' set it to null'
            )
        named = settings.get('activation_fn') or read_activation(
            read_settings(folder / 'config.json')
        )
        if named is None and model.outputs == 1:  # as there, where nothing is said
            named = 'torch.nn.Sigmoid'
        model = add_activation(model, named, file)
        chosen = {'activation': 'identity', **model.chosen}
        length = read_max_length(folder, model.config.max_position)
        if length:
            chosen['max_seq_length'] = length
        return reading._replace(model=model._replace(chosen=chosen))

    def fits(self, model: Model) -> bool:
        """Tell whether a model is a cross-encoder: its scores have an activation, by name."""
        return 'activation' in model.chosen

    def write_modules(self, folder: epath.Path, model: Model) -> list[str]:
        """Write nothing: there is the Transformer alone."""
        return ['Transformer']

    def describe_rows(self, model: Model) -> dict[str, Any]:
        """Return what makes scores of the Transformer, as release 6.2 has it."""
        return {
            'transformer_task': 'sequence-classification',
            'modality_config': {'text': {'method': 'forward', 'method_output_name': 'logits'}},
            'module_output_name': 'scores',
        }

    def describe(self, model: Model) -> dict[str, Any]:
        """Return the kind and its activation; releases before 6 read config.json alone."""
        return {
            '__version__': {'sentence_transformers': '6.2.0'},
            'model_type': self.model_type,
            'activation_fn': _name_activation(model),
        }


def read_activation(settings: Mapping[str, Any]) -> Any:
    """Return the name of a cross-encoder's activation in a config.json, or None."""
    of_release_4 = settings.get('sentence_transformers')
    named = of_release_4.get('activation_fn') if isinstance(of_release_4, dict) else None
    return named or settings.get('sbert_ce_default_activation_function')


def add_activation(model: Model, named: Any, file: epath.Path) -> Model:
    """Return a classifier whose answers have an activation.

    Args:
      model: the classifier.
      named: the activation as `file` names it, or None.
      file: where it stands, in errors.

    Raises:
      UserError: it is not built here. No name is imported.
    """
    if named is None:
        return model
    activation = _ACTIVATIONS.get(named) if isinstance(named, str) else None
    if activation is None:
        raise UserError(
            f'{file}: the activation of its scores is {str(named)[:80]!r}: only torch.nn.Identity'
            ' and torch.nn.Sigmoid are built here'
        )
    chosen = {**model.chosen, 'activation': activation}
    # Several numbers, each with a sigmoid, are labels that do not exclude one another.
    if activation == 'sigmoid' and model.outputs > 1:
        return model._replace(chosen=chosen, problem_type='multi_label_classification')
    if activation == 'identity':  # as classifiers and regressions are without it
        del chosen['activation']
    return model._replace(chosen=chosen)


def _name_activation(model: Model) -> str:
    ours = model.chosen.get('activation', 'identity')
    return next(name for name, activation in _ACTIVATIONS.items() if activation == ours)


def describe_cross_encoder(model: Model) -> dict[str, Any]:
    """Return what config.json says so that a CrossEncoder gives a model's scores as we do."""
    name = _name_activation(model)
    return {
        'sentence_transformers': {'activation_fn': name},
        'sbert_ce_default_activation_function': name,  # of the releases up to 3
    }
