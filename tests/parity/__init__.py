"""Comparisons with PyTorch's transformers, and what is built on it.

`bash launch/test.sh --parity` installs them and runs these tests; elsewhere they are skipped.
"""

import pytest

for _name in ('torch', 'transformers', 'sentence_transformers', 'peft', 'onnx', 'onnxruntime'):
    pytest.importorskip(_name, reason=f'{_name} is not installed: bash launch/test.sh --parity')
