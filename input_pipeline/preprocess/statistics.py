"""The statistics of the offline job: for the manifest, for the terminal, and for warnings.

This file owns those figures and words. It must not know how the text was read or the records made:
it is given the sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
from bert_jax.input_pipeline.preprocess.sorted_runs import Tokenised
from bert_jax.input_pipeline.progress import split_in_words
from bert_jax.input_pipeline.records.shards import Manifest

# Shares from which a warning is due.
_MANY_UNKNOWN, _MANY_LONE_SENTENCES, _MANY_DUPLICATES = 0.05, 0.6, 0.3
_MANY_RANDOM = 0.6  # of sentences in rows of several it is 0.5 to 0.55
_COUNTED = (
    'documents',
    'sentences',
    'tokens',
    'one_sentence_documents',
    'empty_documents',
    'copies_of_held_out_dropped',
    'duplicates_dropped',
)


def doubts(
    options: PreprocessOptions, text: Mapping[str, Tokenised], uncut: Mapping[str, int]
) -> Iterator[str]:
    """Yield warnings about text that makes records, but perhaps not those that are wanted.

    `text`: what each split was tokenised to; `uncut`: how many of its documents came in sentences.
    """
    # Pairs need sentences: lines that are paragraphs spoil them, or that are documents.
    in_pairs = options.objective != 'full_sentences'
    for split, words in (('train', ''), ('eval', 'held-out ')):
        sums = text[split].sums
        cure = (
            ', which need --segment?'
            if uncut[split]
            else f' in which --language={options.text.language} finds no ends of sentences? Put a'
            ' line end where a thought ends, or use --objective=full_sentences'
        )
        if in_pairs and sums['tokens'] > options.seq_len * sums['sentences']:
            yield (
                f'the {words}sentences have {sums["tokens"] // sums["sentences"]} tokens on'
                f' average, and what is beyond --seq_len={options.seq_len} is cut off: are'
                f' these paragraphs{cure}'
            )

        if sums['unknown_tokens'] > _MANY_UNKNOWN * sums['tokens']:
            yield (
                f'{sums["unknown_tokens"] / sums["tokens"]:.0%} of the {words}tokens are'
                ' unknown to the tokenizer: was it made for this text?'
            )

        # Without a next sentence, a document's B can only be a random one.
        lone = sums['one_sentence_documents']
        if in_pairs and lone > _MANY_LONE_SENTENCES * sums['documents']:
            yield (
                f'{lone / sums["documents"]:.0%} of the'
                f' {words}documents have one sentence, so most pairs are random: is there a'
                f' blank line after every sentence, or are these paragraphs{cure}'
            )


def of_split(text: Tokenised, records: Mapping[str, Any], seq_len: int) -> dict[str, Any]:
    """Return what the manifest says of the text of one split, and of how well it fills the records.

    `records`: the sums of `fields.count` over the split.
    """
    sums = text.sums
    # Of the sentences that are watched: a sample, where the text is large.
    duplicates = 1 - np.unique(text.lines).size / text.lines.size if text.lines.size else 0.0
    return {
        **{name: int(sums[name]) for name in _COUNTED},
        'unknown_rate': sums['unknown_tokens'] / max(1, sums['tokens']),
        'duplicate_line_rate': duplicates,
        'random_next_share': records['random_next'] / records['examples'],
        'fill': records['tokens'] / records['records'] / seq_len,
        'languages': {
            name: _of_language(of) for name, of in sorted(text.languages.items()) if name
        },
    }


def _of_language(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the manifest says of a language: its text, and what the examples have of it."""
    # Words are no entry: of copies that were dropped they are not known.
    first, last = ('documents', 'tokens', 'unknown_tokens'), ('examples', 'example_tokens')
    return {
        **{name: sums[name] for name in first},
        'unknown_rate': sums['unknown_tokens'] / max(1, sums['tokens']),
        **{name: sums[name] for name in ('pieces_a_word', 'passes') if name in sums},
        **{name: sums[name] for name in last},
    }


