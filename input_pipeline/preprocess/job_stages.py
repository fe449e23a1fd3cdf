"""The three stages of the offline job, each a function from named inputs to files.

(1) `tokenise`: the documents of one unit of input, tokenised once, sorted by a hash of
their names; (2) `make_records`: the documents whose hashes lie in one range, a bucket,
become pairs, masked rows and encoded records for every duplicate; (3) `write_output`: the
records whose keys lie in one range, a shard, sorted by key. In between the whole text is on
disk, because pairing needs documents from everywhere in it, and a shard records from everywhere:
twice everything has to be there before anything goes on. What a stage writes depends
only on its arguments, never on which process runs it or when, so the shards are the same
bytes for any number of workers and any engine. It must not know how many workers there are,
progress, or where the result goes (sorted_runs.py owns the files in between); it imports neither
tensorflow nor jax.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from bert_jax.input_pipeline.examples.build_examples import lay_out, make_examples, special_tokens
from bert_jax.input_pipeline.examples.documents import Documents, Examples, offsets
from bert_jax.input_pipeline.examples.full_sentences import make_rows_across
from bert_jax.input_pipeline.examples.packing import join, pack
from bert_jax.input_pipeline.examples.static_masking import MaskingRule, mask, prediction_counts
from bert_jax.input_pipeline.preprocess import sorted_runs
from bert_jax.input_pipeline.preprocess.language_mixture import whole_passes
from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
from bert_jax.input_pipeline.preprocess.sorted_runs import Tokenised, key_range
from bert_jax.input_pipeline.randomness import Stream, digest64, hashed, mix
from bert_jax.input_pipeline.records import fields, shards
from bert_jax.input_pipeline.records.fields import RecordSpec
from bert_jax.input_pipeline.text.corpus import Document
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

# A unit of more than that, as a large compressed file is, makes several runs: they are sorted in
# memory
RUN_TOKENS = 1 << 24
# Examples laid out, masked and encoded at once: their arrays stay in the processor's cache
ROWS = 1024
SUMS_OF_LANGUAGE = ('documents', 'tokens', 'unknown_tokens', 'words')  # words as they are read
_NOT_LETTERS = bytes(set(range(128)) - set(range(ord('a'), ord('z') + 1)))


@dataclass(frozen=True)
class Recipe:
    """What turns documents into records: the options, and what they come to for this text."""

    options: PreprocessOptions
    eval_fraction: float
    line_sample: int  # one distinct sentence in this many is watched for duplicates
    languages: tuple[str, ...]
    passes: tuple[float, ...] = ()  # over each language's text, where they differ

    def spec_of(self, split: str) -> RecordSpec:
        """Return the schema of a split's records.

        Held-out ones are masked once, statically, and not packed, whatever the training records
        are.
        """
        spec = self.options.spec
        if split == 'train':
            return spec
        return RecordSpec(spec.seq_len, spec.max_predictions, 'static')

    def dupe_factor_of(self, split: str) -> int:
        """Return the passes over the documents of a split, on average over their tokens.

        Held-out documents are passed once.
        """
        return self.options.passes if split == 'train' else 1

    def passes_of(self, split: str, documents: Documents) -> int | np.ndarray:
        """Return the passes over each of these documents."""
        if split != 'train' or not self.passes:
            return self.dupe_factor_of(split)

        # A share of a pass is settled document by document.
        return whole_passes(
            np.array(self.passes)[documents.languages], documents.names, self.options.seed
        )


@functools.lru_cache(maxsize=1)
def _load_tokenizer(directory: str) -> Tokenizer:
    # One a process: a task carries the folder's name, not a vocabulary. Closed, as its ids go into
    # files.
    return Tokenizer.load(directory).close()


# ---- 1: text -> tokenised documents


def fingerprint(sentences: Sequence[str]) -> int:
    """Return a 64-bit hash of a document's letters, by which it is held out.

    Case, spacing, ASCII punctuation and digits do not count, so copies that differ in
    those only share a fate; the split depends on the text alone, not on seed or tokenizer.
    """
    # A text of no letter at all, as of digits, is known by all of its bytes.
    text = ' '.join(sentences).lower().encode('utf-8', 'surrogatepass')
    return hashed(text.translate(None, _NOT_LETTERS) or text)


def tokenise(
    recipe: Recipe,
    documents: Iterable[Document],
    language: str,
    split: str | None,
    path: str,
    excluded: str | None,
) -> dict[str, Tokenised]:
    """Tokenise documents into runs, each sorted by the hash of their names.

    The runs are PATH-train-0.*, PATH-eval-0.*, PATH-train-1.* and so on. `split` None: each
    document is held out or not by its fingerprint. `excluded`: a file of fingerprints of documents
    held out elsewhere, which are dropped here.
    """
    # What is held out elsewhere, as a set: each document of the input is looked up in it.
    held_out = frozenset(sorted_runs.load(excluded)['key'].to_pylist()) if excluded else frozenset()
    number = recipe.languages.index(language)
    sides = {name: _Side(recipe, number, f'{path}-{name}') for name in ('train', 'eval')}

    # Held out or not is settled before tokenising, by the letters alone, so that neither seed nor
    # tokenizer moves a document to the other side.
    for document in documents:
        identity = fingerprint(document.sentences)
        side = split or ('eval' if identity < recipe.eval_fraction * 2**64 else 'train')
        if split == 'train' and identity in held_out:
            sides['train'].sums['copies_of_held_out_dropped'] += 1
            continue

        # Only those held out are remembered by their fingerprints: they are few.
        sides[side].add(document, identity if side == 'eval' else None)
    return {name: side.finish() for name, side in sides.items()}


def _hash_line(sentence: str) -> bytes:
    """Return 16 bytes, a hash of a sentence."""
    return hashed(sentence.encode('utf-8', 'surrogatepass'), 16).to_bytes(16, 'little')


class _Side:
    """Collects the documents of one unit that go to one split."""

    def __init__(self, recipe: Recipe, language: int, path: str):
        self._recipe, self._language, self._path = recipe, language, path
        self._tokenizer = _load_tokenizer(recipe.options.tokenizer)
        self._token_type = np.uint16 if self._tokenizer.known <= 1 << 16 else np.int32
        # key, lengths of sentences, tokens, hashes of what sentences say
        self._documents: list[tuple[int, np.ndarray, np.ndarray, bytes]] = []
        self._tokens = 0  # of these
        self._parts: list[Tokenised] = []  # that are written
        self._identities: list[int] = []
        self.sums: Counter[str] = Counter()

    def add(self, document: Document, identity: int | None) -> None:
        """Tokenise a document; sentences of no token, and documents of none, are dropped.

        `identity`: its fingerprint, to be remembered.
        """
        # A long document in batches: one array for each of them, and not one for each sentence, is
        # held until the run is written.
        lengths, tokens, sentences = [], [], document.sentences
        for batch in self._tokenizer.encode_document(sentences, document.spaces, document.lined):
            lengths.append(np.fromiter(map(len, batch), np.int32, len(batch)))
            tokens.append(np.concatenate(batch).astype(self._token_type))
        sizes = np.concatenate(lengths)
        kept = np.flatnonzero(sizes)
        if not kept.size:
            self.sums['empty_documents'] += 1
            return

        # By the seed and the name (unit and place in it), never by the text: copies of a document
        # get keys of their own, and another seed brings other documents together.
        key = digest64(self._recipe.options.seed, *document.name)
        lines = b''
        if self._tokenizer.holds_space:
            # A line is the same whatever white space is before it, which its tokens hold too.
            lines = b''.join(_hash_line(sentences[i]) for i in kept.tolist())
        self._documents.append((key, sizes[kept], np.concatenate(tokens), lines))
        self._tokens += self._documents[-1][2].size

        # Enough for one run? Sorting is done in memory.
        if self._tokens > RUN_TOKENS:
            self._write()
        if identity is not None:
            self._identities.append(identity)
        # Only languages are compared by how many pieces a word takes.
        if self._recipe.languages[self._language]:
            self.sums.update(words=sum(len(text.split()) for text in document.sentences))

    def finish(self) -> Tokenised:
        """Write what is left, and return what all of it was."""
        self._write()
        self._parts.append(
            Tokenised(sums=self.sums, held_out=np.array(self._identities, np.uint64))
        )
        return Tokenised.merged(self._parts)

    def _write(self) -> None:
        """Write the documents that are there as one run."""
        if not self._documents:
            return

        # Sorted here, so that stage 2 finds its range of keys by bisection and reads nothing else.
        self._documents.sort(key=lambda document: document[0])
        keys, lengths, tokens, lines = zip(*self._documents)
        self._documents, self._tokens = [], 0
        run = Documents(
            np.concatenate(tokens),
            offsets(np.concatenate(lengths)),
            offsets([each.size for each in lengths]),
            np.array(keys, np.uint64),
            np.full(len(keys), self._language),
            np.frombuffer(b''.join(lines), '<u8').reshape(-1, 2) if any(lines) else None,
        )

        # On disk before anything is counted: a task that is killed here is done again, as a whole.
        path = f'{self._path}-{len(self._parts)}'
        sorted_runs.save_documents(path, run)
        sums, lines = sorted_runs.summed(run, self._tokenizer.unk_id, self._recipe.line_sample)
        self._parts.append(Tokenised([path], sums, lines=lines))


# ---- 2: one bucket of documents -> encoded records, sorted by key


@dataclass(frozen=True)
class Bucket:
    """One bucket's records: the sums of `fields.count` over them, their number and their bytes."""

    counts: dict[str, Any]
    records: int = 0
    bytes: int = 0
    # where they are named: how many examples begin in the text of each, and tokens are of it
    languages: dict[str, Counter[str]] = field(default_factory=dict)


