"""What every test shares: fake devices, strict jax, the binaries, real text if there is some.

It says at the end how much memory the tests took.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bert_jax.mesh import before_jax
from tests.helpers.encoder import ENCODER_WORDS

# Read by jax when it is first imported, so that tests without jax do not pay for it.
os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['JAX_NUM_CPU_DEVICES'] = '8'
os.environ['JAX_NUMPY_RANK_PROMOTION'] = 'raise'
# What is compiled here is kept for the files to come and for the processes that tests start, in a
# folder that goes with this process: nothing is left in the user's cache. Each worker has its own,
# since jax may read an entry that another process has begun to write.
_PROGRAMS = tempfile.mkdtemp(prefix='bert_jax_tests_')
os.environ['JAX_COMPILATION_CACHE_DIR'] = _PROGRAMS
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'
# Compiling is most of what the tests do. The test with kills in tests/launch/test_end_to_end.py
# compiles as users do.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
# No test reads from which line of Python an operation is; to write that down is a tenth of it.
os.environ['JAX_TRACEBACK_IN_LOCATIONS_LIMIT'] = '0'
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
# launch/install.sh leaves it to Python to keep what it has compiled of the packages, once; where
# the environment forbids that, every process that a test starts would compile all it imports.
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
sys.dont_write_bytecode = False
# Seeds the tests that try something else each time; their names show it. Set here so that all
# processes of a run have one.
os.environ.setdefault('BERT_JAX_TEST_SEED', str(random.SystemRandom().randrange(10_000)))


@pytest.fixture(scope='session', autouse=True)
def same_products() -> Iterator[None]:
    """Products of float32 in this process, whatever the processor is fast in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(before_jax, 'read_processor_flags', frozenset)
        yield


# Seconds after which a slow test fails, or one of tests/plan; setup.cfg has those of the others.
_SLOW_S = 2400


@pytest.fixture(autouse=True)
def no_process_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kills what a test has started and left, as one does that fails while it waits."""
    started, init = [], subprocess.Popen.__init__

    def noted(process: subprocess.Popen, *arguments: Any, **options: Any) -> None:
        init(process, *arguments, **options)
        started.append(process)

    monkeypatch.setattr(subprocess.Popen, '__init__', noted)
    yield
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


# GB at the most, of the processes that ran tests and of the largest that a test started.
_PEAKS: list[tuple[float, float]] = []


def _peak() -> tuple[float, float]:
    """The most memory that this process took, and that a process took that it started; in GB.

    The second counts what this process had when it started the other, which Linux adds.
    """
    unit = 1 if sys.platform == 'darwin' else 1024  # of ru_maxrss, in bytes
    here, started = (
        resource.getrusage(who).ru_maxrss * unit / 1e9
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return here, started


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts first what takes longest: last, it would leave one of two processes idle.

    And last what imports TensorFlow: it stays in memory, 0.4 GB. What is slow may take longer,
    and so may the TPU compiler.
    """
    for item in items:
        if item.get_closest_marker('slow') or 'plan' in item.path.parts:
            item.add_marker(pytest.mark.timeout(_SLOW_S))
    turns = {'docs': 0, 'input_pipeline': 2}
    items.sort(key=lambda item: next((turns[p] for p in item.path.parts if p in turns), 1))


def pytest_collection_finish() -> None:
    """Spares the collector what was imported: it stays, and to look through it takes time."""
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends the peak memory from a worker of pytest-xdist to the process that reports."""
    if hasattr(session.config, 'workeroutput'):
        session.config.workeroutput['peak'] = _peak()


def pytest_unconfigure() -> None:
    """Deletes the programs that this process has kept."""
    shutil.rmtree(_PROGRAMS, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes what a worker has sent; one that was killed has sent nothing."""
    _PEAKS.extend([node.workeroutput['peak']] if hasattr(node, 'workeroutput') else [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    here, started = zip(*(_PEAKS or [_peak()]), strict=True)
    terminalreporter.write_line(
        f'peak memory: {" and ".join(f"{gb:.2f}" for gb in here)} GB,'
        f' at most {max(started):.2f} GB in a process that a test started'
    )


@pytest.fixture(scope='module', autouse=True)
def programs_of_one_file() -> Iterator[None]:
    """Forgets what a file has compiled: no other file runs it, and a run would hold gigabytes."""
    yield
    if jax := sys.modules.get('jax'):
        jax.clear_caches()
        gc.collect()
        # Freed memory lies scattered, and the next file would take more instead of it.
        if trim := getattr(ctypes.CDLL(None), 'malloc_trim', None):
            trim(0)


@pytest.fixture
def test_data() -> pathlib.Path:
    """The folder of real corpora and tasks that BERT_JAX_TEST_DATA names.

    Without it the test is skipped.
    """
    path = os.environ.get('BERT_JAX_TEST_DATA')
    if not path:
        pytest.skip('BERT_JAX_TEST_DATA is not set: it names a folder of real corpora and tasks')
    if not pathlib.Path(path).is_dir():
        pytest.fail(f'BERT_JAX_TEST_DATA={path} is not a folder')
    return pathlib.Path(path)


@pytest.fixture(scope='session')
def binary() -> Callable[..., subprocess.CompletedProcess]:
    """Runs `python -m launch.NAME ARGUMENTS` as a user would: code, stdout and stderr.

    On one device.
    """

    def run(
        name: str, *arguments: object, timeout: float = 1200, **environment: str
    ) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, '-m', f'bert_jax.launch.{name}', *map(str, arguments)],
            cwd=pathlib.Path(__file__).parents[1],
            env={**os.environ, 'JAX_NUM_CPU_DEVICES': '1', **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """Puts back the handlers that a run installs in this process."""
    kept = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture(scope='session')
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A workdir such as bert-pretrain leaves, of a very small model that knows ENCODER_WORDS."""
    import jax

    from bert_jax.configs import schema
    from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
    from bert_jax.model import heads
    from bert_jax.runs.workdir.workdir import Workdir
    from bert_jax.train import checkpoint
    from bert_jax.train.state import init_params, make_state

    folder = tmp_path_factory.mktemp('encoder')
    (folder / 'vocabulary').mkdir()
    (folder / 'vocabulary/vocab.txt').write_text(
        '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *ENCODER_WORDS]) + '\n'
    )
    (folder / 'vocabulary/tokenizer_config.json').write_text('{"do_lower_case": true}')
    tokenizer = Tokenizer.load(folder / 'vocabulary')
    model = schema.ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        intermediate_size=64,
        max_position=64,
    )
    config = schema.PretrainConfig(
        model=model,
        phases=(schema.Phase(64, 10, 8),),
        optimizer=schema.OptimizerConfig(warmup_steps=0),
        runtime=schema.RuntimeConfig(),
    )
    Workdir(folder).create_or_resume(config, {})
    tokenizer.save(folder / 'tokenizer')
    # On one device: a program for a mesh takes longer to compile.
    params = jax.jit(lambda: init_params(heads.Pretraining(model), 7))()
    state = make_state(params, config.optimizer)
    checkpoints = checkpoint.Checkpoints(folder)
    checkpoints.save(state, {'kind': 'pretrain'})
    checkpoints.close()
    return str(folder)
