"""The offline job: text in, sharded TFRecords and a manifest out.

This file owns the job as a whole: the plan (how many buckets and shards), what is refused, and the
statistics of the manifest. The work itself is in stages.py; this
file must not know formats, masking or pairing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from etils import epath

from configs.errors import UserError
from input_pipeline.preprocess import job_directory, runs, stages
from input_pipeline.preprocess.beam_engine import BeamEngine
from input_pipeline.preprocess.deduplication import Kind, deduplicate
from input_pipeline.preprocess.kept_results import KeptResults
from input_pipeline.preprocess.languages import EXPONENT, language_passes, split_inputs
from input_pipeline.preprocess.local_engine import LocalEngine
from input_pipeline.preprocess.options import PreprocessOptions
from input_pipeline.preprocess.stages import Recipe, Tokenised
from input_pipeline.progress import Progress
from input_pipeline.records.shards import Manifest
from input_pipeline.text import corpus, digest
from input_pipeline.tokenizer import Tokenizer

# About 32 MB of English; a small corpus gets smaller buckets, so that workers have some
BUCKET_TOKENS = 8_000_000
MIN_BUCKET_TOKENS = 1_000_000
MIN_BUCKET_DOCUMENTS, _MIN_LONG_DOCUMENTS = 64, 24
SHARD_BYTES = 64_000_000
EVAL_FRACTION = 0.005
_MIN_SHARD_RECORDS = 256
# the files of stage 1, and the results of its tasks
_UNITS, _HELD_OUT = ('unit', 'unit-again'), 'held-out'
# input beyond which only a sample of the sentences is watched for duplicates
_WATCHED_BYTES = 1 << 28


def preprocess(options: PreprocessOptions) -> Manifest:
    """Runs the job and returns the manifest of the finished directory; the last line on stdout is
    its cost.

    A directory that this very job has finished before is left as it is; where it was
    interrupted, it goes on. Raises UserError for what the user can mend; then nothing is left
    under a final name.
    """
    start = time.monotonic()
    tokenizer = Tokenizer.load(options.tokenizer)
    report = corpus.Report()
    units = _units('input', options.input, options.text, report)
    eval_units = []
    if options.eval_input is not None:
        eval_units = _units('eval_input', options.eval_input, options.text, report)
    described = _describe(options, tokenizer, units, eval_units)
    output = epath.Path(options.output)
    finished = None
    if not options.overwrite:
        same_text = lambda of: digest.as_described(units + eval_units, of)
        finished = job_directory.finished(output, described, same_text)
    if finished is not None:
        job_directory.tidy(output)
        print(
            f'{output}: this job is done already ({finished.records("train"):,} examples,'
            f' {finished.records("eval"):,} held out)'
        )
        return finished
    same_text = lambda folder: digest.all_same(_read_before(folder, units, eval_units))
    with (
        job_directory.scratch(output, described, options.overwrite, same_text) as scratch,
        _engine(options) as engine,
    ):
        manifest = job_directory.unpublished(scratch) or _Job(
            options, tokenizer, engine, scratch, report.lines()
        ).run(units, eval_units, described)
        job_directory.publish(scratch, output, tokenizer, manifest)
    seconds = time.monotonic() - start
    for split in ('train', 'eval'):
        _report(manifest, split)
    examples = sum(sums['examples'] for sums in manifest.statistics['records'].values())
    print(f'{examples:,} examples in {seconds:.1f} s{engine.cost(examples)}')
    return manifest


def _engine(options: PreprocessOptions) -> LocalEngine | BeamEngine:
    if options.engine == 'beam':
        return BeamEngine(options.beam_arguments)
    return LocalEngine(options.workers or os.cpu_count() or 1)


class _Job:
    """One run of the three stages in a scratch folder."""

    def __init__(
        self,
        options: PreprocessOptions,
        tokenizer: Tokenizer,
        engine: LocalEngine | BeamEngine,
        scratch: epath.Path,
        warnings: list[str],
    ):
        """`warnings`: what is to be said of the inputs before they are read."""
        self._options = options
        self._tokenizer = tokenizer
        self._engine = engine
        self._scratch = scratch
        self._warnings: list[str] = []
        self._marks: dict[corpus.Unit, digest.Mark] = {}  # of what has been read
        for warning in warnings:
            self._warn(warning)

    def run(
        self, units: list[corpus.Unit], eval_units: list[corpus.Unit], described: dict[str, Any]
    ) -> Manifest:
        """Returns the manifest; the shards are in SCRATCH/final."""
        options = self._options
        fraction = EVAL_FRACTION if options.eval_fraction is None else options.eval_fraction
        if eval_units:
            fraction = 0.0
        recipe = Recipe(
            tokenizer=str(options.tokenizer),
            spec=options.spec,
            objective=options.objective,
            dupe_factor=options.passes,
            short_seq_prob=options.short_seq_prob,
            rule=options.rule,
            seed=options.seed,
            eval_fraction=fraction,
            line_sample=1 + sum(unit.bytes for unit in units) // _WATCHED_BYTES,
            languages=tuple(sorted({unit.language for unit in units + eval_units})),
        )
        recipe, text = self._read(recipe, units, eval_units)
        self._refuse(recipe, text)
        recipe = self._weigh(recipe, text['train'].languages)
        counts, shard_infos = {}, []
        for split in ('train', 'eval'):
            if text[split].runs:
                counts[split], infos = self._records(recipe, split, text[split])
                shard_infos += infos
        return Manifest(
            seq_len=options.seq_len,
            max_predictions=recipe.rule.max_predictions,
            masking=options.masking,
            objective=options.objective,
            vocab_size=self._tokenizer.vocab_size,
            tokenizer_fingerprint=self._tokenizer.fingerprint,
            seed=options.seed,
            options=described | digest.describe(self._marks[unit] for unit in units + eval_units),
            statistics=self._statistics(recipe, text, counts),
            files=tuple(shard_infos),
            max_packs=recipe.spec.max_packs,
        )

    # ---- stage 1

    def _read(
        self, recipe: Recipe, units: list, eval_units: list
    ) -> tuple[Recipe, dict[str, Tokenised]]:
        """Tokenises both inputs; where the default fraction holds out too little for NSP, again
        without.
        """
        text = self._tokenise(recipe, units, eval_units, _UNITS[0])
        train, held_out = (text[split].sums['documents'] for split in ('train', 'eval'))
        if (
            self._options.eval_fraction is None
            and not eval_units
            and held_out < self._needed() <= train + held_out
        ):
            self._warn(
                f'{_plural(held_out, "document")} fell into the default held-out share: '
                'nothing is held out; give --eval_fraction or --eval_input'
            )
            if held_out:
                recipe = dataclasses.replace(recipe, eval_fraction=0.0)
                text = self._tokenise(recipe, units, eval_units, _UNITS[1])
        return recipe, text

    def _tokenise(
        self, recipe: Recipe, units: list, eval_units: list, name: str
    ) -> dict[str, Tokenised]:
        """Tokenises both inputs into files of this name."""
        excluded = None
        parts: dict[str, list[Tokenised]] = {'train': [], 'eval': []}
        if eval_units:
            self._tokenise_units(recipe, eval_units, 'eval', _HELD_OUT, None, parts)
            excluded = str(self._scratch / 'held_out.npy')
            runs.save(excluded, Tokenised.merged(parts['eval']).held_out)
        self._tokenise_units(recipe, units, 'train' if eval_units else None, name, excluded, parts)
        text = {side: Tokenised.merged(some) for side, some in parts.items()}
        dedup = self._options.dedup
        if dedup != 'none':
            for side in (side for side in text if text[side].runs):
                self._drop_copies(dedup, text[side], recipe, f'{name}-{side}')
        return text

    def _drop_copies(self, kind: Kind, text: Tokenised, recipe: Recipe, name: str) -> None:
        """Leaves one of each document or line."""

        def engine(function: Callable, tasks: list[tuple], stage: str) -> list:
            return self._engine.run(
                function,
                tasks,
                [1] * len(tasks),
                Progress(f'{stage} copies', len(tasks), 'parts'),
                self._kept(f'{name}-{stage}'),
            )

        left, found = deduplicate(kind, text.runs, recipe, self._tokenizer.unk_id, engine)
        text.runs, text.lines, text.languages = left.runs, left.lines, left.languages
        text.sums = Counter({**text.sums, **left.sums, 'duplicates_dropped': found})

    def _tokenise_units(
        self,
        recipe: Recipe,
        units: list,
        split: str | None,
        name: str,
        excluded: str | None,
        parts: dict,
    ) -> None:
        files = [str(self._scratch / f'{name}-{i:05}') for i in range(len(units))]
        tasks = [
            (recipe, unit, self._options.text, split, file, excluded)
            for unit, file in zip(units, files)
        ]
        progress = Progress(
            'reading held-out text' if split == 'eval' else 'reading text',
            sum(unit.bytes for unit in units),
            'MB',
            1e6,
        )
        report = corpus.Report()
        results = self._engine.run(
            _tokenise_unit, tasks, [unit.bytes for unit in units], progress, self._kept(name)
        )
        for unit, (sides, one, mark) in zip(units, results):
            report.merge(one)
            self._marks[unit] = mark
            for side, part in sides.items():
                part.languages[unit.language] = Counter(
                    {name: part.sums[name] for name in ('documents', 'tokens')}
                )
                parts[side].append(part)
        for line in report.lines():
            self._warn(line)

    def _needed(self) -> int:
        """Documents that a split needs."""
        return 2 if self._options.objective == 'nsp' else 1

    def _refuse(self, recipe: Recipe, text: dict[str, Tokenised]) -> None:
        """Raises UserError where the text makes no records."""
        options = self._options
        train, held_out = text['train'].sums['documents'], text['eval'].sums['documents']
        if not train + held_out:
            raise UserError(
                f'{options.inputs}: no text in it: every line is blank or of characters that the'
                ' tokenizer drops'
            )
        if train + held_out < self._needed():
            raise UserError(
                f'{options.inputs}: one document only: next sentence prediction is impossible, for'
                ' a random B comes from another document; use --objective=full_sentences or'
                ' --objective=sop, or give documents separated by blank lines'
            )
        if train < self._needed():
            raise UserError(
                f'{_plural(train, "document")} of {train + held_out} left to train on, '
                f'and --objective={options.objective} needs {self._needed()}: '
                + (
                    'other documents must stand in --input than in --eval_input'
                    if options.eval_input
                    else 'lower --eval_fraction'
                )
            )
        asked = options.eval_input or options.eval_fraction
        if asked and held_out < self._needed():
            flag = (
                f'--eval_input={options.eval_input}'
                if options.eval_input
                else f'--eval_fraction={options.eval_fraction}'
            )
            raise UserError(
                f'{flag}: {_plural(held_out, "document")} held out of {train + held_out}, '
                f'and --objective={options.objective} needs {self._needed()}: '
                + (
                    'give documents separated by blank lines'
                    if options.eval_input
                    else 'raise it, give --eval_input, or turn it off with 0'
                )
                + (', or use --objective=full_sentences or sop' if self._needed() > 1 else '')
            )
        for split, words in (('train', ''), ('eval', 'held-out ')):
            sums = text[split].sums
            if (
                options.objective != 'full_sentences'
                and sums['tokens'] > options.seq_len * sums['sentences']
            ):
                self._warn(
                    f'the {words}sentences have {sums["tokens"] // sums["sentences"]} tokens on'
                    f' average, and what is beyond --seq_len={options.seq_len} is cut off: are'
                    ' these paragraphs, which need --segment?'
                )
            if sums['unknown_tokens'] > 0.05 * sums['tokens']:
                self._warn(
                    f'{sums["unknown_tokens"] / sums["tokens"]:.0%} of the {words}tokens are'
                    ' unknown to the tokenizer: was it made for this text?'
                )
            if (
                options.objective != 'full_sentences'
                and sums['one_sentence_documents'] > 0.6 * sums['documents']
            ):
                self._warn(
                    f'{sums["one_sentence_documents"] / sums["documents"]:.0%} of the'
                    f' {words}documents have one sentence, so most pairs are random: is there a'
                    ' blank line after every sentence, or are these paragraphs, which need'
                    ' --segment?'
                )

    def _weigh(self, recipe: Recipe, found: dict[str, Counter]) -> Recipe:
        """With the passes over each language, where languages are named."""
        if '' in found:
            return recipe
        exponent = (
            EXPONENT if self._options.language_exponent is None else self._options.language_exponent
        )
        each = language_passes(
            {language: sums['tokens'] for language, sums in found.items()},
            exponent,
            recipe.dupe_factor,
        )
        for language, count in each.items():
            found[language]['passes'] = count  # type: ignore[assignment]  # a share of a pass too
            if count < 1:
                self._warn(
                    f'{language}: {1 - count:.0%} of its documents are left out: '
                    f'--language_exponent and --dupe_factor give {count:.2f} passes over them'
                )
        return dataclasses.replace(
            recipe, passes=tuple(each.get(language, 0.0) for language in recipe.languages)
        )

    # ---- stages 2 and 3

    def _records(self, recipe: Recipe, split: str, text: Tokenised) -> tuple[dict[str, Any], list]:
        """The sums over a split's records, and its shards."""
        sums, inputs = text.sums, text.runs
        buckets = plan_buckets(sums['tokens'], sums['documents'])
        paths = [str(self._scratch / f'bucket-{split}-{i:05}') for i in range(buckets)]
        name = 'making examples' if split == 'train' else 'making held-out examples'
        tokens = sums['tokens'] * recipe.dupe_factor_of(split)
        counts: dict[str, Any] = {}
        making = [(recipe, split, i, buckets, inputs, path) for i, path in enumerate(paths)]
        progress = Progress(name, tokens, 'M tokens', 1e6)
        made = self._engine.run(
            stages.make_records,
            making,
            [tokens / buckets] * buckets,
            progress,
            self._kept(f'records-{split}'),
        )
        for bucket in made:
            stages.add_counts(counts, bucket.counts)
        if not counts:
            raise UserError(
                f'{self._options.inputs}: no example could be made: the documents are too short for'
                f' --objective={recipe.objective}'
            )
        for path in inputs:
            runs.DocumentRun.remove(path)
        records, size = sum(bucket.records for bucket in made), sum(bucket.bytes for bucket in made)
        count = max(1, min(math.ceil(size / SHARD_BYTES), records // _MIN_SHARD_RECORDS))
        if split == 'train' and self._options.num_shards is not None:
            count = self._options.num_shards
            if count > records:
                raise UserError(
                    f'--num_shards={count}: there are {records} examples only: use at most that'
                    ' many, or leave it out'
                )
        final = self._scratch / 'final'
        full = [path for path, bucket in zip(paths, made) if bucket.records]
        pieces = math.ceil(size / count / (2 * SHARD_BYTES))
        writing = [
            (i, count, pieces, full, str(final / f'{split}-{i:05}-of-{count:05}.tfrecord'))
            for i in range(count)
        ]
        name = 'writing shards' if split == 'train' else 'writing held-out shards'
        infos = self._engine.run(
            stages.write_output,
            writing,
            [size / count] * count,
            Progress(name, size, 'MB', 1e6),
            self._kept(f'shards-{split}'),
        )
        for path in self._scratch.glob(f'bucket-{split}-*'):
            path.unlink()
        return counts, infos

    def _statistics(
        self, recipe: Recipe, text: dict[str, Tokenised], counts: dict[str, Any]
    ) -> dict[str, Any]:
        """What the manifest says about text and records, by split."""
        statistics: dict[str, Any] = {'records': counts, 'text': {}, 'warnings': self._warnings}
        for split, sums in counts.items():
            watched = text[split].lines
            duplicates = 1 - np.unique(watched).size / watched.size if watched.size else 0.0
            if duplicates > 0.3:
                self._warn(
                    f'{duplicates:.0%} of the sentences of {split} are repetitions of others: a'
                    ' model learns little from them'
                )
            statistics['text'][split] = {
                **{
                    name: int(text[split].sums[name])
                    for name in (
                        'documents',
                        'sentences',
                        'tokens',
                        'one_sentence_documents',
                        'empty_documents',
                    )
                },
                **{
                    name: int(text[split].sums[name])
                    for name in ('copies_of_held_out_dropped', 'duplicates_dropped')
                },
                'unknown_rate': (
                    text[split].sums['unknown_tokens'] / max(1, text[split].sums['tokens'])
                ),
                'duplicate_line_rate': duplicates,
                'random_next_share': sums['random_next'] / sums['examples'],
                'fill': sums['tokens'] / sums['records'] / recipe.spec.seq_len,
                'languages': {
                    name: dict(found)
                    for name, found in sorted(text[split].languages.items())
                    if name
                },
            }
        return statistics

    def _kept(self, stage: str) -> KeptResults:
        return KeptResults(job_directory.results(self._scratch, stage))

    def _warn(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.append(message)
            print(f'warning: {message}', file=sys.stderr, flush=True)


def _tokenise_unit(
    recipe: Recipe,
    unit: corpus.Unit,
    text: corpus.TextOptions,
    split: str | None,
    path: str,
    excluded: str | None,
) -> tuple[dict[str, Tokenised], corpus.Report, digest.Mark]:
    """Stage 1 for a unit, the report of its reader, and the mark of what it read."""
    report, mark = corpus.Report(), digest.mark(unit)
    if unit.language:
        text = dataclasses.replace(text, language=unit.language)
    documents = corpus.read_unit(unit, text, report)
    return stages.tokenise(recipe, documents, unit.language, split, path, excluded), report, mark


def _read_before(
    scratch: epath.Path, units: list[corpus.Unit], eval_units: list[corpus.Unit]
) -> list[tuple[corpus.Unit, digest.Mark]]:
    """The units that an interrupted job has read, with their marks."""
    found = []
    for name, some in ((_HELD_OUT, eval_units), *((name, units) for name in _UNITS)):
        read = KeptResults(job_directory.results(scratch, name)).found(_tokenise_unit)
        found += [(some[i], mark) for i, (_, _, mark) in read.items()]
    return found


def _units(
    flag: str, given: str | tuple[str, ...], text: corpus.TextOptions, report: corpus.Report
) -> list[corpus.Unit]:
    """The units of an input; where languages are named, each in its own folder of names.

    What is left out of an input is added to `report`.
    """
    found = []
    for language, patterns in split_inputs(flag, given).items():
        units = corpus.units(patterns, text, report=report)
        found += (
            [
                dataclasses.replace(unit, name=f'{language}/{unit.name}', language=language)
                for unit in units
            ]
            if language
            else units
        )
    return found


def plan_buckets(tokens: int, documents: int) -> int:
    """How many buckets: a matter of the text alone.

    At most `BUCKET_TOKENS` tokens each on average, smaller ones for a small corpus, and at
    least 64 documents, so that a random B has many to come from; where that would be too many
    tokens, for documents are as long as books, at least 24.
    """
    if documents < MIN_BUCKET_DOCUMENTS:
        return 1
    size = min(BUCKET_TOKENS, max(MIN_BUCKET_TOKENS, tokens // 64))
    fit = BUCKET_TOKENS * documents // tokens
    together = max(_MIN_LONG_DOCUMENTS, min(MIN_BUCKET_DOCUMENTS, fit))
    return max(1, min(math.ceil(tokens / size), documents // together))


def _describe(
    options: PreprocessOptions,
    tokenizer: Tokenizer,
    units: list[corpus.Unit],
    eval_units: list[corpus.Unit],
) -> dict[str, Any]:
    """Every option that the records depend on, defaults filled in, and digests of the input files'
    names and sizes and of the tokenizer. The text itself is not read here.
    """
    left_out = ('output', 'workers', 'engine', 'beam_arguments', 'overwrite', 'text')
    described = {
        name: getattr(options, name)
        for name in (f.name for f in dataclasses.fields(options))
        if name not in left_out
    }
    described |= {
        'max_predictions': options.rule.max_predictions,
        'max_packs': options.spec.max_packs,
        'dupe_factor': options.passes,
        'mask_mix': list(options.mask_mix),
    }
    for name in ('input', 'eval_input'):
        described[name] = (
            list(described[name]) if isinstance(described[name], tuple) else described[name]
        )
    if described['language_exponent'] is None and any(unit.language for unit in units):
        described['language_exponent'] = EXPONENT
    described |= dataclasses.asdict(options.text)
    listing = repr(
        [[(unit.name, unit.start, unit.bytes) for unit in some] for some in (units, eval_units)]
    )
    return described | {
        'input_digest': hashlib.sha256(listing.encode()).hexdigest(),
        'tokenizer_fingerprint': tokenizer.fingerprint,
    }


def _report(manifest: Manifest, split: str) -> None:
    """Two lines about a split, and one for each language."""
    if split not in manifest.statistics['text']:
        return
    text, sums = manifest.statistics['text'][split], manifest.statistics['records'][split]
    files = len(manifest.shards(split))
    print(
        f'{split}: {_plural(text["documents"], "document")},'
        f' {_plural(text["sentences"], "sentence")}, {text["tokens"]:,} tokens'
        f' ({text["unknown_rate"]:.2%} unknown, {text["duplicate_line_rate"]:.1%} duplicate lines)'
        f' -> {_plural(sums["records"], "record")} in {_plural(files, "file")}'
    )
    for language, found in text['languages'].items():
        weighed = f', {found["passes"]:.2f} passes' if 'passes' in found else ''
        print(
            f'{split}: {language}: {_plural(found["documents"], "document")},'
            f' {found["tokens"] / text["tokens"]:.1%} of the tokens{weighed}'
        )
    if text['duplicates_dropped']:
        print(
            f'{split}: {text["duplicates_dropped"]:,} copies of {manifest.options["dedup"]} dropped'
        )
    label = {
        'nsp': ', random next {:.1%} (label 1)',
        'sop': ', swapped {:.1%} (label 1)',
        'full_sentences': '',
    }[manifest.objective]
    packed = (
        f' with {sums["examples"]:,} examples, {sums["examples"] / sums["records"]:.2f} each'
        if 'pack_histogram' in sums
        else ''
    )
    masked = (
        f', {sums["masked"] / sums["records"]:.1f} predictions each' if 'masked' in sums else ''
    )
    print(
        f'{split}: rows {text["fill"]:.1%}'
        f' full{packed}{masked}{label.format(text["random_next_share"])}'
    )


def _plural(count: int, noun: str) -> str:
    return f'{count:,} {noun}' if count == 1 else f'{count:,} {noun}s'
