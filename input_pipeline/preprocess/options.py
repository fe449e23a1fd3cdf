"""What an offline job can be told: the options of launch.preprocess, checked against each other.

Owns their defaults (google-research/bert create_pretraining_data.py:49-65 where it has them) and
which of them exclude each other. It must not know how the job is carried out.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from configs.errors import UserError
from input_pipeline.examples.masking import MaskingRule
from input_pipeline.examples.pairs import Objective
from input_pipeline.preprocess.languages import split_inputs
from input_pipeline.records.fields import RecordSpec
from input_pipeline.text import corpus


@dataclass(frozen=True)
class PreprocessOptions:
    """The options of `launch.preprocess`; None stands for the default that its help describes."""

    input: str | tuple[str, ...]  # patterns, all of them as LANGUAGE=PATTERN or none
    tokenizer: str
    output: str
    seq_len: int = 128
    max_predictions: int | None = None
    masked_lm_prob: float = 0.15
    mask_mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    whole_word: bool = False
    ngram: int = 1
    masking: Literal['static', 'dynamic'] = 'static'
    packing: bool = False
    max_packs: int = 8
    objective: Objective = 'nsp'
    dupe_factor: int | None = None
    short_seq_prob: float = 0.1
    eval_fraction: float | None = None
    eval_input: str | tuple[str, ...] | None = None
    language_exponent: float | None = None
    num_shards: int | None = None
    workers: int | None = None
    dedup: Literal['none', 'documents', 'lines'] = 'none'
    seed: int = 12345
    engine: Literal['local', 'beam'] = 'local'
    beam_arguments: tuple[str, ...] = ()
    overwrite: bool = False
    text: corpus.TextOptions = dataclasses.field(default_factory=corpus.TextOptions)

    def __post_init__(self) -> None:
        def require(ok: bool, flag: str, value: Any, rule: str) -> None:
            if not ok:
                raise UserError(f'--{flag}={value}: must be {rule}')

        require(8 <= self.seq_len <= 1 << 16, 'seq_len', self.seq_len, 'from 8 to 65536')
        require(
            0 < self.masked_lm_prob <= 1,
            'masked_lm_prob',
            self.masked_lm_prob,
            'more than 0 and at most 1',
        )
        require(
            self.max_predictions is None or 1 <= self.max_predictions <= self.seq_len,
            'max_predictions',
            self.max_predictions,
            f'from 1 to --seq_len={self.seq_len}',
        )
        _ = self.rule  # which checks itself
        require(2 <= self.max_packs <= 1024, 'max_packs', self.max_packs, 'from 2 to 1024')
        if self.packing and self.masking == 'dynamic':
            raise UserError('--packing is for --masking=static: leave one of them out')
        require(
            self.dupe_factor is None or 1 <= self.dupe_factor <= 10_000,
            'dupe_factor',
            self.dupe_factor,
            'from 1 to 10000',
        )
        require(0 <= self.short_seq_prob <= 1, 'short_seq_prob', self.short_seq_prob, 'from 0 to 1')
        require(
            self.eval_fraction is None or 0 <= self.eval_fraction < 1,
            'eval_fraction',
            self.eval_fraction,
            'at least 0 and less than 1',
        )
        require(
            self.num_shards is None or 1 <= self.num_shards <= 99_999,
            'num_shards',
            self.num_shards,
            'from 1 to 99999',
        )
        require(
            self.workers is None or 1 <= self.workers <= 1024,
            'workers',
            self.workers,
            'from 1 to 1024',
        )
        require(0 <= self.seed < 1 << 63, 'seed', self.seed, 'from 0 to 2^63 - 1')
        if self.eval_input is not None and self.eval_fraction:
            raise UserError(
                '--eval_fraction and --eval_input both name the held-out split: give one of them'
            )
        exponent = self.language_exponent
        require(
            exponent is None or 0 <= exponent <= 1,
            'language_exponent',
            exponent,
            'from 0 (languages alike) to 1 (as much as there is)',
        )
        for flag, given in (('input', self.input), ('eval_input', self.eval_input)):
            if given is not None:
                split_inputs(flag, given)
        if exponent is not None and '' in split_inputs('input', self.input):
            raise UserError(
                f'--language_exponent={exponent}: is for text in several languages: name them, as'
                ' in --input=en=PATTERN --input=ko=PATTERN'
            )
        if self.beam_arguments and self.engine != 'beam':
            raise UserError(f'{self.beam_arguments[0]}: pipeline options are for --engine=beam')
        if '://' in self.output and self.engine == 'local':
            raise UserError(
                f'--output={self.output}: must be a local folder; copy the finished one to where it'
                ' is needed'
            )

    @property
    def inputs(self) -> str:
        """--input as it was given."""
        return ' '.join(
            f'--input={text}'
            for text in ([self.input] if isinstance(self.input, str) else self.input)
        )

    @property
    def rule(self) -> MaskingRule:
        """The masking rule; by default as many predictions as the longest row has."""
        most = (
            self.max_predictions
            if self.max_predictions is not None
            else math.ceil(self.seq_len * self.masked_lm_prob)
        )
        return MaskingRule(self.masked_lm_prob, most, self.mask_mix, self.whole_word, self.ngram)

    @property
    def spec(self) -> RecordSpec:
        """The schema of the training records."""
        return RecordSpec(
            self.seq_len,
            self.rule.max_predictions,
            self.masking,
            self.max_packs if self.packing else 1,
        )

    @property
    def passes(self) -> int:
        """Passes over the training documents: dynamic masking needs no duplicates."""
        return (
            self.dupe_factor
            if self.dupe_factor is not None
            else 10
            if self.masking == 'static'
            else 1
        )
