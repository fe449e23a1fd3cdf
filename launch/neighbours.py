"""The packages beside this one are found, whatever lies in the current folder.

`python -m` looks in the current folder first, and `configs` is a common name there. This file runs
before any other but __init__.py and imports none of ours.
"""

from __future__ import annotations

import importlib.util
import os
import sys

# Without links, so that two names of one folder compare equal.
_ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def prefer_ours() -> None:
    """Loads our packages where something else of their name would be found in their place."""
    # launch itself is ours already, or this file would not run.
    for name in ('configs', 'bert_jax', 'input_pipeline'):
        # Of a package the folder, of a module its file; None where there is nothing of that name.
        folder = os.path.join(_ROOT, name)
        spec = importlib.util.find_spec(name)
        places = [*(spec.submodule_search_locations or []), spec.origin] if spec else [None]
        place = places[0]

        # Loaded here and now from our folder: what is in sys.modules is not looked for again.
        if place is None or os.path.realpath(place) != folder:
            spec = importlib.util.spec_from_file_location(name, os.path.join(folder, '__init__.py'))
            assert spec is not None and spec.loader is not None, 'a path ending in .py has a loader'
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
