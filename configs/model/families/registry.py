"""The families of encoders by name: `model.family` takes the names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from bert_jax.configs.model.families import albert, bert, modernbert, roberta
from bert_jax.configs.model.families.family import Family

# BERT first, as the default; the others by name.
FAMILIES: dict[str, Family] = {
    'bert': bert.FAMILY,
    'albert': albert.FAMILY,
    'modernbert': modernbert.FAMILY,
    'roberta': roberta.FAMILY,
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
