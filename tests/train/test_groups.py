"""Where a step's groups come from: dynamic sampling, its pool, mini-batches, the length penalty."""

import json

import jax
import numpy as np
import pytest

from tests.train.conftest import leaves
from thoth_jax.errors import InputError
from thoth_jax.sharding import use_mesh
from thoth_jax.task import Rewards
from thoth_jax.train.groups import _from_json, _to_json

ON = ("dynamic_sampling.max_rounds=9", "mesh.fsdp=1", "max_grad_norm=0")


@pytest.fixture
def half(tmp_path, monkeypatch):
    """An override: a reward that differs among the samples of every second prompt only."""
    (tmp_path / "half_reward.py").write_text(
        "import zlib\n\n"
        "def half(examples, completions, flat=2):\n"
        "    if zlib.crc32(examples[0].id.encode()) % 3 < flat:\n"
        "        return [0.5] * len(completions)\n"
        "    return [sum(t % 2 == 0 for t in c.token_ids) / len(c.token_ids) for c in completions]\n\n"
        "def never(examples, completions):\n"
        "    return [0.5] * len(completions)\n"
    )
    monkeypatch.chdir(tmp_path)
    return 'rewards=[{"fn": "half_reward:half"}]'


def one_device(trial, config):
    return trial(config, jax.devices()[:1])


def spread(group):
    return float(np.ptp(group.rewards.raw))


def test_a_step_has_exactly_the_asked_number_of_prompts_that_teach(tiny, trial, half):
    found = one_device(trial, tiny("rl", half, *ON))
    source = found.stage._source
    seen = []
    for index in range(3):
        before = list(source._pool)
        with use_mesh(found.run.mesh):
            draw = source.draw(found.state, index, lambda: False)
        assert source._pool == before  # nothing counts as drawn yet
        source.commit(draw)
        assert len(draw.groups) == 2 and all(spread(group) > 1e-6 and group.kept for group in draw.groups)
        assert draw.groups[: len(before)] == before[:2]  # what was left over comes first
        assert draw.metrics["sampling/missing"] == 0
        seen += [group.prompt for group in draw.groups]
    assert len(set(seen)) == 6 and source._position > 6  # some prompts were passed over


def test_rounds_differ_in_their_noise_and_stop_at_the_cap(tiny, trial, half, caplog):
    words = ('rewards=[{"fn": "half_reward:never"}]', *ON[1:], "dynamic_sampling.max_rounds=3")
    found = one_device(trial, tiny("rl", *words))
    before = jax.device_get(found.state.params["embed"])
    after = found.steps(1)
    metrics = found.metrics[0]
    assert metrics["sampling/rounds"] == 3 and metrics["sampling/missing"] == 2 and metrics["tokens"] == 0
    assert metrics["sampling/kept_frac"] == 0 and metrics["rewards/invalid"] == 8
    np.testing.assert_array_equal(next(leaf for name, leaf in after.items() if "embed" in name), before)
    assert "step 1: 0 of 2 prompts after 3 rounds of dynamic sampling" in caplog.text
    assert found.stage._source._position == 6


def test_off_takes_what_comes(tiny, trial, half):
    found = one_device(trial, tiny("rl", half, "mesh.fsdp=1"))
    found.steps(3)
    assert found.stage._source._position == 6 and not found.stage._source._pool
    assert "sampling/rounds" not in found.metrics[0]


def test_a_length_penalty_makes_no_hopeless_prompt_look_informative(tiny, trial, half):
    words = ('rewards=[{"fn": "half_reward:never"}]', *ON[1:], "dynamic_sampling.max_rounds=1")
    found = one_device(trial, tiny("rl", *words, "overlong.buffer=8", "max_completion_length=8"))
    found.steps(1)
    assert found.metrics[0]["sampling/kept_frac"] == 0


def test_the_filter_names_a_part(tiny, trial, half):
    rewards = 'rewards=[{"fn": "half_reward:half"}, {"fn": "half_reward:never"}]'
    words = (rewards, *ON[1:], "dynamic_sampling.max_rounds=2")
    for name, kept in (("half_reward:half", True), ("half_reward:never", False)):
        found = one_device(trial, tiny("rl", *words, f"dynamic_sampling.filter={name}"))
        found.steps(1)
        assert (found.metrics[0]["sampling/kept_frac"] > 0) == kept
    with pytest.raises(InputError, match="dynamic_sampling.filter='half_reward:hlf': the rewards have no such part"):
        one_device(trial, tiny("rl", *words, "dynamic_sampling.filter=half_reward:hlf")).steps(1)


