"""Text to word pieces: tokenizer directories, how they are trained and extended."""
