"""A model as an ONNX file: the traced function of conversion/serving.py, operation by operation.

`program.py` walks what jax has traced, `primitives.py` says which nodes an operation becomes,
`fused.py` finds those that ONNX has one node for, and `graph.py` keeps nodes, weights and sizes.
None of them knows a family, a head or a part of the model.
"""
