"""The heads of pre-training, and the encoder without a head.

Each is a class that says all that the project knows of it (head_base.py); the table that has them
is in task_heads.py.
"""

from __future__ import annotations

from typing import Any

import jax

from bert_jax.configs.schema import ModelConfig
from bert_jax.model import heads
from bert_jax.train.head_base import AUTO, PIPELINE, ExampleScript, Head, HubCard

_MASKED_INPUTS = {**Head.inputs, 'masked_lm_positions': 'b, p'}

# Lines of example scripts that both heads of masked words share.
_BATCH = ExampleScript('').batch
# The masked places; a text without any still needs an array of one.
_MASKED = """
places = np.flatnonzero(batch['input_ids'][0] == about['mask_id'])
if not len(places) and len(words) < 2:
    print('no [MASK] in the pieces that are read: write one', file=sys.stderr)
    sys.exit(2)
batch['masked_lm_positions'] = places[None].astype(np.int32) if len(places) else \
np.zeros((1, 1), np.int32)"""
_BEST = """\
for place, row in zip(places, out['{}'][0]):
    print([tokenizer.id_to_token(int(i)) for i in \
np.argsort(-row[: tokenizer.get_vocab_size()])[:5]])"""

_MASK = PIPELINE + "print(ask(f'A {{ask.tokenizer.mask_token}} text.'))"


class Pretraining(Head):
    """Masked words, and whether a text follows another."""

    name = 'pretraining'
    module = heads.Pretraining
    parts = ('pooler', 'mlm', 'nsp')
    architecture = 'BertForPreTraining'
    output_names = ('prediction_logits', 'seq_relationship_logits')
    inputs = _MASKED_INPUTS
    google = ('pooler', 'mlm', 'nsp')
    pipeline = 'FillMask'
    script = ExampleScript(
        _BEST.format('prediction_logits')
        + "\nprint('next sentence:', bool(out['seq_relationship_logits'][0].argmax() == 0))",
        "'a text with [MASK]' ['what may follow it']",
        batch=_BATCH + _MASKED,
    )
    card = HubCard('fill-mask', 'was pre-trained on masked words and pairs of sentences', _MASK)

    def read_outputs(self, result: Any, config: ModelConfig) -> tuple[jax.Array, ...]:
        """Return the logits of the words, without rows that pad the vocabulary, and of pairs."""
        return result[0][..., : config.vocab_size], result[1]


class MaskedWords(Head):
    """Masked words alone."""

    name = 'masked_words'
    module = heads.Pretraining
    parts = ('mlm',)
    architecture = 'BertForMaskedLM'
    inputs = _MASKED_INPUTS
    google = ('mlm',)
    pipeline = 'FillMaskAlone'
    script = ExampleScript(
        _BEST.format('logits'),
        "'a text with [MASK]'",
        batch=_BATCH + _MASKED.replace(' and len(words) < 2', ''),
    )
    card = HubCard('fill-mask', 'was pre-trained on masked words', _MASK)

    def read_outputs(self, result: Any, config: ModelConfig) -> tuple[jax.Array, ...]:
        """Return the logits of the words, without rows that pad the vocabulary."""
        return (result[0][..., : config.vocab_size],)


class Detection(Head):
    """Which tokens of a text were replaced, where the family's models are pre-trained so."""

    name = 'detection'
    module = heads.Detector
    parts = ('detection',)
    architecture = 'BertForPreTraining'
    fits_whole_words = False
    script = ExampleScript(
        "share = 1 / (1 + np.exp(-out['logits'][0]))\n"
        'print([(piece, round(float(p), 4)) for piece, p in zip(texts[0].tokens, share)])',
        "'a text'",
    )
    card = HubCard(
        None,
        'tells which pieces of a text were replaced',
        AUTO.replace('{auto}', 'AutoModelForPreTraining')
        + "print(model(**tokenizer('A text.', return_tensors='pt')).logits.sigmoid())",
    )


class NextSentence(Head):
    """Whether a text follows another."""

    name = 'next_sentence'
    module = heads.NextSentence
    parts = ('pooler', 'nsp')
    architecture = 'BertForNextSentencePrediction'
    google = ('pooler', 'nsp')
    pipeline = 'NextSentencePrediction'
    script = ExampleScript(
        "print('next sentence:', bool(out['logits'][0].argmax() == 0))",
        "'a text' 'what may follow it'",
        least=2,
    )
    card = HubCard(
        None,
        'tells whether a sentence follows another',
        AUTO.replace('{auto}', 'AutoModelForNextSentencePrediction')
        + "print(model(**tokenizer('A text.', 'What follows.', return_tensors='pt')).logits)",
    )


class Encoder(Head):
    """No head: the states of a text's pieces."""

    name = 'encoder'
    module = heads.EncoderOnly
    parts = ('pooler',)
    architecture = 'BertModel'
    output_names = ('last_hidden_state', 'pooler_output')
    peft_task = 'FEATURE_EXTRACTION'
    google = ('pooler',)
    script = ExampleScript("print(out['pooler_output'][0].tolist())", "'a text'")
    card = HubCard(
        'feature-extraction',
        'gives the pieces of a text their states',
        AUTO.replace('{auto}', 'AutoModel')
        + "print(model(**tokenizer('A text.', return_tensors='pt')).last_hidden_state)",
    )

    def read_outputs(self, result: Any, config: ModelConfig) -> tuple[jax.Array, ...]:
        """Return the states of the last block, and the pooler's output."""
        return result[0], result[1]
