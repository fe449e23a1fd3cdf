"""A trained model written in another program's format, its tokenizer with it.

Owns which formats there are and what is written of a model, whole or not at all. The formats
themselves are bert_jax/conversion's, a folder that serves is serving_folder.py's.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import new_folder
from bert_jax.configs.model.embedding_kinds import OF_WORDS
from bert_jax.configs.model.model_config import HiddenAct
from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.conversion import (
    google,
    huggingface,
    peft,
    peft_settings,
    sentence_transformers,
    serving,
)
from bert_jax.conversion.trained_model import Model, Reading, add_unused_rows, store_words
from bert_jax.inference import model_card, serving_folder
from bert_jax.inference.model_card import Notes
from bert_jax.inference.predictor import read_training_options
from bert_jax.inference.serving_folder import DEFAULT, Form, ProgramSettings
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.runs.sources import source as sources
from bert_jax.runs.sources.source import Source
from bert_jax.train.task_heads import CLASSES, HEADS

Format = Literal['huggingface', 'sentence_transformers', 'google', 'peft', 'onnx', 'stablehlo']


class Exported(NamedTuple):
    """What was written.

    Attributes:
      architecture: transformers' class of the model.
      left_out: the parts of the model that the format has no place for.
      model: the fingerprint of the source.
    """

    architecture: str
    left_out: tuple[str, ...]
    model: str


class ExportOptions(NamedTuple):
    """How a model is written.

    Attributes:
      architecture: transformers' class to write; None: by the heads of the model.
      base: of an adapter, the encoder that was tuned; None: the one that the run began with.
      hidden_act: this activation in place of the model's own.
      print_map: whether all names that are read and written are printed.
      program: how a program is written: opset, int8 weights, arithmetic.
      languages: of a model card, by their ISO codes.
      license: of a model card, as the Hub calls it.
    """

    architecture: str | None = None
    base: str | None = None
    hidden_act: HiddenAct | None = None
    print_map: bool = False
    program: ProgramSettings = DEFAULT
    languages: Sequence[str] = ()
    license: str | None = None


class Extras(NamedTuple):
    """What is written besides a model and its tokenizer.

    Attributes:
      base: of 'peft' alone, the encoder that the adapter is for.
      saved: modules that the model holds whole, as the adapter that was read calls them.
      named: what a refusal names; None: the folder.
      notes: what a model card says of the training.
      program: how a program is written.
    """

    base: Source | None = None
    saved: Sequence[str] = ()
    named: str | None = None
    notes: Notes | None = None
    program: ProgramSettings = DEFAULT


AS_IT_IS, NO_EXTRAS = ExportOptions(), Extras()


def export(
    init_from: str, format: Format, output: str, options: ExportOptions = AS_IT_IS
) -> Exported:
    """Write a trained model in another format.

    Args:
      init_from: the model, any source that `read_source` takes.
      format: what to write.
      output: the folder, new or empty.
      options: how it is written.

    Raises:
      UserError: the format has no place for such a model, or its weights are damaged.
    """
    model_card.check_origin(options.languages, options.license)
    # As it is, without parts made up: an export must not hold weights that nobody trained. Other
    # programs know BERT's own weights; ours has adapters in it; peft's are apart from the encoder.
    source = sources.read_source(init_from, options.print_map)
    fingerprint = source.fingerprint()
    if source.model.embedding == OF_WORDS:
        raise UserError(
            f'{source.where} reads whole words by their characters (model.embedding={OF_WORDS}),'
            ' and no other program has its tokenizer: it answers by bert-predict and'
            ' bert_jax.inference'
        )
    of_ours = format in ('onnx', 'stablehlo')
    if format != 'peft':
        source = sources.fold(source) if of_ours else sources.make_plain(source)
    model = source.bert
    if options.architecture:
        model = model._replace(architecture=options.architecture)
    if format == 'sentence_transformers' and not sentence_transformers.is_cross_encoder(model):
        model = _make_sentence_encoder(model)
    if not of_ours:
        model = store_words(model, source.where)
    if options.hidden_act:  # some readers know only one form of gelu; the weights stay
        config = dataclasses.replace(model.config, hidden_act=options.hidden_act)
        model = model._replace(config=config)
    base, program = None, options.program
    if format == 'peft':
        base = _read_base(model, init_from, options.base)
    if of_ours:
        length, trained_with = read_training_options(init_from)
        program = program._replace(max_length=length, texts=trained_with.get('texts'))
    notes = model_card.read_notes(init_from, output, options.languages, options.license)
    extras = Extras(base, sources.list_saved(init_from), init_from, notes, program)
    reading, left_out = write(model, source.tokenizer, format, output, extras)
    if options.print_map:
        sources.print_names(reading)
    if left_out:
        logging.info('%s has no place for: %s', model.architecture, ', '.join(left_out))
    return Exported(model.architecture, left_out, fingerprint)


def _make_sentence_encoder(model: Model) -> Model:
    """Return a model as its vectors say: without a head and by the mean, where nothing does."""
    if model.sentence is None:
        logging.info('%s is no sentence encoder: vectors are means', model.architecture)
    sentence = model.sentence or SentenceConfig()
    (head,) = (head for head in HEADS.values() if head.vectors is type(sentence))
    return model._replace(architecture=head.class_in(model.config.family), sentence=sentence)


def _read_base(model: Model, init_from: str, base: str | None) -> Source:
    """Read the encoder of an adapter. UserError where peft lacks the method, or cannot find it."""
    peft_settings.check_method(model.config.tuning)
    name = base or sources.find_base(init_from)
    if not sources.is_hugging_face(name):
        raise UserError(
            f'{init_from} was tuned on {name}, which peft cannot read: write it with bert-export'
            ' --format=huggingface --output=DIR, then add --base=DIR'
        )
    return sources.read_source(name)


def write(
    model: Model,
    tokenizer: Tokenizer,
    format: Format,
    output: str,
    extras: Extras = NO_EXTRAS,
) -> tuple[Reading, tuple[str, ...]]:
    """Write a folder of a format, whole or not at all.

    Args:
      model: what is written.
      tokenizer: the model's.
      format: what to write.
      output: the folder, new or empty.
      extras: what is written besides.

    Returns:
      What is read there again (so it fits, and holds no NaN), and the parts of the model that the
      format has no place for.
    """
    # Other programs give a tagger's words to its tokenizer as they are, or the text as a whole.
    # The class may be of another family, which is refused below.
    if model.architecture in CLASSES and CLASSES[model.architecture].of_words:
        tokenizer = tokenizer.for_words
    with new_folder(epath.Path(output)) as folder:
        try:
            if format in ('huggingface', 'sentence_transformers'):
                reading, left_out = _write_huggingface(model, tokenizer, format, folder)
                # They go with the whole model, and not with its encoder alone.
                if format == 'huggingface' and not left_out:
                    for name, other in model.beside.items():
                        _write_huggingface(other, tokenizer, format, folder / name)
                notes = extras.notes or Notes(epath.Path(output).name)
                model_card.write(folder, reading.model, notes)
                return reading, left_out
            if format == 'google':
                return _write_google(model, tokenizer, folder)
            if format == 'peft':
                base = extras.base
                assert base is not None
                tokenizer.save(folder)
                left_out = peft.write(folder, model, base.bert, base.where, extras.saved)
                return peft.read(folder, base.bert), left_out
            form: Form = 'onnx' if format == 'onnx' else 'stablehlo'
            left_out = serving_folder.write(folder, model, tokenizer, form, extras.program)
            # Nothing reads a program back as weights; its name map is the identity.
            names = {name: name for name in serving.select_weights(model)}
            return Reading(model, names, (), ()), left_out
        except UserError as error:
            # The folder has a hidden name as yet, and is gone when the message is read.
            hidden = rf'{re.escape(str(folder))}(/[\w.-]+)*'
            raise UserError(re.sub(hidden, lambda _: extras.named or output, str(error))) from error


def _write_huggingface(
    model: Model, tokenizer: Tokenizer, format: Format, folder: epath.Path
) -> tuple[Reading, tuple[str, ...]]:
    # The tokenizer first, then the weights under the names of transformers' class.
    serving_folder.write_tokenizer(folder, model, tokenizer)
    if tokenizer.unused:
        model = add_unused_rows(model, tokenizer.vocab_size, tokenizer.unused)
    left_out = huggingface.write(folder, model, serving_folder.list_token_ids(tokenizer))

    # Read back: names, shapes and finite numbers are proved on the files themselves.
    reading = huggingface.read(folder)
    if format == 'sentence_transformers':
        sentence_transformers.write(folder, model)
        left_out = tuple(part for part in left_out if part not in model.row.parts)
        reading = sentence_transformers.add_modules(folder, reading)
    return reading, left_out


def _write_google(
    model: Model, tokenizer: Tokenizer, folder: epath.Path
) -> tuple[Reading, tuple[str, ...]]:
    # Its vocabulary is one file, a word piece a line; other tokenizers cannot be put in it.
    if tokenizer.kind != 'wordpiece':
        raise UserError(
            f'--format=google: the tokenizer is {tokenizer.kind}, and google-research/bert reads a'
            ' vocab.txt alone'
        )
    tokenizer.save(folder)  # tokenizer_config.json too, which keeps the casing for whoever reads it
    left_out = google.write(folder, model)
    return google.read(str(google.find_prefix(folder))), left_out
