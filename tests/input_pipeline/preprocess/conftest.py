"""What the tests of the offline job share."""

from __future__ import annotations

import pytest

from tests.helpers.jobs import PLAIN
from tests.helpers.vocabularies import SPECIAL, write_vocabulary


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
    """A tokenizer whose words name themselves, with a word for each document.

    There are plain words, and words of two pieces.
    """
    names = [f'doc{chr(97 + i)}{chr(97 + j)}' for i in range(20) for j in range(20)]
    words = [*PLAIN, '##ing', '##s', '.', '!', ',', *names]
    path = write_vocabulary(tmp_path_factory.mktemp('vocabulary'), words)
    return path, {token: i for i, token in enumerate([*SPECIAL, *words])}, names
