"""Parts of one's own: the names that a program adds to those that a setting of the model may have.

Owns which names there are, and that they are found again: config.json has the name alone, since
what is read back from disk is data and is never run. A program imports the file that registers it;
for a command BERT_JAX_PARTS names that file. It must not know what a part does.
"""

from __future__ import annotations

import os
import pathlib
import runpy
from collections.abc import Mapping
from typing import Any

from bert_jax.configs.errors import UserError

VARIABLE = 'BERT_JAX_PARTS'
# {setting of ModelConfig: {name: class}}, filled by `register_part`.
_OWN: dict[str, dict[str, Any]] = {
    'norm_class': {}, 'positions': {}, 'feed_forward': {}, 'block': {},
}  # fmt: skip
_RUN: set[str] = set()  # files that were run


def register_part(setting: str, name: str, part: type) -> None:
    """Make a class of your own a value of a setting of the model, by a name.

    Settings are saved with the name. Whoever opens the folder needs the class: a program calls this
    first, and a command is told of the file that does by BERT_JAX_PARTS=FILE, which is run.

    Args:
      setting: norm_class, a module as `LayerNorm`; positions, a `Positions`; feed_forward, a `Part`
        as `FeedForward`; or block, a `Block`.
      name: the value, as in --set model.feed_forward=NAME.
      part: the class.

    Raises:
      UserError: there is no such setting.
    """
    if setting not in _OWN:
        raise UserError(f'register_part: {setting!r} is none of {", ".join(_OWN)}')
    _OWN[setting][name] = part


def is_registered(setting: str, name: object) -> bool:
    """Tell whether `name` is a registered value of a setting; the user's file is run before."""
    if setting not in _OWN:
        return False
    file = os.environ.get(VARIABLE, '')
    if file and file not in _RUN:
        _RUN.add(file)
        if not pathlib.Path(file).is_file():
            raise UserError(f'{VARIABLE}={file}: no such file')
        runpy.run_path(file)
    return name in _OWN[setting]


def find_class(setting: str, name: str, ours: Mapping[str, Any]) -> Any:
    """Return the class that a setting names: one of `ours`, or a registered one."""
    return ours[name] if name in ours else _OWN[setting][name]


def explain_unknown(setting: str, name: object) -> str:
    """Return how a name of nobody's is told where parts of one's own may be; '' elsewhere."""
    if setting not in _OWN or not isinstance(name, str):
        return ''
    return (
        f'model.{setting}={name} is none of ours: where it is a part of your own, import the file'
        f' that calls register_part for it, or name that file in {VARIABLE}=FILE'
    )
