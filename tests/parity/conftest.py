"""What the tests against other programs share: whose warnings are not ours to mend."""

from __future__ import annotations

import pathlib

import pytest

_HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets torch, transformers and the others warn; anywhere else a warning is an error."""
    for item in items:
        if item.path.parent == _HERE:
            item.add_marker(pytest.mark.filterwarnings('default'))
