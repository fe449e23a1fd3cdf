"""Host side: from text files to batches of numpy arrays; never imports jax."""
