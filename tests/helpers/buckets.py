"""A bucket, for which fsspec's file system in memory stands."""

from __future__ import annotations

import datetime
from typing import ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem


class Bucket(MemoryFileSystem):
    """Files of gs://, in no real folders; `opened` are the paths that were read, in order."""

    protocol, store, pseudo_dirs, cachable = 'gs', {}, [''], False
    opened: ClassVar[list[str]] = []
    is_down = False
    unreachable = ''  # what a path has in it that cannot be read

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(str(path).removeprefix('gs://'))

    def glob(self, path, **options):
        return [found.lstrip('/') for found in super().glob(path, **options)]

    def info(self, path, **options):
        if self.is_down:
            raise ConnectionError('the network is down')
        info = super().info(path, **options)
        return info | {'mtime': info['created'].timestamp()} if 'created' in info else info

    def change(self, path, content):
        """Write a file again, some seconds later: times of a bucket are of whole seconds."""
        self.pipe(path, content)
        self.store[path].created += datetime.timedelta(seconds=10)

    def _open(self, path, mode='rb', **options):
        if mode == 'rb':
            if self.unreachable and self.unreachable in path:
                raise ConnectionError('the network is down')
            self.opened.append(path)
        return super()._open(path, mode, **options)


def make_bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Make an empty bucket, which epath takes for all of gs://."""
    of_class = {'store': {}, 'pseudo_dirs': [''], 'opened': [], 'unreachable': '', 'is_down': False}
    for name, value in of_class.items():
        monkeypatch.setattr(Bucket, name, value)
    bucket = Bucket()

    # Else TensorFlow would open it.
    monkeypatch.setattr('etils.epath.gpath._is_tf_installed', lambda: False)
    monkeypatch.setattr(
        'etils.epath.backend._FileSystemSpecBackend._get_filesystem', lambda *_: bucket
    )
    return bucket
