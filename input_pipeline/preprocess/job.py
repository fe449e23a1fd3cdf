"""The offline job: text in, sharded TFRecords and a manifest out.

This file owns the job as a whole: which stage follows which, with what, and what is kept in
between. What is to be done is in job_plan.py, the work itself in job_stages.py, what is said of
the result in statistics.py; this file must not know formats, masking or pairing.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files import typed_json
from bert_jax.input_pipeline.preprocess import (
    job_directory,
    job_plan,
    job_stages,
    sorted_runs,
    statistics,
)
from bert_jax.input_pipeline.preprocess.deduplication import Kind, deduplicate
from bert_jax.input_pipeline.preprocess.engines import BeamEngine, Engine, LocalEngine
from bert_jax.input_pipeline.preprocess.job_directory import KeptResults
from bert_jax.input_pipeline.preprocess.job_stages import Recipe
from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
from bert_jax.input_pipeline.preprocess.sorted_runs import Tokenised
from bert_jax.input_pipeline.progress import Progress
from bert_jax.input_pipeline.records import fields
from bert_jax.input_pipeline.records.shards import Manifest, ShardInfo
from bert_jax.input_pipeline.text import corpus, digest
from bert_jax.input_pipeline.text.files import changed
from bert_jax.input_pipeline.text.units import AnyUnit, SmallFiles, Unit, copy_from_bucket
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

# The names of the files of stage 1, and of the results of its tasks.
_UNITS, _UNITS_AGAIN, _HELD_OUT = 'unit', 'unit-again', 'held-out'
_NAMES = '.names'  # ends the names of files that list the small files of a unit


def preprocess(options: PreprocessOptions) -> Manifest:
    """Run the job and return the manifest of the finished directory.

    The last line on stdout is its cost. A directory that this very job has finished before is left
    as it is; where it was interrupted, it goes on. Raises UserError for what the user can mend;
    then nothing is left under a final name.
    """
    # What the job is, from names and sizes alone: text is read only when that is settled.
    start = time.monotonic()
    tokenizer = Tokenizer.load(options.tokenizer)
    job_plan.check_tokenizer(options, tokenizer)
    job_plan.refuse_own_output(options)
    report = corpus.Report()
    text = _list_text(options, report)
    described = job_plan.describe(options, tokenizer, text.train, text.held_out)

    # Done already? Only after the inputs are listed, which tell this job from another.
    output = epath.Path(options.output)
    if not options.overwrite:
        job_directory.refuse_strange(output, tokenizer)
        manifest = job_directory.finished(output, described, text.is_described_by)
        if manifest is not None:
            job_directory.tidy(output)
            print(
                f'{output}: this job is done already ({manifest.records("train"):,} examples,'
                f' {manifest.records("eval"):,} held out)'
            )
            return manifest

    # The work, in a scratch folder that an interrupted job leaves behind; the files get their names
    # at the end, the manifest last. What the options come to follows from the text: what was read
    # goes with it.
    recipe = job_plan.recipe(options, text.train, text.held_out)
    work = described | {'recipe': [recipe.eval_fraction, recipe.line_sample, recipe.languages]}
    engine: Engine = LocalEngine(options.processes)
    if options.engine == 'beam':
        engine = BeamEngine(options.beam_arguments)
    folder = job_directory.scratch(output, work, options.overwrite, text.is_as_read, text.keep_same)
    with folder as scratch, engine:
        manifest = job_directory.unpublished(scratch)
        if manifest is None:
            job = _Job(options, tokenizer, engine, scratch, recipe)
            job.warn(*report.lines())
            manifest = job.run(text, described)
        job_directory.publish(scratch, output, tokenizer, manifest)

    # Said when the workers have ended, whose processor time counts only then.
    seconds = time.monotonic() - start
    for split in ('train', 'eval'):
        statistics.report(manifest, split)
    examples = sum(sums['examples'] for sums in manifest.statistics['records'].values())
    print(f'{examples:,} examples in {seconds:.1f} s{engine.cost(examples)}')
    return manifest


@dataclass(frozen=True)
class _Text:
    """The units of both inputs; where none is held out by name, a fraction is.

    Its methods compare it with what an earlier process has read.
    """

    train: list[AnyUnit]
    held_out: list[AnyUnit]
    options: corpus.TextOptions

    def is_described_by(self, options: dict[str, Any]) -> bool:
        """Tell whether it is what a finished job with these options has read."""
        return digest.as_described(self.train + self.held_out, options)

    def is_as_read(self, scratch: epath.Path) -> bool:
        """Tell whether all that an interrupted job has read of it is as it was."""
        read = []
        for name, units in (
            (_HELD_OUT, self.held_out),
            (_UNITS, self.train),
            (_UNITS_AGAIN, self.train),
        ):
            kept = _results_of_units(scratch, name, units).load(_tokenise_unit)
            read += [(units[number], result.marks) for number, result in kept.items()]
        return digest.all_same(read)

    def keep_same(self, scratch: epath.Path) -> int:
        """Leave, of what a job whose text was refused has read, what still holds; return how much.

        A unit holds that has its name, place, size and bytes. Of the training text none holds where
        a held-out unit does not: copies of that are dropped there.
        """
        epath.Path(job_directory.results(scratch, _UNITS_AGAIN)).rmtree(missing_ok=True)
        held_out = self._keep_units(scratch, _HELD_OUT, self.held_out)
        if held_out == len(self.held_out):
            return held_out + self._keep_units(scratch, _UNITS, self.train)
        epath.Path(job_directory.results(scratch, _UNITS)).rmtree(missing_ok=True)
        return held_out

    def _keep_units(self, scratch: epath.Path, name: str, units: list[AnyUnit]) -> int:
        """Remove the results of units that changed, and return how many are left."""
        left, kept = 0, _results_of_units(scratch, name, units)
        for number, result in kept.load(_tokenise_unit).items():
            # read when null was no bad record, of which skipping counts each
            skips = self.options.on_bad_record == 'skip'
            is_uncounted = skips and result.report.textless['null']
            if is_uncounted or not digest.same(units[number], result.marks):
                kept.remove(number)
            else:
                left += 1
        return left


def _list_text(options: PreprocessOptions, report: corpus.Report) -> _Text:
    """Return the units of both inputs; what is left out of them is added to `report`."""
    train = job_plan.units_of('input', options.input, options.text, report)
    held_out = []
    if options.eval_input is not None:
        held_out = job_plan.units_of('eval_input', options.eval_input, options.text, report)
    return _Text(train, held_out, options.text)


@dataclass
class _Job:
    """One run of the three stages in a scratch folder, and what it notices on the way."""

    options: PreprocessOptions
    tokenizer: Tokenizer
    engine: Engine
    scratch: epath.Path
    recipe: Recipe
    # Of the units that have been read, by split: held-out ones are units of their own.
    marks: dict[str, list[digest.Marks]] = field(default_factory=dict)
    bad_records: dict[str, Counter[str]] = field(default_factory=dict)  # of an input, by kind
    filtered: dict[str, Counter[str]] = field(default_factory=dict)  # of an input, by filter
    uncut: Counter[str] = field(default_factory=Counter)  # documents not cut into sentences
    warnings: list[str] = field(default_factory=list)

    def warn(self, *messages: str) -> None:
        """Say what was not said before, and keep it for the manifest."""
        for message in messages:
            if message not in self.warnings:
                self.warnings.append(message)
                print(f'warning: {message}', file=sys.stderr, flush=True)

    def run(self, text: _Text, described: dict[str, Any]) -> Manifest:
        """Return the manifest; the shards are in SCRATCH/final."""
        # A text that makes no records is refused here, before the long part of the work.
        options, read = self.options, self.read(text)
        documents = (read[split].sums['documents'] for split in ('train', 'eval'))
        job_plan.require_documents(options, *documents)
        job_plan.require_languages(options, text.train, read['train'].languages)
        self.warn(*statistics.doubts(options, read, self.uncut))

        # What a pass over each language is depends on its tokens, known only now.
        self.recipe, warnings = job_plan.weigh(options, self.recipe, read['train'].languages)
        self.warn(*warnings)

        # A split without documents has no files.
        counts: dict[str, dict[str, Any]] = {}
        shards: list[ShardInfo] = []
        for split, tokenised in read.items():
            if tokenised.runs:
                sums, of_split = self.make_split(split, tokenised)
                if of_split:
                    counts[split] = sums
                shards += of_split

        marks = self.marks['train'] + self.marks.get('eval', [])
        return Manifest(
            seq_len=options.seq_len,
            max_predictions=options.rule.max_predictions,
            masking=options.masking,
            objective=options.objective,
            vocab_size=self.tokenizer.vocab_size,
            tokenizer_fingerprint=self.tokenizer.fingerprint,
            seed=options.seed,
            options=described | digest.describe(marks),
            statistics=self.collect_statistics(read, counts),
            files=tuple(shards),
            max_packs=options.spec.max_packs,
            known_words=self.tokenizer.known if self.tokenizer.kind == 'words' else 0,
        )

    # ---- stage 1

    def read(self, text: _Text) -> dict[str, Tokenised]:
        """Tokenise both inputs.

        Where the default fraction holds out too little for NSP, it is done again without.
        """
        # The fraction is of documents by their hashes: how many it takes is known afterwards.
        read = self.tokenise(text, _UNITS)
        train, held_out = (read[split].sums['documents'] for split in ('train', 'eval'))
        is_default = self.options.eval_fraction is None and not text.held_out
        needed = job_plan.least_documents(self.options)
        if not is_default or held_out >= needed or train + held_out < needed:
            return read
        self.warn(
            f'{statistics.plural(held_out, "document")} fell into the default held-out share: '
            'nothing is held out; give --eval_fraction or --eval_input'
        )
        if not held_out:
            return read

        # Under another name: results of the first reading must not pass for those of this one.
        self.recipe = dataclasses.replace(self.recipe, eval_fraction=0.0)
        return self.tokenise(text, _UNITS_AGAIN)

    def tokenise(self, text: _Text, name: str) -> dict[str, Tokenised]:
        """Tokenise both inputs into files of this name."""
        # The held-out text first: what is a copy of it has to be dropped from the other. Its
        # fingerprints go by a file, for they may be too many to send to each task.
        parts: dict[str, list[Tokenised]] = {'train': [], 'eval': []}
        if text.held_out:
            self.tokenise_units(text.held_out, 'eval', _HELD_OUT, None, parts)
            excluded = str(self.scratch / job_directory.RUNS / _HELD_OUT)
            held_out = Tokenised.merged(parts['eval']).held_out
            sorted_runs.save(excluded, sorted_runs.KEYS, [{'key': held_out}])
            self.tokenise_units(text.train, 'train', name, excluded, parts)
        else:
            self.tokenise_units(text.train, None, name, None, parts)

        # Each split by itself: what --eval_fraction holds out is not compared with the others.
        read = {}
        for split, of_split in parts.items():
            merged = Tokenised.merged(of_split)
            read[split] = merged
            if self.options.dedup != 'none' and merged.runs:
                read[split] = self.drop_copies(self.options.dedup, merged, f'{name}-{split}')

            # Of the text as it is read: of what is left without copies only tokens are known.
            for language, sums in read[split].languages.items():
                before = merged.languages[language]
                rate = before['tokens'] / max(1, before['words'])
                sums['pieces_a_word'] = rate  # type: ignore[assignment]  # no count
        return read

    def tokenise_units(
        self,
        units: list[AnyUnit],
        split: str | None,
        name: str,
        excluded: str | None,
        parts: dict[str, list[Tokenised]],
    ) -> None:
        """Tokenise units into files of this name, and add what they gave to `parts`."""
        # One task a unit, and files named by the unit: neither depends on the workers.
        folder = self.scratch / job_directory.RUNS
        tasks = []
        for unit in units:
            file = str(folder / f'{name}-{unit.identity}')
            given = _pass_by_file(unit, file)
            tasks.append((self.recipe, given, self.options.text, split, file, excluded))
        weights = [unit.bytes for unit in units]
        title = 'reading held-out text' if split == 'eval' else 'reading text'
        progress = Progress(title, sum(weights), 'MB', 1e6)
        try:
            kept = _results_of_units(self.scratch, name, units)
            results = self.engine.run(_tokenise_unit, tasks, progress, kept, weights)
        except job_directory.Interrupted:
            raise
        except UserError as error:
            raise job_directory.Refused(str(error)) from error
        _remove_files(folder, f'{name}-*{_NAMES}')

        # What the readers noticed is said once for all.
        report = corpus.Report()
        self.marks[split or 'train'] = [result.marks for result in results]
        for unit, result in zip(units, results):
            report.merge(result.report)
            for side, part in result.sides.items():
                sums = {name: part.sums[name] for name in job_stages.SUMS_OF_LANGUAGE}
                part.languages[unit.language] = Counter(sums)
                parts[side].append(part)
        self.warn(*report.lines())
        for side in [split] if split else parts:
            self.uncut[side] += report.uncut
        given = 'eval_input' if split == 'eval' else 'input'
        if report.bad_records:
            self.bad_records[given] = report.bad_records
        if report.filtered:
            self.filtered[given] = report.filtered

    def drop_copies(self, kind: Kind, text: Tokenised, name: str) -> Tokenised:
        """Leave one of each document or line."""

        def run_stage(function: Callable, tasks: list[tuple], stage: str) -> list:
            progress = Progress(f'{stage} copies', len(tasks), 'parts')
            return self.run_tasks(function, tasks, progress, f'{name}-{stage}')

        # What stage 1 counted of dropped documents stays; the sums of the text are replaced.
        unique = deduplicate(kind, text.runs, self.recipe, self.tokenizer.unk_id, run_stage)
        return dataclasses.replace(unique, sums=Counter({**text.sums, **unique.sums}))

    # ---- stages 2 and 3

    def make_split(self, split: str, text: Tokenised) -> tuple[dict[str, Any], list[ShardInfo]]:
        """Return the sums over a split's records, and its shards."""
        if split == 'train' or '' in text.languages:
            return self.make_records(split, split, text)

        # Held-out text has shards for each language, so that a model is measured on each.
        counts: dict[str, Any] = {}
        shards: list[ShardInfo] = []
        for language, runs in sorted(text.runs_of.items()):
            sums = text.languages[language]
            if sums['documents'] < job_plan.least_documents(self.options):
                few = statistics.plural(sums['documents'], 'document')
                self.warn(
                    f'{language}: {few} held out, which is too few: it has no held-out records;'
                    f' raise --eval_fraction, or give --eval_input={language}=PATTERN'
                )
                continue
            of_language = dataclasses.replace(text, runs=runs, sums=sums)
            its_counts, its_shards = self.make_records(split, f'{split}-{language}', of_language)
            fields.add_counts(counts, its_counts)
            shards += its_shards
        return counts, shards

    def make_records(
        self, split: str, name: str, text: Tokenised
    ) -> tuple[dict[str, Any], list[ShardInfo]]:
        """Return the sums over records of a split, and their shards.

        `name`: how the names of their files begin.
        """
        # A bucket is a range of hashed names, so any has documents of every unit, and each is
        # weighed alike: hashes spread the tokens evenly.
        folder = self.scratch / job_directory.RUNS
        count = job_plan.plan_buckets(text.sums['tokens'], text.sums['documents'])
        paths = [str(folder / f'bucket-{name}-{number:05}') for number in range(count)]
        held_out = '' if split == 'train' else 'held-out '
        tokens = text.sums['tokens'] * self.recipe.dupe_factor_of(split)
        buckets = self.run_tasks(
            job_stages.make_records,
            [(self.recipe, split, i, count, text.runs, path) for i, path in enumerate(paths)],
            Progress(f'making {held_out}examples', tokens, 'M tokens', 1e6),
            f'records-{name}',
        )
        counts: dict[str, Any] = {}
        for bucket in buckets:
            fields.add_counts(counts, bucket.counts)
            for language, of_language in bucket.languages.items():
                if language in text.languages:
                    text.languages[language].update(of_language)
        if not counts:
            raise UserError(
                f'{self.options.inputs}: no example could be made: the documents are too short for'
                f' --objective={self.options.objective}'
            )

        # The text is not needed any more, and the shards need its room. A job that is interrupted
        # from here on finds the results of all buckets, and does not look for it.
        for path in text.runs:
            epath.Path(path).unlink(missing_ok=True)

        # How many shards depends on what the records take. An empty bucket (of languages with less
        # than a pass, say) may have no files.
        full = [path for path, bucket in zip(paths, buckets) if bucket.records]
        records = sum(bucket.records for bucket in buckets)
        size = sum(bucket.bytes for bucket in buckets)
        asked = self.options.num_shards if split == 'train' else None
        count, pieces = job_plan.plan_shards(records, size, asked)
        tasks = []
        for number in range(count):
            shard = self.scratch / 'final' / f'{name}-{number:05}-of-{count:05}.tfrecord'
            tasks.append((number, count, pieces, full, str(shard)))
        progress = Progress(f'writing {held_out}shards', size, 'MB', 1e6)
        shards = self.run_tasks(job_stages.write_output, tasks, progress, f'shards-{name}')
        _remove_files(folder, f'bucket-{name}-*')
        return counts, shards

    def collect_statistics(
        self, text: dict[str, Tokenised], counts: dict[str, Any]
    ) -> dict[str, Any]:
        """Return what the manifest says about text and records, by split."""
        of_text, options = {}, self.options
        for split, sums in counts.items():
            of_text[split] = statistics.of_split(text[split], sums, options.seq_len)
            uncut = self.uncut[split]
            self.warn(*statistics.doubts_of_records(options, split, of_text[split], uncut))
        collected = {'records': counts, 'text': of_text, 'warnings': self.warnings}
        if self.bad_records:
            collected['bad_records'] = self.bad_records
        if self.filtered:
            collected['filtered'] = self.filtered
        return collected

    def run_tasks(
        self, function: Callable, tasks: list[tuple], progress: Progress, stage: str
    ) -> list:
        """Return the results of a stage's tasks, which are kept under its name."""
        kept = KeptResults.numbered(job_directory.results(self.scratch, stage), len(tasks))
        return self.engine.run(function, tasks, progress, kept)


