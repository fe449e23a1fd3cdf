"""What a run is: typed, checked configuration. Standard library only."""

if __name__ == 'configs':  # from a checkout: a second copy of every class would come of it
    raise ImportError('configs is bert_jax.configs now')
