"""Compiled programs kept between runs: where, by whom, and what a damaged one does.

A run that begins is `jax.clear_caches` and a cache that is opened anew.
"""

from __future__ import annotations

import pathlib
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bert_jax.mesh import program_cache

SETTINGS = (
    'jax_enable_compilation_cache',
    'jax_compilation_cache_dir',
    'jax_compilation_cache_max_size',
    'jax_persistent_cache_min_compile_time_secs',
)


@pytest.fixture
def users(tmp_path, monkeypatch) -> pathlib.Path:
    """The user's cache, which is empty; the rest of the tests has none."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    jax.config.update('jax_enable_compilation_cache', True)
    # Whatever a test before in this process has left there.
    jax.config.update('jax_compilation_cache_dir', None)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
    compilation_cache.reset_cache()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def run(folder: str | None) -> tuple[float, list[str]]:
    """What a program gives in a run of its own, and what of its compiling the cache tells."""
    jax.clear_caches()
    compilation_cache.reset_cache()
    program_cache.use(folder)
    told: list[str] = []
    listen = lambda event, **_: told.append(event.rpartition('/')[2])
    jax.monitoring.register_event_listener(listen)
    try:
        given = float(jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x))(np.arange(64, dtype=np.float32)))
    finally:
        jax.monitoring.unregister_event_listener(listen)
    return given, [event for event in told if event in ('cache_hits', 'cache_misses')]


def programs(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.rglob('*-cache'))


def test_a_program_is_compiled_once_for_all_runs_of_a_user(users):
    cold, warm = run('auto'), run('auto')
    assert (cold[1], warm[1]) == (['cache_misses'], ['cache_hits'])
    assert cold[0] == warm[0]
    [program] = programs(users)
    assert program.parent.parent == users / 'bert_jax/programs'
    # What lies there is run, so nobody else may write it.
    assert stat.S_IMODE(program.parent.stat().st_mode) == 0o700
    assert jax.config.jax_compilation_cache_max_size == 10 * 2**30


@pytest.mark.parametrize(('before', 'after'), [(1.0, 0.1), (30.0, 30.0)])
def test_small_programs_are_kept_too_unless_the_user_set_a_bound(before, after, users):
    jax.config.update('jax_persistent_cache_min_compile_time_secs', before)
    run('auto')
    assert jax.config.jax_persistent_cache_min_compile_time_secs == after


def test_a_run_goes_on_where_the_users_cache_cannot_be_written(users, monkeypatch, caplog):
    (users / 'file').write_text('')
    monkeypatch.setenv('XDG_CACHE_HOME', str(users / 'file'))
    with caplog.at_level('INFO', logger='absl'):
        assert run('auto')[1] == []
    assert 'compiled programs are not kept: ' in caplog.text
