"""The plan of the offline job: its text, its buckets and shards, and what it does not do for.

Everything here depends on the options and on the text alone, never on workers or engine. This file
must not know how a stage does its work, nor who runs it.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.preprocess.job_stages import Recipe
from bert_jax.input_pipeline.preprocess.language_mixture import (
    EXPONENT,
    mixture,
    split_inputs,
    too_often,
)
from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
from bert_jax.input_pipeline.preprocess.statistics import plural
from bert_jax.input_pipeline.text import corpus, digest
from bert_jax.input_pipeline.text.listing import refuse_inside
from bert_jax.input_pipeline.text.units import AnyUnit
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

# Held out where the user says nothing, and the most where that would be too few rows.
EVAL_FRACTION, _MOST_HELD_OUT = 0.005, 0.1
# Twice what most text has, so that rather more rows are held out than fewer: documents differ in
# length, and what is cut off of long sentences makes no rows.
_BYTES_A_PIECE = 12
# of an input larger than that only a sample of the sentences is watched for duplicates
_WATCHED_BYTES = 1 << 28
# About 32 MB of English; a small corpus gets smaller buckets, so that workers have some
BUCKET_TOKENS = 8_000_000
MIN_BUCKET_TOKENS = 1_000_000
MIN_BUCKET_DOCUMENTS, _MIN_LONG_DOCUMENTS = 64, 24
SHARD_BYTES = 64_000_000  # a worker sorts a shard in memory
_MIN_SHARD_RECORDS = 256  # no default shard is smaller: there would be files of next to nothing


# Files below --output that a job makes, by whose names an input would take them for text.
_MADE = ('manifest.json', 'train-00000-of-00001.tfrecord', 'tokenizer/vocab.txt')

# ---- the text


def units_of(
    flag: str, given: str | tuple[str, ...], text: corpus.TextOptions, report: corpus.Report
) -> list[AnyUnit]:
    """Return the units of an input; where languages are named, each in its own folder of names.

    `flag` is the flag's name in errors. What is left out of an input is added to `report`. Raises
    UserError where no file matches, one cannot be read, or one is given as text of two languages.
    """
    # A unit's name is what its documents' keys come from: with the language in it, files that have
    # one name in the folders of two languages are two.
    named = []
    for language, patterns in split_inputs(flag, given).items():
        of_one = corpus.units(patterns, text, left_out=report.left_out)
        named += [unit.of_language(language) for unit in of_one] if language else of_one
    _refuse_two_languages(flag, named)
    return named


def _refuse_two_languages(flag: str, units: list[AnyUnit]) -> None:
    """Raise UserError for a file that two languages name: its text would count for both."""
    if len({unit.language for unit in units}) < 2:
        return
    languages: dict[tuple[str, int], str] = {}
    for file in (file for unit in units for file in unit.files()):
        # A file may come in several units of one language; the first is always at its start.
        path = file.path if '://' in file.path else os.path.abspath(file.path)
        other = languages.setdefault((path, file.start), file.language)
        if other != file.language:
            raise UserError(
                f'--{flag}: {file.path} is named as {other} and as {file.language}: leave one out;'
                ' to take its text more often there is --language_repeats'
            )


def refuse_own_output(options: PreprocessOptions) -> None:
    """Raise UserError where an input would take the files of the output for text."""
    for flag, given in (('input', options.input), ('eval_input', options.eval_input)):
        for patterns in split_inputs(flag, given).values() if given else ():
            refuse_inside('output', str(options.output), patterns, _MADE)


def describe(
    options: PreprocessOptions,
    tokenizer: Tokenizer,
    units: list[AnyUnit],
    eval_units: list[AnyUnit],
) -> dict[str, Any]:
    """Return what a job is known by: all options that its records depend on, and its inputs.

    Defaults are filled in; inputs are digests of the files' names and sizes and of the tokenizer.
    The text itself is not read here.
    """
    # Without what changes no byte of the records: where they go, and who makes them, and options
    # that older jobs had not, where they are not used. The options of text say that of themselves
    # below.
    of_text = [each.name for each in dataclasses.fields(corpus.TextOptions)]
    left_out = ('output', 'workers', 'cache_gb', 'engine', 'beam_arguments', 'overwrite', *of_text)
    later = (
        'across_documents',
        'mask_rule',
        'sop_noise',
        'cut_sentences',
        'eval_masked_lm_prob',
        'min_eval_rows',
        'language_repeats',
    )
    # Lists, as JSON has no tuples: this is compared with what was read back from a manifest.
    described: dict[str, Any] = {}
    for each in dataclasses.fields(options):
        value = getattr(options, each.name)
        is_unused = each.name in later and value == each.default
        if each.name not in left_out and not is_unused:
            described[each.name] = list(value) if isinstance(value, tuple) else value

    # Which mixture it is: the one that is given, or the default, where languages are named.
    named = any(unit.language for unit in units)
    if named and options.language_exponent is None and not options.language_repeats:
        described['language_exponent'] = EXPONENT

    # As the job uses them, whether they were given or are the default.
    return {
        **described,
        'max_predictions': options.rule.max_predictions,
        'max_packs': options.spec.max_packs,
        'dupe_factor': options.passes,
        **options.text.described(),
        'input_digest': digest.listing_digest(units, eval_units),
        'tokenizer_fingerprint': tokenizer.fingerprint,
    }


def recipe(options: PreprocessOptions, units: list[AnyUnit], eval_units: list[AnyUnit]) -> Recipe:
    """Return what turns this text into records, as far as it is known before the text is read."""
    size = sum(unit.bytes for unit in units)
    fraction = options.eval_fraction
    if fraction is None:
        rows = max(1, size) / _BYTES_A_PIECE / options.seq_len
        fraction = max(EVAL_FRACTION, min(_MOST_HELD_OUT, options.min_eval_rows / rows))
    return Recipe(
        options,
        eval_fraction=0.0 if eval_units else fraction,
        line_sample=1 + size // _WATCHED_BYTES,
        languages=tuple(sorted({unit.language for unit in units + eval_units})),
    )


# ---- what it does not do for


def check_tokenizer(options: PreprocessOptions, tokenizer: Tokenizer) -> None:
    """Raise UserError for records that cannot be made, or read, with such a tokenizer.

    Pairs by one whose rows tell two texts apart by no segment; words whole that a step would mask.
    """
    if options.objective != 'full_sentences' and not tokenizer.layout.second_segment:
        raise UserError(
            f'--objective={options.objective}: the rows of {options.tokenizer} have one segment'
            ' (RoBERTa), and no pair to be told apart: add --objective=full_sentences'
        )
    if tokenizer.kind == 'words' and options.masking == 'dynamic':
        raise UserError(
            '--masking=dynamic: the train step that draws masks cannot spell the words of'
            f' {options.tokenizer}: leave it out, which masks them here'
        )


def require_languages(
    options: PreprocessOptions, units: list[AnyUnit], languages: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise UserError for a language of which there is nothing to train on.

    `languages` [language]: the sums over what is left to train on.
    """
    for language in sorted({unit.language for unit in units if unit.language}):
        if language not in languages or not languages[language]['tokens']:
            inputs = ','.join(split_inputs('input', options.input)[language])
            raise UserError(
                f'--input={language}={inputs}: nothing is left of {language} to train on: every'
                ' document is empty, a copy (--dedup, --eval_input) or held out (--eval_fraction):'
                ' leave the language out, or give it more text'
            )


