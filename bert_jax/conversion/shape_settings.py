"""The shape of a model from another program's file of settings: what all formats refuse there.

Must not know any program's names: huggingface.py and google.py give them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig


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


def model_config(
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
