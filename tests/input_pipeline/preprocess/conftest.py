"""What the tests of the offline job share."""

from __future__ import annotations

import pytest

from tests.helpers.files import write_lines
from tests.helpers.jobs import PLAIN, SPECIAL


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
    """A tokenizer whose words name themselves, with a word for each document.

    There are plain words, and words of two pieces.
    """
    names = [f'doc{chr(97 + i)}{chr(97 + j)}' for i in range(20) for j in range(20)]
    tokens = SPECIAL + PLAIN + ['##ing', '##s', '.', '!', ','] + names
    path = tmp_path_factory.mktemp('vocabulary')
    write_lines(path / 'vocab.txt', tokens)
    (path / 'tokenizer_config.json').write_text('{"do_lower_case": true}')
    return path, {token: i for i, token in enumerate(tokens)}, names
