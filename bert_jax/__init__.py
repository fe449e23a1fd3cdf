"""The accelerator side: model, heads, optimizer, training step and loop, in jax. It knows no files
of text and no TensorFlow.
"""
