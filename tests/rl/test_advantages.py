import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thoth_jax import rl
from thoth_jax.errors import InputError

group_advantages = jax.jit(rl.group_advantages, static_argnames=("scale_rewards", "baseline", "epsilon", "ddof"))
step_advantages = jax.jit(rl.step_advantages, static_argnames=("length", "epsilon", "ddof"))
keep_group = jax.jit(rl.keep_group)

REWARDS = np.array([[1.0, 0.0, 0.0, 1.0], [0.2, 0.5, 0.9, 0.4]])


def close(actual, expected):
    tolerance = 1e-7 if np.asarray(actual).dtype == np.float64 else 5e-6
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_group_by_hand(x64):
    # mean 1/2, sample std sqrt(1/3)
    expected = 0.5 / (np.sqrt(1 / 3) + 1e-4)
    advantages = group_advantages(REWARDS)
    assert advantages.dtype == jnp.float64
    np.testing.assert_allclose(advantages[0], expected * np.array([1, -1, -1, 1]), rtol=1e-12)
    np.testing.assert_allclose(group_advantages(REWARDS, ddof=0, epsilon=0)[0], [1, -1, -1, 1], rtol=1e-12)


def test_unscaled_and_leave_one_out_by_hand():
    np.testing.assert_allclose(group_advantages(REWARDS, scale_rewards="none")[1], [-0.3, 0, 0.4, -0.1], atol=1e-6)
    left_out = group_advantages(REWARDS, scale_rewards="none", baseline="leave_one_out")
    np.testing.assert_allclose(left_out[1], [0.2 - 0.6, 0, 0.9 - 1.1 / 3, 0.4 - 1.6 / 3], atol=1e-6)


def test_leave_one_out_divides_by_the_std_of_the_whole_group():
    plain = group_advantages(REWARDS)
    left_out = group_advantages(REWARDS, baseline="leave_one_out")
    np.testing.assert_allclose(left_out, plain * 4 / 3, rtol=1e-5, atol=1e-6)


