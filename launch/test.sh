#!/usr/bin/env bash
# Tests on a fresh machine: makes .venv, installs the pinned versions with the test extras, runs the
# core suite (offline but for the install). What follows goes to pytest:
#
#   bash launch/test.sh [-k EXPRESSION] [-m "not slow"] [tests/test_x.py]
#
# BERT_JAX_TEST_DATA names a folder of real corpora and tasks; tests that need it are skipped without.
# PYTHON names the interpreter to make .venv with (3.11 or 3.12).
set -euo pipefail
cd "$(dirname "$0")/.."

source launch/install.sh '.[test]'
.venv/bin/python -m pytest -q --durations=10 "$@"
