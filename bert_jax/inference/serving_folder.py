"""A folder that serves a model where this project is not installed.

It holds program, weights, tokenizer, labels and an example. Owns what is in it besides
the program, which is bert_jax/conversion/serving.py's:

  model.stablehlo, weights.safetensors    --format=stablehlo: for jax, on cpu, cuda or tpu
  spelling.py                             with them, where word vectors are computed at load
  onnx/model.onnx                         --format=onnx: for onnxruntime and others
  onnx/model_quantized.onnx               with --int8: the same with int8 weights
  config.json                             with them, for programs that read it beside such a file
  serving.json                            the class, inputs and outputs with their axes, labels, the
                                          longest row
  tokenizer.json, vocab.txt or spm.model  for the tokenizers library, and for transformers
  serve.py                                a dozen lines that answer a question on the command line
                                          with the above
"""

from __future__ import annotations

import contextlib
import inspect
import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import safetensors.numpy
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.conversion import (
    huggingface,
    onnx_program,
    sentence_transformers,
    serving,
    trained_model,
)
from bert_jax.conversion.trained_model import Model
from bert_jax.input_pipeline.tokenizer import spelling
from bert_jax.input_pipeline.tokenizer.directory import SPECIAL_TOKENS
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.model.embeddings import pad_vocab

# Doubled braces are braces; the single ones are filled in by head and by format.
_SERVE = '''\
"""Serves the model in this folder: python serve.py {usage}
Needs {needs}; the project that trained the model is not needed."""
import json, pathlib, sys

if not {least} <= len(sys.argv) - 1 <= {most}:
    print(__doc__.splitlines()[0], file=sys.stderr)
    sys.exit(2)
{imports}

here, words = pathlib.Path(__file__).parent, sys.argv[1:]
about = json.loads((here / 'serving.json').read_text())
tokenizer = Tokenizer.from_file(str(here / 'tokenizer.json'))
tokenizer.enable_truncation(about['max_length'], strategy='{truncation}')
tokenizer.enable_padding(pad_id=about['pad_id'])
{load}
try:
    texts = tokenizer.encode_batch({texts})
except Exception:
    print(f"{{words[0][:60]!r}}: leaves no room in {{about['max_length']}} pieces", file=sys.stderr)
    sys.exit(2)
rows = {{
    'input_ids': [t.ids for t in texts],
    'input_mask': [t.attention_mask for t in texts],
    'segment_ids': [t.type_ids for t in texts],
}}
{batch}
{call}
{answer}
'''
_STABLEHLO = {
    'needs': 'jax, numpy, safetensors and tokenizers',
    'imports': """\
import numpy as np
from jax import export, jit
from safetensors.numpy import load_file
from tokenizers import Tokenizer""",
    'load': """\
weights = load_file(here / 'weights.safetensors')
model = jit(export.deserialize(bytearray((here / 'model.stablehlo').read_bytes())).call)""",
    'call': 'out = {name: np.asarray(value) for name, value in model(weights, batch).items()}',
}
_ONNX = {
    'needs': 'numpy, onnxruntime and tokenizers',
    'imports': """\
import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer""",
    'load': """\
best = here / 'onnx' / 'model_quantized.onnx'
model = InferenceSession(best if best.exists() else here / 'onnx' / 'model.onnx')""",
    # Every position is told; the lines that follow read those of the masks.
    'call': """\
asked = {'attention_mask': batch['input_mask'], 'token_type_ids': batch['segment_ids']} | batch
asked = {name: asked[name].astype(np.int64) for name in about['inputs']}
out = dict(zip(about['outputs'], model.run(about['outputs'], asked)))
if 'masked_lm_positions' in batch:
    out = {name: value[:, batch['masked_lm_positions'][0]] if value.ndim == 3 else value for \
name, value in out.items()}""",
}
_FORMS = {'stablehlo': _STABLEHLO, 'onnx': _ONNX}
Form = Literal['stablehlo', 'onnx']


class ProgramSettings(NamedTuple):
    """How a program is written.

    Attributes:
      opset: of ONNX.
      int8: of ONNX, whether a file with int8 weights is written too.
      compute_dtype: of StableHLO, 'float32' or 'bfloat16'; the latter for the matrices of dense
        layers and the word table, which are stored so.
      max_length: the longest row that serve.py makes; None: as many as there are positions.
      texts: how many texts serve.py is asked; None: unknown.
    """

    opset: int = onnx_program.OPSET
    int8: bool = False
    compute_dtype: str = 'float32'
    max_length: int | None = None
    texts: int | None = None


DEFAULT = ProgramSettings()


# Between loading the weights and the first question, where word vectors are in no file.
_COMPUTE = """
sys.path.append(str(here))
import spelling

shape = about['word_vectors']
entries = [tokenizer.id_to_token(i) or '' for i in range(shape['entries'])]
table = np.zeros((shape['rows'], shape['width']), np.float32)
table[: len(entries)] = spelling.vectors(entries, shape['width'], shape['ngrams'])
weights['encoder/embeddings/word'] = table"""


