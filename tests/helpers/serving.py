"""An exported folder, served by itself."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

from bert_jax.inference import export
from bert_jax.inference.predictor import Predictor
from bert_jax.runs.sources import source


def serves_itself(workdir: pathlib.Path, folder: pathlib.Path, *texts: str) -> None:
    """Asserts that serve.py of `workdir`'s export, without this project, answers as it does.

    folder: where the export is made, of the format stablehlo. texts: a text, or two of a pair.
    """
    whole = source.read_source(str(workdir))
    export.write(whole.bert, whole.tokenizer, 'stablehlo', str(folder))
    # From another folder, so that nothing of this project can be found.
    said = subprocess.run(
        [sys.executable, '-P', str(folder / 'serve.py'), *texts],
        capture_output=True,
        text=True,
        cwd='/',
        env={'JAX_PLATFORMS': 'cpu'},
        timeout=300,
    )
    assert said.returncode == 0, said.stderr
    answer = Predictor.from_workdir(str(workdir))(texts)
    assert ast.literal_eval(said.stdout) == pytest.approx(answer['probabilities'], abs=1e-4)
