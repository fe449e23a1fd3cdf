"""Models by name, from a Hub of our own in a thread.

huggingface_hub itself runs in processes that know no other Hub.
"""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from bert_jax.conversion import model_hub

SHA = '0123456789abcdef0123456789abcdef01234567'
MODELS = {
    'org/safe': {
        'config.json': b'{}',
        'vocab.txt': b'a\n',
        'model.safetensors': b'S',
        'pytorch_model.bin': b'B',
        'onnx/model.onnx': b'O',
    },
    'org/old': {
        'config.json': b'{}',
        'vocab.txt': b'a\n',
        'pytorch_model.bin': b'B',
        'tf_model.h5': b'H',
    },
}


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the Hub as a download asks for."""

    def answer(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {'Content-Length': str(len(content)), **headers}.items():
            self.send_header(name.replace('_', '-'), value)
        self.end_headers()
        if self.command == 'GET':
            self.wfile.write(content)

    def do_GET(self) -> None:
        path = self.path.partition('?')[0].removeprefix('/')
        repo = '/'.join(path.removeprefix('api/models/').split('/')[:2])
        files = MODELS.get(repo)
        if files is None:
            return self.answer(b'{}', 404, X_Error_Code='RepoNotFound')
        if path in (f'api/models/{repo}', f'api/models/{repo}/revision/main'):
            siblings = [{'rfilename': name} for name in files]
            return self.answer(
                json.dumps({'id': repo, 'sha': SHA, 'siblings': siblings}).encode(),
                Content_Type='application/json',
            )
        if path == f'api/models/{repo}/tree/{SHA}':
            tree = [
                {'type': 'file', 'path': name, 'size': len(content), 'oid': f'{name:0>40}'}
                for name, content in files.items()
            ]
            return self.answer(json.dumps(tree).encode(), Content_Type='application/json')
        name = path.removeprefix(f'{repo}/resolve/{SHA}/')
        if name in files:
            return self.answer(files[name], ETag=f'"{len(name)}-{name}"', X_Repo_Commit=SHA)
        return self.answer(b'{}', 404, X_Error_Code='RevisionNotFound')

    do_HEAD = do_GET

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


def fetch(home: pathlib.Path, endpoint: str, *names: str) -> list[str]:
    """The folder of each name, or the line with which it is refused, from a process of its own."""
    code = """
import sys
from bert_jax.conversion import model_hub
from bert_jax.configs.errors import UserError
for name in sys.argv[1:]:
    try:
        print(model_hub.fetch(name))
    except UserError as error:
        print(error)
"""
    environment = {
        name: value for name, value in os.environ.items() if not name.lower().endswith('_proxy')
    }
    environment |= {
        'HF_HOME': str(home),
        'HF_ENDPOINT': endpoint,
        'HF_HUB_DISABLE_PROGRESS_BARS': '1',
        'HF_HUB_DISABLE_TELEMETRY': '1',
    }
    root = pathlib.Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, '-c', code, *names],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_what_is_wanted_is_downloaded_once_and_then_taken_from_the_cache(tmp_path, endpoint):
    safe, old, nothing, revision = fetch(
        tmp_path, endpoint, 'org/safe', 'org/old', 'org/none', 'org/safe@v9'
    )
    files = {
        path.name: path.read_bytes() for path in pathlib.Path(safe).rglob('*') if path.is_file()
    }
    assert files == {
        name: MODELS['org/safe'][name] for name in ('config.json', 'vocab.txt', 'model.safetensors')
    }
    assert pathlib.Path(safe).name == SHA
    assert sorted(path.name for path in pathlib.Path(old).iterdir()) == [
        'config.json',
        'pytorch_model.bin',
        'vocab.txt',
    ]
    assert nothing.startswith(
        'org/none: no such folder here, and no model of that name on the Hugging Face Hub'
    )
    assert revision == 'org/safe@v9: the Hugging Face Hub has no revision v9 of it'
    cached, absent = fetch(tmp_path, 'http://127.0.0.1:9', 'org/safe', 'org/other')
    assert cached == safe
    assert absent.startswith(
        'org/other: no such folder here, and the Hugging Face Hub cannot be reached'
    )
    assert '`hf download org/other --local-dir DIR`' in absent


def test_what_looks_like_a_name():
    for name in ('google-bert/bert-base-uncased', 'bert-base-uncased', f'org/model@{SHA}'):
        assert model_hub.is_name(name), name
    for path in (
        '/tmp/model',
        './model',
        'runs/a/b',
        'gs://bucket/model',
        'a b',
        '',
        '~/model',
        'workdir',
        'out-1',
        'tests/none',
    ):
        assert not model_hub.is_name(path), path
