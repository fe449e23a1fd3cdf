"""A step of a study, in a process of its own.

The process reads from its standard input which function it calls, and the keywords. Its exit code
is that of a command: 0, 2 for a mistake of the user's, 128 + the signal that stopped it.
"""

from __future__ import annotations

import json
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bert_jax
from bert_jax.cli import app
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.schema import PretrainConfig
from bert_jax.mesh import before_jax
from bert_jax.runs.workdir.results import RunResult


def pretrain(config: dict[str, Any], data: Sequence[str], workdir: str) -> RunResult:
    """Pre-train a row, and score the held-out records of its last length."""
    manifest = read_object(Path(data[0]) / 'manifest.json')
    config['model']['vocab_size'] = manifest['vocab_size']
    result = bert_jax.pretrain(PretrainConfig.from_json(config), data, workdir)
    if result.signal is None and manifest['statistics']['records'].get('eval'):
        bert_jax.evaluate(workdir, data=data[-1])
    return result


def main() -> int:
    """Call the function that standard input names."""
    function, keywords = json.load(sys.stdin)
    before_jax.set_up()
    result = pkgutil.resolve_name(function)(**keywords)
    if callable(result):  # the action of a command, which has no function
        result = result()
    return result.exit_code() if isinstance(result, RunResult) else 0


if __name__ == '__main__':
    with app.report_end('study'):
        sys.exit(main())
