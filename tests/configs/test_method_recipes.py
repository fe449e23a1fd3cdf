"""A change of tuning.method brings the method's own rates, and other changes win over them."""

from __future__ import annotations

import pytest

from bert_jax.configs.presets.finetune import apply_changes, choose_recipe
from bert_jax.configs.schema import FinetuneConfig
from tests.helpers.refusals import refused

MRPC = choose_recipe('mrpc')


def rates(config: FinetuneConfig) -> tuple[float, float, str, float]:
    o = config.optimizer
    return o.peak_lr, o.weight_decay, o.schedule, config.warmup_fraction


# The sources' own: BitFit run_glue.py, LoRA roberta_base_mrpc.sh, adapter-bert README (its other
# values are BERT's), t-few ia3.json, AdaMix bert_base_mnli_expert_soup.sh.


@pytest.mark.parametrize(
    ('method', 'values'),
    [
        ('lora', (4e-4, 0.1, 'linear', 0.06)),
        ('houlsby', (3e-4, 0.01, 'bert', 0.1)),
        ('spafit', (4e-4, 0.1, 'linear', 0.06)),  # LoRA's, for none of its own is known
        ('full', (2e-5, 0.01, 'bert', 0.1)),
    ],
)
def test_a_method_brings_its_rates_and_leaves_the_budget(method, values):
    config = apply_changes(MRPC, [f'tuning.method={method}'])
    assert rates(config) == values
    budget = lambda c: (c.batch_size, c.epochs, c.max_seq_length, c.seed)
    assert budget(config) == budget(MRPC)


def test_what_is_said_wins_over_the_recipe_in_any_order():
    for changes in (
        ['optimizer.peak_lr=7e-4', 'tuning.method=lora'],
        ['tuning.method = lora', 'optimizer.peak_lr = 7e-4'],
    ):
        assert rates(apply_changes(MRPC, changes)) == (7e-4, 0.1, 'linear', 0.06)
    # A configuration that has the method already has its own rates.
    lora = apply_changes(MRPC, ['tuning.method=lora', 'optimizer.peak_lr=7e-4'])
    assert apply_changes(lora, ['tuning.method=lora', 'seed=1']).optimizer == lora.optimizer
    with refused('--set tuning.method=lorra: must be one of full, bitfit'):
        apply_changes(MRPC, ['tuning.method=lorra'])
