#!/usr/bin/env bash
# From nothing to a results table: makes .venv, installs the pinned versions, and runs the quickstart
# (text, vocabulary, records, pre-training, fine-tuning, report), five to twelve minutes on 2 CPU cores
# after the install. What follows goes to the quickstart; --help lists it:
#
#   bash launch/quickstart.sh [--corpus='texts/*.txt' --language=ko] [--workdir=DIR]
#
# PYTHON names the interpreter to make .venv with (3.11 to 3.13); without it, the newest that is here.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

(cd "$root" && source launch/install.sh .)
# What Python compiles of the packages is kept, whatever is set outside: install.sh leaves it to Python.
unset PYTHONDONTWRITEBYTECODE
exec "$root/.venv/bin/bert-quickstart" "$@"  # where the user stands: paths are theirs
