"""Writes a trained model in another program's format, tokenizer beside it; converts any format that
is read to any that is written.

a run of bert-pretrain or bert-finetune:
  bert-export --workdir=DIR --format=huggingface --output=DIR
a Google checkpoint:
  bert-export --init_from=DIR/bert_model.ckpt --output=DIR
a Hugging Face BERT directory, of any age:
  bert-export --init_from=DIR --format=google --output=DIR

huggingface: loads in transformers under the class that its config.json names: BertForPreTraining
after pre-training, and after fine-tuning BertForSequenceClassification, BertForQuestionAnswering,
BertForTokenClassification or BertForMultipleChoice.
google: bert_config.json, vocab.txt and bert_model.ckpt, as google-research/bert reads them; of an
ALBERT albert_config.json, vocab.txt and model.ckpt-best.
peft: what tuning has added to an encoder, and the head, as Hugging Face's peft loads them onto it.
stablehlo, saved_model: a folder that serves the model without this project, with jax or TensorFlow
(docs/serving.md).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from absl import logging

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError, require_extra
from bert_jax.configs.model.embeddings import OF_WORDS
from bert_jax.configs.options import option, required
from bert_jax.inference.options import TrainedModel

if TYPE_CHECKING:
    from etils import epath

    from bert_jax.conversion.parameters import Model, Reading
    from bert_jax.input_pipeline.tokenizer import Tokenizer
    from bert_jax.runs.sources.source import Source

Format = Literal['huggingface', 'google', 'peft', 'stablehlo', 'saved_model']


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is written of a model."""

    model: TrainedModel
    format: Format = option('huggingface', 'what to write')
    output: str = required('folder to write; it must be new or empty')
    architecture: str | None = option(
        None,
        "transformers' class to write, as BertModel for the encoder alone; default: by its heads",
    )
    base: str | None = option(
        None,
        'of --format=peft: the encoder that was tuned, as the adapter shall name it, a Hugging Face'
        ' BERT directory or name; default: the one that the run began with',
    )
    hidden_act: Literal['gelu_tanh', 'gelu_erf', 'relu'] | None = option(
        None, "write this activation in place of the model's own, which changes its outputs"
    )
    print_map: bool = option(
        False,
        'print every name that is read, and every name that is written, with the array here',
    )


flags.define(Options)


def main(argv: Sequence[str]) -> None:
    """Writes the folder, reads it back, and says what is in it."""
    del argv
    options = flags.read(Options)
    app.check_output('output', options.output)
    if options.format == 'saved_model':
        require_extra('--format=saved_model', 'tensorflow', 'tensorflow')

    if options.base and options.format != 'peft':
        raise UserError('--base is of --format=peft: leave it out')

    from bert_jax.conversion.parameters import with_stored_words
    from bert_jax.inference.predictor import trained_with
    from bert_jax.runs.sources.source import fold, plain, print_names, read_source, saved_in

    # As it is, without parts made up: an export must not hold weights that nobody trained. Other
    # programs know BERT's own weights; ours has adapters in it; peft's are apart from the encoder.
    source = read_source(options.model.where, options.print_map)
    if source.model.embedding == OF_WORDS:
        raise UserError(
            f'{source.where} reads whole words by their characters (model.embedding={OF_WORDS}),'
            ' and no other program has its tokenizer: it answers by bert-predict and'
            ' bert_jax.inference'
        )
    of_ours = options.format in ('stablehlo', 'saved_model')
    if options.format != 'peft':
        source = fold(source) if of_ours else plain(source)
    model = source.bert._replace(architecture=options.architecture or source.bert.architecture)
    if not of_ours:
        model = with_stored_words(model, source.where)
    # Some readers know only one form of gelu; the weights stay.
    if options.hidden_act:
        model = model._replace(
            config=dataclasses.replace(model.config, hidden_act=options.hidden_act)
        )

    # Also the map, as the files say it: what has just been written is what is named.
    base = _base(options, model) if options.format == 'peft' else None
    length, made = trained_with(options.model.where) if of_ours else (None, {})
    reading, left_out = export(
        model,
        source.tokenizer,
        options.format,
        options.output,
        base,
        saved_in(options.model.where),
        max_length=length,
        texts=made.get('texts'),
        where=options.model.where,
    )
    if options.print_map:
        print_names(reading)
    if left_out:
        logging.info('%s has no place for: %s', model.architecture, ', '.join(left_out))
    print(f'{options.output}: {model.architecture}')


def _base(options: Options, model: Model) -> Source:
    """The encoder of an adapter. UserError where peft has no such method, or would not find it."""
    from bert_jax.conversion import peft_settings
    from bert_jax.runs.sources import source

    peft_settings.check_method(model.config.tuning)
    where = options.model.where
    name = options.base or source.base_of(where)
    if not source.is_hugging_face(name):
        raise UserError(
            f'{where} was tuned on {name}, which peft cannot read: write it with bert-export'
            ' --format=huggingface --output=DIR, then add --base=DIR'
        )
    return source.read_source(name)


