"""Whether a model can read a records directory.

Owns what is said where it cannot; imports no jax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.model.embeddings import OF_WORDS

if TYPE_CHECKING:
    from bert_jax.input_pipeline.records.shards import Manifest


def check_model_reads(model: schema.ModelConfig, manifest: Manifest, directory: str) -> None:
    """Raises UserError where the records have what the model has no place for."""
    flag = f'--data={directory}'
    # several examples a row: each token may see all of its own, and no others
    if manifest.spec.packed:
        for name, wanted in (('attention', 'bidirectional'), ('bilstm', False)):
            if (value := getattr(model, name)) != wanted:
                raise UserError(
                    f'{flag} has packed rows, which model.{name}={value} cannot keep apart: '
                    f'--set model.{name}={wanted}, or make the records without --packing'
                )

    # Labels of pairs that no head reads would be trained on without a word.
    if manifest.objective != 'full_sentences' and not model.traits.pairs:
        raise UserError(
            f'{flag} has pairs (--objective={manifest.objective}), which a {model.traits.name} is'
            ' not trained to tell apart: make the records with --objective=full_sentences'
        )

    # Numbers of whole words are beyond every table, where jax would read its last row.
    if manifest.known_words and model.embedding != OF_WORDS:
        raise UserError(
            f'{flag} has whole words, which model.embedding={model.embedding} has no vectors for:'
            f' --set model.embedding={OF_WORDS}, or make the records with a tokenizer of word'
            ' pieces'
        )
    if model.embedding == OF_WORDS and not manifest.known_words:
        raise UserError(
            f'{flag} has word pieces, and model.embedding={OF_WORDS} reads whole words: make'
            ' records with a tokenizer of bert-train-vocab --model=words'
        )

    # A segment's number is a row of the type table; jax clamps, so a missing row goes unnoticed.
    segments = 1 if manifest.objective == 'full_sentences' else 2
    if model.type_vocab_size < segments:  # jax would read the last row there is
        raise UserError(
            f'{flag} has pairs of segments (--objective={manifest.objective}), but'
            f' model.type_vocab_size={model.type_vocab_size}: --set'
            f' model.type_vocab_size={segments}, or make the records with'
            ' --objective=full_sentences'
        )
