"""Text to word pieces: tokenizer directories, how they are trained and extended."""

from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

__all__ = ['Tokenizer']