def make_records(
    recipe: Recipe,
    split: str,
    number: int,
    buckets: int,
    inputs: sorted_runs.Inputs,
    path: str,
) -> Bucket:
    """Write the records of one bucket as a run; `inputs`: the documents of all units."""
    # The documents of the bucket from all units, in an order of their own.
    tokenizer, spec = _load_tokenizer(recipe.options.tokenizer), recipe.spec_of(split)
    documents = sorted_runs.sorted_documents(inputs, *key_range(number, buckets))
    if documents is None:
        return Bucket({})
    passes = recipe.passes_of(split, documents)
    if not np.any(passes):
        return Bucket({})

    name = (recipe.options.seed, split, buckets, number)
    tokens, examples, languages = _make_examples(
        recipe, spec.seq_len, documents, passes, tokenizer, Stream(*name, 'pairs')
    )

    # Sorted while they are that small: what follows is made and written a few rows at a time.
    examples = examples.take(np.argsort(examples.keys, kind='stable'))
    rule, masks = recipe.options.rule_of(split), Stream(*name, 'masks')
    maker = _RecordMaker(rule, spec, tokenizer, tokens, masks)
    if spec.packed:
        special = special_tokens(recipe.options.objective)
        batches = maker.iterate_packs(examples, special, recipe.options.mask_rule)
    else:
        batches = maker.iterate_rows(examples)
    sorted_runs.save(path, sorted_runs.RECORDS, batches)
    return Bucket(maker.counts, maker.records, maker.bytes, languages)


