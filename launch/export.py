"""Writes a trained model, or any model that is read, in another program's format.

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
sentence_transformers: opens in sentence-transformers 2.7 and later.
onnx, stablehlo: a folder that serves the model without this project, with onnxruntime or jax
(docs/export.md).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from bert_jax.cli import app
from bert_jax.cli.model_options import TrainedModel
from bert_jax.configs.errors import UserError, require_extra
from bert_jax.configs.options import option, required


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is written of a model."""

    model: TrainedModel
    format: Literal[
        'huggingface', 'sentence_transformers', 'google', 'peft', 'onnx', 'stablehlo'
    ] = option('huggingface', 'what to write')
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
    opset: int = option(17, 'of --format=onnx: the opset of ONNX that the file is written for')
    int8: bool = option(
        False,
        'of --format=onnx: also write onnx/model_quantized.onnx, with weights of int8 by'
        " onnxruntime's dynamic quantisation",
    )
    compute_dtype: Literal['float32', 'bfloat16'] = option(
        'float32',
        'of --format=stablehlo: arithmetic of dense layers, and their weights in the file; bfloat16'
        ' is faster where the processor has instructions for it',
    )
    language: tuple[str, ...] = option(
        (),
        "of a model card: the languages of the model's texts, ISO codes as en or pt-BR",
        commas=True,
    )
    license: str | None = option(
        None, "of a model card: the Hub's name of the licence, as apache-2.0 or cc-by-4.0"
    )
    print_map: bool = option(
        False,
        'print every name that is read, and every name that is written, with the array here',
    )


def main(options: Options) -> None:
    """Write the folder, read it back, and print what is in it."""
    app.check_output('output', options.output)
    if options.format == 'onnx':
        require_extra('--format=onnx', 'onnx', 'onnx')
    if options.int8:
        require_extra('--int8', 'onnx', 'onnxruntime')
    if options.format != 'onnx' and (options.int8 or options.opset != 17):
        raise UserError('--opset and --int8 are of --format=onnx: leave them out')
    if options.compute_dtype != 'float32' and options.format != 'stablehlo':
        raise UserError('--compute_dtype is of --format=stablehlo: leave it out')
    if options.base and options.format != 'peft':
        raise UserError('--base is of --format=peft: leave it out')

    from bert_jax.inference.export import export
    from bert_jax.inference.serving_folder import ProgramSettings
    from bert_jax.runs.sources.source import read_source
    from bert_jax.runs.workdir.resumable import note_inputs, was_made

    # Given again it is done: of the model its weights count, and not where they lie.
    flags = dataclasses.asdict(options)
    made_from = {n: flags[n] for n in flags if n not in ('model', 'output', 'print_map')}
    now = lambda: made_from | {'model': read_source(options.model.where).fingerprint()}
    if was_made(options.output, now):
        return
    exported = export(
        options.model.where,
        options.format,
        options.output,
        options.architecture,
        options.base,
        options.hidden_act,
        options.print_map,
        ProgramSettings(options.opset, options.int8, options.compute_dtype),
        options.language,
        options.license,
    )
    note_inputs(options.output, made_from | {'model': exported.model})
    print(f'{options.output}: {exported.architecture}')


if __name__ == '__main__':
    app.run(main, Options)
