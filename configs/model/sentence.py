"""What makes one vector of a text: the settings that are kept with a sentence encoder.

Owns their names, which are those of sentence-transformers. How states are pooled is
bert_jax/model/pooling.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from bert_jax.configs.errors import UserError
from bert_jax.configs.options import ABOVE_0, COUNT, COUNT_OR_0, newer, option
from bert_jax.configs.section import Section

Pooling = Literal['cls', 'mean', 'max', 'mean_sqrt_len', 'weighted_mean', 'last']
Similarity = Literal['cosine', 'dot']
Prompts = tuple[tuple[str, str], ...]  # (name, text)
Loss = Literal[
    'multiple_negatives', 'simcse', 'cosent', 'cosine', 'mse', 'margin_mse', 'distill_kl'
]


class Reads(NamedTuple):
    """What a loss reads.

    Attributes:
      examples: the kinds of examples, as input_pipeline/tasks/embedding.py calls them.
      in_batch: whether the texts of other examples of the batch are negatives.
      whole_batch: whether the loss of an example depends on others, so that a batch cannot be cut.
      teacher: whether it reads what another model gives of the texts.
      scores: whether it reads a teacher's scores in the examples.
    """

    examples: tuple[str, ...]
    in_batch: bool = False
    whole_batch: bool = True
    teacher: bool = False
    scores: bool = False


LOSSES: Mapping[Loss, Reads] = {
    'multiple_negatives': Reads(('pairs', 'triplets'), in_batch=True),
    'simcse': Reads(('texts',), in_batch=True),
    'cosent': Reads(('scored pairs',)),
    'cosine': Reads(('scored pairs',), whole_batch=False),
    'mse': Reads(('texts', 'pairs', 'triplets'), whole_batch=False, teacher=True),
    'margin_mse': Reads(('triplets',), whole_batch=False, scores=True),
    'distill_kl': Reads(('triplets',), whole_batch=False, scores=True),
}


class TextRow(NamedTuple):
    """How the row of a text is made.

    Attributes:
      prompt: what goes before the text.
      length: how many tokens it has at most.
      has_marker: whether a prompt that begins with an entry of the vocabulary gives that entry.
      masks_to: how many tokens it has at least: masks fill it up, and are scored; 0: as it is.
      attend: whether other tokens see these masks.
      skipped: tokens of the text that are not scored.
    """

    prompt: str
    length: int
    has_marker: bool = False
    masks_to: int = 0
    attend: bool = False
    skipped: tuple[str, ...] = ()


class VectorsConfig:
    """What is kept with a model of any kind of vectors.

    Attributes:
      prompts: (name, text) pairs; the text goes before what is encoded under that name. Queries
        are encoded under 'query', documents under 'document'.
      max_seq_length: word pieces of the longest row; None: as many as the model reads.
      similarity: what compares the vectors of two texts.
    """

    prompts: Prompts
    max_seq_length: int | None
    similarity: Any

    def _settle(self, **literals: Any) -> None:
        """Put the prompts in order; UserError for a field that is none of its Literal."""
        # As other programs write them: empty ones are none, and their order says nothing.
        prompts = tuple(sorted((name, text) for name, text in self.prompts if text))
        object.__setattr__(self, 'prompts', prompts)
        for name, literal in literals.items():
            value, choices = getattr(self, name), get_args(literal)
            if value not in choices:
                raise UserError(f'{name}={value!r}: it is one of {", ".join(choices)}')

    def prompt(self, name: str | None) -> str:
        """Return the text that goes before those encoded under `name`; '' where there is none.

        What is found is a 'document' here, and a 'passage' or of the 'corpus' in other models, as
        multilingual-e5: their prompt is taken where there is none of ours.
        """
        prompts = dict(self.prompts)
        text = prompts.get(name or '', '')
        if name == 'document' and not text:
            text = prompts.get('passage') or prompts.get('corpus', '')
        return text

    def longest(self, limit: int) -> int:
        """Return the word pieces of the longest row, of an encoder that reads `limit`."""
        return min(self.max_seq_length or limit, limit)

    def row(self, name: str | None, limit: int) -> TextRow:
        """Return how rows of `limit` tokens are made of texts under a prompt's name."""
        return TextRow(self.prompt(name), limit)

    def check_encoder(self, config: Any, limit: int) -> None:
        """Raise UserError where an encoder of `config` cannot read rows of `limit` tokens so."""

    def describe(self, width: int) -> list[tuple[str, Any]]:
        """Return (what, value) for a model card; `width` of the encoder's states."""
        raise NotImplementedError


