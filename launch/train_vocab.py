"""Trains a vocabulary on text and writes a tokenizer directory.

  bert-train-vocab --input=GLOB --output=DIR --vocab_size=30522 [--model=unigram]
  bert-train-vocab --input=GLOB --output=DIR --vocab_size=50265 --model=byte_bpe
  bert-train-vocab --input=GLOB --output=DIR --vocab_size=50368 --model=byte_bpe --layout=modernbert
  bert-train-vocab --extend=DIR --input=GLOB --output=DIR --new_words=1000
  bert-train-vocab --extend=DIR --words=FILE --output=DIR
  bert-train-vocab --extend=DIR --markers='[E1],[/E1]' --output=DIR
  bert-train-vocab --input=de=GLOB --input=ko=GLOB --output=DIR --nolower_case

The first --extend adds the words that save most pieces, the second those in a list, one a line,
the third tokens that mark places in a text. --extend gives new words entries of their own in the
vocabulary of a model that is there: in its [unused] slots first, then at its end. bert-pretrain
--init_from goes on from that model with records made so. The last line counts text of several
languages in the mixture that bert-preprocess makes records of (docs/languages.md).

Prints how many entries were made, the share of characters they cover, the share of unknown pieces
and the pieces a word takes. Hugging Face reads the directory as it is. English is lower-cased
without accents, as BERT's first vocabulary; any other language keeps both, unless --lower_case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option, required
from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is read and written, and what is added where a vocabulary is there already."""

    input: tuple[str, ...] | None = option(
        None,
        'text files: a file, a folder, a glob in quotes, or several with commas between; '
        'or tfds:NAME/SPLIT, or hf:NAME:SPLIT; or these as LANGUAGE=PATTERN. Give the flag as often'
        ' as there are inputs',
    )
    language_exponent: float | None = option(
        None,
        'with --input=LANGUAGE=PATTERN: the share of each language, in bytes, is raised to this'
        ' power, as by bert-preprocess; by default 0.7',
        within='[0, 1]',
    )
    language_repeats: tuple[str, ...] = option(
        (),
        "in place of it: how often a language's text is counted, as in ko=4,en=0.5; 1 where it is"
        ' not named',
        commas=True,
    )
    language: str | None = option(
        None,
        'ISO 639 code of the text, as en or vi: only English is lower-cased unless you say so; by'
        ' default the names of --input=LANGUAGE=PATTERN, or found by the words, and printed',
    )
    output: str = required('tokenizer directory to make')
    extend: str | None = option(None, 'tokenizer directory of a model, WordPiece, to add words to')
    new_words: int = option(1000, '--extend: how many words of --input to add', bounds=(1, None))
    words: str | None = option(
        None, '--extend: a file of words to add, one a line, in place of --input'
    )
    markers: tuple[str, ...] = option(
        (),
        '--extend: tokens that mark places in a text, as [E1],[/E1]: each is an entry, and found in'
        ' text as it stands; beside new words, or alone',
        commas=True,
    )


# In this order the help is read: what for, how large, in place of what, and then the details.
_FIRST = ('input', 'language', 'language_exponent', 'language_repeats', 'output')
flags.define(Options, only=_FIRST)
flags.define(VocabularyOptions, only=('vocab_size',))
flags.define(Options, without=_FIRST)
flags.define(VocabularyOptions, without=('vocab_size',))
flags.define(TextOptions, without=('segment', 'language'))


def main(argv: Sequence[str]) -> None:
    """Train a vocabulary, or extend one."""
    del argv
    options, vocabulary = flags.read(Options), flags.read(VocabularyOptions)
    # words do not depend on where sentences end; a wrong code is refused there
    code = options.language or TextOptions.language
    text = flags.read(TextOptions, segment=False, language=code)
    from etils import epath

    # Everything that can be refused, before hours of reading.
    output = epath.Path(options.output)
    check_flags(options, vocabulary.model)
    from bert_jax.runs.preparation.vocabulary import Text, extend, inputs_of, train
    from bert_jax.runs.workdir.resumable import note_inputs, was_made

    source = Text(options.input or (), options.language_exponent, options.language_repeats, text)
    of_flags = {**dataclasses.asdict(vocabulary), **dataclasses.asdict(options)}
    made_from = lambda: inputs_of(of_flags, source)
    if was_made(options.output, made_from):
        return
    # better now than after the training
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(
            f'--output={output}: exists and is not an empty folder: remove it, or name another'
        )
    app.check_output('output', options.output)
    inputs = made_from()  # before they are read: one that changes meanwhile is not what was read

    # Two jobs by one command: from nothing, or on from a vocabulary that models know.
    if options.extend:
        lines = extend(
            options.extend,
            source,
            options.words,
            options.new_words,
            vocabulary.min_frequency,
            options.markers,
            output,
        )
    else:
        lines = train(vocabulary, source, output, options.language)
    note_inputs(options.output, inputs)
    print('\n'.join(lines))


def check_flags(options: Options, model: str) -> None:
    """Raise UserError for flags that contradict each other; `model`: the kind to train."""
    from bert_jax.configs.options import check_intervals
    from bert_jax.input_pipeline.preprocess.languages import check_mixture, split_inputs
    from bert_jax.input_pipeline.text.listing import refuse_inside

    check_intervals(options)
    languages = split_inputs('input', options.input or ())
    for patterns in languages.values():
        refuse_inside('output', options.output, patterns, ('vocab.txt', 'tokenizer_config.json'))
    check_mixture(options.language_exponent, options.language_repeats, languages or {'': ()})

    of_characters = 'lower_case', 'strip_accents', 'character_coverage'
    # Each way by what it cannot take: a flag that has no effect would mislead.
    if not options.extend:
        if odd := flags.present('new_words', 'words', 'markers'):
            raise UserError(f'{odd[0]} needs --extend=DIR, the tokenizer to add words to')
        for kind, its in (
            ('byte_bpe', 'add_prefix_space'),
            ('byte_bpe', 'layout'),
            ('words', 'known_words'),
        ):
            if model != kind and (odd := flags.present(its)):
                raise UserError(f'{odd[0]} is for --model={kind}: leave it out')
        if model == 'byte_bpe' and (odd := flags.present(*of_characters)):
            raise UserError(
                f'{odd[0]} does not go with --model=byte_bpe, which spells every text as it stands'
            )
    elif odd := flags.present(
        'vocab_size',
        'model',
        'language',
        *of_characters,
        'add_prefix_space',
        'layout',
        'known_words',
    ):
        raise UserError(
            f'{odd[0]} does not go with --extend: kind and casing are those of the tokenizer there'
        )
    elif options.words and (odd := flags.present('input', 'new_words')):
        raise UserError(f'{odd[0]} does not go with --words: the words are those of the file')
    if not options.input and not options.words and not options.markers:
        raise UserError('--input is required: the text')


if __name__ == '__main__':
    app.run(main)
