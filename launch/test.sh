#!/usr/bin/env bash
# Tests on a fresh machine: makes an environment, installs the pinned versions with the test extras, and
# runs a suite (offline but for the install). What follows goes to pytest:
#
#   bash launch/test.sh [-k EXPRESSION] [tests/test_x.py]                   the core suite, in .venv
#   bash launch/test.sh --slow [-k EXPRESSION]                              what takes longer than a few seconds, in .venv too
#   bash launch/test.sh --avx2 [-k EXPRESSION]                              its arithmetic as on a processor without AVX-512
#   bash launch/test.sh --oldest [-k EXPRESSION]                            a few tests of each kind on Python 3.11, in .venv-oldest
#   bash launch/test.sh --beam [-k EXPRESSION]                              tests/beam on Apache Beam, in .venv-beam
#   bash launch/test.sh --plan [-k EXPRESSION]                              tests/plan with the TPU compiler, in .venv-plan
#   bash launch/test.sh --parity [-k EXPRESSION]                            tests/parity against PyTorch's BERT, in .venv-parity
#   bash launch/test.sh --docs [-k EXPRESSION]                              the site of docs/, built by mkdocs, in .venv-docs
#
# BERT_JAX_TEST_DATA names a folder of real corpora and tasks; tests that need it are skipped without.
# PYTHON names the interpreter to make the environment with (3.11 to 3.13); without it, the newest that is here.
# XLA_FLAGS goes to every suite: with --xla_cpu_max_isa=SSE4_2 jax 0.12 has no float16, and tests that need it fail.
set -euo pipefail
cd "$(dirname "$0")/.."

# A suite is an environment, its extras and what of tests/ it runs; what follows on the command line
# comes after, so that it can narrow the choice.
venv=.venv extras=datasets,notebooks,tensorflow,test versions=
case "${1:-}" in
  --slow) set -- -m slow "${@:2}" ;;
  --avx2)
    if ! grep -qs avx512f /proc/cpuinfo; then
      echo 'avx2: passed over: this processor has no AVX-512 to leave out, and the core suite is the same'
      exit
    fi
    # What computes and compares numbers; bounds follow from float32, not from one order of its sums.
    export XLA_FLAGS="${XLA_FLAGS:-} --xla_cpu_max_isa=AVX2"
    numbers=(tests/bert_jax/{model,train,runs/finetuning/test_feature_based.py} --ignore=tests/bert_jax/train/test_checkpoint.py)
    set -- -m 'not slow' "${numbers[@]}" "${@:2}"
    ;;
  --oldest) venv=.venv-oldest extras=test versions=3.11; set -- -m oldest "${@:2}" ;;
  --beam) venv=.venv-beam extras=beam,tensorflow,test; set -- tests/beam "${@:2}" ;;
  --plan) venv=.venv-plan extras=plan,test; set -- tests/plan "${@:2}" ;;
  --parity) venv=.venv-parity extras=parity,test; set -- tests/parity "${@:2}" ;;
  --docs) venv=.venv-docs extras=docs,test; set -- tests/docs/test_site.py "${@:2}" ;;
  *) set -- -m 'not slow' "$@" ;;
esac

source launch/install.sh ".[$extras]" "$venv" "$versions"
# Cut over two processes, file by file; the suites without have a single file.
[[ "$venv" =~ -(beam|docs|plan)$ ]] || set -- -n 2 --dist loadfile --no-loadscope-reorder "$@"
"$venv/bin/python" -m pytest -q --durations=10 "$@"