def _make_examples(
    recipe: Recipe,
    seq_len: int,
    documents: Documents,
    passes: int | np.ndarray,
    tokenizer: Tokenizer,
    stream: Stream,
) -> tuple[np.ndarray, Examples, dict[str, Counter[str]]]:
    """Return the tokens that examples are of, the examples, and their sums by language."""
    # For all duplicates at once: an example is four offsets and a key, no text yet.
    tokens, options = documents.tokens, recipe.options
    if options.across_documents:
        longest = seq_len - special_tokens(options.objective)
        across = functools.partial(make_rows_across, longest=longest, passes=passes)
        tokens, examples = across(documents, separator=tokenizer.sep_id)
    else:
        examples = make_examples(
            documents,
            options.objective,
            seq_len,
            passes,
            options.short_seq_prob,
            stream,
            tokenizer.starts_word[tokens] if options.objective == 'sop' else None,
            options.sop_noise,
            options.cut_sentences,
        )

    # The same places hold languages instead of tokens, to be counted.
    languages: dict[str, Counter[str]] = {}
    if any(recipe.languages):
        numbers = documents.language_numbers
        if options.across_documents:
            numbers, _ = across(dataclasses.replace(documents, tokens=numbers), separator=-1)
        for number, language in enumerate(recipe.languages):
            languages[language] = examples.count_of(numbers == number)
    return tokens, examples, languages


