"""The offline job: text in, sharded TFRecords and a manifest out.

This file owns the job as a whole: which stage follows which, with what, and what is kept in
between. What is to be done is in job_plan.py, the work itself in job_stages.py, what is said of
the result in statistics.py; this file must not know formats, masking or pairing.
"""

from __future__ import annotations

import dataclasses
import os
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
from bert_jax.input_pipeline.preprocess.options import PreprocessOptions
from bert_jax.input_pipeline.preprocess.sorted_runs import Tokenised
from bert_jax.input_pipeline.progress import Progress
from bert_jax.input_pipeline.records import fields
from bert_jax.input_pipeline.records.shards import Manifest, ShardInfo
from bert_jax.input_pipeline.text import corpus, digest
from bert_jax.input_pipeline.text.files import changed
from bert_jax.input_pipeline.text.units import AnyUnit, SmallFiles, Unit
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

# the files of stage 1, and the results of its tasks
_UNITS, _HELD_OUT = ('unit', 'unit-again'), 'held-out'
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
    units = job_plan.units_of('input', options.input, options.text, report)
    eval_units = []
    if options.eval_input is not None:
        eval_units = job_plan.units_of('eval_input', options.eval_input, options.text, report)
    described = job_plan.describe(options, tokenizer, units, eval_units)

    output = epath.Path(options.output)
    # Done already? Only after the inputs are listed, which tell this job from another.
    finished = None
    if not options.overwrite:
        job_directory.refuse_strange(output, tokenizer)
        same_text = lambda of: digest.as_described(units + eval_units, of)
        finished = job_directory.finished(output, described, same_text)
    if finished is not None:
        job_directory.tidy(output)
        print(
            f'{output}: this job is done already ({finished.records("train"):,} examples,'
            f' {finished.records("eval"):,} held out)'
        )
        return finished

    # The work, in a scratch folder that an interrupted job leaves behind; the files get their names
    # at the end, the manifest last.
    same_text = lambda folder: digest.all_same(_read_before(folder, units, eval_units))
    keep_same = lambda folder: _keep_same(folder, units, eval_units, options.text)
    # What the options come to follows from the text: what was read goes with it.
    recipe = job_plan.recipe(options, units, eval_units)
    work = described | {'recipe': [recipe.eval_fraction, recipe.line_sample, recipe.languages]}
    with (
        job_directory.scratch(output, work, options.overwrite, same_text, keep_same) as scratch,
        _engine(options) as engine,
    ):
        manifest = job_directory.unpublished(scratch)
        if manifest is None:
            job = _Job(options, tokenizer, engine, scratch, recipe)
            job.warn(*report.lines())
            manifest = job.run(units, eval_units, described)
        job_directory.publish(scratch, output, tokenizer, manifest)

    # Said when the workers have ended, whose processor time counts only then.
    seconds = time.monotonic() - start
    for split in ('train', 'eval'):
        statistics.report(manifest, split)
    examples = sum(sums['examples'] for sums in manifest.statistics['records'].values())
    print(f'{examples:,} examples in {seconds:.1f} s{engine.cost(examples)}')
    return manifest


