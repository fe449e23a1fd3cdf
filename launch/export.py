"""Writes a trained model in another program's format, tokenizer beside it.

  python -m launch.export --workdir=DIR --format=huggingface --output=DIR      a run of launch.pretrain or launch.finetune
  python -m launch.export --init_from=DIR --format=huggingface --output=DIR    a Hugging Face BERT directory, of any age

What comes out loads in transformers under the class that its config.json names: BertForPreTraining after
pre-training, and after fine-tuning BertForSequenceClassification, BertForQuestionAnswering,
BertForTokenClassification or BertForMultipleChoice.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags, logging

from configs.errors import UserError
from launch import app

if TYPE_CHECKING:
    from bert_jax.interchange.huggingface import Model
    from input_pipeline.tokenizer import Tokenizer

_WORKDIR = flags.DEFINE_string('workdir', None, 'folder of a run of launch.pretrain or launch.finetune; its newest checkpoint is taken')
_INIT_FROM = flags.DEFINE_string('init_from', None, 'in place of --workdir: a Hugging Face BERT directory')
_FORMAT = flags.DEFINE_enum('format', 'huggingface', ['huggingface'], 'huggingface: config.json, model.safetensors and tokenizer files')
_OUTPUT = flags.DEFINE_string('output', None, 'folder to write; it must be new or empty', required=True)
_ARCHITECTURE = flags.DEFINE_string('architecture', None, "transformers' class to write, as BertModel for the encoder alone; default: by its heads")
_NAMES = flags.DEFINE_bool('names', False, 'print every name there and the array here that it holds')
# transformers' class for each head that fine-tuning makes; a regressor is a classifier of one output there.
_CLASSES = {
    'classifier': 'BertForSequenceClassification',
    'regressor': 'BertForSequenceClassification',
    'span': 'BertForQuestionAnswering',
    'tokens': 'BertForTokenClassification',
    'choice': 'BertForMultipleChoice',
}


def main(argv: Sequence[str]) -> None:
    """Writes the folder, reads it back, and says what is in it."""
    del argv
    if (_WORKDIR.value is None) == (_INIT_FROM.value is None):
        raise UserError('name either --workdir or --init_from')

    from bert_jax.interchange import huggingface

    model, tokenizer = source_model(_WORKDIR.value or _INIT_FROM.value)
    if _ARCHITECTURE.value:
        model = model._replace(architecture=_ARCHITECTURE.value)
    left_out = export_huggingface(model, tokenizer, _OUTPUT.value)
    if _NAMES.value:
        for theirs, ours in sorted(huggingface.read(_OUTPUT.value).names.items()):
            print(f'{theirs}  {ours}')
    if left_out:
        logging.info('%s has no place for: %s', model.architecture, ', '.join(left_out))
    print(f'{_OUTPUT.value}: {model.architecture}')


def source_model(where: str) -> tuple[Model, Tokenizer]:
    """The model with all its heads, as transformers would name them, and the tokenizer, of a workdir or a Hugging Face directory."""
    from etils import epath

    from bert_jax.interchange import huggingface
    from configs import schema
    from input_pipeline.tokenizer import Tokenizer
    from launch.source import load_source

    if huggingface.is_directory(where):
        return huggingface.read(where).model, Tokenizer.load(where)
    source = load_source(where)
    config = schema.loads((epath.Path(where) / 'config.json').read_text(), f'{where}/config.json')
    if isinstance(config, schema.PretrainConfig):
        return huggingface.Model(source.model, source.params, 'BertForPreTraining'), source.tokenizer
    data = json.loads((epath.Path(where) / 'data.json').read_text())
    if data['head'] not in _CLASSES:
        raise UserError(f'{where}: its head, {data["head"]}, has no class in transformers: it cannot be exported')
    problem = 'regression' if data['head'] == 'regressor' else None
    architecture = _CLASSES[data['head']]
    return huggingface.Model(source.model, source.params, architecture, tuple(data['labels']), config.head_dropout, problem), source.tokenizer


def export_huggingface(model: Model, tokenizer: Tokenizer, output: str) -> tuple[str, ...]:
    """Writes a directory for transformers, whole or not at all; returns the parts of the model that found no place in it."""
    from etils import epath

    from bert_jax.interchange import huggingface

    target = epath.Path(output)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f'--output={output} is there and not empty: name another folder')
    partial = target.parent / f'.{target.name}.partial-{os.getpid()}'
    try:
        tokenizer.save(partial)
        settings = partial / 'tokenizer_config.json'
        longest = {'model_max_length': model.config.max_position}  # transformers cuts longer texts there
        settings.write_text(json.dumps(json.loads(settings.read_text()) | longest, indent=2) + '\n')
        left_out = huggingface.write(partial, model)
        huggingface.read(partial)  # it fits, and holds no NaN
        if target.is_dir():
            target.rmdir()
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return left_out


if __name__ == '__main__':
    app.run(main)
