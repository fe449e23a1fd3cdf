"""Output of a killed process: what was noted stays, the rest is written again, nothing twice."""

from __future__ import annotations

from pathlib import Path

from bert_jax.configs.files.store import growing, was_made
from bert_jax.inference.predict_file import FileResult
from tests.helpers.refusals import refused

IDENTITY = {'input': 'a', 'model': 1}


def test_a_killed_process_loses_nothing_and_doubles_nothing(tmp_path):
    output = str(tmp_path / 'out')
    with growing(output, IDENTITY, ['a', 'b']) as files:
        files.append(2, {'a': b'12', 'b': b'xyxy'})
        files.append(1, {'a': b'3', 'b': b'xy'})
        files._files['a'].write(b'45')  # killed here: written, and not noted
        folder = files.folder
    assert (folder / 'a').read_bytes() == b'12345' and not was_made(Path(output), lambda: IDENTITY)
    with growing(output, IDENTITY, ['a', 'b']) as files:
        assert files.records == 3
        files.append(2, {'a': b'45', 'b': b'zzzz'})
        assert (folder / 'a').read_bytes() == b'12345' and (
            folder / 'b'
        ).read_bytes() == b'xyxyxyzzzz'
        files.finish({'more': 1}, lambda: (folder / 'a').rename(output))
    assert (tmp_path / 'out').read_bytes() == b'12345' and not folder.exists()
    assert was_made(Path(output), lambda: IDENTITY)
    with refused('is there already, made from other inputs .other model.'):
        was_made(Path(output), lambda: {**IDENTITY, 'model': 2})


def test_other_settings_another_process_and_remote_output_are_refused(tmp_path):
    output = str(tmp_path / 'out')
    with growing(output, IDENTITY, ['a']) as files:
        files.append(1, {'a': b'1'})
        with refused('--output=.*another process'):
            with growing(output, IDENTITY, ['a']):
                pass
    with refused(r'the beginning of another run \(other model\)'):
        with growing(output, {**IDENTITY, 'model': 2}, ['a']):
            pass
    with refused('remote storage cannot'):
        with growing('gs://bucket/out', IDENTITY, ['a']):
            pass
    with refused('no folder'):
        with growing(str(tmp_path / 'none' / 'out'), IDENTITY, ['a']):
            pass


def test_a_full_disk_is_one_line_and_a_damaged_or_foreign_file_is_never_taken_for_output(
    tmp_path, monkeypatch
):
    output = str(tmp_path / 'out')
    with growing(output, IDENTITY, ['a']) as files:
        files.append(3, {'a': b'123'}, bad=1)

    def full(_):
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr('bert_jax.configs.files.store.os.fsync', full)
        with refused('No space left on device: .* goes on after 3 records'):
            with growing(output, IDENTITY, ['a']) as files:
                files.append(1, {'a': b'4'})
    with growing(output, IDENTITY, ['a']) as files:
        counted = FileResult(files.records, files.bad, False).counted('answers')
        assert (files.records, files.bad) == (3, 1)
        assert counted == '3 answers, 1 of them bad records'
        (files.folder / 'a').write_bytes(b'1')
    with refused('is shorter than it was'):
        with growing(output, IDENTITY, ['a']):
            pass
    (files.folder / 'progress.json').write_text('{"rec')
    with refused(f'progress.json: not valid JSON .*: remove {files.folder}'):
        with growing(output, IDENTITY, ['a']):
            pass
    (tmp_path / 'out').write_text('mine')
    for content in ('[1]', '{', '{"identity": 3}'):
        (tmp_path / 'out.json').write_text(content)
        with refused('is there already'):
            was_made(Path(output), lambda: IDENTITY)
