"""Host side: from text files to batches of numpy arrays; never imports jax."""

if __name__ == 'input_pipeline':  # from a checkout: a second copy of every class would come of it
    raise ImportError('input_pipeline is bert_jax.input_pipeline now')
