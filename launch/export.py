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
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bert_jax.cli import app
from bert_jax.cli.common_flags import TrainedModel
from bert_jax.configs.errors import require_extra
from bert_jax.configs.files.store import was_made
from bert_jax.configs.model.model_config import HiddenAct
from bert_jax.configs.options import option

if TYPE_CHECKING:
    from bert_jax.inference.export import Format


@dataclass(frozen=True, kw_only=True)
class _Export(TrainedModel):
    """Options of whatever is written of a model.

    Attributes:
      output: folder to write; it must be new or empty.
      architecture: transformers' class to write, as BertModel for the encoder alone; default: by
        its heads.
      hidden_act: write this activation in place of the model's own, which changes its outputs.
      language: of a model card: the languages of the model's texts, ISO codes as en or pt-BR.
      license: of a model card: the Hub's name of the licence, as apache-2.0 or cc-by-4.0.
      print_map: print every name that is read, and every name that is written, with the array here.
    """

    after_interrupt: ClassVar[str] = 'nothing was written; the same command begins anew'

    output: str
    architecture: str | None = None
    hidden_act: HiddenAct | None = None
    language: tuple[str, ...] = option((), commas=True)
    license: str | None = None
    print_map: bool = False

    def write(self, format: Format, base: str | None = None, **program: Any) -> None:
        """Write the folder once, read it back, and print what is in it.

        Args:
          format: what to write.
          base: of an adapter, the encoder that was tuned.
          **program: of a program, how it is written.
        """
        app.check_output('output', self.output)
        from etils import epath

        from bert_jax.configs.files.store import note_inputs
        from bert_jax.inference.export import ExportOptions, export
        from bert_jax.inference.serving_folder import ProgramSettings
        from bert_jax.runs.sources.source import read_source

        # Given again it is done: of the model its weights count, and not where they lie.
        made_from = dataclasses.asdict(self) | {'format': format}
        for name in ('workdir', 'init_from', 'output', 'print_map'):
            del made_from[name]
        folder = epath.Path(self.output)
        if was_made(folder, lambda: made_from | {'model': read_source(self.where).fingerprint()}):
            print(f'{self.output}: this is done already')
            return
        options = ExportOptions(
            self.architecture,
            base,
            self.hidden_act,
            self.print_map,
            ProgramSettings(**program),
            self.language,
            self.license,
        )
        exported = export(self.where, format, self.output, options)
        note_inputs(folder, made_from | {'model': exported.model})
        print(f'{self.output}: {exported.architecture}')


@dataclass(frozen=True, kw_only=True)
class Export(_Export):
    """Write a trained model in another program's format.

    Attributes:
      format: what to write.
    """

    format: Literal['huggingface', 'sentence_transformers', 'google'] = 'huggingface'

    def __call__(self) -> None:
        """Write the folder."""
        self.write(self.format)


@dataclass(frozen=True, kw_only=True)
class ExportPeft(_Export):
    """Write what tuning has added to an encoder, for Hugging Face's peft.

    Attributes:
      format: what to write.
      base: the encoder that was tuned, as the adapter shall name it, a Hugging Face BERT directory
        or name; default: the one that the run began with.
    """

    format: Literal['peft']
    base: str | None = None

    def __call__(self) -> None:
        """Write the folder."""
        self.write('peft', self.base)


@dataclass(frozen=True, kw_only=True)
class ExportOnnx(_Export):
    """Write a folder that serves the model with onnxruntime.

    Attributes:
      format: what to write.
      opset: the opset of ONNX that the file is written for.
      int8: also write onnx/model_quantized.onnx, with weights of int8 by onnxruntime's dynamic
        quantisation.
    """

    format: Literal['onnx']
    opset: int = 17
    int8: bool = False

    def __call__(self) -> None:
        """Write the folder."""
        require_extra('--format=onnx', 'onnx', 'onnx')
        if self.int8:
            require_extra('--int8', 'onnx', 'onnxruntime')
        self.write('onnx', opset=self.opset, int8=self.int8)


@dataclass(frozen=True, kw_only=True)
class ExportStablehlo(_Export):
    """Write a folder that serves the model with jax alone.

    Attributes:
      format: what to write.
      compute_dtype: arithmetic of dense layers, and their weights in the file; bfloat16 is faster
        where the processor has instructions for it.
    """

    format: Literal['stablehlo']
    compute_dtype: Literal['float32', 'bfloat16'] = 'float32'

    def __call__(self) -> None:
        """Write the folder."""
        self.write('stablehlo', compute_dtype=self.compute_dtype)


if __name__ == '__main__':
    app.run(Export, ExportPeft, ExportOnnx, ExportStablehlo)
