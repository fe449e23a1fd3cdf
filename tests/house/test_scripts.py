"""launch/install.sh chooses a Python, and .ci/run names what it has not run: tried on stand-ins."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from tests.helpers.processes import ROOT, ok

TOOLS = 'bash cat cksum dirname env grep head ln ls mkdir mktemp rm sed sleep sort tail tee timeout'
# It tells its version to install.sh, makes environments that hold itself, and installs.
PYTHON = """#!/usr/bin/env bash
case "$*" in
  *platform*) echo {version} ;;
  *'-m venv'*) to="${{@: -1}}"; rm -rf "$to"; mkdir -p "$to/bin"; ln -sf "$0" "$to/bin/python" ;;
  *config*) ;;
  *)
    echo "$UV_DEFAULT_INDEX $*" >> installs
    echo "$XLA_FLAGS" > flags
    [[ "$*" != *'uv pip'* ]] || exit "${{UV_FAILS:-0}}" ;;
esac
"""
SHIM = '#!/usr/bin/env bash\necho "pyenv: command not found" >&2\nexit 127\n'


def write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def here(tmp_path) -> pathlib.Path:
    """A checkout's scripts and, in bin, all that is on the PATH: no Python, no pyenv, no uv."""
    for name in ('launch/install.sh', 'launch/test.sh', '.ci/run'):
        write(tmp_path / name, (ROOT / name).read_text())
    for name in ('setup.cfg', 'pyproject.toml', 'constraints.txt', 'constraints-beam.txt'):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / 'bin').mkdir()
    for name in TOOLS.split():
        (tmp_path / 'bin' / name).symlink_to(shutil.which(name))
    return tmp_path


def python(here: pathlib.Path, name: str, version: str) -> None:
    write(here / name, PYTHON.format(version=version))


