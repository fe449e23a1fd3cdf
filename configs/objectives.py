"""What a run of pre-training minimises, as far as its settings and its records must fit that.

A class for each value of `objective`: bert_jax/train/pretraining_objectives.py has the models and
losses by the same names. Standard library only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.model_config import ModelConfig
from bert_jax.configs.options import ABOVE_0, SHARE, option
from bert_jax.configs.section import Section

if TYPE_CHECKING:
    from bert_jax.configs.schema import PretrainConfig

_HEAD_WIDTH = 64  # of a narrower generator's heads


@dataclass(frozen=True)
class ReplacedTokensConfig(Section):
    """The generator of a run with objective=replaced_tokens, and what both models share.

    Defaults are those of google-research/electra (configure_pretraining.py, run_pretraining.py).
    """

    generator_size: float = option(
        0.25, "the generator's width as a share of the encoder's", within=SHARE
    )
    generator_layers: float = option(
        1.0, "the generator's blocks as a share of the encoder's", within=SHARE
    )
    detector_weight: float = option(
        50.0, 'the weight of the loss of detection beside that of masked words', within=ABOVE_0
    )
    mask_share: float = option(
        0.85,
        'share of the chosen tokens that the generator reads as [MASK]; the others it reads as they'
        ' are',
        within='[0, 1]',
    )
    sharing: Literal['embeddings', 'gradient_disentangled'] = option(
        'embeddings',
        'embeddings: both models have the same tables and the norm behind them (ELECTRA);'
        " gradient_disentangled: the encoder adds to the generator's tables of words and positions"
        ' and sends them no gradient (DeBERTa-v3); it needs a generator as wide as the encoder',
    )

    def make_generator(self, model: ModelConfig) -> ModelConfig:
        """Return the shape of the generator for an encoder.

        Heads are 64 wide and the feed-forward part 4H, unless it is as wide as the encoder.

        Raises:
          UserError: there is no such model.
        """
        width = round(model.hidden_size * self.generator_size)
        changes: dict[str, Any] = {
            'num_layers': max(1, round(model.num_layers * self.generator_layers))
        }
        if width != model.hidden_size:
            changes['hidden_size'] = width
            changes['num_heads'] = max(1, width // _HEAD_WIDTH)
            changes['intermediate_size'] = 4 * width
        changes['embedding_size'] = None
        if width != model.embedding_width:
            changes['embedding_size'] = model.embedding_width
        try:
            return dataclasses.replace(model, **changes)
        except UserError as error:
            raise UserError(
                f'replaced_tokens.generator_size={self.generator_size},'
                f' generator_layers={self.generator_layers} make no generator: {error}; change'
                ' either, as to 1'
            ) from None


class MaskedLMRules:
    """Masked words, and pairs where records have them.

    Attributes:
      masks_in_step: whether records must come unmasked.
    """

    masks_in_step = False

    def check(self, config: PretrainConfig) -> None:
        """Raise UserError where other settings of a run do not go with it."""

    def list_without_effect(self, config: PretrainConfig) -> list[str]:
        """Return a line for each section that was changed and is not read."""
        if config.replaced_tokens == ReplacedTokensConfig():
            return []
        return [f'replaced_tokens has no effect: objective={config.objective} does not read it']


class ReplacedTokensRules(MaskedLMRules):
    """Which tokens a generator has replaced (ELECTRA)."""

    masks_in_step = True

    def list_without_effect(self, config: PretrainConfig) -> list[str]:
        """Return nothing: all is read."""
        del config
        return []

    def check(self, config: PretrainConfig) -> None:
        """Raise UserError where other settings of a run do not go with it."""
        model, optimizer = config.model, config.optimizer
        for name, value, wanted in (
            ('tuning.method', config.tuning.method, 'full'),
            ('distillation.teacher', config.distillation.teacher, ''),
            ('model.embedding', model.embedding, 'table'),
            ('model.attention', model.attention, 'bidirectional'),
            ('model.bilstm', model.bilstm, False),
            ('optimizer.layer_decay', optimizer.layer_decay, 1.0),
            ('optimizer.freeze_layers', optimizer.freeze_layers, 0),
            ('optimizer.freeze_embeddings', optimizer.freeze_embeddings, False),
        ):
            if value != wanted:
                raise UserError(
                    f'{name}={value}: objective=replaced_tokens is built for {name}={wanted!r}'
                    ' alone: leave it out'
                )
        section = config.replaced_tokens
        width = section.make_generator(model).hidden_size
        if section.sharing == 'gradient_disentangled' and width != model.hidden_size:
            raise UserError(
                'replaced_tokens.sharing=gradient_disentangled needs a generator as wide as the'
                f' encoder, and generator_size={section.generator_size} makes one of {width}:'
                ' --set replaced_tokens.generator_size=1 --set replaced_tokens.generator_layers=0.5'
            )


OBJECTIVES: dict[str, MaskedLMRules] = {
    'masked_lm': MaskedLMRules(),
    'replaced_tokens': ReplacedTokensRules(),
}

# What a checker of types cannot know is checked when a configuration is made.
if TYPE_CHECKING:
    ObjectiveName = str
else:
    ObjectiveName = Literal[*OBJECTIVES]
