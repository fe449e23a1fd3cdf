"""What is given away: the wheel and the source distribution hold what they should, and it runs.

Built by setuptools alone, as pip would have it build them, so that no network is needed.
"""

from __future__ import annotations

import configparser
import email.parser
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.helpers.processes import ROOT, ok, python

# Folders of a checkout that bert_jax links to, and holds once it is packed.
LINKED = ('configs', 'input_pipeline', 'launch')
pytestmark = pytest.mark.slow


def tracked() -> set[str]:
    """The files of the repository."""
    command = ['git', 'ls-files', '--cached', '--others', '--exclude-standard', '--deduplicate']
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


def build(source: pathlib.Path, kind: str, output: pathlib.Path) -> pathlib.Path:
    """A distribution of the folder `source`; kind: 'wheel' or 'sdist'."""
    code = f'from setuptools import build_meta; build_meta.build_{kind}({str(output)!r})'
    ok(python('-c', code, cwd=source))
    return max(output.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def contents(wheel: pathlib.Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope='module')
def checkout(tmp_path_factory) -> pathlib.Path:
    """A copy of the repository's files, for building leaves folders behind."""
    folder = tmp_path_factory.mktemp('checkout')
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def packed() -> dict[str, pathlib.Path]:
    """The files of the package by their names in a distribution, and where the repository has them.

    The scripts of a checkout install it, which a package no longer needs; recipes are templates.
    """
    ours = [
        name for name in tracked() if name.startswith(('bert_jax/', *(f'{n}/' for n in LINKED)))
    ]
    return {
        name if name.startswith('bert_jax/') else f'bert_jax/{name}': ROOT / name
        for name in ours
        if not is_script(name) and not (ROOT / name).is_symlink()
    }


def is_script(name: str) -> bool:
    """Whether a file is a script that needs the checkout it stands in."""
    return name.startswith('launch/') and name.endswith('.sh') and name.count('/') == 1


@pytest.fixture(scope='module')
def wheel(checkout, tmp_path_factory) -> pathlib.Path:
    return build(checkout, 'wheel', tmp_path_factory.mktemp('wheel'))


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory) -> pathlib.Path:
    """A folder that holds the packages of the wheel, and its scripts in bin/."""
    folder = tmp_path_factory.mktemp('installed')
    pip = [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-index']
    subprocess.run([*pip, f'--target={folder}', wheel], check=True, capture_output=True)
    return folder


def test_the_wheel_holds_the_packages_and_nothing_else(wheel):
    wanted = packed()
    assert len(wanted) > 100
    found = contents(wheel)
    assert {name for name in found if '.dist-info/' not in name} == set(wanted)
    assert all(found[name] == path.read_bytes() for name, path in wanted.items())


def test_the_source_distribution_holds_a_checkout_and_makes_the_same_wheel(
    checkout, wheel, tmp_path
):
    sdist = build(checkout, 'sdist', tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / 'source', filter='data')
    (source,) = (tmp_path / 'source').iterdir()
    found = {path.relative_to(source).as_posix() for path in source.rglob('*') if path.is_file()}
    made = {name for name in found if name == 'PKG-INFO' or '.egg-info/' in name}
    hidden = {name for name in tracked() if name.startswith('.')}
    # In place of the links stand the files.
    linked = {name for name in tracked() if name.startswith(tuple(f'{n}/' for n in LINKED))}
    outside = {name for name in tracked() - linked if not (ROOT / name).is_symlink()}
    scripts = {name for name in linked if is_script(name)}
    assert found - made == (outside - hidden) | scripts | set(packed())
    (tmp_path / 'again').mkdir()
    assert contents(build(source, 'wheel', tmp_path / 'again')) == contents(wheel)


def test_the_metadata_are_whole(wheel):
    (name,) = (name for name in contents(wheel) if name.endswith('.dist-info/METADATA'))
    metadata = email.parser.BytesParser().parsebytes(contents(wheel)[name])
    assert metadata['License-Expression'] == 'Apache-2.0'
    assert metadata['Requires-Python'] == '<3.14,>=3.11'
    assert metadata['Description-Content-Type'] == 'text/markdown'
    assert metadata.get_payload().startswith('# bert_jax\n')
    classifiers = metadata.get_all('Classifier')
    assert {f'Programming Language :: Python :: 3.{minor}' for minor in (11, 12, 13)} < set(
        classifiers
    )
    assert {'Operating System :: POSIX :: Linux', 'Typing :: Typed'} < set(classifiers)
    extras = {'tpu', 'cuda', 'tensorflow', 'gcs', 'beam', 'plan', 'parity', 'test'}
    assert extras < set(metadata.get_all('Provides-Extra'))
    tensorflow = [text for text in metadata.get_all('Requires-Dist') if 'tensorflow' in text]
    assert tensorflow and all('extra == "tensorflow"' in text for text in tensorflow)


def test_one_name_is_installed_and_leaves_the_users_own_alone(installed, tmp_path):
    """A project with modules of the names of our folders imports its own and ours."""
    tops = {path.name for path in installed.iterdir()} - {'bin', '__pycache__'}
    assert {name for name in tops if not name.endswith('.dist-info')} == {'bert_jax'}
    for name in ('configs', 'launch', 'utils'):
        (tmp_path / name).mkdir()
        (tmp_path / name / '__init__.py').write_text(f'MINE = "{name}"\n')
    (tmp_path / 'configs' / 'default.py').write_text('RATE = 3\n')
    (tmp_path / 'input_pipeline.py').write_text('MINE = "input_pipeline"\n')
    code = (
        'import sys, bert_jax; assert not {"jax", "numpy", "tensorflow"} & set(sys.modules)\n'
        'from bert_jax.configs.load import load; load("bert_tiny")\n'
        'import bert_jax.launch, bert_jax.input_pipeline\n'
        'import configs.default, launch, input_pipeline, utils\n'
        'print(configs.default.RATE, launch.MINE, input_pipeline.MINE, utils.MINE)\n'
        'from bert_jax import Bert, Objective, Predictor, own_run, cross_entropy\n'
        'print(bert_jax.__version__, Bert.__module__)'
    )
    run = ok(python('-c', code, cwd=tmp_path, PYTHONPATH=str(installed)))
    version = configparser.ConfigParser()
    version.read(ROOT / 'setup.cfg')
    number = version['metadata']['version']
    assert run.stdout == f'3 launch input_pipeline utils\n{number} bert_jax.inference.bert\n'


def test_what_was_installed_runs_beside_packages_of_our_folders_names(installed, tmp_path):
    """In a folder of the user's that has packages of all those names, workers included."""
    for name in LINKED:
        (tmp_path / name).mkdir()
        (tmp_path / name / '__init__.py').write_text('raise SystemExit("not ours")\n')
    (tmp_path / 'text.txt').write_text('one two three .\nfour five six .\n\n' * 40)

    def run(script, *arguments):
        return python(
            installed / 'bin' / script, *arguments, cwd=tmp_path, PYTHONPATH=str(installed)
        )

    # Every script starts, and finds the command that it is named after.
    scripts = sorted(path.name for path in (installed / 'bin').iterdir())
    assert len(scripts) > 10
    for script in scripts:
        helped = ok(run(script, '--help'))
        assert not helped.stderr and f'usage: {script} ' in helped.stdout

    ok(run('bert-train-vocab', '--input=text.txt', '--output=vocab', '--vocab_size=60'))
    flags = ['--input=text.txt', '--tokenizer=vocab', '--output=records', '--seq_len=16']
    ok(run('bert-preprocess', *flags, '--workers=2', '--num_shards=2'))
    ok(run('bert-preprocess', 'verify', 'records'))
    # The presets came with it.
    printed = run('bert-pretrain', '--config=bert_tiny', '--print_config')
    assert printed.returncode == 0 and '"hidden_size": 128' in printed.stdout, printed.stderr
