"""What makes vectors of the tokens of a text: settings of models of late interaction (ColBERT).

Owns their names, and what a query and a document differ in. Names are those of
sentence-transformers (its modules/transformer.py and multi_vector_mask.py), where they have one.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any, Literal

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import Prompts, TextRow, VectorsConfig
from bert_jax.configs.options import COUNT, option
from bert_jax.configs.section import Section

_LENGTH = '[3, 2147483647]'  # [CLS], [SEP] and a piece between them


@dataclass(frozen=True)
class LateInteractionSettings(Section):
    """How tokens get vectors, and which of them are scored; other tasks do not read it."""

    width: int = option(128, 'numbers of the vector of a token', within=COUNT)
    normalize: bool = option(True, 'vectors of length one')
    skip: str = option(
        '',
        'tokens of documents that are not scored, with spaces between; punctuation: marks of ASCII',
    )
    query_length: int | None = option(
        None, 'word pieces of the longest query; none: max_seq_length', within=_LENGTH
    )
    document_length: int | None = option(
        None, 'word pieces of the longest document; none: max_seq_length', within=_LENGTH
    )
    query_expansion: Literal['none', 'fixed', 'min'] = option(
        'none',
        'masks behind queries, which are scored, up to expansion_length tokens; fixed: longer'
        ' queries are cut to it',
    )
    expansion_length: int = option(32, 'tokens of a query with its masks', within=_LENGTH)
    attend: bool = option(False, 'whether other tokens see the masks of a query')

    def vectors(self, prompts: Prompts, max_seq_length: int) -> LateInteractionConfig:
        """Return what is kept with a model that was fine-tuned so."""
        return LateInteractionConfig(self, True, prompts, max_seq_length)

    @property
    def masks_to(self) -> int:
        """Return how many tokens the shortest query has; 0: as many as its text."""
        return 0 if self.query_expansion == 'none' else self.expansion_length

    @property
    def skipped(self) -> tuple[str, ...]:
        """Return the tokens that are not scored in documents."""
        return tuple(string.punctuation if self.skip == 'punctuation' else self.skip.split())


@dataclass(frozen=True)
class LateInteractionConfig(VectorsConfig):
    """Describe how a text becomes vectors of its tokens, as it is kept with a model.

    Attributes:
      settings: of the vectors, and of the rows of queries and documents.
      markers: whether a prompt that begins with an entry of the vocabulary gives that entry, as
        '[unused0] ' does in ColBERT's; else a prompt is text.
      prompts, max_seq_length, similarity: as of every kind.
    """

    settings: LateInteractionSettings = LateInteractionSettings()
    markers: bool = True
    prompts: Prompts = ()
    max_seq_length: int | None = None
    similarity: Literal['maxsim'] = 'maxsim'

    def __post_init__(self) -> None:
        self._settle()

    def row(self, name: str | None, limit: int) -> TextRow:
        """Return how rows are made of queries, or of documents, which all other texts are."""
        settings, prompt, whole = self.settings, self.prompt(name), self.max_seq_length or limit
        if name != 'query':
            length = min(settings.document_length or whole, limit)
            return TextRow(prompt, length, self.markers, skipped=settings.skipped)
        masks_to, length = min(settings.masks_to, limit), settings.query_length or whole
        if settings.query_expansion == 'fixed':
            length = masks_to
        length = min(max(length, masks_to), limit)
        return TextRow(prompt, length, self.markers, masks_to, settings.attend)

    def longest(self, limit: int) -> int:
        """Return the tokens of the longest row, of an encoder that reads `limit`."""
        return max(self.row(name, limit).length for name in ('query', 'document'))

    def check_encoder(self, config: Any, limit: int) -> None:
        """Raise UserError where an encoder of `config` cannot read rows of `limit` tokens so."""
        settings, masks_to = self.settings, self.settings.masks_to
        longest = max(settings.query_length or 0, settings.document_length or 0, masks_to)
        if longest > limit:
            raise UserError(
                f'late_interaction: rows of {longest} tokens, and max_seq_length={limit} is the'
                ' longest: raise it, or shorten them'
            )
        if (settings.query_length or masks_to) < masks_to:
            raise UserError(
                f'late_interaction.query_length={settings.query_length} is below expansion_length='
                f'{masks_to}, which queries have at least: raise it, or leave it out'
            )
        if masks_to and not settings.attend and config.positions == 'disentangled':
            raise UserError(
                f'late_interaction.query_expansion={settings.query_expansion}: masks that nothing'
                f' sees have no vectors in {config.traits.name}: set late_interaction.attend=true'
            )

    def describe(self, width: int) -> list[tuple[str, Any]]:
        """Return (what, value) for a model card."""
        settings = self.settings
        return [
            ("numbers of a token's vector", settings.width),
            ('tokens of documents that are not scored', settings.skip or 'none'),
            ('tokens of a query, filled up with masks', settings.masks_to or 'as it has'),
        ]
