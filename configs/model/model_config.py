"""The shape of a model, its family, and which of its weights fine-tuning changes.

Owns the settings of the encoder; those of tuning are tuning_config.py's.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.embedding_kinds import EMBEDDINGS, OF_WORDS, Embedding, EmbeddingName
from bert_jax.configs.model.families import (
    albert,
    bert,
    camembert,
    deberta_v2,
    distilbert,
    electra,
    eurobert,
    modernbert,
    mpnet,
    roberta,
    xlm_roberta,
)
from bert_jax.configs.model.families.family import Family
from bert_jax.configs.model.tuning_config import DEFAULTS, TuningConfig
from bert_jax.configs.options import ABOVE_0, COUNT, COUNT_OR_0, RATE, newer, option
from bert_jax.configs.section import Section

# The families of encoders, of which `model.family` takes the names: BERT first, as the default; the
# others by name.
FAMILIES: dict[str, Family] = {
    'bert': bert.FAMILY,
    'albert': albert.FAMILY,
    'camembert': camembert.FAMILY,
    'deberta_v2': deberta_v2.FAMILY,
    'distilbert': distilbert.FAMILY,
    'electra': electra.FAMILY,
    'eurobert': eurobert.FAMILY,
    'modernbert': modernbert.FAMILY,
    'mpnet': mpnet.FAMILY,
    'roberta': roberta.FAMILY,
    'xlm_roberta': xlm_roberta.FAMILY,
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

HiddenAct = Literal['gelu_tanh', 'gelu_erf', 'relu', 'silu']
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
    type_vocab_size: int = option(
        2,
        'rows of the segment table; 0: the model does not read the segments',
        within=COUNT_OR_0,
    )
    hidden_act: HiddenAct = option(
        'gelu_tanh', "gelu_tanh is Google's gelu, gelu_erf Hugging Face's; silu in EuroBERT"
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
    embedding: EmbeddingName = newer(
        'table',
        'vectors of word pieces; table: trained weights, which the masked-LM head shares (the'
        ' paper); hashed: computed from their spelling, neither trained nor stored (EELBERT);'
        ' retvec: of whole words, by a small network from their characters (RETVec)',
    )
    hash_ngrams: int = newer(
        3,
        'hashed only: the longest stretch of characters that is hashed; 3 in EELBERT',
        within='[1, 8]',
    )
    family: FamilyName = newer(
        'bert',
        'whose heads and traits it has, and under whose names it goes out; modernbert: one head for'
        ' pre-training and all tasks; of the others pooler, heads and positions differ in part',
    )
    embedding_size: int | None = newer(
        None,
        'width E of the vectors of words, positions and segments, which a dense layer brings to'
        ' hidden_size (ALBERT: 128); none: they are hidden_size wide, without such a layer',
        within=COUNT,
    )
    num_groups: int | None = newer(
        None,
        'groups of neighbouring blocks that share their weights (ALBERT: 1); none: each block has'
        ' its own',
        within=COUNT,
    )
    retvec: Literal['frozen', 'trained'] = newer(
        'frozen',
        'retvec only: its network stays as bert-pretrain retvec left it (RETVec), or is trained on',
    )

    norm: Literal['post', 'pre'] = newer(
        'post',
        'where layers are normalised; post: after each residual sum (the paper); pre: on what each'
        ' sub-layer reads, and once more after the last block',
    )
    norm_class: Literal['layer_norm', 'rms_norm'] = newer(
        'layer_norm',
        'the norms of the model; rms_norm: nothing is subtracted, and there are no biases'
        " (EuroBERT); or one's own (register_part)",
    )
    embedding_norm: bool = newer(
        True, 'whether the sum of the embeddings is normalised (the paper)'
    )
    block: Literal['transformer'] = newer(
        'transformer', "the blocks of the encoder; or one's own (register_part)"
    )
    num_kv_heads: int | None = newer(
        None,
        'heads of keys and values, each of which several heads of queries share (EuroBERT-610m: 6'
        ' of 18); a divisor of num_heads; none: num_heads',
        within=COUNT,
    )
    use_bias: bool = newer(
        True,
        "whether the blocks' dense layers and the encoder's norms have biases; the pooler and heads"
        ' always have them',
    )
    positions: Literal['learned', 'rotary', 'relative_bias', 'disentangled', 'none'] = newer(
        'learned',
        'learned: a trained vector for each position (the paper); rotary: queries and keys are'
        ' turned by angles (RoPE); relative_bias: learned, and a number for each distance is added'
        ' to scores (MPNet); disentangled: products with vectors of distances are (DeBERTa);'
        ' none: the model is not given the order of tokens',
    )
    relative_buckets: int | None = newer(
        256,
        'disentangled only: vectors of distances to each side; near distances have their own, far'
        ' ones share them; none: each has its own, up to relative_max',
        within='[2, 1e6]',
    )
    relative_max: int | None = newer(
        None,
        'disentangled only: the distance at which vectors end; none: max_position',
        within=COUNT,
    )
    relative_terms: Literal['c2p_p2c', 'c2p', 'p2c'] = newer(
        'c2p_p2c',
        'disentangled only: c2p: queries times keys of distances; p2c: keys times queries of them',
    )
    relative_projections: Literal['shared', 'own'] = newer(
        'shared',
        "disentangled only: the matrices that make these keys and queries; shared: the tokens' own",
    )
    relative_norm: bool = newer(
        True, 'disentangled only: whether the vectors of distances are normalised'
    )
    convolution: int | None = newer(
        None,
        'tokens that a convolution of the embeddings reads, whose result joins the output of the'
        ' first block (DeBERTa-v2: 3); none: there is none',
        within=COUNT,
    )
    convolution_act: Literal['tanh', 'gelu_tanh', 'gelu_erf', 'relu'] = newer(
        'gelu_erf', 'with convolution: its activation'
    )
    rope_theta: float = newer(
        10_000.0,
        'rotary only: the base of the angles; 160000 in ModernBERT for long rows',
        within='[1, 1e37]',
    )
    local_rope_theta: float | None = newer(
        None,
        'rotary with local_window only: the base in blocks of local attention; none: rope_theta',
        within='[1, 1e37]',
    )
    local_window: int | None = newer(
        None,
        'tokens on each side that a token sees in blocks of local attention (ModernBERT: 64); none:'
        ' it sees all of its example in every block (the paper)',
        within=COUNT,
    )
    global_every: int = newer(
        3,
        'with local_window: the first of every so many blocks sees all of the example; 3 in'
        ' ModernBERT',
        within=COUNT,
    )
    feed_forward: Literal['mlp', 'geglu'] = newer(
        'mlp',
        'mlp: two layers with hidden_act between them (the paper); geglu: the first is two, and'
        ' what hidden_act makes of one is multiplied by the other: SwiGLU with hidden_act=silu',
    )
    pooling: Literal['cls', 'mean', 'late'] = newer(
        'cls',
        'the vector of an example; cls: that of its first token (the paper); mean: the mean over'
        ' its tokens; late: the mean of what the pooler makes of each token (EuroBERT)',
    )
    attention_output_dropout: float | None = newer(
        None,
        "dropout on attention's output; none: hidden_dropout (the paper)",
        within=RATE,
    )
    initialization: Literal['normal', 'full_megatron'] = newer(
        'normal',
        'normal: all matrices alike (the paper); full_megatron: those that write to the residual'
        ' sums are smaller by sqrt(2 num_layers), classifiers have hidden_size ** -0.5',
    )

    @property
    def is_causal(self) -> bool:
        """Tell whether no token sees what comes after it."""
        return self.attention == 'left_to_right'

    @property
    def traits(self) -> Family:
        """The entry of its family: by what it differs from others."""
        return FAMILIES[self.family]

    def list_unlike_family(self) -> list[str]:
        """Return a line for each setting that all models of its family have alike, but this one."""
        lines = []
        for name, value in self.traits.transformers.shape.items():
            if getattr(self, name) != value:
                lines.append(
                    f'model.{name}={getattr(self, name)}: {self.traits.name} of other programs has'
                    f' {value}, so bert-export writes this model for none of them'
                )
        return lines

    @property
    def words(self) -> Embedding:
        """The kind of its word vectors: what they are made from, and what they need."""
        return EMBEDDINGS[self.embedding]

    @property
    def position_rows(self) -> int:
        """Rows of the position table: those of no text, then one for each position."""
        return self.traits.first_position + self.max_position

    @property
    def relative_span(self) -> int:
        """Vectors of distances to each side."""
        return self.relative_buckets or self.relative_max or self.max_position

    def window(self, number: int) -> int | None:
        """Return the tokens on each side that block `number` sees; None: all of the example."""
        return self.local_window if number % self.global_every else None

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_kv_heads or self.num_heads

    @property
    def residual_std(self) -> float:
        """The standard deviation of fresh matrices that write to a residual sum."""
        is_smaller = self.initialization == 'full_megatron'
        return self.initializer_range / (math.sqrt(2 * self.num_layers) if is_smaller else 1)

    @property
    def classifier_std(self) -> float:
        """The standard deviation of a task's own fresh matrix."""
        is_megatron = self.initialization == 'full_megatron'
        return self.hidden_size**-0.5 if is_megatron else self.initializer_range

    @property
    def embedding_width(self) -> int:
        """Width E of the vectors of words, positions and segments."""
        return self.embedding_size or self.hidden_size

    def holds(self, entries: int) -> bool:
        """Whether its word table is that of a vocabulary of so many entries.

        Such a table may have further rows, that no piece has, but fewer than 128: up to a multiple
        of 64 or 128 in many models, and 35 in the multilingual MiniLM.
        """
        return 0 <= self.vocab_size - entries < 128

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

    def reads_segments(self, count: int) -> bool:
        """Tell whether it reads rows of so many segments, or leaves segments alone.

        A family that is not trained on pairs may have one row for all segments, as RoBERTa has.
        """
        needed = count if self.traits.pairs else min(count, 1)
        return not self.type_vocab_size or self.type_vocab_size >= needed

    def check_reads(self, tokenizer: str, source: str) -> None:
        """Raise UserError where it cannot have vectors of a tokenizer of that kind.

        Any family reads any pieces. `source` is what has the tokenizer.
        """
        has_words = tokenizer == 'words'
        if has_words != (self.embedding == OF_WORDS):
            units = ('word pieces', 'whole words')
            raise UserError(
                f'{source}: its tokenizer has {units[has_words]}, and'
                f' model.embedding={self.embedding} reads {units[not has_words]}: take the'
                ' tokenizer of such a model, or another model'
            )

    @property
    def tuning(self) -> TuningConfig:
        """What is added to it: nothing, but in a TunedModelConfig."""
        return _NONE

    def check(self) -> None:
        """Refuse what does not fit together, and settings that others leave unread."""
        self._check_sizes()
        self._check_parts()
        self._check_unread()
        fault = self.words.fault(self)
        if fault:
            self._require(False, *fault)

    def _check_sizes(self) -> None:
        """Refuse sizes that do not divide."""
        # Heads share the width: each has hidden_size / num_heads.
        width, is_rotary = self.hidden_size, self.positions == 'rotary'
        self._require(width % self.num_heads == 0, 'num_heads', f'a divisor of hidden_size={width}')
        of_queries = f'a divisor of num_heads={self.num_heads}'
        self._require(self.num_heads % self.kv_heads == 0, 'num_kv_heads', of_queries)
        self._require(
            self.num_layers % self.own_blocks == 0,
            'num_groups',
            f'a divisor of num_layers={self.num_layers}',
        )
        self._require(
            width % 2 == 0 or not self.bilstm,
            'hidden_size',
            'even, to be halved between the directions of model.bilstm',
        )
        self._require(
            not is_rotary or width // self.num_heads % 2 == 0,
            'num_heads',
            'such that hidden_size / num_heads is even, to be turned by positions=rotary',
        )

    def _check_parts(self) -> None:
        """Refuse parts that do not go together."""
        shares_head = self.traits.class_head.place == 'all'
        with_family = f'cls or mean with family={self.family}'
        self._require(self.pooling != 'late' or not shares_head, 'pooling', with_family)
        self._require(
            self.num_kv_heads is None or self.positions != 'disentangled',
            'num_kv_heads',
            'left alone with positions=disentangled, where distances have keys of all heads',
        )
        adds_to_scores = self.positions in ('relative_bias', 'disentangled')
        self._require(
            not (self.local_window and adds_to_scores),
            'local_window',
            f'left alone with positions={self.positions}, which adds to the scores of all tokens',
        )
        half, farthest = (self.relative_buckets or 0) // 2, self.relative_max or self.max_position
        self._require(
            half == 0 or farthest > half + 1 or self.max_position <= half + 1,
            'relative_max',
            f'more than {half + 1}, which near distances take (half of relative_buckets)',
        )
        self._require(
            self.convolution is None or self.convolution % 2 == 1,
            'convolution',
            'odd: a token in the middle, and as many on each side',
        )

    def _check_unread(self) -> None:
        """Refuse settings that others leave unread: they would be ignored."""
        # The name of each, whether it is read, and why it is not.
        is_rotary, is_local = self.positions == 'rotary', self.local_window
        angles = f'with positions={self.positions}, local_window={is_local}'
        head = f'with family={self.family}: its masked-LM head is hidden_size wide'
        block = f'with family={self.family}: its first block has a norm less'
        embedding = f'with embedding={self.embedding}'
        distances = f'with positions={self.positions}: it is read with disentangled alone'
        of_distances = [f.name for f in dataclasses.fields(self) if f.name.startswith('relative_')]
        for name, is_read, why in (
            *((n, self.positions == 'disentangled', distances) for n in of_distances),
            ('convolution_act', self.convolution, 'without convolution'),
            ('global_every', is_local, 'without local_window: all blocks see all of the example'),
            ('rope_theta', is_rotary, angles),
            ('local_rope_theta', is_rotary and is_local, angles),
            ('embedding_size', self.traits.masked_lm.has_transform, head),
            ('num_groups', self.traits.has_first_norm, block),
            *((n, k is self.words, embedding) for k in EMBEDDINGS.values() for n in k.options),
        ):
            is_default = getattr(self, name) == getattr(ModelConfig, name)
            self._require(bool(is_read) or is_default, name, f'left alone {why}')

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
        if tuning.matrices and 'gate' in tuning.matrices and self.feed_forward != 'geglu':
            raise UserError(
                f'tuning.matrices={tuning.matrices}: there is no gate with'
                f' model.feed_forward={self.feed_forward}: leave it out'
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
