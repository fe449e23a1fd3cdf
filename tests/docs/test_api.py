"""docs/api.md has every name that docs/extending.md uses."""

from __future__ import annotations

import ast
import re

import bert_jax
from tests.helpers import pages
from tests.helpers.pages import ROOT


def used() -> set[str]:
    """MODULE.NAME of ours, for each name that the Python of docs/extending.md uses."""
    blocks = pages.blocks(ROOT / 'docs/extending.md')
    code = '\n'.join(
        '\n'.join(line for _, line in b.lines) for b in blocks if b.language == 'python'
    )
    tree, modules, found = ast.parse(code), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split('.')[0] == 'bert_jax':
            for alias in node.names:
                name = f'{node.module}.{alias.name}'
                path = ROOT / name.replace('.', '/')
                if path.is_dir() or path.with_suffix('.py').exists():
                    modules[alias.name] = name
                else:
                    found.add(name)
    found |= {
        f'{modules[node.value.id]}.{node.attr}'
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in modules
    }
    # What the package itself offers stands under that name.
    return {
        f'bert_jax.{name}' if (name := full.rpartition('.')[2]) in bert_jax.__all__ else full
        for full in found
    }


def test_every_name_that_the_guide_uses_is_on_the_page():
    on_page = set(re.findall(r'^::: (\S+)$', (ROOT / 'docs/api.md').read_text(), re.M))
    assert {'bert_jax.RunContext', 'bert_jax.Bert'} <= used() & on_page
    assert used() - on_page == set()