def doubts_of_records(
    options: PreprocessOptions, split: str, statistics: Mapping[str, Any], uncut: int
) -> Iterator[str]:
    """Yield warnings about records that are made, and teach little.

    `statistics` as `of_split` gives them; `uncut`: how many documents came in sentences.
    """
    duplicates = statistics['duplicate_line_rate']
    if duplicates > _MANY_DUPLICATES:
        yield (
            f'{duplicates:.0%} of the sentences of {split} are repetitions of others: a'
            ' model learns little from them; --dedup=lines leaves one of each, and'
            ' --dedup=documents one of each document'
        )

    # Where a row has no room for two sentences, B is random: the label is then no question. What
    # `doubts` has told already is not told again.
    share, text = statistics['random_next_share'], statistics
    lone = text['one_sentence_documents'] > _MANY_LONE_SENTENCES * text['documents']
    told = lone or text['tokens'] > options.seq_len * text['sentences']
    if split == 'train' and options.objective == 'nsp' and share > _MANY_RANDOM and not told:
        cure = 'give longer documents, or a larger --seq_len'
        if uncut:
            cure = f'where lines are paragraphs add --segment, which cuts them; else {cure}'
        yield (
            f'{share:.0%} of the pairs have a random second text, where half would be fair, and'
            f' who always answers "random" is right as often: {cure}'
        )


def report(manifest: Manifest, split: str) -> None:
    """Print two lines about a split of a finished job, and one for each language.

    None where there is no such split.
    """
    if split not in manifest.statistics['text']:
        return

    words = split_in_words(split)
    # The text: how much of it, in how many records.
    text, sums = manifest.statistics['text'][split], manifest.statistics['records'][split]
    files = len(manifest.shards(split))
    print(
        f'{words}: {plural(text["documents"], "document")},'
        f' {plural(text["sentences"], "sentence")}, {text["tokens"]:,} tokens'
        f' ({text["unknown_rate"]:.2%} unknown, {text["duplicate_line_rate"]:.1%} duplicate lines)'
        f' -> {plural(sums["records"], "record")} in {plural(files, "file")}'
    )
    in_examples = sum(of['example_tokens'] for of in text['languages'].values())
    for language, of in text['languages'].items():
        weighed = f', {of["passes"]:.2f} passes' if 'passes' in of else ''
        print(
            f'{words}: {language}: {plural(of["documents"], "document")},'
            f' {of["tokens"] / text["tokens"]:.1%} of the tokens ({of["unknown_rate"]:.2%} unknown,'
            f' {of["pieces_a_word"]:.3f} pieces a word){weighed} -> {of["example_tokens"]:,} tokens'
            f' in {plural(of["examples"], "example")}, {of["example_tokens"] / in_examples:.1%}'
        )
    if text['duplicates_dropped']:
        print(
            f'{words}: {text["duplicates_dropped"]:,} copies of {manifest.options["dedup"]} dropped'
        )

    # The rows: how full, how many predictions, and the balance of the labels of pairs.
    line = f'{words}: rows {text["fill"]:.1%} full'
    if 'pack_histogram' in sums:
        each = sums['examples'] / sums['records']
        line += f' with {sums["examples"]:,} examples, {each:.2f} each'
    if 'masked' in sums:
        line += f', {sums["masked"] / sums["records"]:.1f} predictions each'
    noise = ' or random' if 'sop_noise' in manifest.options else ''
    label = {'nsp': 'random next', 'sop': f'swapped{noise}'}.get(manifest.objective)
    if label:
        line += f', {label} {text["random_next_share"]:.1%} (label 1)'
    print(line)


def plural(count: int, noun: str) -> str:
    """Return '1 document', '2,000 documents'."""
    return f'{count:,} {noun}' if count == 1 else f'{count:,} {noun}s'