def export(
    model: Model,
    tokenizer: Tokenizer,
    form: Format,
    output: str,
    base: Source | None = None,
    saved: Sequence[str] = (),
    max_length: int | None = None,
    texts: int | None = None,
    where: str | None = None,
) -> tuple[Reading, tuple[str, ...]]:
    """Writes a directory of the format `form`, whole or not at all.

    base: the encoder that an adapter is for, of the format 'peft' alone; saved: modules of it that
    the model holds whole, as the adapter that was read calls them. max_length, texts: of a folder
    that serves, as in `serving_folder.write`. where: what a refusal names; default: `output`.
    -> what is read there again (so it fits, and holds no NaN), and the parts of the model that
    found no place in it.
    """
    from bert_jax.runs.workdir.folder import new_folder

    with new_folder(output) as folder:
        try:
            if form == 'huggingface':
                return _huggingface(model, tokenizer, folder)
            if form == 'google':
                return _google(model, tokenizer, folder)
            if form == 'peft':
                assert base is not None
                return _peft(model, tokenizer, folder, base, saved)
            return _serving(model, tokenizer, folder, form, max_length, texts)
        except UserError as error:
            # The folder has a hidden name as yet, and is gone when the message is read.
            hidden = rf'{re.escape(str(folder))}(/[\w.-]+)*'
            raise UserError(re.sub(hidden, lambda _: where or output, str(error))) from error


def _huggingface(
    model: Model, tokenizer: Tokenizer, folder: epath.Path
) -> tuple[Reading, tuple[str, ...]]:
    from bert_jax.conversion import huggingface

    # The tokenizer first, then the weights under the names of transformers' class.
    tokenizer.save(folder)
    settings = folder / 'tokenizer_config.json'
    stated = json.loads(settings.read_text())
    # transformers cuts longer texts there ...
    stated |= {'model_max_length': model.config.max_position}
    # ... and gives the second text of a pair its segment where a tokenizer asks for that, as by
    # itself the class of BERT does alone.
    if tokenizer.layout.second_segment and stated['tokenizer_class'] != 'BertTokenizer':
        stated |= {'model_input_names': ['input_ids', 'token_type_ids', 'attention_mask']}
    settings.write_text(json.dumps(stated, indent=2) + '\n')
    ids = {'pad': tokenizer.pad_id, 'bos': tokenizer.cls_id, 'eos': tokenizer.sep_id}
    left_out = huggingface.write(folder, model, {f'{name}_token_id': ids[name] for name in ids})

    # Read back: names, shapes and finite numbers are proved on the files themselves.
    return huggingface.read(folder), left_out


def _google(
    model: Model, tokenizer: Tokenizer, folder: epath.Path
) -> tuple[Reading, tuple[str, ...]]:
    from bert_jax.conversion import google

    # Its vocabulary is one file, a word piece a line; other tokenizers cannot be put in it.
    if tokenizer.kind != 'wordpiece':
        what = {
            'sentencepiece': 'SentencePiece',
            'byte_bpe': 'byte-level BPE',
            'compiled': "a tokenizer.json of other rules than BERT's",
        }
        raise UserError(
            f'--format=google: the tokenizer is {what[tokenizer.kind]}, and google-research/bert'
            ' reads a vocab.txt alone'
        )
    tokenizer.save(folder)  # tokenizer_config.json too, which keeps the casing for whoever reads it
    left_out = google.write(folder, model)
    return google.read(str(google.prefix_of(folder))), left_out


def _peft(
    model: Model, tokenizer: Tokenizer, folder: epath.Path, base: Source, saved: Sequence[str]
) -> tuple[Reading, tuple[str, ...]]:
    from bert_jax.conversion import peft

    tokenizer.save(folder)
    left_out = peft.write(folder, model, base.bert, base.where, saved)
    return peft.read(folder, base.bert), left_out


def _serving(
    model: Model,
    tokenizer: Tokenizer,
    folder: epath.Path,
    form: Literal['stablehlo', 'saved_model'],
    max_length: int | None,
    texts: int | None,
) -> tuple[Reading, tuple[str, ...]]:
    from bert_jax.conversion import serving
    from bert_jax.conversion.parameters import Reading
    from bert_jax.inference import serving_folder

    # Nothing reads a program back as weights; its name map is the identity.
    left_out = serving_folder.write(folder, model, tokenizer, form, max_length, texts)
    return Reading(model, {name: name for name in serving.used_weights(model)}, (), ()), left_out


if __name__ == '__main__':
    app.run(main)
