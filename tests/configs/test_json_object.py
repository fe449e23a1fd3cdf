"""A JSON object from a file, or one line that says what is there instead."""

from __future__ import annotations

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import parse, read_object


def test_an_object_with_or_without_a_byte_order_mark(tmp_path):
    for mark in (b'', b'\xef\xbb\xbf'):
        (tmp_path / 'a.json').write_bytes(mark + '{"a": "ü"}'.encode())
        assert read_object(tmp_path / 'a.json') == {'a': 'ü'}
    assert parse('{"a": 1, "a": 2}', pairs=list) == [('a', 1), ('a', 2)]


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'{"a": ', 'not valid JSON .Expecting value'),
        (b'\xff', "not valid JSON .'utf-8' codec"),
        (b'[' * 100_000, 'not valid JSON .it nests too deep'),
        (b'[1]', 'not a JSON object'),
        (None, 'cannot be read .No such file or directory'),
    ],
)
def test_anything_else_is_one_line_that_says_how_to_mend_it(tmp_path, content, message):
    if content is not None:
        (tmp_path / 'a.json').write_bytes(content)
    with pytest.raises(UserError, match=f'a.json: {message}.*: copy it again$'):
        read_object(tmp_path / 'a.json', 'copy it again')
