"""Each key of the trainer changes something: with the key ignored, its line here fails."""

import jax
import numpy as np
import optax
import pytest

from thoth_jax.train.build import lora_config, model_config
from thoth_jax.train.optimizer import make_optimizer


def updates_of(config, steps=4):
    """Parameters of a toy problem after some updates."""
    params = {"norm": np.ones(2, np.float32), "q_proj": np.ones((2, 2), np.float32)}
    optimizer = make_optimizer(config, steps)
    state = optimizer.init(params)
    for step in range(steps):
        gradient = jax.tree.map(lambda leaf, factor=3.0 - step: leaf * factor, params)
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize(
    "override",
    [
        "learning_rate=0.01",
        "schedule=constant",
        "schedule=linear",
        "warmup_ratio=0.5",
        "adam_b1=0.5",
        "adam_b2=0.5",
        "max_grad_norm=0.1",
        "max_grad_norm=0",
    ],
)
def test_optimiser_keys(tiny, override):
    before, after = updates_of(tiny("sft")), updates_of(tiny("sft", override))
    assert not np.allclose(before["q_proj"], after["q_proj"], atol=1e-9)


def test_weight_decay_reaches_matrices_but_not_norms(tiny):
    before, after = updates_of(tiny("sft")), updates_of(tiny("sft", "weight_decay=0.5"))
    assert not np.allclose(before["q_proj"], after["q_proj"], atol=1e-6)
    np.testing.assert_array_equal(before["norm"], after["norm"])


@pytest.mark.parametrize(
    "override",
    [
        "hidden_size=64", "intermediate_size=64", "num_layers=3", "num_heads=8", "num_kv_heads=4", "head_dim=16",
        "rope_theta=500", "tie_embeddings=false", "dtype=bfloat16", "remat=full",
    ],
)  # fmt: skip
def test_model_keys(tiny, override):
    name = override.split("=")[0]
    before, after = model_config(tiny("sft"), 100), model_config(tiny("sft", f"model.{override}"), 100)
    assert {field for field in before.__dataclass_fields__ if getattr(before, field) != getattr(after, field)} == {name}


def test_lora_keys(tiny):
    found = lora_config(tiny("sft", "lora.rank=3", "lora.alpha=7", "lora.dropout=0.5", "lora.targets=q_proj,up_proj"))
    assert (found.rank, found.alpha, found.dropout, found.targets) == (3, 7.0, 0.5, ("q_proj", "up_proj"))


def test_lora_dropout_changes_the_step(tiny, trial):
    losses = []
    for dropout in (0.0, 0.5):
        found = trial(tiny("sft", "lora.rank=2", f"lora.dropout={dropout}", "learning_rate=0.1"))
        found.steps(2)
        losses.append(found.metrics[1]["loss"])
    assert losses[0] != losses[1]


# What a reinforcement-learning step must show when a key is set; the first step starts from the same random policy.
RL_KEYS = {
    "seed=1": "rewards/mean",
    "prompts_per_step=4": "tokens",
    "group_size=6": "tokens",
    "temperature=0.3": "tokens",
    "max_completion_length=4": "completions/max_length",
    "num_iterations=2": "ratio/max",
    "level=sequence": "pg_clipfrac/high",
    "aggregation=sequence_mean_token_sum": "loss/policy",
    "scale_rewards=none": "loss/policy",
    "scale_rewards=batch": "grad_norm",
    "baseline=leave_one_out": "grad_norm",
    "entropy_coef=1.0": "loss/entropy",
    "kl_coef=0.5": "loss/kl",
    "tokens_per_microbatch=100": None,
}


@pytest.fixture
def rewarded(tmp_path, monkeypatch):
    """A reward that differs among samples of a policy that knows nothing: the share of even token ids."""
    (tmp_path / "even_reward.py").write_text(
        "def even(examples, completions, scale=1.0):\n"
        "    return [scale * sum(t % 2 == 0 for t in c.token_ids) / len(c.token_ids) for c in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    return 'rewards=[{"fn": "even_reward:even"}]'


def first_steps(trial, config, count=1):
    found = trial(config, jax.devices()[:1])
    found.steps(count)
    return found


@pytest.mark.parametrize("override", [o for o, metric in RL_KEYS.items() if metric])
def test_rl_keys(tiny, trial, rewarded, override):
    base = first_steps(
        trial,
        tiny(
            "rl",
            rewarded,
            "mesh.fsdp=1",
            "num_iterations=1" if "level" not in override else "num_iterations=3",
            "epsilon_high=0.01",
        ),
    )
    more = ("num_iterations=3",) if "level" in override else ()
    other = first_steps(trial, tiny("rl", rewarded, "mesh.fsdp=1", "epsilon_high=0.01", *more, override))
    metric = RL_KEYS[override]
    assert other.metrics[0].get(metric) != base.metrics[0].get(metric)
