"""--print_config and --help_settings of the commands that have a configuration."""

from __future__ import annotations

import pytest

from bert_jax.configs import schema
from bert_jax.configs.load import load
from bert_jax.configs.overrides import apply


def test_the_printed_configuration_of_a_run_is_read_back_as_it_is(binary, tmp_path):
    command = ('pretrain', '--print_config')
    printed = binary(*command, '--config=bert_tiny', '--set=optimizer.peak_lr=2e-4').stdout
    (tmp_path / 'config.json').write_text(printed)
    assert schema.loads(printed) == apply(load('bert_tiny'), ['optimizer.peak_lr=2e-4'])
    assert binary(*command, f'--config={tmp_path}/config.json').stdout == printed


@pytest.mark.parametrize(
    'arguments, first, absent',
    [
        (['pretrain', '--help_settings'], 'name=bert_base', 'epochs='),
        (['finetune', '--help_settings', 'optimizer'], 'optimizer.algorithm=', 'epochs='),
        (['finetune', '--help_settings=runtime', '--task=x'], 'runtime.data_parallel=', 'epochs='),
        (['finetune', '--help_settings', '--task=x'], 'name=finetune', 'phases'),
    ],
)
def test_settings_are_told_without_any_other_flag(binary, arguments, first, absent):
    run = binary(*arguments)
    assert (run.returncode, run.stderr) == (0, '')
    assert run.stdout.splitlines()[1].startswith(first) and f'\n{absent}' not in run.stdout
