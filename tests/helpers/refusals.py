"""A user's mistake, which comes to one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from bert_jax.configs.errors import UserError


@contextlib.contextmanager
def refused(pattern: str) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expects a UserError of one line, in which the pattern is found."""
    with pytest.raises(UserError, match=pattern) as caught:
        yield caught
    assert '\n' not in str(caught.value)
