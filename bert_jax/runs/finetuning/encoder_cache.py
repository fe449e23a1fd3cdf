"""What a frozen encoder gives, kept on disk: states of words (section 5.3), and vectors of texts.

States are of every layer for every word of a split. Owns the files and the numbers of the words. A
word's state is that of its first piece, as in fine-tuning, and the encoder reads the same rows as
there. A folder is named by the weights and the rows, so another encoder, tokenizer, task or length
has another one. A file of vectors is named by the model and the texts. Must not know what either is
for.

Dims: L + 1 layers (0 is the embeddings), W words, H width; B rows, T pieces, K chosen layers.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_file
from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.conversion import serving
from bert_jax.input_pipeline.progress import Progress
from bert_jax.input_pipeline.tasks.base import INPUT_KEYS, Arrays, trim
from bert_jax.input_pipeline.tasks.features import make_text_rows
from bert_jax.mesh import sharding
from bert_jax.model import partition
from bert_jax.model.pooling import make_features
from bert_jax.runs.finetuning.data_collator import (
    DataCollator,
    Result,
    bucket_by_length,
    gather,
    run,
)
from bert_jax.runs.sources.source import Source

_VERSION = 1  # of what the files hold for the same weights and rows
_LENGTHS = 4  # programs that the encoder is compiled to at most
# states come out of a layer norm: half the size of float32, and three digits
_DTYPE = np.dtype(np.float16)


class WordStates:
    """The states of one split, of which `compute` computes those that are not there.

    Attributes:
      sentences: a row for each sentence, [N, T] padded: input_ids (the words' numbers, from 0),
        input_mask and segment_ids; of the tagging task's arrays label_ids, label_weights,
        word_index and, [N], example_index. Words without pieces are left out.
    """

    def __init__(self, folder: str, source: Source, rows: Arrays):
        """Open the states of `rows`, a tagging task's features.

        Files are in a folder of their own in `folder`.

        Raises:
          UserError: `folder` is not local.
        """
        if '://' in folder:
            raise UserError(
                f'{folder}: features are kept in files that grow, which remote storage has not: use'
                ' a local --workdir'
            )

        self._source, self._rows, self.sentences = source, rows, _make_sentences(rows)
        # Words are numbered in the order of the rows: row r has begins[r] to begins[r + 1].
        self._begins = np.concatenate([[0], np.cumsum((rows['word_index'] >= 0).sum(axis=1))])
        # [L + 1, W, H], layers outermost: a lookup of few layers reads few stretches of the file.
        self._shape = (source.model.num_layers + 1, int(self._begins[-1]), source.model.hidden_size)

        # Two files: a byte a row that says it is done, and the states themselves.
        self._folder = Path(folder, _name_states(source, rows))
        self._done, self._states = self._folder / 'done', self._folder / 'states.f16'

        # Both have their full size from the start (sparse, zeros), so that any row can be written
        # in its place; a file of another size is a damaged one, and all is made again.
        sizes = {
            self._done: len(rows['input_ids']),
            self._states: int(np.prod(self._shape)) * _DTYPE.itemsize,
        }
        if not all(path.exists() and path.stat().st_size == size for path, size in sizes.items()):
            self._folder.mkdir(parents=True, exist_ok=True)
            for path, size in sizes.items():  # `done` comes first: what it marks must be there
                with path.open('wb') as file:
                    file.truncate(size)

    def lookup(self, words: np.ndarray, layers: Sequence[int]) -> np.ndarray:
        """Return float16 [..., K, H] of the words with these numbers; zeros for one not needed."""
        # Mapped and not read: of many gigabytes a batch needs a few megabytes.
        states = np.memmap(self._states, _DTYPE, 'r', shape=self._shape)
        return np.stack([states[layer][words] for layer in layers], axis=-2)

    def compute(self, examples: Sequence[int], mesh: Mesh, between: Callable[[], None]) -> None:
        """Compute the states of these sentences as far as they are not there.

        Args:
          examples: the sentences.
          mesh: the devices.
          between: called between batches; it may raise, and what is done is kept.
        """
        # Of the asked examples, the rows that no earlier run has done.
        rows = self._rows
        missing = np.isin(rows['example_index'], examples) & (
            np.fromfile(self._done, np.uint8) == 0
        )
        if not missing.any():
            return

        # The encoder in float32, over all devices.
        logging.info(f'{self._folder}: {missing.sum()} rows through {self._source.where}')
        encode, params = _compile_encoder(self._source.model, mesh), self._source.params['encoder']
        params = partition.put(params, mesh)

        # In the plan of all rows, so that a later call with others compiles nothing new.
        inputs = {name: rows[name] for name in INPUT_KEYS}
        plan = bucket_by_length(rows, _LENGTHS, mesh, missing)

        results = run(encode, params, inputs, plan, DataCollator(mesh))
        for batch_rows, outputs in _show_progress(results, int(missing.sum()), 'rows', between):
            # Cut off what fills the batch up, then pick the first piece of each word.
            states_BTKH = np.asarray(outputs['features'])[: len(batch_rows)]
            is_word = rows['word_index'][batch_rows, : states_BTKH.shape[1]] >= 0

            # Written at once: what a signal interrupts is not lost.
            self._keep(batch_rows, states_BTKH[is_word])

    def _keep(self, rows: np.ndarray, states_WKH: np.ndarray) -> None:
        """Write the states of the words of some rows, and then that these are done."""
        # Checked before they are kept: the next run would take them for good.
        if not np.isfinite(states_WKH).all():
            raise UserError(
                f'{self._source.where}: its hidden states are not finite numbers: its weights are'
                ' damaged'
            )

        # Words of a row are neighbours in the file, in every layer: one write a row and layer.
        # `ends` parts the batch's words [W'] into the rows they belong to.
        begins = self._begins[rows]
        ends = np.cumsum(self._begins[rows + 1] - begins)
        # The states must be on the disk before the byte that promises them.
        with self._states.open('r+b') as file:
            layers, words, width = self._shape
            for layer in range(layers):
                of_rows = np.split(states_WKH[:, layer], ends[:-1])
                for begin, states_wH in zip(begins, of_rows):
                    vectors_before = layer * words + int(begin)
                    file.seek(vectors_before * width * _DTYPE.itemsize)
                    file.write(states_wH.tobytes())
            file.flush()
            os.fsync(file.fileno())
        with self._done.open('r+b') as file:
            for row in rows:
                file.seek(int(row))
                file.write(b'\1')


def compute_text_vectors(
    folder: str,
    source: Source,
    texts: Sequence[str],
    mesh: Mesh,
    between: Callable[[], None],
) -> np.ndarray:
    """Return the vectors [N, D] float32 that a model gives of texts, from a file or made now.

    A model that is no sentence encoder gives the mean of its last states.

    Args:
      folder: where the file is, whole or not at all; '' or remote: nothing is kept.
      source: the model.
      texts: the texts.
      mesh: the devices.
      between: called between batches; it may raise.
    """
    facts = repr((_VERSION, source.fingerprint(), list(texts)))
    name = f'vectors-{hashlib.sha256(facts.encode()).hexdigest()[:24]}.npy'
    path = None
    if folder and '://' not in folder:
        path = Path(folder, name)
    if path is not None and path.exists():
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            logging.warning(f'{path} is damaged ({error}): the vectors are made again')

    sentence = source.bert.sentence or SentenceConfig()
    model = source.bert._replace(sentence=sentence).under('embedding')
    length = sentence.longest(source.model.max_position)
    rows = trim(make_text_rows(texts, [None] * len(texts), source.tokenizer, length))
    inputs = {name: rows[name] for name in INPUT_KEYS}
    logging.info(f'{len(texts)} texts through {source.where}')
    encode = jax.jit(serving.make_forward(model), out_shardings=sharding.make_whole_sharding(mesh))
    params = partition.put(serving.nest(serving.select_weights(model)), mesh)

    plan = bucket_by_length(inputs, _LENGTHS, mesh)
    results = run(encode, params, inputs, plan, DataCollator(mesh))
    made = []
    for texts_of_batch, outputs in _show_progress(results, len(texts), 'texts', between):
        made.append(Result(texts_of_batch, jax.device_get(outputs)))
    vectors = gather(made, len(texts))['sentence_embedding']
    if not np.isfinite(vectors).all():
        raise UserError(
            f'{source.where}: its vectors are not finite numbers: its weights are damaged'
        )
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path, durable=False) as file:
                np.save(file, vectors)
        except OSError as error:
            logging.warning(f'{path}: the vectors are not kept ({error.strerror or error})')
    return vectors


def _show_progress(
    results: Iterable[Result], total: int, unit: str, between: Callable[[], None]
) -> Iterator[Result]:
    """Yield results, and show how many of all rows they are; `between` is called after each."""
    finished = 0
    with Progress('encode', total, unit) as progress:
        for result in results:
            yield result
            finished += len(result.rows)
            progress.update(finished)
            between()


def project(vectors: np.ndarray, width: int) -> np.ndarray:
    """Return vectors [N, D] projected on their first `width` principal components, float32.

    They are not centred: that would change their cosines. All of D stay as they are.
    """
    if vectors.shape[1] == width:
        return vectors
    _, axes = np.linalg.eigh(np.cov(vectors.astype(np.float64), rowvar=False))
    chosen = axes[:, ::-1][:, :width]
    # An axis has two directions: the one in which its largest number is positive.
    rows = np.abs(chosen).argmax(0)
    chosen = chosen * np.sign(chosen[rows, np.arange(width)])
    return (vectors @ chosen).astype(np.float32)


@functools.cache
def _compile_encoder(model: ModelConfig, mesh: Mesh) -> Callable[..., dict[str, jax.Array]]:
    """Make function(encoder's parameters, batch) -> {'features': [B, T, L + 1, H]}, by float32."""
    # All layers, whatever is asked now: another choice of layers then costs nothing.
    function = make_features(
        model, range(model.num_layers + 1), 'none', jnp.dtype(jnp.float32), jnp.dtype(_DTYPE)
    )
    return jax.jit(function, out_shardings=sharding.make_whole_sharding(mesh))


def _make_sentences(rows: Arrays) -> Arrays:
    """Make WordStates.sentences; a long sentence's words are in several rows on end."""
    # One entry for each word, in reading order; sentences are numbered from 0 in that order.
    row, position = np.nonzero(rows['word_index'] >= 0)
    examples, first_words, sentence_of_word = np.unique(
        rows['example_index'][row], return_index=True, return_inverse=True
    )

    # Where each word goes: (its sentence, how many words of it came before). T is rounded up to 32,
    # so that splits and subsets seldom differ in shape.
    at = sentence_of_word, np.arange(len(row)) - first_words[sentence_of_word]
    N, T = len(examples), -(-(int(at[1].max(initial=0)) + 1) // 32) * 32

    # The words' numbers are where word pieces are in fine-tuning; -1: there is no word.
    sentences = {name: np.zeros((N, T), np.int32) for name in (*INPUT_KEYS, 'label_ids')}
    sentences |= {
        'label_weights': np.zeros((N, T), np.float32),
        'word_index': np.full((N, T), -1, np.int32),
    }
    sentences['input_ids'][at], sentences['input_mask'][at] = np.arange(len(row)), 1

    # Labels lie on the first piece of a word there, and on the word itself here.
    for name in ('label_ids', 'label_weights', 'word_index'):
        sentences[name][at] = rows[name][row, position]
    return sentences | {'example_index': examples.astype(np.int32)}


def _name_states(source: Source, rows: Arrays) -> str:
    """Name what the states depend on: the encoder's shape and weights, and the rows it reads."""
    # _VERSION too: a change of what is kept must not read old files.
    digest = hashlib.sha256(repr((_VERSION, source.model)).encode())

    # Shape and type with the bytes: they alone could be cut in other ways.
    for array in (
        *jax.tree.leaves(source.params['encoder']),
        *(rows[name] for name in (*INPUT_KEYS, 'word_index', 'example_index')),
    ):
        digest.update(repr((array.shape, array.dtype)).encode())
        digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()[:24]
