"""Output of a killed process: what it had noted stays, what it had not is written again, and nothing comes twice."""

from __future__ import annotations

import pytest

from configs.errors import UserError
from launch.growing_output import growing, was_finished

IDENTITY = {'input': 'a', 'model': 1}


def test_a_killed_process_loses_nothing_and_doubles_nothing(tmp_path):
    output = str(tmp_path / 'out')
    with growing(output, IDENTITY, ['a', 'b']) as files:
        files.append(2, {'a': b'12', 'b': b'xyxy'})
        files.append(1, {'a': b'3', 'b': b'xy'})
        files._files['a'].write(b'45')  # killed here: written, and not noted
        folder = files.folder
    assert (folder / 'a').read_bytes() == b'12345' and not was_finished(output, IDENTITY)
    with growing(output, IDENTITY, ['a', 'b']) as files:
        assert files.records == 3
        files.append(2, {'a': b'45', 'b': b'zzzz'})
        assert (folder / 'a').read_bytes() == b'12345' and (folder / 'b').read_bytes() == b'xyxyxyzzzz'
        files.finish({'more': 1}, lambda: (folder / 'a').rename(output))
    assert (tmp_path / 'out').read_bytes() == b'12345' and not folder.exists()
    assert was_finished(output, IDENTITY)
    with pytest.raises(UserError, match='is there already, and not from these settings'):
        was_finished(output, {**IDENTITY, 'model': 2})


def test_other_settings_another_process_and_remote_output_are_refused(tmp_path):
    output = str(tmp_path / 'out')
    with growing(output, IDENTITY, ['a']) as files:
        files.append(1, {'a': b'1'})
        with pytest.raises(UserError, match='--output=.*another process'):
            with growing(output, IDENTITY, ['a']):
                pass
    with pytest.raises(UserError, match=r'the beginning of another run \(other model\)'):
        with growing(output, {**IDENTITY, 'model': 2}, ['a']):
            pass
    with pytest.raises(UserError, match='remote storage cannot'):
        with growing('gs://bucket/out', IDENTITY, ['a']):
            pass
    with pytest.raises(UserError, match='no folder'):
        with growing(str(tmp_path / 'none' / 'out'), IDENTITY, ['a']):
            pass