def test_a_resumed_run_goes_on_with_the_pool(tiny, trial, half):
    """Position and pool go through JSON, as in a checkpoint; the rest of the run is the same bit for bit."""
    config = tiny("rl", 'rewards=[{"fn": "half_reward:half", "kwargs": {"flat": 1}}]', *ON, "prompts_per_step=3")
    straight, first, second = (one_device(trial, config) for _ in range(3))
    with use_mesh(first.run.mesh):
        for start in range(1, 6):
            first.state, _ = first.stage.step(first.state, start - 1, lambda: False)
            if first.stage.position()["pool"]:
                break
    position = json.loads(json.dumps(first.stage.position()))
    assert position["pool"], "the case shows nothing without a pool"
    expected = straight.steps(start + 2)
    second.state = first.state
    second.stage.resume(position, start)
    with use_mesh(second.run.mesh):
        for index in (start, start + 1):
            second.state, metrics = second.stage.step(second.state, index, lambda: False)
            assert timeless(metrics) == timeless(straight.metrics[index])
    assert straight.metrics[start]["sampling/stale_frac"] > 0
    for name, leaf in leaves(second.state.params).items():
        np.testing.assert_array_equal(leaf, expected[name])


def timeless(metrics):
    """What a run gives again when it is done again."""
    return {name: float(v) for name, v in metrics.items() if "time" not in name and name != "compile/count"}


def test_a_checkpoint_from_before_goes_on_by_its_step(tiny, trial):
    found = one_device(trial, tiny("rl", "mesh.fsdp=1"))
    found.stage.resume(None, 7)
    assert found.stage.position() == {"drawn": 14, "pool": []}


def test_a_group_goes_through_json_unharmed(tiny, trial, half):
    found = one_device(trial, tiny("rl", half, *ON))
    with use_mesh(found.run.mesh):
        group = found.stage._source.draw(found.state, 0, lambda: False).groups[0]
    rewards = group.rewards
    odd = Rewards(rewards.total, {"part": np.array([np.nan, 1, 2, 3], np.float32)}, rewards.valid, rewards.raw)
    again = _from_json(json.loads(json.dumps(_to_json(_with(group, odd)))), 8)
    assert (again.prompt, again.step) == (group.prompt, group.step)
    for name in ("tokens", "lengths", "logprobs"):
        np.testing.assert_array_equal(getattr(again.samples, name), getattr(group.samples, name))
    assert again.samples.finish_reason == group.samples.finish_reason
    for name in ("total", "valid", "raw"):
        np.testing.assert_array_equal(getattr(again.rewards, name), getattr(odd, name))
    np.testing.assert_array_equal(again.rewards.parts["part"], odd.parts["part"])


def _with(group, rewards):
    return type(group)(group.prompt, group.step, group.samples, rewards)


def test_rows_of_an_earlier_policy_keep_the_logprobs_they_were_sampled_with(tiny, trial, half):
    found = one_device(trial, tiny("rl", half, *ON))
    with use_mesh(found.run.mesh):
        groups = found.stage._source.draw(found.state, 0, lambda: False).groups
        batch = found.stage._batch(groups, 3, np.ones(8, bool))
        batch["logp_rollout"] = batch["logp_rollout"] - 1.0
        [micro] = parts = found.stage._parts(batch)
        found.stage._kl_penalty(found.state, parts, batch["loss_mask"])
        np.testing.assert_array_equal(np.asarray(micro["logp_old"])[0], batch["logp_rollout"])
        fresh = found.stage._parts(found.stage._batch(groups, 0, np.ones(8, bool)))
        found.stage._kl_penalty(found.state, fresh, batch["loss_mask"])
    mask = batch["loss_mask"]
    np.testing.assert_allclose(np.asarray(fresh[0]["logp_old"])[0][mask], batch["logp_rollout"][mask] + 1, atol=1e-4)


def test_mini_batches_use_the_logprobs_of_the_policy_that_sampled(tiny, trial, rewarded):
    """Two updates a step; in the second the policy has left the one that sampled, so ratios are not 1."""
    config = tiny("rl", rewarded, "mesh.fsdp=1", "prompts_per_update=1", "learning_rate=1e-2")
    found = one_device(trial, config)
    found.steps(1)
    assert int(found.state.step) == 2 and found.stage.updates_per_step == 2
    assert found.metrics[0]["ratio/max"] > 1.001
    still = one_device(trial, tiny("rl", rewarded, "mesh.fsdp=1", "prompts_per_update=1", "learning_rate=0"))
    still.steps(1)
    assert still.metrics[0]["ratio/max"] == pytest.approx(1, abs=1e-4)
    assert still.metrics[0]["tokens"] == found.metrics[0]["tokens"]


def test_a_reward_that_is_stuck_costs_its_group_only(tiny, trial, tmp_path, monkeypatch, caplog):
    (tmp_path / "slow_reward.py").write_text(
        "import time\n\ncalls = []\n\n"
        "def slow(examples, completions, seconds=20.0):\n"
        "    calls.append(0)\n"
        "    if len(calls) == 2:\n"
        "        time.sleep(seconds)\n"
        "    return [sum(t % 2 == 0 for t in c.token_ids) / len(c.token_ids) for c in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ('rewards=[{"fn": "slow_reward:slow"}]', "mesh.fsdp=1")
    found = one_device(trial, tiny("rl", *words, "reward_timeout=1.5"))
    found.steps(1)
    assert found.metrics[0]["rewards/invalid"] == 4 and found.metrics[0]["grad_norm"] > 0
    assert "took more than reward_timeout=1.5 seconds: its samples are left out" in caplog.text
    assert found.metrics[0]["step_time/total" if "step_time/total" in found.metrics[0] else "step_time/rollout"] < 20