def _remove_files(folder: epath.Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        path.unlink()


def _pass_by_file(unit: AnyUnit, file: str) -> Unit | str:
    """Return a unit as it travels in a task: many names by a file next to those it will write.

    Tasks are part of a Beam pipeline's definition, which has no room for millions of names.
    """
    if isinstance(unit, Unit):
        return unit
    with sorted_runs.sealed_file(f'{file}{_NAMES}') as listed:
        listed.write(typed_json.dump(unit).encode())
    return f'{file}{_NAMES}'


@dataclass(frozen=True)
class _UnitResult:
    """What a unit gave: its text by split, what its reader noticed, and its marks when read."""

    sides: dict[str, Tokenised]
    report: corpus.Report
    marks: digest.Marks


def _tokenise_unit(
    recipe: Recipe,
    given: Unit | str,
    text: corpus.TextOptions,
    split: str | None,
    path: str,
    excluded: str | None,
) -> _UnitResult:
    """Do stage 1 for a unit."""
    if isinstance(given, Unit):
        unit: AnyUnit = given
    else:
        content = sorted_runs.unsealed(epath.Path(given).read_bytes())
        unit = typed_json.load(SmallFiles, content)

    # The marks before the text: a file that changes while it is read is then seen as changed, here
    # or, when the job goes on, by its next process.
    report = corpus.Report()
    if unit.language:
        text = dataclasses.replace(text, language=unit.language)
    with copy_from_bucket(unit, path + job_directory.COPY, recipe.options.cache_share):
        marks = digest.marks(unit)
        documents = corpus.read_unit(unit, text, report)
        sides = job_stages.tokenise(recipe, documents, unit.language, split, path, excluded)
    for file in digest.changes(unit, marks):
        raise changed(file.path)
    return _UnitResult(sides, report, marks)


def _results_of_units(scratch: epath.Path, name: str, units: list[AnyUnit]) -> KeptResults:
    """Return the results of reading units, which are known by these and not by their order."""
    identities = tuple(unit.identity for unit in units)
    return KeptResults(job_directory.results(scratch, name), identities)
