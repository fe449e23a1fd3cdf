"""A folder that serves a model where this project is not installed.

It holds program, weights, tokenizer, labels and an example. Owns what is in it besides
the program, which is bert_jax/conversion/serving.py's:

  model.stablehlo, weights.safetensors    --format=stablehlo: for jax, on cpu, cuda or tpu
  spelling.py                             with them, where word vectors are computed at load
  saved_model.pb, variables/              --format=saved_model: for TensorFlow
  serving.json                            the class, inputs and outputs with their axes, labels, the
                                          longest row
  tokenizer.json, vocab.txt or spm.model  for the tokenizers library, and for transformers
  serve.py                                a dozen lines that answer a question on the command line
                                          with the above
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy

from bert_jax.configs.errors import UserError
from bert_jax.conversion import parameters, serving
from bert_jax.conversion.parameters import Model
from bert_jax.inference.served_heads import script_of
from bert_jax.input_pipeline.tokenizer import Tokenizer, spelling
from bert_jax.input_pipeline.tokenizer.settings import SPECIAL_TOKENS
from bert_jax.model.embeddings import padded_vocab
from bert_jax.train.task_heads import CLASSES

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
    'imports': (
        'import numpy as np\nfrom jax import export, jit\nfrom safetensors.numpy import'
        ' load_file\nfrom tokenizers import Tokenizer'
    ),
    'load': (
        "weights = load_file(here / 'weights.safetensors')\n"
        "model = jit(export.deserialize(bytearray((here / 'model.stablehlo').read_bytes())).call)"
    ),
    'call': 'out = {name: np.asarray(value) for name, value in model(weights, batch).items()}',
}
_SAVED_MODEL = {
    'needs': 'tensorflow and tokenizers',
    'imports': 'import numpy as np, tensorflow as tf\nfrom tokenizers import Tokenizer',
    'load': "loaded = tf.saved_model.load(str(here))\nmodel = loaded.signatures['serving_default']",
    'call': (
        'out = {name: value.numpy() for name, value in model(**{k: tf.constant(v) for k, v in'
        ' batch.items()}).items()}'
    ),
}


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
    form: Literal['stablehlo', 'saved_model'],
    max_length: int | None = None,
    texts: int | None = None,
) -> tuple[str, ...]:
    """Write a folder that serves the model; return the parts that its class has no place for.

    Args:
      folder: where the files go.
      model: what is served.
      tokenizer: the model's.
      form: the program's format.
      max_length: the longest row that serve.py makes; None: as many as there are positions.
      texts: how many texts serve.py is asked; None: unknown.

    A damaged or unfit model is a UserError.
    """
    # Refused before anything is written: parts without a place, and numbers that are none.
    left_out = parameters.left_out(model, f'--architecture={model.architecture}', parameters.SHAPE)
    weights = serving.used_weights(model)
    if bad := [name for name, array in weights.items() if not np.isfinite(array).all()]:
        raise UserError(
            f'{bad[0]}: NaN or infinite values: the checkpoint is damaged or its training diverged'
        )

    # The tokenizer in two forms: our own files, and tokenizer.json, which serve.py reads.
    tokenizer.save(folder)
    folder = Path(folder)
    (folder / 'tokenizer.json').write_text(tokenizer.tokenizer_json())

    # What is computed from the vocabulary is computed where the folder is used; a SavedModel has it
    # among its variables, since no program of ours runs where it is loaded.
    computed = model.config.words.computed if form == 'stablehlo' else frozenset()
    facts = _facts(model, tokenizer, max_length)
    if computed:
        facts['word_vectors'] = {
            'entries': model.config.vocab_size,
            'rows': padded_vocab(model.config.vocab_size),
            'width': model.config.embedding_width,
            'ngrams': model.config.hash_ngrams,
        }
        (folder / 'spelling.py').write_text(inspect.getsource(spelling))
    (folder / 'serving.json').write_text(json.dumps(facts, indent=1, ensure_ascii=False) + '\n')

    # jax.export's program takes the weights as an argument; a SavedModel holds its own.
    if form == 'stablehlo':
        (folder / 'model.stablehlo').write_bytes(serving.stablehlo(model))
        kept = [name for name in weights if name not in computed]
        stored = {name: np.ascontiguousarray(weights[name]) for name in kept}
        # Not by save_file, whose file no other user may read.
        (folder / 'weights.safetensors').write_bytes(safetensors.numpy.save(stored))
    else:
        serving.write_saved_model(folder, model)
    # The example asks with the mask token that this tokenizer knows.
    script, mask = example(model, form, texts), tokenizer.special_tokens[4]
    (folder / 'serve.py').write_text(script.replace(SPECIAL_TOKENS['mask_token'], mask))
    return left_out


def _facts(model: Model, tokenizer: Tokenizer, max_length: int | None) -> dict[str, Any]:
    """Return what a caller cannot tell from the program: names, order, labels, ids."""
    # Labels that have no names are called as transformers calls them.
    head = CLASSES[model.architecture]
    labels = list(model.labels) or [f'LABEL_{i}' for i in range(model.outputs)]
    return {
        'architecture': model.architecture,
        'inputs': dict(head.inputs),
        'outputs': list(head.outputs),
        'labels': labels if head.labelled else [],
        'max_length': max_length or model.config.max_position,
        'pad_id': tokenizer.pad_id,
        'mask_id': tokenizer.mask_id,
    }


def example(
    model: Model, form: Literal['stablehlo', 'saved_model'], texts: int | None = None
) -> str:
    """Return the text of serve.py, an example of how the folder is used; `texts` as of `write`."""
    parts = dict(_STABLEHLO if form == 'stablehlo' else _SAVED_MODEL)
    if form == 'stablehlo' and model.config.words.computed:
        parts['load'] += _COMPUTE
    return _SERVE.format(**parts, **script_of(model, texts)._asdict())
