"""The shape of a model, its family, and which of its weights fine-tuning changes.

Owns the settings of the encoder; the methods of parameter-efficient tuning by name, which options
each of them reads, and those options' defaults.
What a method adds to a block, and what of it is trained, is bert_jax/model/peft's.

Sources of the methods: BitFit, Ben Zaken et al. 2022; LoRA, Hu et al. 2021 (microsoft/LoRA);
houlsby, Houlsby et al. 2019 (google-research/adapter-bert); pfeiffer, Pfeiffer et al. 2021
(AdapterHub's 'pfeiffer'); (IA)3, Liu et al. 2022 (r-three/t-few); AdaMix, Wang et al. 2022
(microsoft/AdaMix; its consistency loss is in the paper and in the RoBERTa of that code, not in its
BERT); SPAFIT, Arora and Wang 2024.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.embeddings import EMBEDDINGS, Embedding, EmbeddingName
from bert_jax.configs.model.families import FAMILIES, FamilyName
from bert_jax.configs.model.families.family import Family
from bert_jax.configs.options import ABOVE_0, COUNT, COUNT_OR_0, RATE, option
from bert_jax.configs.section import Section

Method = Literal['full', 'bitfit', 'lora', 'houlsby', 'pfeiffer', 'ia3', 'adamix', 'spafit']
# The matrices of a block, by the names that they have in it.
MATRICES = ('query', 'key', 'value', 'attention_output', 'intermediate', 'output')

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
        ' attention_output, intermediate, output; none: query,value',
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
            square = {'intermediate', 'output'}.isdisjoint(options['matrices'].split(','))
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


_NONE = TuningConfig()


@dataclass(frozen=True)
class ModelConfig(Section):
    """The encoder (paper section 3; google-research/bert modeling.py:34-45)."""

    vocab_size: int = option(
        30522,
        'entries of the vocabulary; the table is padded to a multiple of 128 inside the model',
        within=COUNT,
    )
    hidden_size: int = option(768, 'width H of every layer', within=COUNT)
    num_layers: int = option(12, 'number of Transformer blocks L', within=COUNT)
    num_heads: int = option(12, 'attention heads A; must divide hidden_size', within=COUNT)
    intermediate_size: int = option(
        3072, 'width of the feed-forward layer, 4H in the paper', within=COUNT
    )
    max_position: int = option(
        512, 'the longest sequence possible: a position has a row of a table', within=COUNT
    )
    type_vocab_size: int = option(2, 'rows of the segment table', within=COUNT)
    hidden_act: Literal['gelu_tanh', 'gelu_erf', 'relu'] = option(
        'gelu_tanh', "gelu_tanh is Google's gelu, gelu_erf Hugging Face's"
    )
    hidden_dropout: float = option(
        0.1, 'dropout after embeddings and after each sub-layer', within=RATE
    )
    attention_dropout: float = option(0.1, 'dropout on attention probabilities', within=RATE)
    initializer_range: float = option(
        0.02, 'standard deviation of the truncated normal before truncation', within=ABOVE_0
    )
    layer_norm_eps: float = option(
        1e-12, 'added to the variance in layer normalisation', within=ABOVE_0
    )
    attention: Literal['bidirectional', 'left_to_right'] = option(
        'bidirectional',
        'left_to_right: no token sees what stands right of it, and the last one is pooled (section'
        ' 5.1)',
    )
    bilstm: bool = option(
        False,
        'a bidirectional LSTM on top of the last block, hidden_size / 2 in each direction (section'
        ' 5.1)',
    )
    embedding: EmbeddingName = option(
        'table',
        'vectors of word pieces; table: trained weights, which the masked-LM head shares (the'
        ' paper); hashed: computed from their spelling, neither trained nor stored (EELBERT);'
        ' retvec: of whole words, by a small network from their characters (RETVec)',
        is_later=True,
    )
    hash_ngrams: int = option(
        3,
        'hashed only: the longest stretch of characters that is hashed; 3 in EELBERT',
        within='[1, 8]',
        is_later=True,
    )
    family: FamilyName = option(
        'bert',
        'roberta: byte-level BPE, positions from the third row of their table on, no next-sentence'
        " head, a classifier of two layers; albert: goes out under ALBERT's names",
        is_later=True,
    )
    embedding_size: int | None = option(
        None,
        'width E of the vectors of words, positions and segments, which a dense layer brings to'
        ' hidden_size (ALBERT: 128); none: they are hidden_size wide, without such a layer',
        within=COUNT,
        is_later=True,
    )
    num_groups: int | None = option(
        None,
        'groups of neighbouring blocks that share their weights (ALBERT: 1); none: each block has'
        ' its own',
        within=COUNT,
        is_later=True,
    )
    retvec: Literal['frozen', 'trained'] = option(
        'frozen',
        'retvec only: its network stays as bert-train-retvec left it (RETVec), or is trained on',
        is_later=True,
    )

    norm: Literal['post', 'pre'] = option(
        'post',
        'where layers are normalised; post: after each residual sum (the paper); pre: on what each'
        ' sub-layer reads, and once more after the last block',
        is_later=True,
    )
    use_bias: bool = option(
        True,
        "whether the blocks' dense layers and the encoder's norms have biases; the pooler and heads"
        ' always have them',
        is_later=True,
    )
    positions: Literal['learned', 'none'] = option(
        'learned',
        'learned: a trained vector for each position (the paper); none: the model is not given the'
        ' order of tokens',
        is_later=True,
    )

    @property
    def is_causal(self) -> bool:
        """Tell whether no token sees what comes after it."""
        return self.attention == 'left_to_right'

    @property
    def traits(self) -> Family:
        """The entry of its family: by what it differs from others."""
        return FAMILIES[self.family]

    @property
    def words(self) -> Embedding:
        """The kind of its word vectors: what they are made from, and what they need."""
        return EMBEDDINGS[self.embedding]

    @property
    def position_rows(self) -> int:
        """Rows of the position table: those of no text, then one for each position."""
        return self.traits.first_position + self.max_position

    @property
    def embedding_width(self) -> int:
        """Width E of the vectors of words, positions and segments."""
        return self.embedding_size or self.hidden_size

    def holds(self, entries: int) -> bool:
        """Whether its word table is that of a vocabulary of so many entries.

        Such a table may have further rows, that no piece has, up to the next multiple of 64 or 128,
        as transformers' resize_token_embeddings(pad_to_multiple_of=64) makes them.
        """
        padded = [-(-entries // multiple) * multiple for multiple in (64, 128)]
        return self.vocab_size in (entries, *padded)

    @property
    def own_blocks(self) -> int:
        """Blocks that have weights of their own: all of them, or one for each group."""
        return self.num_groups or self.num_layers

    def of_depth(self, layers: int) -> ModelConfig:
        """Return the same with other depth; where blocks share their weights, all of one group."""
        return dataclasses.replace(self, num_layers=layers, num_groups=self.num_groups and 1)

    def check_apart(self, layer_decay: float, freeze_layers: int) -> None:
        """UserError where blocks are to be trained at rates of their own, and share weights."""
        if self.num_groups and (layer_decay, freeze_layers) != (1.0, 0):
            raise UserError(
                f'optimizer.layer_decay={layer_decay}, freeze_layers={freeze_layers} tell blocks'
                f' apart, and here they share their weights (model.num_groups={self.num_groups}):'
                ' leave them out'
            )

    def check_reads(self, tokenizer: str, source: str) -> None:
        """Raise UserError where it does not read the rows of that tokenizer, which `source` has."""
        kinds = self.words.tokenizers or self.traits.tokenizers
        if tokenizer not in kinds:
            raise UserError(
                f'{source}: its tokenizer is of kind {tokenizer}, and this {self.traits.name}'
                f' (model.family={self.family}, model.embedding={self.embedding}) reads'
                f' {" or ".join(kinds)}: take the tokenizer of such a model, or another model'
            )

    @property
    def tuning(self) -> TuningConfig:
        """What is added to it: nothing, but in a TunedModelConfig."""
        return _NONE

    def check(self) -> None:
        """Refuse sizes that do not divide, and settings of another kind of embedding."""
        # Heads share the width: each has hidden_size / num_heads.
        self._require(
            self.hidden_size % self.num_heads == 0,
            'num_heads',
            f'a divisor of hidden_size={self.hidden_size}',
        )
        self._require(
            self.num_layers % self.own_blocks == 0,
            'num_groups',
            f'a divisor of num_layers={self.num_layers}',
        )
        self._require(
            self.hidden_size % 2 == 0 or not self.bilstm,
            'hidden_size',
            'even, to be halved between the directions of model.bilstm',
        )
        # A setting of another kind of embedding would be ignored.
        for kind in EMBEDDINGS.values():
            for name in kind.options:
                self._require(
                    kind is self.words or getattr(self, name) == getattr(ModelConfig, name),
                    name,
                    f'left alone with embedding={self.embedding}',
                )
        if fault := self.words.fault(self):
            self._require(False, *fault)

    def tuned(self, tuning: TuningConfig) -> ModelConfig:
        """Return the shape with what `tuning` adds; UserError where it does not fit."""
        shape = {field.name: getattr(self, field.name) for field in dataclasses.fields(ModelConfig)}
        if tuning.method == 'full':
            return ModelConfig(**shape)
        trains_biases = {'biases', 'bias_layers'} & DEFAULTS[tuning.method].keys()
        if trains_biases and not self.use_bias:
            raise UserError(
                f'tuning.method={tuning.method} trains biases, and this encoder has none'
                ' (model.use_bias=false): take another method'
            )
        fitted = tuning.fitted(self.num_layers, self.hidden_size, self.intermediate_size)
        depths = [name for name in ('frozen_layers', 'bias_layers') if getattr(fitted, name)]
        if self.num_groups and depths:
            stated = ' and '.join(f'{name}={getattr(fitted, name)}' for name in depths)
            mend = ' '.join(f'--set tuning.{name}=0' for name in depths)
            raise UserError(
                f'tuning.method={tuning.method} with {stated} would tell blocks apart, and here'
                f' they share their weights (model.num_groups={self.num_groups}): {mend}'
            )
        return TunedModelConfig(**shape, tuning=fitted)


@dataclass(frozen=True)
class TunedModelConfig(ModelConfig):
    """An encoder with what parameter-efficient tuning adds to its blocks; `ModelConfig.tuned`."""

    tuning: TuningConfig = dataclasses.field(default=_NONE)
