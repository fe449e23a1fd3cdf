"""Turns text into sharded TFRecords for pre-training, with a manifest.

  python -m launch.preprocess --input='text/*.txt' --tokenizer=vocab --output=records --seq_len=128

Text is one sentence a line with blank lines between documents; with --segment, paragraphs;
also jsonl, WikiExtractor output (all plain or compressed), parquet and prepared tfds datasets.
The same command again goes on with an interrupted job, or finds it done. The same seed gives
the same bytes for any number of workers and on Apache Beam (docs/preprocessing.md):

  python -m launch.preprocess --engine=beam ... -- --runner=DataflowRunner --region=...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from launch import app

_INPUT = flags.DEFINE_multi_string(
    'input',
    None,
    'files to read: a path or a glob, or several with commas; or tfds:NAME/SPLIT; '
    'or these as LANGUAGE=PATTERN. Give the flag as often as there are inputs',
    required=True,
)
_LANGUAGE_EXPONENT = flags.DEFINE_float(
    'language_exponent',
    None,
    'with --input=LANGUAGE=PATTERN: the share of each language is raised to this power '
    '(1: as much as there is; 0: all alike); by default 0.7',
)
_TOKENIZER = flags.DEFINE_string(
    'tokenizer',
    None,
    'tokenizer directory (launch.train_vocab makes one)',
    required=True,
    allow_overwrite=False,
)
_OUTPUT = flags.DEFINE_string(
    'output', None, 'folder for the records; it appears whole or not at all', required=True
)
_SEQ_LEN = flags.DEFINE_integer('seq_len', 128, 'tokens a row, [CLS] and [SEP] included')
_MAX_PREDICTIONS = flags.DEFINE_integer(
    'max_predictions',
    None,
    'most masked tokens a row; by default seq_len * masked_lm_prob, rounded up: 20 at 128, 77'
    ' at 512',
)
_MASKED_LM_PROB = flags.DEFINE_float('masked_lm_prob', 0.15, 'share of tokens to predict')
_MASK_MIX = flags.DEFINE_list(
    'mask_mix',
    ['0.8', '0.1', '0.1'],
    'shares of predicted tokens that become [MASK], stay the same, become a random token',
)
_WHOLE_WORD = flags.DEFINE_bool('whole_word', False, 'mask all pieces of a word together')
_NGRAM = flags.DEFINE_integer(
    'ngram',
    1,
    'mask runs of up to so many whole words, n of them with a chance in proportion to 1/n'
    ' (ALBERT: 3)',
)
_MASKING = flags.DEFINE_enum(
    'masking',
    'static',
    ['static', 'dynamic'],
    'static: masked here; dynamic: records keep the text and each training step draws its masks',
)
_PACKING = flags.DEFINE_bool(
    'packing',
    False,
    'put several short examples into one row (not readable by google-research/bert); held-out rows'
    ' have one each',
)
_MAX_PACKS = flags.DEFINE_integer('max_packs', 8, 'most examples a row, with --packing')
_OBJECTIVE = flags.DEFINE_enum(
    'objective',
    'nsp',
    ['nsp', 'sop', 'full_sentences'],
    'nsp: is B the next text or a random one; sop: are A and B in order; full_sentences: no pair',
)
_DUPE_FACTOR = flags.DEFINE_integer(
    'dupe_factor',
    None,
    'passes over the text, each with other pairs and masks; by default 10, and 1 with'
    ' --masking=dynamic',
)
_SHORT_SEQ_PROB = flags.DEFINE_float(
    'short_seq_prob',
    0.1,
    'share of documents, in each pass, cut into rows of a random shorter length',
)
_EVAL_FRACTION = flags.DEFINE_float(
    'eval_fraction',
    None,
    'share of documents held out, by a hash of their text; by default 0.005, or nothing where that'
    ' is too few documents; 0: none',
)
_EVAL_INPUT = flags.DEFINE_multi_string(
    'eval_input',
    None,
    'files as for --input, whose documents are the held-out ones (then --eval_fraction is not'
    ' used); copies of them in --input are dropped',
)
_NUM_SHARDS = flags.DEFINE_integer(
    'num_shards', None, 'training files to write; by default one for each 64 MB'
)
_WORKERS = flags.DEFINE_integer(
    'workers', None, 'processes; by default one for each CPU. The output does not depend on it'
)
_DEDUP = flags.DEFINE_enum(
    'dedup',
    'none',
    ['none', 'documents', 'lines'],
    'leave one of all documents, or of all lines, that have the same tokens (in each split)',
)
_SEED = flags.DEFINE_integer('seed', 12345, 'seed of pairs, masks and order')
_ENGINE = flags.DEFINE_enum(
    'engine',
    'local',
    ['local', 'beam'],
    'local: processes on this machine; beam: an Apache Beam pipeline, with what follows -- as its'
    ' options',
)
_OVERWRITE = flags.DEFINE_bool('overwrite', False, 'replace what another job left in --output')
_SEGMENT = flags.DEFINE_bool(
    'segment',
    None,
    'lines are paragraphs: cut them into sentences; by default for all but text files',
)
_LANGUAGE = flags.DEFINE_string('language', 'en', 'language of the text, for --segment')
_TEXT_COLUMN = flags.DEFINE_string(
    'text_column', 'text', 'jsonl, parquet, tfds: the field that holds the document'
)
_ON_BAD_UTF8 = flags.DEFINE_enum(
    'on_bad_utf8',
    'replace',
    ['replace', 'error', 'skip'],
    'what to do with a line that is not UTF-8; each is counted and reported',
)
_STRICT = flags.DEFINE_bool('strict', False, 'the same as --on_bad_utf8=error')
_MAX_LINE_BYTES = flags.DEFINE_integer(
    'max_line_bytes', 1 << 20, 'longer lines are split at a space'
)


def main(argv: Sequence[str]) -> None:
    """Runs the job, or says that it is done; what follows `--` goes to Beam."""
    from configs.errors import UserError
    from input_pipeline.preprocess.job import preprocess
    from input_pipeline.preprocess.options import PreprocessOptions
    from input_pipeline.text.corpus import TextOptions

    pipeline_options = sys.argv[sys.argv.index('--') + 1 :] if '--' in sys.argv else []
    if argv[1:] != pipeline_options:
        raise UserError(
            f'unexpected argument {argv[1]!r}: a flag is written --name=value; only what follows --'
            ' goes to Beam (see --help)'
        )
    try:
        mix: Any = tuple(float(share) for share in _MASK_MIX.value)  # how many, the job checks
    except ValueError:
        raise UserError(
            f'--mask_mix={",".join(_MASK_MIX.value)}: must be three numbers, as in 0.8,0.1,0.1'
        ) from None
    preprocess(
        PreprocessOptions(
            input=_one_or_several(app.given(_INPUT)),
            tokenizer=_TOKENIZER.value,
            output=_OUTPUT.value,
            seq_len=_SEQ_LEN.value,
            max_predictions=_MAX_PREDICTIONS.value,
            masked_lm_prob=_MASKED_LM_PROB.value,
            mask_mix=mix,
            whole_word=_WHOLE_WORD.value,
            ngram=_NGRAM.value,
            masking=app.choice(_MASKING),
            packing=_PACKING.value,
            max_packs=_MAX_PACKS.value,
            objective=app.choice(_OBJECTIVE),
            dupe_factor=_DUPE_FACTOR.value,
            short_seq_prob=_SHORT_SEQ_PROB.value,
            eval_fraction=_EVAL_FRACTION.value,
            eval_input=_one_or_several(_EVAL_INPUT.value) if _EVAL_INPUT.value else None,
            language_exponent=_LANGUAGE_EXPONENT.value,
            num_shards=_NUM_SHARDS.value,
            workers=_WORKERS.value,
            dedup=app.choice(_DEDUP),
            seed=_SEED.value,
            engine=app.choice(_ENGINE),
            beam_arguments=tuple(pipeline_options),
            overwrite=_OVERWRITE.value,
            text=TextOptions(
                segment=_SEGMENT.value,
                language=_LANGUAGE.value,
                text_column=_TEXT_COLUMN.value,
                on_bad_utf8='error' if _STRICT.value else app.choice(_ON_BAD_UTF8),
                max_line_bytes=_MAX_LINE_BYTES.value,
            ),
        )
    )


def _one_or_several(values: list[str]) -> str | tuple[str, ...]:
    """A flag given once as its value."""
    return values[0] if len(values) == 1 else tuple(values)


if __name__ == '__main__':
    app.run(main, arguments='[-- PIPELINE OPTIONS]')
