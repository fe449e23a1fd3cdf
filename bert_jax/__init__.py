"""The accelerator side, in jax: model, training, costs, interchange; no text, no TensorFlow."""