def weigh(
    options: PreprocessOptions, recipe: Recipe, languages: dict[str, Counter]
) -> tuple[Recipe, list[str]]:
    """Return the recipe with the passes over each language, where they are named; and warnings.

    `languages`: the sums over the text of each, to which the passes are added.
    """
    if '' in languages:
        return recipe, []

    # As often as its text is taken: dupe_factor on average, unless the repeats are given.
    repeats = mixture(
        {language: sums['tokens'] for language, sums in languages.items()},
        options.language_exponent,
        options.language_repeats,
    )
    each = {language: count * options.passes for language, count in repeats.items()}
    warnings = too_often(repeats)

    # Fewer than one: documents that no pass takes are text that the user would miss.
    given = '--language_repeats' if options.language_repeats else '--language_exponent'
    for language, count in each.items():
        languages[language]['passes'] = count  # type: ignore[assignment]  # a share of a pass too
        if count < 1:
            warnings.append(
                f'{language}: {1 - count:.0%} of its documents are left out: '
                f'{given} and --dupe_factor give {count:.2f} passes over them'
            )

    # In the order of recipe.languages, by whose numbers the documents name theirs.
    passes = tuple(each.get(language, 0.0) for language in recipe.languages)
    return dataclasses.replace(recipe, passes=passes), warnings


