"""What a run of pre-training learns: its models, its loss, and what readers find of it.

A class for each value of `objective` (bert_jax/configs/objectives.py says which settings go with
it). Programs, sources and first weights ask the class, and none asks for the name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, PretrainConfig
from bert_jax.model import heads
from bert_jax.model.replaced_tokens import ReplacedTokens
from bert_jax.train.dynamic_masking import DynamicMasking
from bert_jax.train.head_base import Head
from bert_jax.train.losses.masked_lm import make_pretraining_objective
from bert_jax.train.losses.objective import Objective
from bert_jax.train.losses.replaced_tokens import make_replaced_tokens_objective
from bert_jax.train.task_heads import HEADS, choose_pretraining_head


class Trained(NamedTuple):
    """One of the models that a run trains: its shape, all of its parameters, and its head."""

    config: ModelConfig
    params: dict[str, Any]
    head: Head


class MaskedLMObjective:
    """Masked words, and pairs where records have them.

    Attributes:
      clipped_apart: parts of the parameters whose gradient has a norm of its own, beside that of
        all others.
      beside: names of the models that are trained beside the one that is wanted.
      learns_pairs: whether it learns pairs where records have them.
    """

    clipped_apart: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    learns_pairs = True

    def __init__(self, config: PretrainConfig):
        """Make it of the settings of a run."""
        self.config = config

    def make_model(
        self, encoder: ModelConfig, is_whole: bool = False, **fields: Any
    ) -> heads.Pretraining | ReplacedTokens:
        """Return the model: anything with `init`, `clone`, `config` and `scan`.

        Args:
          encoder: the shape, with what tuning adds.
          is_whole: whether its parameters are as `split` leaves them.
          **fields: as of heads.Pretraining.
        """
        del is_whole
        return heads.Pretraining(encoder, **fields)

    def make_objective(self, model: Any, has_pairs: bool) -> Objective:
        """Return what is minimised."""
        return make_pretraining_objective(model, has_pairs)

    def adapt(self, masking: DynamicMasking | None) -> DynamicMasking | None:
        """Return how a step masks, of how the records say it."""
        return masking

    def list_shapes(self, encoder: ModelConfig) -> list[tuple[ModelConfig, bool]]:
        """Return the encoders that read each row, and whether they predict its masked words."""
        return [(encoder, True)]

    def choose_head(self, encoder: ModelConfig) -> Head:
        """Return the head of the model that is wanted."""
        return choose_pretraining_head(encoder)

    def check_source(self, name: str) -> None:
        """Raise UserError where no model, `name`, can be begun with."""

    def list_heads(self, encoder: ModelConfig, given: Collection[str]) -> list[str]:
        """Return the parts that a source must have, or that are made where it lacks them.

        given: those that it has.
        """
        del given
        return list(self.choose_head(encoder).parts)

    def split(self, params: Mapping[str, Any], encoder: ModelConfig) -> list[Trained]:
        """Return the model that is wanted, then those of `beside`, each with all of its arrays."""
        return [Trained(encoder, dict(params), self.choose_head(encoder))]


class ReplacedTokensObjective(MaskedLMObjective):
    """Which tokens a generator has replaced (Clark et al. 2020)."""

    beside = ('generator',)
    learns_pairs = False

    def __init__(self, config: PretrainConfig):
        """Make it of the settings of a run."""
        super().__init__(config)
        self._settings = config.replaced_tokens
        if self._settings.sharing == 'gradient_disentangled':
            # One optimizer stands for two, of which each clips its own gradient.
            self.clipped_apart = self.beside

    def make_model(
        self, encoder: ModelConfig, is_whole: bool = False, **fields: Any
    ) -> ReplacedTokens:
        """Return both models. What the generator says is drawn from, so it is an array."""
        fields.pop('vocabulary_loss', None)
        return ReplacedTokens(
            heads.Detector(encoder, **fields),
            heads.Pretraining(self._settings.make_generator(encoder), **fields),
            None if is_whole else self._settings.sharing,
        )

    def make_objective(self, model: Any, has_pairs: bool) -> Objective:
        """Return what is minimised; a question about pairs is not learnt."""
        del has_pairs
        return make_replaced_tokens_objective(model, self._settings.detector_weight)

    def adapt(self, masking: DynamicMasking | None) -> DynamicMasking | None:
        """Return the same rule with the shares of the settings, and without random words."""
        if masking is None:
            return None
        share = self._settings.mask_share
        return dataclasses.replace(masking, mix=(share, 1.0 - share, 0.0))

    def list_shapes(self, encoder: ModelConfig) -> list[tuple[ModelConfig, bool]]:
        """Return both encoders, of which the generator predicts words."""
        return [(encoder, False), (self._settings.make_generator(encoder), True)]

    def choose_head(self, encoder: ModelConfig) -> Head:
        """Return the detecting head; of a family without one the encoder alone."""
        head = HEADS['detection']
        if not head.is_in(encoder.family):
            head = HEADS['encoder']
        return head.of(encoder.family)

    def check_source(self, name: str) -> None:
        """Refuse a source whose tables would be in two places."""
        if self._settings.sharing == 'gradient_disentangled':
            raise UserError(
                f'--init_from={name}: replaced_tokens.sharing=gradient_disentangled begins with'
                ' fresh weights: take sharing=embeddings, or leave --init_from out'
            )

    def list_heads(self, encoder: ModelConfig, given: Collection[str]) -> list[str]:
        """Return the detecting head where the source has it; else the run's own is fresh."""
        head = HEADS['detection']
        learnt = [part for part in head.parts if part in given]
        if 'mlm' in given and not learnt and head.is_in(encoder.family):
            raise UserError(
                '--init_from names a generator: name the discriminator that was trained with it, or'
                ' leave --init_from out'
            )
        return learnt

    def split(self, params: Mapping[str, Any], encoder: ModelConfig) -> list[Trained]:
        """Return the detector and the generator; tables that they share are in both."""
        model = self.make_model(encoder)
        detector, generator = map(jax.device_get, model.split(params))
        shape = model.generator.config
        # A generator has no head for pairs, whatever its family has.
        head = HEADS['masked_words'].of(shape.family)
        return [
            Trained(encoder, detector, self.choose_head(encoder)),
            Trained(shape, generator, head),
        ]


OBJECTIVES: dict[str, type[MaskedLMObjective]] = {
    'masked_lm': MaskedLMObjective,
    'replaced_tokens': ReplacedTokensObjective,
}


def choose_objective(config: PretrainConfig) -> MaskedLMObjective:
    """Return what a run of pre-training learns, by its settings."""
    return OBJECTIVES[config.objective](config)