def write(
    folder: Path,
    model: Model,
    tokenizer: Tokenizer,
    form: Form,
    settings: ProgramSettings = DEFAULT,
) -> tuple[str, ...]:
    """Write a folder that serves the model; return the parts that its class has no place for.

    Args:
      folder: where the files go.
      model: what is served.
      tokenizer: the model's.
      form: the program's format.
      settings: how the program is written.

    Raises:
      UserError: the model is damaged, or does not fit.
    """
    # Refused before anything is written: parts without a place, and numbers that are none.
    left_out = trained_model.list_left_out(model, f'--architecture={model.architecture}', None)
    weights = serving.select_weights(model, settings.compute_dtype)
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise UserError(
                f'{name}: NaN or infinite values: the checkpoint is damaged or its training'
                ' diverged'
            )

    folder = Path(folder)
    _save_tokenizer(folder, tokenizer)

    # What is computed from the vocabulary is computed where the folder is used.
    computed = model.config.words.computed if form == 'stablehlo' else frozenset()
    facts = _describe(model, tokenizer, settings.max_length)
    if form == 'onnx':
        facts |= _write_onnx(folder, model, tokenizer, settings)
    if computed:
        facts['word_vectors'] = _write_spelling(folder, model)
    (folder / 'serving.json').write_text(json.dumps(facts, indent=1, ensure_ascii=False) + '\n')

    # jax.export's program takes the weights as an argument.
    if form == 'stablehlo':
        (folder / 'model.stablehlo').write_bytes(
            serving.export_stablehlo(model, settings.compute_dtype)
        )
        stored = {n: np.ascontiguousarray(a) for n, a in weights.items() if n not in computed}
        # Not by save_file, whose file no other user may read.
        (folder / 'weights.safetensors').write_bytes(safetensors.numpy.save(stored))
    # The example asks with the mask token that this tokenizer knows.
    script, mask = make_example(model, form, settings.texts), tokenizer.special_tokens[4]
    (folder / 'serve.py').write_text(script.replace(SPECIAL_TOKENS['mask_token'], mask))
    return left_out


def _write_spelling(folder: Path, model: Model) -> dict[str, int]:
    """Write the program that spells words; return what it must be told."""
    (folder / 'spelling.py').write_text(inspect.getsource(spelling))
    return {
        'entries': model.config.vocab_size,
        'rows': pad_vocab(model.config.vocab_size),
        'width': model.config.embedding_width,
        'ngrams': model.config.hash_ngrams,
    }


def _write_onnx(
    folder: Path, model: Model, tokenizer: Tokenizer, settings: ProgramSettings
) -> dict[str, Any]:
    """Write the program, and what others read beside it; return its inputs and outputs by name."""
    (folder / 'onnx').mkdir()
    file = folder / 'onnx' / 'model.onnx'
    inputs, outputs = onnx_program.write(file, model, settings.opset)
    if settings.int8:
        onnx_program.quantise(file, file.with_name('model_quantized.onnx'))
    # An encoder that transformers lacks has no config.json; the program needs none.
    with contextlib.suppress(UserError):
        trained_model.list_left_out(model, '', model.config.traits.transformers.settings)
        write_tokenizer(folder, model, tokenizer)
        huggingface.write_settings(epath.Path(folder), model, list_token_ids(tokenizer))
    if model.sentence is not None:
        sentence_transformers.write(epath.Path(folder), model)
    ours = {theirs: name for name, theirs in onnx_program.INPUTS.items()}
    axes = {name: model.row.inputs[ours[name]] for name in inputs}
    return {'inputs': axes, 'outputs': outputs}


def _save_tokenizer(folder: epath.Path, tokenizer: Tokenizer) -> None:
    """Write a tokenizer in two forms: our own files, and tokenizer.json."""
    tokenizer.save(folder)
    # serve.py and programs in Rust and JavaScript read it alone; transformers builds the rules of
    # BERT's class by itself.
    (folder / 'tokenizer.json').write_text(tokenizer.tokenizer_json())


def write_tokenizer(folder: epath.PathLike, model: Model, tokenizer: Tokenizer) -> None:
    """Write the tokenizer's files with what transformers reads there of the model."""
    folder = epath.Path(folder)
    _save_tokenizer(folder, tokenizer)
    settings = folder / 'tokenizer_config.json'
    stated = json.loads(settings.read_text())
    # transformers cuts longer texts there ...
    stated |= {'model_max_length': model.longest_row}
    # ... and gives the second text of a pair its segment where a tokenizer asks for that, as by
    # itself the class of BERT does alone. A model with one segment or none takes no segments.
    has_segments = model.config.type_vocab_size > 1
    if tokenizer.layout.second_segment and not has_segments:
        stated |= {'model_input_names': ['input_ids', 'attention_mask']}
    elif tokenizer.layout.second_segment and stated['tokenizer_class'] != 'BertTokenizer':
        stated |= {'model_input_names': ['input_ids', 'token_type_ids', 'attention_mask']}
    settings.write_text(json.dumps(stated, indent=2) + '\n')


def list_token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the special tokens' numbers as config.json names them."""
    cls_id, sep_id = tokenizer.cls_id, tokenizer.sep_id
    ids = {'pad': tokenizer.pad_id, 'bos': cls_id, 'eos': sep_id, 'cls': cls_id, 'sep': sep_id}
    ids['mask'] = tokenizer.mask_id
    return {f'{name}_token_id': number for name, number in ids.items()}


def _describe(model: Model, tokenizer: Tokenizer, max_length: int | None) -> dict[str, Any]:
    """Return what a caller cannot tell from the program: names, order, labels, ids."""
    # Labels that have no names are called as transformers calls them.
    head = model.row
    labels = list(model.labels) or [f'LABEL_{i}' for i in range(model.outputs)]
    return {
        'architecture': model.architecture,
        'inputs': dict(head.inputs),
        'outputs': list(head.output_names),
        'labels': labels if head.labelled else [],
        **model.chosen,
        'max_length': max_length or model.longest_row,
        'pad_id': tokenizer.pad_id,
        'mask_id': tokenizer.mask_id,
    }


def make_example(model: Model, form: Form, texts: int | None = None) -> str:
    """Return the text of serve.py, an example of how the folder is used; `texts` as of `write`."""
    parts = dict(_FORMS[form])
    if form == 'stablehlo' and model.config.words.computed:
        parts['load'] += _COMPUTE
    return _SERVE.format(**parts, **model.row.script.with_texts(texts)._asdict())
