"""Comparisons with PyTorch's transformers.

`bash launch/test.sh --parity` installs it and runs them.
"""
