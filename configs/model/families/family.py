"""What a family of encoders is: one entry, which says all that the program asks it by name.

Owns the fields of an entry, and how a table of modules names each array in another program, also
an array that is fused there with others or in several pieces. It must not know files:
bert_jax/conversion reads and writes those. A family is a file beside this one, which makes an
entry, and its line in `FAMILIES` of configs/model/model_config.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


class Piece(NamedTuple):
    """One of `parts` equal parts of another program's array, along the axis of its outputs.

    {} in the name stands for the block's number. The array may be a whole one, or one that several
    of ours are fused in: 'layers.{}.attn.Wqkv' has query, key and value as its parts 0, 1, 2 of 3.
    """

    name: str
    part: int = 0
    parts: int = 1

    def of(self, leaf: str) -> Piece:
        """Return this piece of a module as that of its array, whose name ends in `leaf`."""
        return self._replace(name=self.name + leaf)


# The name of a module or a single array; with several pieces ours is made of them, one behind the
# other along the axis of outputs.
Name = str | Piece | tuple[Piece, ...]
# What no class of transformers has, as ColBERT's files and sentence-transformers call it.
_EVERYWHERE: dict[str, Name] = {'projection': 'linear'}


def _list_pieces(name: Name) -> tuple[Piece, ...]:
    """Return a name as the pieces that it means."""
    if isinstance(name, str):
        return (Piece(name),)
    return (name,) if isinstance(name, Piece) else name


def check_rope(rope: Mapping[str, Any]) -> None:
    """Raise ValueError where rotary angles are scaled, by a config.json's settings of them."""
    kind = rope.get('rope_type', rope.get('type', 'default'))
    if kind != 'default':
        raise ValueError(f'rope_type={kind!r} is not built here: only "default" is')


class ArrayName(NamedTuple):
    """How one of our arrays lies in another program: its pieces there, and whether transposed."""

    pieces: tuple[Piece, ...]
    is_transposed: bool


@dataclass(frozen=True)
class TransformersNames:
    """What transformers calls a family's classes, arrays and settings.

    Attributes:
      model_type: as config.json has it.
      prefix: how the names of its classes begin, as 'Bert' in BertModel.
      arrays: our paths of modules and single arrays -> theirs, {} for the block's number.
      in_class: class -> such names that it alone has.
      settings: settings of ModelConfig -> theirs, where BERT lacks them or calls them otherwise;
        None: one that they lack, or that `read` and `write` have.
      written: further settings of config.json that we write.
      head_dropout: how it calls the dropout before a classifier, and what that is where it is not
        stated; None: the encoder's own.
      fixed: setting -> the values of it that are built here.
      read_with: setting -> the part without which a class does not read it.
      defaults: settings that a config.json may leave out, where they are not BERT's.
      shape: settings of ModelConfig that all its classes have, where they are not BERT's.
      read: what of a config.json gives settings of ModelConfig that are not one of theirs each;
        ValueError says what cannot be built. write: the other way; activations by their names.
      base: the module around the encoder in all classes but the bare encoder's; None: model_type.
      decoder: the module of the masked-LM decoder, of which files hold the table again, and its
        bias.
      ignored: patterns, as of files, of further arrays that files hold and no model here reads.
      outside: paths of our encoder whose modules stand beside the one around it, as a dense layer
        that is the classifier's there.
    """

    model_type: str
    prefix: str
    arrays: Mapping[str, Name]
    in_class: Mapping[str, Mapping[str, Name]] = field(default_factory=dict)
    settings: Mapping[str, str | None] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    head_dropout: tuple[str, float | None] = ('classifier_dropout', None)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    read_with: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda settings: {}
    write: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda ours: {}
    base: str | None = None
    decoder: str = 'cls.predictions.decoder'
    ignored: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def bare(self) -> str:
        """The class of the bare encoder."""
        return f'{self.prefix}Model'

    @property
    def base_module(self) -> str:
        """The module around the encoder, with a dot behind it."""
        return f'{self.base or self.model_type}.'

    def array(self, path: str, architecture: str = '') -> ArrayName:
        """Return the name of the array at our path, without the module around the encoder.

        Args:
          path: such as 'encoder/layers/query/kernel'.
          architecture: the class; by default none whose names differ from the family's.
        """
        names = {**_EVERYWHERE, **self.arrays, **self.in_class.get(architecture, {})}
        module, _, leaf = path.rpartition('/')
        if path in names:
            return ArrayName(_list_pieces(names[path]), leaf == 'kernel')
        # torch calls the matrix of a layer, and the scale of a norm, its weight
        end = '.bias' if leaf == 'bias' else '.weight'
        pieces = tuple(piece.of(end) for piece in _list_pieces(names[module]))
        return ArrayName(pieces, leaf == 'kernel')

    def full(self, name: str, architecture: str) -> str:
        """Return the name in a class for one without the module around the encoder."""
        is_inside = name.startswith(self._in_encoder) and architecture != self.bare
        return self.base_module + name if is_inside else name

    def displaced(self, architecture: str) -> tuple[str, ...]:
        """Return names of arrays that files of a class may hold and the class has no use for."""
        names = []
        for path in self.in_class.get(architecture, {}):
            for end in ('.weight', '.bias'):
                for piece in _list_pieces(self.arrays[path]):
                    if piece.name.startswith(self._in_encoder):
                        names.append(piece.of(end).name)
        return tuple(names)

    @property
    def _in_encoder(self) -> tuple[str, ...]:
        """The first modules of the encoder, such as 'embeddings.'."""
        modules = set()
        for path, name in self.arrays.items():
            if path.startswith('encoder/') and path not in self.outside:
                modules |= {f'{piece.name.partition(".")[0]}.' for piece in _list_pieces(name)}
        return tuple(modules)


