"""A trained or fresh model in a program of your own: `Bert.load(...)`, arrays in and arrays out.

  from bert_jax.inference import Bert

  bert = Bert.load('google-bert/bert-base-uncased')     # whatever --init_from takes
  rows = bert.tokenize(['One.', ('A question?', 'An answer.')], multiple=8)
  bert(rows).hidden                                     # [2, 16, 768]
  bert.embed(['One.', 'Another.'])                      # [2, 768]
  bert.fill_mask('Paris is the [MASK] of France.')      # [[{'token': 'capital', ...}, ...]]

Owns the names of these; all of it is done by what the commands use. Owns too what of a text is
refused before its masks are asked, and that `[MASK]` is understood by models whose own mask token
is another. Answers of a fine-tuned head are bert_jax/inference/predictor.py's.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import SentenceConfig, Similarity
from bert_jax.configs.schema import ModelConfig
from bert_jax.conversion import serving
from bert_jax.conversion.trained_model import Model
from bert_jax.inference.engine import check_process
from bert_jax.inference.feature_extraction import Extractor, FeatureOptions
from bert_jax.inference.pipelines import WithMasks
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.reranker import Scorer, make_scorer, rank
from bert_jax.inference.text_encoder import TextEncoder, decode_sparse
from bert_jax.input_pipeline.tasks.base import INPUT_KEYS, Arrays
from bert_jax.input_pipeline.tasks.features import make_input_rows, make_pairs, say_cut
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer, listed
from bert_jax.mesh.sharding import format_path
from bert_jax.model import heads, layout
from bert_jax.model.blocks.matmul import choose_inference_dtype
from bert_jax.model.pooling import POOLINGS, Pool, make_states
from bert_jax.model.text_vectors import unit
from bert_jax.runs.sources.source import Source, load_source
from bert_jax.runs.workdir import word_vectors
from bert_jax.train.state import init_params
from bert_jax.train.task_heads import choose_pretraining_head

Text = str | tuple[str, str]
MASK = '[MASK]'


class Outputs(NamedTuple):
    """What the encoder gives for B rows of T word pieces, float32.

    Attributes:
      hidden: the last block's states [B, T, H].
      pooled: of the first token [B, H].
    """

    hidden: np.ndarray
    pooled: np.ndarray


class LayerOutputs(NamedTuple):
    """What the encoder gives where its layers are asked for, too.

    Attributes:
      hidden: the last block's states [B, T, H].
      pooled: of the first token [B, H].
      hidden_states: the embeddings' and each block's states [L + 1, B, T, H], or None.
      attentions: the probabilities of each block and head [L, B, N, T, T], or None.
    """

    hidden: np.ndarray
    pooled: np.ndarray
    hidden_states: np.ndarray | None
    attentions: np.ndarray | None


class Bert:
    """A model with its tokenizer, in memory.

    A program is compiled for each shape of rows that comes up.

    Attributes:
      source: the model, its tokenizer, where it came from.
    """

    def __init__(self, source: Source, compute_dtype: str = 'auto'):
        """Take a source with a pooler; compute_dtype: arithmetic of the layers.

        It is float32, bfloat16 or auto, as the processor is fast in.
        """
        compute_dtype = choose_inference_dtype(compute_dtype)
        self.source, self._compute_dtype = source, compute_dtype
        self._inputs = word_vectors.inputs(source.model, source.tokenizer)
        dtype = jnp.dtype(compute_dtype)
        self._encode = jax.jit(serving.make_forward(source.bert.under('encoder'), dtype))
        self._mlm = jax.jit(serving.make_forward(source.bert.under('masked_words'), dtype))
        # Each keeps its programs; those in use are few.
        self._extractor = functools.lru_cache(4)(
            lambda layers, pool, length: Extractor(
                source, FeatureOptions(layers, pool, length, compute_dtype)
            )
        )
        self._states = functools.lru_cache(2)(
            lambda attentions: jax.jit(make_states(source.model, dtype, attentions))
        )
        self._encoder = functools.lru_cache(2)(
            lambda length: TextEncoder(source, length, compute_dtype)
        )
        self._filler = functools.lru_cache(4)(lambda top: MaskFiller(source, top, compute_dtype))

    @classmethod
    def load(cls, init_from: str | os.PathLike[str], compute_dtype: str = 'auto') -> Bert:
        """Load what --init_from takes: a workdir, a Hugging Face or Google checkpoint, a name.

        A pooler that it lacks is made fresh, which the log says.

        Raises:
          UserError: there is no such model.
        """
        check_process()
        return cls(load_source(init_from), compute_dtype)

    @classmethod
    def fresh(
        cls,
        config: ModelConfig,
        tokenizer: Tokenizer,
        seed: int = 0,
        compute_dtype: str = 'auto',
    ) -> Bert:
        """Make a model of random weights, those that bert-pretrain begins with at this seed.

        Raises:
          UserError: config.vocab_size is not the tokenizer's.
        """
        if not config.holds(tokenizer.vocab_size):
            raise UserError(
                f'model.vocab_size={config.vocab_size}, but the tokenizer has'
                f' {tokenizer.vocab_size} entries: make them the same'
            )
        make = jax.jit(lambda seed: init_params(heads.Pretraining(config), seed))
        params = jax.device_get(make(np.uint32(seed)))
        params = word_vectors.filled_in(params, config, tokenizer)
        model = Model(config, params, choose_pretraining_head(config).class_in(config.family))
        return cls(Source(model, tokenizer, 'fresh', 0), compute_dtype)

    def __repr__(self) -> str:
        """Return where the model is from, and its size."""
        c = self.config
        size = f'{c.num_layers} layers, {c.hidden_size} wide, {c.vocab_size:,} entries'
        return f'Bert({self.source.where!r}, {size})'

    @property
    def config(self) -> ModelConfig:
        """Return the encoder's shape."""
        return self.source.model

    @property
    def params(self) -> dict[str, Any]:
        """Return the parameters as numpy arrays, to begin a training: see `load_params_into`."""
        return self.source.params

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        return self.source.tokenizer

    def tokenize(
        self, texts: str | Sequence[Text], max_length: int | None = None, multiple: int | None = 1
    ) -> Arrays:
        """Return a batch of texts and pairs, arrays [B, T] of int32; a string is one text.

        Its columns are those of every batch here: `input_ids` are the word pieces, [CLS] first and
        [SEP] after each text; `input_mask` is 1 where there is a piece and 0 for padding, which
        comes last; `segment_ids` are 0 in the first text and 1 in the second. (transformers calls
        them input_ids, attention_mask and token_type_ids.) Batches of pre-training have besides
        `masked_lm_positions`, `masked_lm_ids` and `masked_lm_weights` [B, P], the places of the
        masks, what was there and 1.0 for each, `next_sentence_labels` [B], and `example_weights`
        [B], 0 for rows that only fill up the batch.

        Args:
          texts: texts and pairs.
          max_length: word pieces of the longest row; None: as many as there are positions.
          multiple: the rows' length is rounded up to it; None: it is max_length.

        Raises:
          UserError: there are fewer positions than max_length.
        """
        return make_input_rows(texts, self.tokenizer, self._check_length(max_length), multiple)

    def __call__(
        self,
        rows: Mapping[str, np.ndarray],
        hidden_states: bool = False,
        attentions: bool = False,
    ) -> Outputs | LayerOutputs:
        """Return the encoder's results for a batch of rows.

        Args:
          rows: what `tokenize` returns, which says what its columns are.
          hidden_states: whether the states of all layers are wanted.
          attentions: whether the probabilities of all layers are wanted.

        Raises:
          UserError: `rows` are none.
        """
        batch = self._check_rows(rows)
        if hidden_states or attentions:
            outputs = self._run(self._states(attentions), self._placed['encoder'], batch)
            return LayerOutputs(
                outputs['hidden'],
                outputs['pooled'],
                outputs['hidden_states'] if hidden_states else None,
                outputs.get('attentions'),
            )
        outputs = self._run(self._encode, self._placed, batch)
        return Outputs(outputs['last_hidden_state'], outputs['pooler_output'])

    def mlm_logits(
        self, rows: Mapping[str, np.ndarray], positions: np.ndarray | None = None
    ) -> np.ndarray:
        """Return logits over the vocabulary [B, P, V] at `positions` [B, P]; default: at all T.

        Raises:
          UserError: the model has no masked-LM head, or `rows` are none of `tokenize`.
        """
        check_head(self.source)
        rows = self._check_rows(rows)
        B, T = rows['input_ids'].shape
        if positions is None:
            positions = np.tile(np.arange(T, dtype=np.int32), (B, 1))
        positions = _to_integers(positions)
        fits = positions.ndim == 2 and len(positions) == B
        if not (fits and ((positions >= 0) & (positions < T)).all()):
            raise UserError(f'positions must be whole numbers [{B}, P] from 0 to {T - 1}')
        batch = {**rows, 'masked_lm_positions': positions}
        return self._run(self._mlm, self._placed, batch)['logits']

    def embed(
        self,
        texts: str | Sequence[Text],
        layers: Sequence[int] = (-1,),
        pool: Pool | None = None,
        max_length: int | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
    ) -> Any:
        """Return one vector for each text or pair [N, K H]: its K layers pooled, in their order.

        A sentence encoder gives the vectors [N, D] that it was trained to give, unless layers or a
        pool are named. A model of another kind of vectors gives those of its kind, as its head in
        bert_jax/train/search_heads.py says.

        Args:
          texts: texts and pairs; a string is one text.
          layers: 0 is the embeddings' output, -1 the last block's.
          pool: how word pieces are pooled, [CLS] and [SEP] among them; None: as the model says,
            'mean' where it says nothing.
          max_length: word pieces of the longest row; None: as many as the model reads.
          prompt: the name of one of the model's prompts, 'query' or 'document', which goes before
            each text; a model without it takes the text alone.
          truncate_dim: how many of the first numbers are kept; None: as the model says.

        Raises:
          UserError: there is no such pool, or no such layer.
        """
        if pool is not None and pool not in POOLINGS:
            raise UserError(
                f'pool={pool!r} gives no single vector: take one of {", ".join(POOLINGS)}, or the'
                ' states of `Bert.__call__`'
            )
        of_model, layers = self.source.bert.sentence or SentenceConfig(), listed(layers)
        # What is named takes the place of all that the model says of its vectors.
        is_named = pool is not None or tuple(layers) != (-1,)
        if not isinstance(of_model, SentenceConfig):
            if is_named or truncate_dim is not None:
                raise UserError(
                    'layers, pool and truncate_dim are of models that give a text one dense vector,'
                    f' and {self.source.where} is trained for {self.source.bert.head}: leave them'
                    ' out'
                )
            return self._encoder(max_length and self._check_length(max_length))(texts, prompt)
        array = self._pool_states(
            texts,
            layers,
            pool or of_model.pooling,
            max_length or of_model.max_seq_length,
            of_model.prompt(prompt),
        )
        if is_named:
            return array[:, :truncate_dim]
        array = array[:, : truncate_dim or of_model.truncate_dim]
        return unit(array) if of_model.normalize else array

    def _pool_states(
        self,
        texts: str | Sequence[Text],
        layers: Sequence[int],
        pool: Pool,
        max_length: int | None,
        begin: str,
    ) -> np.ndarray:
        """Return the pooled states of some layers [N, K H], of texts behind `begin`."""
        is_list = isinstance(layers, Sequence) and len(layers) > 0
        if not is_list or not all(_is_whole(layer) for layer in layers):
            raise UserError(f'layers={layers!r} must be a list of whole numbers, as in (-1, -2)')
        try:
            extractor = self._extractor(tuple(layers), pool, self._check_length(max_length))
        except UserError as error:  # which names the command's flag
            raise UserError(str(error).removeprefix('--')) from error
        records = []
        for number, (a, b) in enumerate(make_pairs(texts)):
            records.append((number, {'text': begin + a, 'text_b': b}))
        vectors, cut = [], np.zeros(4, np.int64)
        for part in extractor(records, 'texts'):
            vectors += part.features
            cut += part.cut
        say_cut('embed', cut, f'max_length={extractor.max_seq_length} allows')
        width = len(layers) * self.config.hidden_size
        return np.array(vectors, np.float32).reshape(len(vectors), width)

    def decode_sparse(self, vectors: Any, top: int | None = None) -> list[list[tuple[str, float]]]:
        """Return the (word piece, weight) pairs of each text, the greatest weight first.

        Args:
          vectors: what `embed` returned, or rows of it.
          top: how many of each text; None: all that are not 0.

        Raises:
          UserError: they are of another vocabulary.
        """
        return decode_sparse(vectors, self.tokenizer, self.config.vocab_size, top)

    @property
    def similarity(self) -> Similarity:
        """Return what compares two vectors of the model, 'cosine' where it says nothing."""
        return (self.source.bert.sentence or SentenceConfig()).similarity

    def rank(
        self, query: str, documents: Sequence[str], top: int | None = None
    ) -> list[dict[str, Any]]:
        """Return {'index', 'score', 'text'} of the `top` documents for a query, best first.

        A cross-encoder reads the query beside each document, and cuts the longer of the two where
        both are longer than a row. Other models compare the vectors that they were trained to give.
        Ties go by index.

        Raises:
          UserError: the model does neither give a pair one number nor a text vectors.
        """
        return rank(self._scorer, query, documents, top)

    @functools.cached_property
    def _scorer(self) -> Scorer:
        return make_scorer(self.source, self._compute_dtype)

    def fill_mask(self, texts: Any, top: int = 5) -> Any:
        """Return the `top` best words for each [MASK] of a text, best first; of a list, a list.

        A text's answer has {'token', 'probability'} of each candidate of each mask in turn.

        Raises:
          UserError: MaskFiller refuses a text.
        """
        texts = listed(texts)
        if isinstance(texts, list):
            return [answer['masks'] for answer in self._filler(top).answers(texts)]
        return self._filler(top)(texts)['masks']

    def _check_rows(self, rows: Any) -> Arrays:
        """Return rows as arrays [B, T] that the model reads. UserError where they are none."""
        given = rows if isinstance(rows, Mapping) else {}
        arrays = {name: _to_integers(given.get(name)) for name in INPUT_KEYS}
        shapes = {array.shape for array in arrays.values()}
        shape = shapes.pop()
        if shapes or len(shape) != 2:
            raise UserError(
                f'rows of `tokenize` are needed, arrays [B, T] of {", ".join(INPUT_KEYS)}, not'
                f' {str(rows)[:80]!r}: write `bert(bert.tokenize(texts))`'
            )
        if not 0 < shape[1] <= self.config.max_position:
            raise UserError(
                f'rows of {shape[1]} word pieces: this model reads 1 to {self.config.max_position}'
            )
        return {**given, **arrays}

    def _run(self, program: Any, params: Any, batch: Arrays) -> Arrays:
        """Run a program on a batch of rows."""
        check_process()
        return jax.device_get(program(params, self._inputs(batch)))

    @functools.cached_property
    def _placed(self) -> dict[str, Any]:
        """Put the parameters on the device, when they are first asked for."""
        dtype, params = self._compute_dtype, layout.separate_blocks(self.params)
        keep = lambda path, array: serving.cast_stored(format_path(path), array, dtype)
        return jax.device_put(jax.tree_util.tree_map_with_path(keep, params))

    def _check_length(self, max_length: int | None) -> int:
        limit = self.config.max_position
        if max_length is None:
            return limit
        if not isinstance(max_length, int | np.integer) or not 3 <= max_length <= limit:
            raise UserError(f'max_length={max_length!r}: this model reads 3 to {limit} word pieces')
        return max_length