def least_documents(options: PreprocessOptions) -> int:
    """Return how many documents a split needs: a random B comes from another one."""
    return 2 if options.objective == 'nsp' or options.sop_noise else 1


def require_documents(options: PreprocessOptions, train: int, held_out: int) -> None:
    """Raise UserError where this many documents make no records."""
    # From the whole text to its splits, so that the message names the cause that comes first.
    needed = least_documents(options)
    if not train + held_out:
        raise UserError(
            f'{options.inputs}: no text in it: every line is blank or of characters that the'
            ' tokenizer drops'
        )
    if train + held_out < needed:
        name, without = 'next sentence prediction', ''
        if options.sop_noise:
            name, without = '--sop_noise', ' without it'
        raise UserError(
            f'{options.inputs}: one document only: {name} is impossible, for a random B comes from'
            f' another document; use --objective=full_sentences or --objective=sop{without}, or'
            ' give documents separated by blank lines'
        )

    # Enough text, and the held-out side took too much of it.
    flag, more, mend = (
        '--eval_fraction',
        'lower',
        'raise it, give --eval_input, or turn it off with 0',
    )
    if options.eval_input:
        flag, mend = '--eval_input', 'give documents separated by blank lines'
        more = 'other documents must stand in --input than in'
    needs = f'and --objective={options.objective} needs {needed}'
    if train < needed:
        raise UserError(
            f'{plural(train, "document")} of {train + held_out} left to train on, {needs}:'
            f' {more} {flag}'
        )

    # Too little held out matters only where the user asked for it: a default share falls back to
    # none.
    asked = options.eval_input or options.eval_fraction
    if asked and held_out < needed:
        other = ', or use --objective=full_sentences or sop' if needed > 1 else ''
        raise UserError(
            f'{flag}={asked}: {plural(held_out, "document")} held out of {train + held_out},'
            f' {needs}: {mend}{other}'
        )


# ---- how the work is cut


def plan_buckets(tokens: int, documents: int) -> int:
    """Return how many buckets: a matter of the text alone.

    At most `BUCKET_TOKENS` tokens each on average, smaller ones for a small corpus, and at
    least 64 documents, so that a random B has many to come from; where that would be too many
    tokens, for documents are as long as books, at least 24.
    """
    if documents < MIN_BUCKET_DOCUMENTS:
        return 1
    # Tokens a bucket shall have: about 64 buckets, within the bounds.
    size = min(BUCKET_TOKENS, max(MIN_BUCKET_TOKENS, tokens // 64))

    # Documents it has to have, as far as they fit into the largest bucket.
    fit = BUCKET_TOKENS * documents // tokens
    together = max(_MIN_LONG_DOCUMENTS, min(MIN_BUCKET_DOCUMENTS, fit))
    return max(1, min(math.ceil(tokens / size), documents // together))


def plan_shards(records: int, size: int, asked: int | None) -> tuple[int, int]:
    """Return the number of shards, and in how many pieces a shard is sorted.

    `records` take `size` bytes in all. `asked`: the number that the user wants, None for about
    64 MB each. Raises UserError where
    there are fewer records than that.
    """
    if asked is not None and asked > records:
        raise UserError(
            f'--num_shards={asked}: there are {records} examples only: use at most that'
            ' many, or leave it out'
        )
    # By size, yet no shard of a handful of records. A piece is twice a shard's size at most.
    by_size = max(1, min(math.ceil(size / SHARD_BYTES), records // _MIN_SHARD_RECORDS))
    count = by_size if asked is None else asked
    return count, math.ceil(size / count / (2 * SHARD_BYTES))
