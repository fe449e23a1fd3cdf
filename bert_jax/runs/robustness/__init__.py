"""How scores hold where text is not as it was in training."""