def _is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number, which a truth value is not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _to_integers(values: Any) -> np.ndarray:
    """Return an int32 array; one without axes where they are none, or rows of several lengths."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists of several lengths
        return np.zeros((), np.int32)
    return array.astype(np.int32) if array.dtype.kind in 'iub' else np.zeros((), np.int32)


def check_head(source: Source) -> None:
    """Raise UserError where the model cannot say which words are likely."""
    if 'mlm' not in source.bert.parts and source.bert.beside:
        (name,) = source.bert.beside
        raise UserError(
            f'{source.where} tells which tokens were replaced, and has no head for masked words,'
            f' which its {name} has: bert-export --workdir={source.where} --output=DIR writes a'
            f' model of family electra with it, and --init_from=DIR/{name} fills in masks'
        )
    if 'mlm' not in source.bert.parts:
        raise UserError(
            f'{source.where}: {source.bert.architecture} has no head for masked words: name the'
            ' run of bert-pretrain that it came from, or another model with that head'
        )


class MaskFiller:
    """Fills in masks by the masked-word head of one model, which stays in memory."""

    def __init__(self, source: Source, top: int, compute_dtype: str = 'auto'):
        """Load the head; `top`: how many words for each mask. UserError where there is none."""
        check_head(source)
        self._tokenizer, self._longest = source.tokenizer, source.model.max_position
        self._mask = source.tokenizer.special_tokens[4]

        # That head alone: next to it others would be computed for nothing.
        source = source._replace(bert=source.bert.under('masked_words'))
        self._predictor = Predictor(source, self._longest, {}, top, compute_dtype)

    def __call__(self, text: str) -> dict[str, Any]:
        """Answer one text, as `answers` does."""
        return next(self.answers([text]))

    def answers(self, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield {'text', 'masks'} for each text; many of them go through the device together.

        masks: for each in turn its best words, [{'token', 'probability'}, ...].

        Raises:
          UserError: a text has no mask, or more than are answered, or more pieces than positions.
        """
        texts = list(texts)
        asked = [self._put_mask(text) for text in texts]
        for text, answer in zip(texts, self._predictor.stream(asked, errors=True), strict=True):
            if 'error' in answer:
                raise UserError(f'{_shorten(text)}: {answer["error"]}')
            yield {'text': text, **answer}

    def _put_mask(self, text: str) -> str:
        """Return the text with the model's own mask token. UserError where it cannot be asked."""
        if not isinstance(text, str):
            raise UserError(f'{_shorten(text)}: must be a text')
        asked = text.replace(MASK, self._mask)
        if self._mask not in asked:
            raise UserError(f'{_shorten(text)}: no {MASK} in it: write one in place of each word')
        length = len(WithMasks(self._tokenizer).encode_batch([asked])[0])
        if length + 2 > self._longest:
            raise UserError(
                f'{_shorten(text)}: {length} word pieces, and this model reads {self._longest - 2}:'
                ' shorten it'
            )
        return asked


def _shorten(text: Any) -> str:
    """Return what a message shows of a text."""
    text = str(text)
    return repr(text if len(text) <= 60 else f'{text[:57]}...')