def _engine(options: PreprocessOptions) -> Engine:
    if options.engine == 'beam':
        return BeamEngine(options.beam_arguments)
    return LocalEngine(options.workers or os.cpu_count() or 1)


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
    uncut: Counter[str] = field(default_factory=Counter)  # documents not cut into sentences
    warnings: list[str] = field(default_factory=list)

    def warn(self, *messages: str) -> None:
        """Say what was not said before, and keep it for the manifest."""
        for message in messages:
            if message not in self.warnings:
                self.warnings.append(message)
                print(f'warning: {message}', file=sys.stderr, flush=True)

    def run(
        self, units: list[AnyUnit], eval_units: list[AnyUnit], described: dict[str, Any]
    ) -> Manifest:
        """Return the manifest; the shards are in SCRATCH/final."""
        # Read both inputs, see whether they do, and only then settle what a pass over each language
        # is: it depends on their tokens.
        options, text = self.options, self._read(units, eval_units)

        # A text that makes no records is refused here, before the long part of the work.
        documents = (text[split].sums['documents'] for split in ('train', 'eval'))
        job_plan.require_documents(options, *documents)
        job_plan.require_languages(options, units, text['train'].languages)
        self.warn(*statistics.doubts(options, text, self.uncut))
        self.recipe, warnings = job_plan.weigh(options, self.recipe, text['train'].languages)
        self.warn(*warnings)

        # A split without documents has no files.
        counts: dict[str, dict[str, Any]] = {}
        shards: list[ShardInfo] = []
        for split, of_split in text.items():
            if of_split.runs:
                sums, of_records = self._split(split, of_split)
                counts |= {split: sums} if of_records else {}
                shards += of_records

        return Manifest(
            seq_len=options.seq_len,
            max_predictions=options.rule.max_predictions,
            masking=options.masking,
            objective=options.objective,
            vocab_size=self.tokenizer.vocab_size,
            tokenizer_fingerprint=self.tokenizer.fingerprint,
            seed=options.seed,
            options=described | digest.describe(self.marks['train'] + self.marks.get('eval', [])),
            statistics=self._statistics(text, counts),
            files=tuple(shards),
            max_packs=options.spec.max_packs,
            known_words=self.tokenizer.known if self.tokenizer.kind == 'words' else 0,
        )

    # ---- stage 1

    def _read(self, units: list[AnyUnit], eval_units: list[AnyUnit]) -> dict[str, Tokenised]:
        """Tokenise both inputs.

        Where the default fraction holds out too little for NSP, it is done again without.
        """
        # The fraction is of documents by their hashes: how many it takes is known afterwards.
        text = self._tokenise(units, eval_units, _UNITS[0])
        train, held_out = (text[split].sums['documents'] for split in ('train', 'eval'))
        if (
            self.options.eval_fraction is None
            and not eval_units
            and held_out < job_plan.least_documents(self.options) <= train + held_out
        ):
            self.warn(
                f'{statistics.plural(held_out, "document")} fell into the default held-out share: '
                'nothing is held out; give --eval_fraction or --eval_input'
            )
            # Under another name: results of the first reading must not pass for those of this one.
            if held_out:
                self.recipe = dataclasses.replace(self.recipe, eval_fraction=0.0)
                text = self._tokenise(units, eval_units, _UNITS[1])
        return text

    def _tokenise(
        self, units: list[AnyUnit], eval_units: list[AnyUnit], name: str
    ) -> dict[str, Tokenised]:
        """Tokenise both inputs into files of this name."""
        # The held-out text first: what is a copy of it has to be dropped from the other. Its
        # fingerprints go by a file, for they may be too many to send to each task.
        excluded = None
        parts: dict[str, list[Tokenised]] = {'train': [], 'eval': []}
        if eval_units:
            self._tokenise_units(eval_units, 'eval', _HELD_OUT, None, parts)
            excluded = str(self.scratch / job_directory.RUNS / _HELD_OUT)
            held_out = Tokenised.merged(parts['eval']).held_out
            sorted_runs.save(excluded, sorted_runs.KEYS, [{'key': held_out}])
        self._tokenise_units(units, 'train' if eval_units else None, name, excluded, parts)
        text = {side: Tokenised.merged(side_parts) for side, side_parts in parts.items()}

        for side, read in text.items():
            # Of the text as it is read: of what is left when copies are gone only tokens are known.
            rates = {
                name: of['tokens'] / max(1, of['words']) for name, of in read.languages.items()
            }
            # Each split by itself: what --eval_fraction holds out is not compared with the others.
            if self.options.dedup != 'none' and read.runs:
                text[side] = self._without_copies(self.options.dedup, read, f'{name}-{side}')
            for language, of in text[side].languages.items():
                of['pieces_a_word'] = rates[language]  # type: ignore[assignment]  # no count
        return text

    def _without_copies(self, kind: Kind, text: Tokenised, name: str) -> Tokenised:
        """Leave one of each document or line."""

        def engine(function: Callable, tasks: list[tuple], stage: str) -> list:
            progress = Progress(f'{stage} copies', len(tasks), 'parts')
            return self._run(function, tasks, progress, f'{name}-{stage}')

        # What stage 1 counted of dropped documents stays; the sums of the text are replaced.
        unique = deduplicate(kind, text.runs, self.recipe, self.tokenizer.unk_id, engine)
        return dataclasses.replace(unique, sums=Counter({**text.sums, **unique.sums}))

    def _tokenise_units(
        self,
        units: list[AnyUnit],
        split: str | None,
        name: str,
        excluded: str | None,
        parts: dict[str, list[Tokenised]],
    ) -> None:
        # One task a unit, and files named by the unit: neither depends on the workers.
        folder, weights = self.scratch / job_directory.RUNS, [unit.bytes for unit in units]
        files = [str(folder / f'{name}-{unit.identity}') for unit in units]
        tasks = [
            (self.recipe, _by_file(unit, file), self.options.text, split, file, excluded)
            for unit, file in zip(units, files)
        ]
        title = 'reading held-out text' if split == 'eval' else 'reading text'
        progress = Progress(title, sum(weights), 'MB', 1e6)
        try:
            kept = _kept_units(self.scratch, name, units)
            results = self.engine.run(_tokenise_unit, tasks, progress, kept, weights)
        except job_directory.Interrupted:
            raise
        except UserError as error:
            raise job_directory.Refused(str(error)) from error
        _remove(folder, f'{name}-*{_NAMES}')

        # What the readers noticed is said once for all.
        report = corpus.Report()
        self.marks[split or 'train'] = [marks for _, _, marks in results]
        for unit, (sides, unit_report, _) in zip(units, results):
            report.merge(unit_report)
            for side, part in sides.items():
                sums = {name: part.sums[name] for name in job_stages.SUMS_OF_LANGUAGE}
                part.languages[unit.language] = Counter(sums)
                parts[side].append(part)
        self.warn(*report.lines())
        self.uncut.update(dict.fromkeys([split] if split else parts, report.uncut))
        if report.bad_records:
            self.bad_records['eval_input' if split == 'eval' else 'input'] = report.bad_records

    # ---- stages 2 and 3

    def _split(self, split: str, text: Tokenised) -> tuple[dict[str, Any], list[ShardInfo]]:
        """Return the sums over a split's records, and its shards."""
        if split == 'train' or '' in text.languages:
            return self._records(split, split, text)

        # Held-out text has shards for each language, so that a model is measured on each.
        counts: dict[str, Any] = {}
        shards: list[ShardInfo] = []
        for language, inputs in sorted(text.runs_of.items()):
            sums = text.languages[language]
            if sums['documents'] < job_plan.least_documents(self.options):
                few = statistics.plural(sums['documents'], 'document')
                self.warn(
                    f'{language}: {few} held out, which is too few: it has no held-out records;'
                    f' raise --eval_fraction, or give --eval_input={language}=PATTERN'
                )
                continue
            of_language = dataclasses.replace(text, runs=inputs, sums=sums)
            its_counts, its_shards = self._records(split, f'{split}-{language}', of_language)
            fields.add_counts(counts, its_counts)
            shards += its_shards
        return counts, shards

    def _records(
        self, split: str, name: str, text: Tokenised
    ) -> tuple[dict[str, Any], list[ShardInfo]]:
        """Return the sums over records of a split, and their shards.

        `name`: how the names of their files begin.
        """
        # Stage 2. A bucket is a range of hashed names, so any has documents of every unit, and each
        # is weighed alike: hashes spread the tokens evenly.
        folder, held_out = (
            self.scratch / job_directory.RUNS,
            '' if split == 'train' else 'held-out ',
        )
        count = job_plan.plan_buckets(text.sums['tokens'], text.sums['documents'])
        paths = [str(folder / f'bucket-{name}-{i:05}') for i in range(count)]
        tokens = text.sums['tokens'] * self.recipe.dupe_factor_of(split)
        buckets = self._run(
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

        # Stage 3. How many shards depends on what the records take. An empty bucket (of languages
        # with less than a pass, say) may have no files.
        full = [path for path, bucket in zip(paths, buckets) if bucket.records]
        records, size = (sum(getattr(b, of) for b in buckets) for of in ('records', 'bytes'))
        asked = None if held_out else self.options.num_shards
        count, pieces = job_plan.plan_shards(records, size, asked)
        shard = lambda i: str(self.scratch / 'final' / f'{name}-{i:05}-of-{count:05}.tfrecord')
        shards = self._run(
            job_stages.write_output,
            [(i, count, pieces, full, shard(i)) for i in range(count)],
            Progress(f'writing {held_out}shards', size, 'MB', 1e6),
            f'shards-{name}',
        )
        _remove(folder, f'bucket-{name}-*')
        return counts, shards

    def _statistics(self, text: dict[str, Tokenised], counts: dict[str, Any]) -> dict[str, Any]:
        """Return what the manifest says about text and records, by split."""
        of_text, options = {}, self.options
        for split, sums in counts.items():
            of_text[split] = statistics.of_split(text[split], sums, options.seq_len)
            uncut = self.uncut[split]
            self.warn(*statistics.doubts_of_records(options, split, of_text[split], uncut))
        manifest = {'records': counts, 'text': of_text, 'warnings': self.warnings}
        return manifest | ({'bad_records': self.bad_records} if self.bad_records else {})

    def _run(self, function: Callable, tasks: list[tuple], progress: Progress, stage: str) -> list:
        """Return the results of a stage's tasks, which are kept under its name."""
        kept = KeptResults.numbered(job_directory.results(self.scratch, stage), len(tasks))
        return self.engine.run(function, tasks, progress, kept)


def _remove(folder: epath.Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        path.unlink()


def _by_file(unit: AnyUnit, file: str) -> Unit | str:
    """Return a unit as it travels in a task: many names by a file next to those it will write.

    Tasks are part of a Beam pipeline's definition, which has no room for millions of names.
    """
    if isinstance(unit, Unit):
        return unit
    with sorted_runs.sealed_file(f'{file}{_NAMES}') as listed:
        listed.write(typed_json.dump(unit).encode())
    return f'{file}{_NAMES}'


def _tokenise_unit(
    recipe: Recipe,
    given: Unit | str,
    text: corpus.TextOptions,
    split: str | None,
    path: str,
    excluded: str | None,
) -> tuple[dict[str, Tokenised], corpus.Report, digest.Marks]:
    """Do stage 1 for a unit: return its text, the report and the marks of what was read."""
    unit: AnyUnit = (
        given
        if isinstance(given, Unit)
        else typed_json.load(SmallFiles, sorted_runs.unsealed(epath.Path(given).read_bytes()))
    )

    # The marks before the text: a file that changes while it is read is then seen as changed, here
    # or, when the job goes on, by its next process.
    report, marks = corpus.Report(), digest.marks(unit)
    if unit.language:
        text = dataclasses.replace(text, language=unit.language)
    documents = corpus.read_unit(unit, text, report)
    tokenised = job_stages.tokenise(recipe, documents, unit.language, split, path, excluded)
    for file in digest.changes(unit, marks):
        raise changed(file.path)
    return tokenised, report, marks


def _kept_units(scratch: epath.Path, name: str, units: list[AnyUnit]) -> KeptResults:
    """Return the results of reading units, which are known by these and not by their order."""
    identities = tuple(unit.identity for unit in units)
    return KeptResults(job_directory.results(scratch, name), identities)


def _read_before(
    scratch: epath.Path, units: list[AnyUnit], eval_units: list[AnyUnit]
) -> list[tuple[AnyUnit, digest.Marks]]:
    """Return the units that an interrupted job has read, with their marks."""
    marks = []
    for name, listed in ((_HELD_OUT, eval_units), *((name, units) for name in _UNITS)):
        read = _kept_units(scratch, name, listed).load(_tokenise_unit)
        marks += [(listed[i], then) for i, (_, _, then) in read.items()]
    return marks


def _keep_same(
    scratch: epath.Path,
    units: list[AnyUnit],
    eval_units: list[AnyUnit],
    text: corpus.TextOptions,
) -> int:
    """Leave, of what a job whose text was refused has read, what still holds; return how much.

    A unit holds that has its name, place, size and bytes. Of the training text none holds where a
    held-out unit does not: copies of that are dropped there.
    """
    count, held_out_holds, skips = 0, True, text.on_bad_record == 'skip'
    epath.Path(job_directory.results(scratch, _UNITS[1])).rmtree(missing_ok=True)
    for name, listed in ((_HELD_OUT, eval_units), (_UNITS[0], units)):
        kept = _kept_units(scratch, name, listed)
        read = kept.load(_tokenise_unit)
        for number, (_, report, mark) in read.items():
            # read when null was no bad record, of which skipping counts each
            uncounted = skips and report.textless['null']
            if not held_out_holds or uncounted or not digest.same(listed[number], mark):
                kept.remove(number)
        holding = len(kept.load(_tokenise_unit))
        count += holding
        if name == _HELD_OUT:
            held_out_holds = holding == len(listed)
    return count