@dataclass(frozen=True)
class GoogleNames:
    """What the code that released a family calls its files, variables and settings.

    Attributes:
      code: the repository, as messages name it.
      config: the file of settings.
      checkpoint: how the files of a checkpoint begin.
      arrays: our paths of modules and single arrays -> their variables.
      settings: settings of ModelConfig -> (theirs, its default there).
      fixed: settings that change the model in ways that are not built here -> what they must be.
    """

    code: str
    config: str
    checkpoint: str
    arrays: Mapping[str, Name]
    settings: Mapping[str, tuple[str, Any]]
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def array(self, path: str) -> ArrayName:
        """Return the name of the array at our path, and whether it lies transposed there."""
        # Names of single arrays, tables or kernels that lie [out, in] there, stand in the table
        # themselves; all others are a module's name and a leaf's.
        if path in self.arrays:
            return ArrayName(_list_pieces(self.arrays[path]), path.endswith('/kernel'))
        module, _, leaf = path.rpartition('/')
        pieces = _list_pieces({**_EVERYWHERE, **self.arrays}[module])
        # Their norms call scale and bias gamma and beta.
        if 'LayerNorm' in pieces[0].name:
            leaf = {'scale': 'gamma', 'bias': 'beta'}[leaf]
        return ArrayName(tuple(piece.of(f'/{leaf}') for piece in pieces), False)


class TaskRecipe(NamedTuple):
    """How a family's own code fine-tunes on a task."""

    peak_lr: float
    batch_size: int
    epochs: float
    warmup_fraction: float
    weight_decay: float | None = None  # None: that of the recipe's optimizer


@dataclass(frozen=True)
class Recipe:
    """The fine-tuning recipe of a family's own code.

    Attributes:
      tasks: task -> its settings.
      max_seq_length: the longest row, in tokens.
      optimizer: settings of OptimizerConfig in which it differs from BERT's.
    """

    tasks: Mapping[str, TaskRecipe]
    max_seq_length: int
    optimizer: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ClassHead:
    """The dense layer between the vector of an example and its labels.

    Attributes:
      place: whose the layer is; encoder: that of the encoder, which pre-training trains too (the
        pooler of BERT); task: that of the classifier, so that each task begins with a fresh one;
        all: one that pre-training and all tasks share, with a norm behind it, also where they read
        tokens (ModernBERT).
      act: its activation; None: that of the encoder.
      drops_before: whether there is dropout before the layer too, not only behind it.
      in_bare: whether transformers' bare encoder has the layer.
    """

    place: Literal['encoder', 'task', 'all'] = 'encoder'
    act: str | None = 'tanh'
    drops_before: bool = False
    in_bare: bool = True


@dataclass(frozen=True)
class MaskedLMHead:
    """What makes logits of the vocabulary from a token's state.

    Attributes:
      has_transform: whether a dense layer, its activation and a norm come before the decoder.
      act: that activation; None: that of the encoder.
      is_tied: whether the decoder is the word table; else it is trained by itself.
      has_bias: whether each word has a bias.
    """

    has_transform: bool = True
    act: str | None = None
    is_tied: bool = True
    has_bias: bool = True


@dataclass(frozen=True)
class Family:
    """What the encoders of a family have in common that no other setting says.

    Attributes:
      name: for messages.
      transformers: its names in transformers.
      google: its names in the code that released it as a checkpoint of TensorFlow 1, if any.
      recipe: how its own code fine-tunes, if that differs from BERT's; `--recipe` takes it by the
        family's name.
      has_peft: whether adapters of peft are read and written: its blocks must be numbered and
        named as BERT's.
      first_position: the row of the position table that is of a text's first token; those before
        it are of no text, and the last of them is that of all padding.
      pairs: the heads that tell pairs of texts apart, as transformers' classes end; pre-training
        has pairs where there are any.
      lacks: classes of BERT whose like transformers does not have of the family: such heads
        are trained here, and exported as programs alone.
      class_head: what stands between an example's vector and its labels.
      masked_lm: the masked-LM head.
      drops_spans: whether there is dropout before the layer for spans too.
      widens_first: whether embeddings that are narrower than the blocks are brought to their width
        before the norm, without a bias; else after it.
      has_first_norm: whether the first block normalises what its attention reads; it is asked
        where norms come before sub-layers.
    """

    name: str
    transformers: TransformersNames
    google: GoogleNames | None = None
    recipe: Recipe | None = None
    has_peft: bool = False
    first_position: int = 0
    pairs: tuple[str, ...] = ('ForPreTraining', 'ForNextSentencePrediction')
    lacks: tuple[str, ...] = ()
    class_head: ClassHead = ClassHead()
    masked_lm: MaskedLMHead = MaskedLMHead()
    drops_spans: bool = False
    widens_first: bool = False
    has_first_norm: bool = True

    def class_of(self, bert_class: str) -> str:
        """Return its class of transformers that does what a class of BERT does."""
        return self.transformers.prefix + bert_class.removeprefix('Bert')
