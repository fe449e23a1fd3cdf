"""How long a function and a file may be, and which names no local has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.helpers.processes import ROOT

FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in ('bert_jax', 'configs', 'input_pipeline', 'launch', 'benchmarks')
    for path in (ROOT / package).rglob('*.py')
)
MAX_LINES = 60
# They say nothing of what they hold.
VAGUE = {'place', 'where', 'one', 'found', 'said', 'most', 'known', 'rest', 'own', 'about'}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def vague_names(file: str) -> Iterator[str]:
    """Yields each binding of a vague name, fields and methods excepted."""
    parsed = tree(file)
    fields = {
        id(statement.target)
        for node in ast.walk(parsed)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(parsed):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if name in VAGUE and id(node) not in fields:
                yield f'{file}:{node.lineno} {name}'
            case ast.arg(arg=name) | ast.ExceptHandler(name=name) if name in VAGUE:
                yield f'{file}:{node.lineno} {name}'


def test_no_function_is_longer_than_a_screen():
    long = {
        f'{file}:{node.name}'
        for file in FILES
        for node in ast.walk(tree(file))
        if isinstance(node, Function) and node.end_lineno - node.lineno + 1 > MAX_LINES
    }
    assert not long


def test_a_local_says_what_it_is():
    vague = [line for file in FILES for line in vague_names(file)]
    assert not vague, '\n'.join(vague)


def test_no_file_is_longer_than_500_lines():
    long = {file for file in FILES if (ROOT / file).read_text().count('\n') > 500}
    assert not long