@dataclass
class _RecordMaker:
    """Makes records of the examples of a bucket, some at a time, and counts them.

    Attributes:
      rule, spec, tokenizer: how examples are masked and laid out.
      tokens: those that examples are of.
      masks: the random numbers of masks. They go on from batch to batch, so batches have to come in
        their order.
      counts: the sums of `fields.count` over what was made.
      records: how many.
      bytes: their size.
    """

    rule: MaskingRule
    spec: RecordSpec
    tokenizer: Tokenizer
    tokens: np.ndarray
    masks: Stream
    counts: dict[str, Any] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0

    def iterate_rows(self, examples: Examples) -> Iterator[dict[str, Any]]:
        """Yield keys and records of examples that are sorted by key, an example a row."""
        for first in range(0, examples.keys.size, ROWS):
            batch = examples.take(slice(first, first + ROWS))
            yield self.encode(batch.keys, self.make_columns(batch))

    def iterate_packs(
        self, examples: Examples, special: int, mask_rule: Literal['bert', 'roberta']
    ) -> Iterator[dict[str, Any]]:
        """Yield keys, ascending, and records of several examples each.

        Args:
          examples: sorted by key.
          special: tokens of an example that are no text.
          mask_rule: how the number of predictions is rounded.
        """
        # Which examples share a row depends on their lengths, and on how many predictions each has
        # at most, known before any is drawn: a row has room for a fixed number.
        lengths = examples.tokens + special
        predictions = prediction_counts(lengths, self.rule)
        if mask_rule == 'roberta':
            predictions = np.ceil(lengths * self.rule.probability).astype(np.int64)
        packs = pack(lengths, predictions, self.spec)

        # Mixed again: examples of a length fill rows in the order of their keys, which would leave
        # like rows together.
        keys = mix(examples.keys[packs.order[packs.bounds[:-1]]], 0)
        by_key = np.argsort(keys, kind='stable')

        # Packs at a time that hold about ROWS examples.
        step = max(1, ROWS * by_key.size // lengths.size)
        for first in range(0, by_key.size, step):
            here = by_key[first : first + step]
            chosen = packs.take(here)
            columns = self.make_columns(examples.take(chosen.order))
            yield self.encode(keys[here], join(self.spec, columns, chosen.bounds))

    def make_columns(self, examples: Examples) -> dict[str, np.ndarray]:
        """Return the columns of records, an example a row."""
        # Laid out before masking: which places may be masked depends on where they are.
        tokenizer = self.tokenizer
        special = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id)
        rows = lay_out(self.tokens, examples, self.spec.seq_len, *special)
        columns = {
            'input_ids': rows.input_ids,
            'input_mask': rows.input_mask,
            'segment_ids': rows.segment_ids,
            'next_sentence_labels': examples.labels,
        }

        # Masks are drawn in each training step then, which needs to know where words begin.
        if self.spec.masking == 'dynamic':
            word_starts = rows.word_starts(tokenizer.starts_word)
            return columns | {'word_starts': word_starts.astype(np.int32)}

        masked = mask(
            rows.input_ids,
            rows.candidates & tokenizer.listed(rows.input_ids),
            rows.lengths,
            rows.word_starts(tokenizer.starts_word) if self.rule.by_words else None,
            self.rule,
            tokenizer.mask_id,
            tokenizer.vocab_size,
            self.masks,
        )
        return columns | {
            'input_ids': masked.input_ids,
            'masked_lm_positions': masked.positions,
            'masked_lm_ids': masked.ids,
            'masked_lm_weights': masked.weights,
        }

    def encode(self, keys: np.ndarray, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return keys and encoded records as a run has them, and count them."""
        payload, bounds = fields.encode(self.spec, columns)
        fields.add_counts(self.counts, fields.count(self.spec, columns))
        self.records += keys.size
        self.bytes += len(payload)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(payload)]
        records = pa.Array.from_buffers(pa.large_binary(), keys.size, buffers)
        return {'key': keys, 'record': records}


# ---- 3: the records of one shard, from all buckets


def write_output(
    number: int, count: int, pieces: int, inputs: sorted_runs.Inputs, path: str
) -> shards.ShardInfo:
    """Write shard `number` of `count`: all records in its range of keys, sorted by key.

    A large shard is sorted in `pieces`, one after the other, so that it need not fit in memory.
    """
    ranges = (key_range(number * pieces + piece, count * pieces) for piece in range(pieces))
    records = (record for each in ranges for record in sorted_runs.sorted_records(inputs, *each))
    return shards.write_shard(path, records)
