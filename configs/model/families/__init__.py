"""The families of encoders by name: a family is a file here that holds its entry, FAMILY.

The name of the file is the name of the family; `model.family` takes the names.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Literal

from bert_jax.configs.model.families.family import Family

_MODULES = {
    info.name: importlib.import_module(f'{__name__}.{info.name}')
    for info in pkgutil.iter_modules(__path__)
}
# BERT first, as the default; the others by name.
FAMILIES: dict[str, Family] = {
    name: _MODULES[name].FAMILY
    for name in sorted(_MODULES, key=lambda name: (name != 'bert', name))
    if hasattr(_MODULES[name], 'FAMILY')
}

# What a checker of types cannot know is checked when a configuration is made.
if TYPE_CHECKING:
    FamilyName = str
    RecipeName = str
else:
    FamilyName = Literal[*FAMILIES]
    # Recipes of fine-tuning: the paper's, that of google-research/bert's README, and the families'.
    RecipeName = Literal[
        'paper', 'readme', *(name for name, family in FAMILIES.items() if family.recipe)
    ]
