"""Writes docs/api.md, the public names with their docstrings: `python docs/make_api.py`.

Owns which names are public. Reads the source with `ast` and imports none of it; what a name means
is its docstring's to say.
"""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
PUBLIC = {
    'The commands as calls': {
        'bert_jax/runs/calls/pretraining.py': ['pretrain'],
        'bert_jax/runs/calls/finetuning.py': ['finetune'],
        'bert_jax/runs/calls/evaluation.py': ['evaluate'],
        'bert_jax/runs/calls/vectors.py': ['VectorOptions'],
        'bert_jax/runs/workdir/results.py': ['Result', 'RunResult', 'EvaluateResult'],
        'bert_jax/runs/pretraining/train.py': ['PretrainResult'],
        'bert_jax/runs/finetuning/finetune.py': ['FinetuneResult'],
    },
    'A model in memory': {
        'bert_jax/inference/bert.py': ['Bert', 'Outputs'],
        'bert_jax/inference/predictor.py': ['Predictor'],
        'bert_jax/inference/semantic_search.py': ['nearest'],
        'bert_jax/runs/sentences/evaluation.py': [
            *('evaluate_retrieval', 'evaluate_run', 'evaluate_similarity', 'evaluate_pairs'),
            'evaluate_translations',
        ],
    },
    'A run of your own': {
        'bert_jax/runs/workdir/running.py': ['own_run'],
        'bert_jax/train/loop.py': [
            *('train', 'prefetch', 'Run', 'Evaluation', 'EvalResult', 'TrainResult', 'Writer'),
        ],
        'bert_jax/runs/workdir/trackers.py': ['WandbWriter', 'MlflowWriter'],
    },
    'Objectives, models and steps': {
        'bert_jax/train/losses/__init__.py': ['Objective', 'cross_entropy'],
        'bert_jax/model/heads.py': ['EncoderModel', 'Pretraining'],
        'bert_jax/model/dropout.py': ['DropoutRng'],
        'bert_jax/train/state.py': ['TrainState', 'create_state', 'load_params_into'],
        'bert_jax/train/step.py': ['make_train_step', 'jit_train_step', 'make_eval_step'],
        'bert_jax/train/schedule.py': ['Hparams', 'hparams_of'],
        'bert_jax/mesh/construction.py': ['make_mesh'],
    },
    'Settings and records': {
        'configs/load.py': ['load'],
        'configs/files/own_parts.py': ['register_part'],
        'configs/schema.py': ['Phase', 'PretrainConfig'],
        'bert_jax/runs/pretraining/records.py': ['match_phases', 'Records'],
        'bert_jax/runs/pretraining/train.py': ['pretrain', 'PhaseTraining'],
        'bert_jax/runs/pretraining/held_out.py': ['measure'],
    },
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    """The text of docs/api.md."""
    parts = [
        '# The Python API\n',
        'Made from the docstrings by `python docs/make_api.py`. How the pieces go together is in'
        ' [extending.md](extending.md).\nNames that begin with an underscore, and names that are'
        ' not here, may change without a word in CHANGELOG.md.\n',
    ]
    for title, files in PUBLIC.items():
        parts.append(f'## {title}\n')
        for file, names in files.items():
            tree = ast.parse((ROOT / file).read_text())
            found = {n.name: n for n in tree.body if isinstance(n, Function | ast.ClassDef)}
            for name in names:
                parts += described(found[name], module_of(file, name))
    parts.append('Next: [extending.md](extending.md), a whole program of these pieces.\n')
    return '\n'.join(parts)


def module_of(file: str, name: str) -> str:
    """The module that a name is imported from: the package, where that offers it."""
    module = 'bert_jax.' + file.removeprefix('bert_jax/').removesuffix('.py').replace('/', '.')
    for package in ('bert_jax', module.rpartition('.')[0]):
        offered = ast.parse((ROOT / package.replace('.', '/') / '__init__.py').read_text())
        lists = [n.value for n in offered.body if isinstance(n, ast.Assign)]
        if any(name in ast.literal_eval(n) for n in lists):
            return package
    return module


def described(node: Function | ast.ClassDef, module: str) -> Iterator[str]:
    """A class with its public methods, or a function: heading, signature, docstring."""
    yield f'### {module}.{node.name}\n'
    if not isinstance(node, ast.ClassDef):
        yield from entry(node, node.name)
        return
    methods = [n for n in node.body if isinstance(n, Function)]
    made = next((n for n in methods if n.name == '__init__'), None)
    if made:
        yield signature(made, node.name)
    yield text(node)
    if made and ast.get_docstring(made):
        yield text(made)
    fields = [ast.unparse(n) for n in node.body if isinstance(n, ast.AnnAssign)]
    if fields:
        yield '```python\n' + '\n'.join(_short(field) for field in fields) + '\n```\n'
    for method in methods:
        public = not method.name.startswith('_') or method.name == '__call__'
        if public and ast.get_docstring(method):
            yield from entry(method, f'{node.name}.{method.name}')


def entry(node: Function, name: str) -> Iterator[str]:
    """A function's signature and docstring."""
    yield signature(node, name)
    yield text(node)


def signature(node: Function, name: str) -> str:
    """How it is called, as a block of Python; `self` and `cls` are left out."""
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    if marks & {'property', 'functools.cached_property'}:
        returns = f': {ast.unparse(node.returns)}' if node.returns else ''
        return f'```python\n{name}{returns}\n```\n'
    parts = list(arguments(node.args))
    returns = f' -> {ast.unparse(node.returns)}' if node.returns else ''
    returns = '' if node.name == '__init__' else returns
    line = f'{name}({", ".join(parts)}){returns}'
    if len(line) > 100:
        line = f'{name}(\n' + ''.join(f'    {part},\n' for part in parts) + f'){returns}'
    return f'```python\n{line}\n```\n'


def arguments(given: ast.arguments) -> Iterator[str]:
    """Each argument with its type and default, as it would stand on a line of its own."""

    def one(argument: ast.arg, default: ast.expr | None) -> str:
        return ast.unparse(argument) + (f' = {ast.unparse(default)}' if default else '')

    plain = [*given.posonlyargs, *given.args]
    missing: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults))
    for argument, default in zip(plain, missing + given.defaults):
        if argument.arg not in ('self', 'cls'):
            yield one(argument, default)
    if given.kwonlyargs:
        yield '*'
    yield from map(one, given.kwonlyargs, given.kw_defaults)


def text(node: Function | ast.ClassDef) -> str:
    """The docstring as Markdown: what explains an argument or attribute is an item of a list."""
    lines = inspect.cleandoc(ast.get_docstring(node) or '').split('\n')
    written, listed = [], False
    for line in lines:
        if line in ('Args:', 'Attributes:', 'Raises:', 'Returns:', 'Yields:'):
            listed = True
            # What is not named by an argument keeps its heading.
            written += [] if line in ('Args:', 'Attributes:') else [line, '']
            continue
        item = re.match(r'  (\w+): (.*)', line) if listed else None
        rest = f'  {line.strip()}' if listed and line.startswith('    ') else line
        written.append(f'- `{item[1]}`: {item[2]}' if item else rest)
        listed = listed and (line.startswith('  ') or not line)
    return '\n'.join(written) + '\n'


def _short(field: str) -> str:
    """A field without the text of its help, which --help_settings prints."""
    return re.sub(r"option\((.+?), [\"'].*\)$", r'\1', field)


if __name__ == '__main__':
    (ROOT / 'docs/api.md').write_text(page())
