"""A folder that serves a model where this project is not installed: program, weights, tokenizer,
labels and an example.

Owns what is in it besides the program, which is bert_jax/interchange/serving.py's:

  model.stablehlo, weights.safetensors    --format=stablehlo: for jax, on cpu, cuda or tpu
  saved_model.pb, variables/              --format=saved_model: for TensorFlow
  serving.json                            the class, inputs and outputs with their axes, labels, the
                                          longest row
  tokenizer.json, vocab.txt or spm.model  for the tokenizers library, and for transformers
  serve.py                                a dozen lines that answer a question on the command line
                                          with the above
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors.numpy

from bert_jax.interchange import parameters, serving
from bert_jax.interchange.parameters import Model
from configs.errors import UserError
from input_pipeline.tokenizer import Tokenizer

_SERVE = '''\
"""Serves the model in this folder: python serve.py {usage}
Needs {needs}; the project that trained the model is not needed."""
import json, pathlib, sys
{imports}

here, words = pathlib.Path(__file__).parent, sys.argv[1:]
about = json.loads((here / 'serving.json').read_text())
tokenizer = Tokenizer.from_file(str(here / 'tokenizer.json'))
tokenizer.enable_truncation(about['max_length'], strategy='{truncation}')
tokenizer.enable_padding(pad_id=about['pad_id'])
{load}
texts = tokenizer.encode_batch({texts})
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
_ONE = '[tuple(words) if len(words) > 1 else words[0]]'
_BATCH = 'batch = {name: np.array(value, np.int32) for name, value in rows.items()}'
_SHARES = "share = np.exp(out['logits'][0]) / np.exp(out['logits'][0]).sum()\n"
_MASKED = (
    _BATCH
    + "\nplaces = np.flatnonzero(batch['input_ids'][0] == about['mask_id'])\n"
    + "batch['masked_lm_positions'] = places[None].astype(np.int32) if len(places) else"
    ' np.zeros((1, 1), np.int32)'
)
_BEST = (
    "for place, row in zip(places, out['{}'][0]):\n    print([tokenizer.id_to_token(int(i)) for i"
    ' in np.argsort(-row)[:5]])'
)
_LABELLED = ('BertForSequenceClassification', 'BertForTokenClassification')
# class -> usage, texts, batch, answer
_EXAMPLES = {
    'BertModel': ("'a text'", _ONE, _BATCH, "print(out['pooler_output'][0].tolist())"),
    'BertForPreTraining': (
        "'a text with [MASK]' ['what may follow it']",
        _ONE,
        _MASKED,
        _BEST.format('prediction_logits')
        + "\nprint('next sentence:', bool(out['seq_relationship_logits'][0].argmax() == 0))",
    ),
    'BertForMaskedLM': ("'a text with [MASK]'", _ONE, _MASKED, _BEST.format('logits')),
    'BertForNextSentencePrediction': (
        "'a text' 'what may follow it'",
        _ONE,
        _BATCH,
        "print('next sentence:', bool(out['logits'][0].argmax() == 0))",
    ),
    'BertForSequenceClassification': (
        "'a text' ['its pair']",
        _ONE,
        _BATCH,
        _SHARES + "print({label: round(float(p), 4) for label, p in zip(about['labels'], share)})",
    ),
    'regression': (
        "'a text' ['its pair']",
        _ONE,
        _BATCH,
        "print(round(float(out['logits'][0, 0]), 4))",
    ),
    'BertForTokenClassification': (
        "'a text'",
        _ONE,
        _BATCH,
        (
            "for token, row in zip(texts[0].tokens, out['logits'][0]):\n    print(token,"
            " about['labels'][row.argmax()])"
        ),
    ),
    'BertForMultipleChoice': (
        "'a text' 'a choice' 'another' ...",
        '[(words[0], choice) for choice in words[1:]]',
        _BATCH.replace('np.array(value', 'np.array([value]'),
        _SHARES + 'print({choice: round(float(p), 4) for choice, p in zip(words[1:], share)})',
    ),
    'BertForQuestionAnswering': (
        "'a question' 'its context'",
        _ONE,
        _BATCH,
        (
            'inside = np.array(texts[0].type_ids) * (1 - np.array(texts[0].special_tokens_mask)) =='
            " 1\nstart = int(np.where(inside, out['start_logits'][0], -1e9).argmax())\nend = start"
            " + int(np.where(inside, out['end_logits'][0], -1e9)[start : start +"
            ' 30].argmax())\nprint(words[1][texts[0].offsets[start][0] : texts[0].offsets[end][1]])'
        ),
    ),
}


def write(
    folder: Path, model: Model, tokenizer: Tokenizer, form: Literal['stablehlo', 'saved_model']
) -> tuple[str, ...]:
    """Writes the folder; returns the parts of the model that its class has no place for. UserError
    for a damaged or unfit model.
    """
    left_out = parameters.left_out(model, f'--architecture={model.architecture}')
    weights = serving.used_weights(model)
    if bad := [name for name, array in weights.items() if not np.isfinite(array).all()]:
        raise UserError(
            f'{bad[0]}: NaN or infinite values: the checkpoint is damaged or its training diverged'
        )
    tokenizer.save(folder)
    folder = Path(folder)
    (folder / 'tokenizer.json').write_text(tokenizer.tokenizer_json())
    about = {
        'architecture': model.architecture,
        'inputs': serving.inputs(model.architecture),
        'outputs': list(serving.OUTPUTS[model.architecture]),
        'labels': (
            list(model.labels or (f'LABEL_{i}' for i in range(model.outputs)))
            if model.architecture in _LABELLED
            else []
        ),
        'max_length': model.config.max_position,
        'pad_id': tokenizer.pad_id,
        'mask_id': tokenizer.mask_id,
    }
    (folder / 'serving.json').write_text(json.dumps(about, indent=1, ensure_ascii=False) + '\n')
    if form == 'stablehlo':
        (folder / 'model.stablehlo').write_bytes(serving.stablehlo(model))
        safetensors.numpy.save_file(
            {name: np.ascontiguousarray(array) for name, array in weights.items()},
            folder / 'weights.safetensors',
        )
    else:
        serving.write_saved_model(folder, model)
    (folder / 'serve.py').write_text(example(model, form))
    return left_out


def example(model: Model, form: Literal['stablehlo', 'saved_model']) -> str:
    """The text of serve.py."""
    numbers = model.architecture == 'BertForSequenceClassification' and (
        model.outputs == 1 or model.problem_type == 'regression'
    )
    usage, texts, batch, answer = _EXAMPLES['regression' if numbers else model.architecture]
    truncation = (
        'only_second' if model.architecture == 'BertForQuestionAnswering' else 'longest_first'
    )
    parts = _STABLEHLO if form == 'stablehlo' else _SAVED_MODEL
    return _SERVE.format(
        **parts, usage=usage, texts=texts, batch=batch, answer=answer, truncation=truncation
    )
