"""The weights that a run of pre-training begins with: fresh ones, or those of --init_from.

Owns which sources fit such a run, and the way of their arrays into its first state. How a source is
read is bert_jax/runs/sources's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.runs.workdir import word_vectors
from bert_jax.train.pretraining_program import PretrainingSetup
from bert_jax.train.state import TrainState, load_encoder, load_frozen, load_params_into
from bert_jax.train.task_heads import choose_pretraining_head

if TYPE_CHECKING:
    from bert_jax.runs.sources.fitting import InitBy
    from bert_jax.runs.sources.source import Source

_WITH_MOMENTS = 'weights_and_moments'


class FirstWeights:
    """What `init_from` names, made fit for a run.

    Attributes:
      source: a model; None where weights are fresh, or where the workdir has a checkpoint that
        holds them all.
      identity: its entry of data.json.
    """

    source: Source | None = None

    def __init__(
        self,
        setup: PretrainingSetup,
        tokenizer: Tokenizer,
        has_checkpoint: bool,
        init_from: str | None,
        init_by: InitBy,
    ):
        """Name the source; `read` reads it.

        Args:
          setup: of the run.
          tokenizer: that of the records.
          has_checkpoint: whether the workdir has one.
          init_from: the source; None for fresh weights.
          init_by: how weights are made of it.
        """
        self._setup, self._tokenizer = setup, tokenizer
        self._has_checkpoint = has_checkpoint
        self._init_from, self._init_by = init_from, init_by
        self.identity: dict[str, Any] = {}

    def read(self, print_map: bool = False) -> None:
        """Read the source, where one is needed; `print_map`: print the names of its arrays.

        Raises:
          UserError: it does not fit the run.
        """
        setup, init_from, init_by = self._setup, self._init_from, self._init_by
        if not init_from:
            return
        from bert_jax.runs.sources import fitting

        setup.objective.check_source(init_from)
        is_network = fitting.is_word_network(init_from)
        is_tuned = setup.encoder.tuning.method != 'full'
        if init_by != 'weights' and (is_tuned or is_network):
            raise UserError(f'--init_by={init_by} is for a whole model that is trained whole')
        if is_tuned:
            self._read_tuned(init_from, print_map)
            return
        self.identity['init_from'] = init_from
        if init_by != 'weights':  # older runs do not say it, whose weights were taken as they are
            self.identity['init_by'] = init_by

        # A checkpoint is further than the source: the weights are not read, nor is it asked for.
        # Nor is what has no encoder: `put_into` takes its network.
        if self._has_checkpoint or is_network:
            return
        if init_by == _WITH_MOMENTS:
            fitting.check_moments(init_from, self._tokenizer, setup.optimizer)
        self.source = fitting.read_for_pretraining(
            init_from,
            self._tokenizer,
            setup.model,
            setup.seed,
            print_map,
            init_by,
            setup.objective.list_heads,
        )

    def _read_tuned(self, init_from: str, print_map: bool) -> None:
        """Read the source of a run that leaves most of its weights as they are.

        These are in no checkpoint, so the source is read with every start.
        """
        from bert_jax.runs.sources import fitting, source

        # The trained weights belong to these alone: as source.py reads them again with the workdir.
        start = source.load_plain(init_from, print_map)
        setup, tuning = self._setup, self._setup.encoder.tuning
        if 'pooler' in choose_pretraining_head(setup.model).parts:
            fitting.check_pooler(start, tuning)
        if self._tokenizer.fingerprint != start.tokenizer.fingerprint:
            raise UserError(
                f'the vocabulary of --data is not that of {start.where}, and'
                f' tuning.method={tuning.method} trains no words: make the records with the'
                ' tokenizer there, or take tuning.method=full'
            )
        self.identity = {'init_from': start.where, 'init_fingerprint': start.fingerprint()}
        self.source = fitting.fit_for_pretraining(start, self._tokenizer, setup.model, setup.seed)

    def put_into(self, state: TrainState) -> TrainState:
        """Return the fresh `state` with these weights; what tuning adds stays fresh."""
        if self.source is not None:
            return self._put_source_into(state, self.source)
        if self._init_from and not self._has_checkpoint:
            from bert_jax.runs.sources import fitting

            if fitting.is_word_network(self._init_from):
                network = fitting.put_network_into(state.params, self._init_from)
                logging.info(f'{self._init_from}: its network of words; all else is fresh')
                return state._replace(params=network)
        if state.frozen is not None:
            # Of a source they come with it; else they follow from the vocabulary alone.
            computed = word_vectors.filled_in({}, self._setup.model, self._tokenizer)
            state = load_frozen(state, computed, 'word vectors')
        return state

    def _put_source_into(self, state: TrainState, source: Source) -> TrainState:
        """Return `state` with the encoder and both heads of a source, and its moments if asked."""
        name = f'--init_from={source.where}'
        state = load_encoder(state, source.params['encoder'], self._setup.encoder, name)
        params = state.params
        for head in source.params.keys() - {'encoder'}:
            params = load_params_into(params, source.params, name, head)
        state = state._replace(params=params)
        if self._init_by == _WITH_MOMENTS:
            from bert_jax.runs.sources import fitting

            state = fitting.put_moments_into(state, str(self._init_from), source.step)
        return state

    def log(self) -> None:
        """Say whose weights a run begins with, where they are a source's."""
        if self.source is None:
            return
        is_new = 'optimizer and schedule are'
        if self._init_by == _WITH_MOMENTS:
            is_new = 'schedule is'
        logging.info(f'weights of {self.source.where} at step {self.source.step}; {is_new} new')