@dataclass(frozen=True)
class SentenceConfig(VectorsConfig):
    """Describe how a text becomes one vector, as sentence-transformers keeps it in a directory.

    Attributes:
      pooling: how the states of a text's pieces become one.
      normalize: whether vectors have length one.
      truncate_dim: how many of the first numbers of a vector are kept; None: all.
      prompts, max_seq_length, similarity: as of every kind.
    """

    pooling: Pooling = 'mean'
    normalize: bool = False
    truncate_dim: int | None = None
    prompts: Prompts = ()
    max_seq_length: int | None = None
    similarity: Similarity = 'cosine'

    def __post_init__(self) -> None:
        self._settle(pooling=Pooling, similarity=Similarity)
        if self.truncate_dim is not None and self.truncate_dim < 1:
            raise UserError(f'truncate_dim={self.truncate_dim}: a vector has at least one number')

    def describe(self, width: int) -> list[tuple[str, Any]]:
        """Return (what, value) for a model card."""
        return [
            ('numbers of a vector', self.truncate_dim or width),
            ('pooling', self.pooling),
            ('vectors of length one', self.normalize),
        ]


@dataclass(frozen=True)
class EmbeddingConfig(Section):
    """How a model of vectors is fine-tuned; other tasks do not read it."""

    pooling: Pooling = option('mean', "how the states of a text's pieces become one vector")
    normalize: bool = option(False, 'vectors of length one')
    truncate_dim: int | None = option(
        None, 'how many of the first numbers of a vector are kept; none: all', within=COUNT
    )
    loss: Loss = option(
        'multiple_negatives',
        'multiple_negatives: pairs and triplets; simcse: plain texts; cosent, cosine: scored pairs;'
        " mse: a teacher's vectors of texts, pairs or triplets; margin_mse, distill_kl: triplets"
        " with a teacher's scores",
    )
    teacher: str = newer('', 'mse: the model whose vectors are learnt, as --init_from names it')
    scale: float | None = newer(
        None,
        'what scores are multiplied by in multiple_negatives, simcse and cosent; none: 20 for'
        ' cosines, 1 for others',
        before=20.0,
        within=ABOVE_0,
    )
    temperature: float | None = newer(
        None,
        'distill_kl: what scores are divided by; none: 1, and 2 for sparse vectors',
        within=ABOVE_0,
    )
    matryoshka: str = option(
        '', 'the loss is summed over vectors cut to so many numbers, as in 384,192,96; "": whole'
    )
    matryoshka_weights: str = option('', 'what each of these losses counts, with commas; "": 1')
    chunk_size: int = option(
        0,
        'examples that are encoded at a time, for batches that do not fit; 0: all of a batch',
        within=COUNT_OR_0,
        kind='runtime',
    )

    @property
    def reads(self) -> Reads:
        """Return what the loss reads."""
        return LOSSES[self.loss]

    @property
    def cuts(self) -> tuple[tuple[int | None, float], ...]:
        """Return (how many numbers, weight) of each cut of the vectors; (None, 1.0): whole."""
        dims = [int(dim) for dim in _read_numbers(self.matryoshka, 'matryoshka')]
        weights = _read_numbers(self.matryoshka_weights, 'matryoshka_weights') or [1.0] * len(dims)
        self._require(len(weights) == len(dims), 'matryoshka_weights', 'as many as matryoshka has')
        return tuple(zip(dims, weights)) or ((None, 1.0),)

    def check(self) -> None:
        """Raise UserError where the fields contradict each other."""
        wrong = [dim for dim, _ in self.cuts if dim is not None and dim < 1]
        self._require(not wrong, 'matryoshka', 'numbers from 1')
        if self.reads.teacher != bool(self.teacher):
            raise UserError(
                f'embedding.loss={self.loss} learns from no teacher: leave out embedding.teacher,'
                ' or take embedding.loss=mse'
                if self.teacher
                else f'embedding.loss={self.loss} copies vectors of a teacher: name it, with'
                ' embedding.teacher'
            )
        if self.reads.teacher and self.matryoshka:
            raise UserError(
                f'embedding.matryoshka={self.matryoshka} cuts vectors, and embedding.loss='
                f'{self.loss} copies whole ones: leave it out'
            )

    def check_width(self, hidden_size: int) -> None:
        """Raise UserError where vectors of an encoder of that width cannot be cut so."""
        width, limit = hidden_size, 'the encoder has'
        if self.truncate_dim is not None:
            if self.truncate_dim > width:
                raise UserError(
                    f'embedding.truncate_dim={self.truncate_dim} is beyond the {width} numbers that'
                    f' {limit}: lower it'
                )
            width, limit = self.truncate_dim, 'embedding.truncate_dim leaves'
        large = [dim for dim, _ in self.cuts if dim is not None and dim > width]
        if large:
            raise UserError(
                f'embedding.matryoshka={self.matryoshka}: {large[0]} is beyond the {width} numbers'
                f' that {limit}: lower it'
            )

    def check_one_vector(self, kind: str) -> None:
        """Raise UserError for settings of one dense vector, which tasks of `kind` do not make."""
        for name in ('pooling', 'normalize', 'truncate_dim', 'matryoshka', 'teacher'):
            value = getattr(self, name)
            if value != getattr(EmbeddingConfig, name):
                raise UserError(
                    f'embedding.{name}={value} is for tasks of kind embedding, and not for'
                    f' {kind}: leave it out'
                )

    def check_batch(self, batch_size: int, accumulation: int, is_whole: bool) -> None:
        """Raise UserError where a batch of that size cannot be computed so.

        is_whole: whether its kind of vectors compares the examples of a batch in any loss.
        """
        reads = self.reads
        if reads.whole_batch and batch_size < 2:
            raise UserError(
                f'batch_size={batch_size}: embedding.loss={self.loss} compares the examples of a'
                ' batch with each other: raise it'
            )
        if (reads.whole_batch or is_whole) and accumulation > 1:
            raise UserError(
                f'runtime.accumulation={accumulation} cuts the batch that embedding.loss='
                f'{self.loss} compares: set embedding.chunk_size, the examples that are encoded at'
                ' a time'
            )
        if self.chunk_size and batch_size // accumulation % self.chunk_size:
            raise UserError(
                f'embedding.chunk_size={self.chunk_size} does not divide a batch of'
                f' {batch_size // accumulation}: change either'
            )

    def vectors(self, prompts: Prompts, max_seq_length: int) -> SentenceConfig:
        """Return what is kept with a model that was fine-tuned so."""
        return SentenceConfig(
            self.pooling, self.normalize, self.truncate_dim, prompts, max_seq_length
        )


def _read_numbers(text: str, name: str) -> list[float]:
    """Return the numbers of a list with commas. UserError, naming the setting, for others."""
    try:
        numbers = [float(word) for word in text.split(',')] if text else []
        if name == 'matryoshka' and any(number != int(number) for number in numbers):
            raise ValueError
    except (ValueError, OverflowError):
        raise UserError(
            f'embedding.{name}={text}: must be numbers with commas, as in 384,192,96'
        ) from None
    return numbers
