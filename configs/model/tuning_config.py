"""What of a model is trained, and from which teacher: the settings of tuning and distillation.

Owns the methods of parameter-efficient tuning by name, and the options that each of them reads.
What a method adds to a block, and what of it is trained, is bert_jax/model/tuning.py's.

Sources of the methods: BitFit, Ben Zaken et al. 2022; LoRA, Hu et al. 2021 (microsoft/LoRA);
houlsby, Houlsby et al. 2019 (google-research/adapter-bert); pfeiffer, Pfeiffer et al. 2021
(AdapterHub's 'pfeiffer'); (IA)3, Liu et al. 2022 (r-three/t-few); AdaMix, Wang et al. 2022
(microsoft/AdaMix; its consistency loss is in the paper and in the RoBERTa of that code, not in its
BERT); SPAFIT, Arora and Wang 2024.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bert_jax.configs.errors import UserError
from bert_jax.configs.options import ABOVE_0, COUNT, COUNT_OR_0, FROM_0, RATE, option
from bert_jax.configs.section import Section

if TYPE_CHECKING:
    from bert_jax.configs.schema import OptimizerConfig

Method = Literal['full', 'bitfit', 'lora', 'houlsby', 'pfeiffer', 'ia3', 'adamix', 'spafit']
# The matrices of a block, by the names that they have in it.
MATRICES = ('query', 'key', 'value', 'attention_output', 'intermediate', 'gate', 'output')

_LORA = {'rank': 8, 'alpha': 16.0, 'lora_dropout': 0.0, 'matrices': 'query,value'}
_EVERY = {'frozen_layers': 0, 'pooler': 'frozen'}
# The options that each method reads, with their defaults there. width: none is hidden_size / 16.
DEFAULTS: dict[str, dict[str, Any]] = {
    'full': {},
    'bitfit': {'biases': 'all', **_EVERY},
    'lora': {**_LORA, **_EVERY},
    'houlsby': {'width': 64, **_EVERY},
    'pfeiffer': {'width': None, **_EVERY},
    'ia3': {'vectors': 'paper', **_EVERY},
    'adamix': {'width': None, 'experts': 4, 'consistency': True, **_EVERY},
    'spafit': {**_LORA, **_EVERY, 'frozen_layers': None, 'bias_layers': None},
}


@dataclass(frozen=True)
class TuningConfig(Section):
    """Parameter-efficient tuning; an option that is none has its method's default (DEFAULTS)."""

    method: Method = option(
        'full',
        'full: all weights (the paper); bitfit: biases; lora: low-rank updates of matrices;'
        ' houlsby, pfeiffer: adapters; ia3: scales of keys, values and the feed-forward part;'
        ' adamix: adapters of which each step draws one; spafit: by depth frozen, biases, LoRA',
    )
    rank: int | None = option(None, 'lora, spafit: rank of an update; none: 8', within=COUNT)
    alpha: float | None = option(
        None, 'lora, spafit: an update is scaled by alpha / rank; none: 16', within=ABOVE_0
    )
    lora_dropout: float | None = option(
        None, 'lora, spafit: dropout on what the update reads; none: 0', within=RATE
    )
    matrices: str | None = option(
        None,
        'lora, spafit: the matrices that are updated, with commas, of query, key, value,'
        ' attention_output, intermediate, gate (geglu only), output; none: query,value',
    )
    width: int | None = option(
        None,
        'houlsby, pfeiffer, adamix: bottleneck of an adapter; none: 64 of houlsby, else'
        ' hidden_size / 16',
        within=COUNT,
    )
    biases: Literal['all', 'partial'] | None = option(
        None,
        'bitfit: all of them, or partial: those of query and intermediate; none: all',
    )
    vectors: Literal['paper', 'peft'] | None = option(
        None,
        "ia3: paper: keys, values, the feed-forward part; peft: the attention's output too, as"
        ' that library has it; none: paper',
    )
    experts: int | None = option(None, 'adamix: adapters to draw from; none: 4', within=COUNT)
    consistency: bool | None = option(
        None,
        'adamix: compute each batch twice in training, by adapters drawn anew, and minimise how far'
        ' the two answers differ too, which doubles the compute; none: where the task has classes',
    )
    frozen_layers: int | None = option(
        None,
        'the lowest blocks where nothing is trained and no gradient is computed; none: 0, of'
        ' spafit a sixth of them',
        within=COUNT_OR_0,
    )
    bias_layers: int | None = option(
        None,
        'spafit: the blocks above them where biases alone are trained; none: up to three eighths'
        ' of all blocks',
        within=COUNT_OR_0,
    )
    pooler: Literal['frozen', 'trained'] | None = option(
        None, 'whether the pooler is trained with the head; none: frozen'
    )

    def check_optimizer(self, optimizer: OptimizerConfig) -> None:
        """Raise UserError for settings of the optimizer that tuning leaves no place for."""
        # What tuning leaves alone it leaves alone for good, and one rate is for the rest.
        o = optimizer
        rates = (o.layer_decay, o.freeze_embeddings, o.freeze_layers)
        if self.method != 'full' and rates != (1.0, False, 0):
            raise UserError(
                'optimizer: layer_decay, freeze_embeddings and freeze_layers are for'
                f' tuning.method=full, not {self.method}: leave them out; tuning.frozen_layers'
                ' freezes blocks'
            )

    def check(self) -> None:
        """Refuse options that the method does not read, and matrices that there are not."""
        # An option of another method would be ignored, and its user wait in vain.
        read = DEFAULTS[self.method]
        for name in sorted(vars(self).keys() - read.keys() - {'method'}):
            readers = [method for method, options in DEFAULTS.items() if name in options]
            self._require(
                getattr(self, name) is None,
                name,
                f'left alone with method={self.method}: it is of {", ".join(readers)}',
            )
        if self.matrices is not None:
            chosen = self.matrices.split(',')
            self._require(
                set(chosen) <= set(MATRICES) and len(set(chosen)) == len(chosen),
                'matrices',
                f'different ones of {", ".join(MATRICES)}, with commas between',
            )

    def option(self, name: str) -> Any:
        """Return the value of an option: what was set, or its method's default.

        KeyError where the method does not read it.
        """
        default, chosen = DEFAULTS[self.method][name], getattr(self, name)
        return default if chosen is None else chosen

    @property
    def consistent(self) -> bool:
        """Whether answers of classes are held against those by other draws (AdaMix)."""
        return 'consistency' in DEFAULTS[self.method] and self.option('consistency')

    def fitted(self, layers: int, hidden_size: int, intermediate_size: int) -> TuningConfig:
        """Return the same with every option that the method reads stated, for a model's shape.

        UserError where it does not fit: a rank beyond a matrix, groups beyond the blocks.
        """
        if self.method == 'full':
            return self
        options = {name: self.option(name) for name in DEFAULTS[self.method]}
        # The depths are SPAFIT's, in proportion to 4 and 5 of the 24 blocks of BERT-large, which
        # the paper calls 4-9.
        by_shape = {
            'frozen_layers': layers // 6,
            'bias_layers': layers * 9 // 24 - layers // 6,
            'width': max(1, hidden_size // 16),
        }
        options |= {k: v for k, v in by_shape.items() if k in options and options[k] is None}

        # What was set may fit no model of this shape.
        if 'rank' in options:
            square = {'intermediate', 'gate', 'output'}.isdisjoint(options['matrices'].split(','))
            least = hidden_size if square else min(hidden_size, intermediate_size)
            if options['rank'] > least:
                raise UserError(
                    f'tuning.rank={options["rank"]}: more than the {least} columns or rows of a'
                    ' matrix: lower it'
                )
        below = options['frozen_layers'] + options.get('bias_layers', 0)
        if below >= layers:
            raise UserError(
                f'tuning: frozen_layers={options["frozen_layers"]}'
                + (f' and bias_layers={options["bias_layers"]}' if 'bias_layers' in options else '')
                + f' leave nothing of {layers} blocks to {self.method}: lower them'
            )
        return dataclasses.replace(self, **options)


@dataclass(frozen=True)
class DistillationConfig(Section):
    """Which teacher a run of pre-training has, and what the student copies.

    What is minimised is bert_jax/train/losses/distillation.py's, what the teacher gives
    bert_jax/runs/pretraining/teacher.py's.
    """

    teacher: str = option(
        '', 'the model that the student learns from, as --init_from names it; empty: none'
    )
    method: Literal['distilbert', 'minilm'] = option(
        'distilbert',
        "distilbert: the teacher's distribution over masked tokens and the direction of its last"
        ' states; minilm: the relations of queries, keys and values in one block',
    )
    temperature: float = option(
        2.0, 'distilbert: divides the logits of both before the softmax', within=ABOVE_0
    )
    soft_weight: float = option(
        5.0, "distilbert: the weight of the teacher's distribution", within=FROM_0
    )
    cosine_weight: float = option(
        1.0, 'distilbert: the weight of the last states; 0 where the widths differ', within=FROM_0
    )
    masked_lm_weight: float | None = option(
        None,
        'the weight of the masked-LM loss; none: 2 for distilbert, 0 for minilm',
        within=FROM_0,
    )
    relation_heads: int = option(
        12, 'minilm: heads that relations are taken in; divides both widths', within=COUNT
    )
    teacher_block: int = option(
        -1, "minilm: the teacher's block, from 0; -1: the last", within='[-1, 2147483647]'
    )