def test_batch_scale_keeps_the_group_baseline():
    advantages = group_advantages(REWARDS, scale_rewards="batch", epsilon=0.0)
    np.testing.assert_allclose(advantages.sum(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(advantages[0, 0], 0.5 / REWARDS.std(ddof=1), rtol=1e-5)


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_rewards_give_exact_zeros(scale_rewards, baseline, dtype, x64):
    for reward, count in [(0.35, 12), (1 / 3, 7), (0.7, 8), (0.9, 16), (0.85, 8), (0.62, 8), (0.5, 8), (0.1, 3)]:
        rewards = np.stack([np.full(count, reward, dtype), np.linspace(0, 1, count, dtype=dtype)])
        advantages = np.asarray(group_advantages(rewards, scale_rewards=scale_rewards, baseline=baseline))
        assert (advantages[0] == 0).all()
        assert advantages[1].any()
        assert np.asarray(keep_group(rewards)).tolist() == [False, True]


def test_invalid_samples_enter_nothing():
    rewards = np.array([[1.0, 0.45, np.nan, 1.25], [5.0, np.nan, np.nan, 7.0]])
    valid = np.array([[True, True, True, True], [True, False, True, False]])
    advantages = np.asarray(group_advantages(rewards, valid=valid))
    np.testing.assert_allclose(advantages[0, [0, 1, 3]], group_advantages(rewards[:1, [0, 1, 3]])[0], rtol=1e-6)
    assert advantages[0, 2] == 0
    assert (advantages[1] == 0).all()  # one valid sample is no group
    pooled = group_advantages(rewards, valid=valid, scale_rewards="batch", epsilon=0.0)
    np.testing.assert_allclose(pooled[0, 0], (1 - 0.9) / np.std([1, 0.45, 1.25, 5], ddof=1), rtol=1e-5)


def test_an_invalid_group_or_none_at_all():
    assert not np.asarray(group_advantages(np.full((2, 3), np.nan))).any()
    assert not np.asarray(group_advantages(np.ones((2, 1)))).any()
    assert group_advantages(np.zeros((0, 4))).shape == (0, 4)


def test_under_jit_and_low_precision():
    advantages = group_advantages(jnp.asarray(REWARDS, jnp.bfloat16))
    assert advantages.dtype == jnp.float32
    np.testing.assert_allclose(advantages, group_advantages(REWARDS), atol=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale_rewards": "groups"}, "did you mean 'group'"),
        ({"baseline": "rloo"}, "called 'leave_one_out'"),
        ({"epsilon": -1.0}, "epsilon=-1.0: must be a number >= 0"),
        ({"ddof": 2}, "ddof=2"),
        ({"valid": np.ones((2, 3))}, "valid: shape"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        rl.group_advantages(REWARDS, **options)
    with pytest.raises(InputError, match="rewards: shape"):
        rl.group_advantages(REWARDS[0])


def test_golden_group_advantages(golden, x64):
    cases = golden["advantages"]
    options = {
        "adv_trl_scale_group": {},
        "adv_trl_scale_batch": {"scale_rewards": "batch"},
        "adv_verl_grpo_norm_True": {"epsilon": 1e-6},
        "adv_verl_grpo_norm_False": {"scale_rewards": "none"},
        "adv_verl_zero_variance_group": {"epsilon": 1e-6},
        "adv_nemo_loo_False_norm_False": {"scale_rewards": "none"},
        "adv_prime_rl_grpo": {"scale_rewards": "none"},
        "adv_verl_rloo": {"scale_rewards": "none", "baseline": "leave_one_out"},
    }
    for name, chosen in options.items():
        for dtype in (np.float32, np.float64):
            rewards = cases[name]["inputs"]["rewards"].reshape(2, 4).astype(dtype)
            close(group_advantages(rewards, **chosen).ravel(), cases[name]["expected"]["advantages"])
    # The same rule with the std as mean of squares minus square of the mean: 1e-7 is beyond its rounding.
    nemo = cases["adv_nemo_loo_False_norm_True"]
    ours = group_advantages(nemo["inputs"]["rewards"].reshape(2, 4), epsilon=1e-6)
    np.testing.assert_allclose(ours.ravel(), nemo["expected"]["advantages"], atol=1e-6)


def test_golden_differences(golden, x64):
    """Where we differ on purpose: no std of a group without one member, and 0 for a group of one."""
    nemo = golden["advantages"]["adv_nemo_loo_True_norm_True"]
    ours = group_advantages(nemo["inputs"]["rewards"].reshape(2, 4), baseline="leave_one_out", epsilon=1e-6)
    assert np.abs(ours[1] - nemo["expected"]["advantages"][4:]).max() > 1
    lonely = golden["advantages"]["adv_verl_grpo_singleton_group"]
    rewards = lonely["inputs"]["rewards"]
    padded = np.array([[rewards[0], np.nan], rewards[1:3], rewards[3:5]])
    ours = np.asarray(group_advantages(padded, epsilon=1e-6))
    assert ours[0, 0] == 0
    close(ours[1:].ravel(), lonely["expected"]["advantages"][1:])


def test_golden_missing_rewards(golden, x64):
    case = golden["advantages"]["adv_trl_none_rewards"]
    advantages = group_advantages(case["expected"]["rewards"][None])
    close(advantages[0], case["expected"]["advantages"])
    lonely = golden["advantages"]["adv_trl_single_scorable_in_group"]
    assert not np.asarray(group_advantages(lonely["inputs"]["rewards_per_func"].reshape(1, 4))).any()


def test_golden_filter(golden):
    case = golden["filter_groups"]["dapo_filter_keep"]
    groups = case["inputs"]["group_metric"]
    kept = np.asarray(keep_group(np.stack(list(groups.values()))))
    assert [name for name, keep in zip(groups, kept, strict=True) if keep] == case["expected"]["kept"]


def test_keep_group_looks_at_valid_samples_only():
    raw = np.array([[1.0, 1.0, 0.0], [1.0, np.nan, 1.0], [0.0, 1.0, 0.5]])
    valid = np.array([[True, True, False], [True, True, True], [True, True, True]])
    assert np.asarray(keep_group(raw, valid)).tolist() == [False, False, True]


STEP_ENDS = np.array([[2, 4, 0], [1, 3, 5], [3, 0, 0]])
STEP_REWARDS = np.array([[1.0, 0.0, np.nan], [1.0, 1.0, 1.0], [0.0, 9.0, 9.0]])
STEP_VALID = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0]], bool)


def test_steps_by_hand(x64):
    advantages = step_advantages(STEP_REWARDS, STEP_ENDS, STEP_VALID, 7)
    mean, std = 4 / 6, np.std([1, 0, 1, 1, 1, 0], ddof=1) + 1e-4
    good, bad = (1 - mean) / std, -mean / std
    expected = [
        [good + bad] * 3 + [bad] * 2 + [0, 0],
        [3 * good] * 2 + [2 * good] * 2 + [good] * 2 + [0],
        [bad] * 4 + [0] * 3,
    ]
    np.testing.assert_allclose(advantages, expected, rtol=1e-12, atol=1e-12)
    assert advantages.dtype == jnp.float64


def test_steps_golden(golden, x64):
    case = golden["advantages"]["adv_process_supervision_ddof0_eps1e-6"]
    advantages = step_advantages(STEP_REWARDS, STEP_ENDS, STEP_VALID, 6, epsilon=1e-6, ddof=0)
    for row, expected in zip(advantages, case["expected"]["token_advantages"], strict=True):
        close(row[: len(expected)], expected)
        assert not np.asarray(row[len(expected) :]).any()


def test_steps_are_normalised_together():
    # Per step index every deviation would be 0: the baseline would depend on where the other sample stopped.
    rewards, ends = np.array([[0.5, 1.0], [0.5, 0.0]]), np.array([[0, 1], [1, 0]])
    advantages = step_advantages(rewards, ends, np.array([[True, True], [True, False]]), 2)
    np.testing.assert_allclose(advantages, [[0.577151, 1.154301], [-0.577150, -0.577150]], atol=2e-6)


def test_equal_steps_and_vmap():
    assert not np.asarray(step_advantages(np.full((2, 3), 0.35), STEP_ENDS[:2], None, 6)).any()
    both = jax.vmap(lambda r, e, v: step_advantages(r, e, v, 6))(
        np.stack([STEP_REWARDS, STEP_REWARDS]), np.stack([STEP_ENDS] * 2), np.stack([STEP_VALID] * 2)
    )
    np.testing.assert_array_equal(both[0], both[1])
    np.testing.assert_allclose(both[0], step_advantages(STEP_REWARDS, STEP_ENDS, STEP_VALID, 6), rtol=1e-6)
    with pytest.raises(InputError, match="step_rewards"):
        rl.step_advantages(STEP_REWARDS, STEP_ENDS[:2], None, 6)