def bash(here: pathlib.Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [here / 'bin/bash', *arguments],
        cwd=here,
        env={'PATH': str(here / 'bin'), 'TMPDIR': str(here), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def install(here: pathlib.Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    code = 'set -euo pipefail; source launch/install.sh "$@"'
    return bash(here, '-c', code, 'bash', '.', *arguments, **environment)


def test_the_newest_python_that_runs_is_taken_wherever_it_is(here):
    python(here, 'bin/python3.11', '3.11.7')
    assert 'making .venv with Python 3.11.7\n' in install(here).stdout
    write(here / 'bin/python3.13', SHIM)
    write(here / 'bin/python3.12', SHIM)
    assert 'making .venv-a with Python 3.11.7\n' in install(here, '.venv-a').stdout
    python(here, 'uv/python', '3.12.9')
    write(
        here / 'bin/uv', f'#!/usr/bin/env bash\n[ "${{@: -1}}" = 3.12 ] && echo {here}/uv/python\n'
    )
    assert 'making .venv-b with Python 3.12.9\n' in install(here, '.venv-b').stdout
    python(here, 'pyenv/versions/3.13.0/bin/python', '3.13.0')
    write(here / 'bin/pyenv', f'#!/usr/bin/env bash\necho {here}/pyenv\n')
    assert 'making .venv-c with Python 3.13.0\n' in install(here, '.venv-c').stdout
    assert 'making .venv-d with Python 3.11.7\n' in install(here, '.venv-d', '3.11').stdout


def test_an_environment_that_works_is_kept_and_any_other_is_made_again_in_a_line(here):
    python(here, 'bin/python3.13', '3.13.0')
    python(here, 'old', '3.11.7')
    assert 'making .venv with Python 3.11.7\n' in install(here, PYTHON=str(here / 'old')).stdout
    assert install(here).stdout == ''
    named = install(here, PYTHON='python3.13').stdout
    assert named.startswith('making .venv with Python 3.13.0 in place of 3.11.7\ninstalling ')
    (here / '.venv/bin/python').unlink()
    (here / '.venv/bin/python').symlink_to('/nowhere')
    assert ' with Python 3.13.0 in place of one that does not work\n' in install(here).stdout
    (here / 'setup.cfg').write_text('other')
    assert install(here).stdout.startswith('installing .')
    assert (here / 'installs').read_text().count(' -e .') == 4


def test_uv_installs_from_the_index_of_pip_and_where_it_cannot_pip_does(here):
    python(here, 'bin/python3.13', '3.13.0')
    assert 'pip installs' not in install(here, PIP_INDEX_URL='mirror').stdout
    assert 'uv could not: pip installs it' in install(here, '.venv-a', UV_FAILS='2').stdout
    lines = (here / 'installs').read_text().splitlines()
    made = [line.partition(' --')[0] for line in lines if ' -e .' in line]
    assert made == ['mirror -m uv pip install', ' -m uv pip install', ' -m pip install']


@pytest.mark.parametrize(
    'named, words',
    [('', 'none on the PATH, in pyenv or in uv'), ('./old', './old'), ('no/such', 'no/such')],
)
def test_without_a_python_there_is_one_line(here, named, words):
    python(here, 'old', '3.10.13')
    python(here, 'bin/python3', '3.14.0')
    refused = install(here, PYTHON=named)
    assert (refused.returncode, refused.stdout) == (2, '')
    assert refused.stderr == (
        f'error: no Python 3.13 or 3.12 or 3.11 that can make an environment: {words}:'
        ' install one, or name it: PYTHON=/path/to/python3.13 bash ...\n'
    )


@pytest.mark.parametrize('has', [True, False])
def test_the_suite_without_avx512_needs_a_processor_with_it(here, has):
    python(here, 'bin/python3.13', '3.13.0')
    (here / 'bin/grep').unlink()
    write(here / 'bin/grep', f'#!/usr/bin/env bash\nexit {0 if has else 1}\n')
    done = ok(bash(here, 'launch/test.sh', '--avx2', '-k', 'norm', XLA_FLAGS='--of_mine'))
    assert ('passed over' in done.stdout) is not has
    if has:
        assert (here / 'flags').read_text() == '--of_mine --xla_cpu_max_isa=AVX2\n'
        assert (here / 'installs').read_text().endswith('test_checkpoint.py -k norm\n')


def suites(here: pathlib.Path, *cases: str) -> None:
    """The suites as a case of their flag each; the others pass."""
    rest = 'echo "1.50s call tests/$1"; echo "peak memory: 1.00 GB"; echo "3 passed in 2.00s"'
    write(here / 'launch/test.sh', f'case "${{1:-}}" in {" ".join(cases)} *) {rest} ;; esac')
    python(here, '.venv/bin/python', '3.13.0')


def test_ci_ends_with_the_slowest_tests_and_the_memory(here):
    suites(here, '--beam) echo "21.00s call tests/beam"; exit 0 ;;')
    done = bash(here, '.ci/run')
    ok(done)
    last = done.stdout.partition('peak memory of each suite:\n')[2].splitlines()
    assert last[0] == 'beam:21.00s call tests/beam' and last[1].endswith(':1.50s call tests/--slow')
    assert 'core:peak memory: 1.00 GB' in last and last[-1].startswith('all done after ')
    assert '' not in last  # nothing is missing, and that needs no line


def test_ci_fails_over_what_failed_runs_the_rest_and_names_what_had_no_time(here):
    suites(
        here,
        '--plan | --parity) echo "1 failed in 2.00s"; exit 1 ;;',
        '--slow) echo "...... [ 40%]"; sleep 60 ;;',
    )
    begun = 4138  # two seconds are left
    (here / '.ci/run').write_text((here / '.ci/run').read_text().replace('-gt 3000', '-gt 9000'))
    done = bash(here, '.ci/run', SECONDS=str(begun))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    # Both run at the same time: whose line comes first is not said.
    failed = [f'FAILED: {name}: 1 failed in 2.00s' for name in ('parity', 'plan')]
    assert sorted(lines[-3:-1]) == failed
    assert lines[-1].startswith('NOT FINISHED: slow: stopped after ')
    assert lines[-1].endswith(' seconds: ...... [ 40%]')


def test_ci_fails_over_a_suite_that_was_not_run(here):
    suites(here)
    late = bash(here, '.ci/run', SECONDS='3001')
    assert late.returncode == 1 and late.stdout.count('NOT RUN: ') == 10
    assert late.stdout.splitlines()[-1] == 'NOT RUN: slow: 50 minutes are over'
