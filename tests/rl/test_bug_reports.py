"""Faults that users reported of other libraries, with the numbers of the reports (docs/bug_reports.md)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thoth_jax.data.order import EpochOrder
from thoth_jax.models.attention import positions_of
from thoth_jax.rl.advantages import group_advantages, step_advantages
from thoth_jax.rl.objectives import policy_loss
from thoth_jax.rl.shaping import keep_group, mask_truncated, overlong_penalty, rollout_weights
from thoth_jax.rollout.sampling import Sampling, sample


def loss_of(token_losses, mask, **options):
    """Loss of tokens whose surrogate is given: with ratio 1 it is minus the advantage."""
    rows = jnp.zeros(np.shape(mask))
    total, weight, _ = policy_loss(rows, rows, -jnp.asarray(token_losses, jnp.float32), np.array(mask, bool), **options)
    return float(total / weight)


def test_b01_equal_rewards():
    for value in (0.35, 0.2, 0.1, 1 / 3):
        for size in (2, 3, 12, 100):
            found = np.asarray(group_advantages(jnp.full((1, size), value, jnp.float32), epsilon=1e-6))
            assert (found == 0).all()


def test_b02_leave_one_out_divides_by_the_whole_groups_std():
    """The std of the seven equal rewards is 0; that of all eight is 0.2298, and no advantage is thousands of times."""
    rewards = np.array([[0.35] * 7 + [1.0]])
    found = np.asarray(group_advantages(rewards, baseline="leave_one_out", epsilon=1e-6))
    others = (rewards.sum() - rewards) / 7
    np.testing.assert_allclose(found, (rewards - others) / (rewards.std(ddof=1) + 1e-6), rtol=1e-5)
    assert np.abs(found).max() < 3


def test_b05_statistics_are_of_one_prompt():
    assert (np.asarray(group_advantages(np.array([[1.0] * 4, [0.0] * 4]))) == 0).all()


def test_b07_a_sample_without_a_score_is_left_out():
    rewards, valid = np.array([[1.0, 0.45, 0.0, 1.25]]), np.array([[True, True, False, True]])
    found = np.asarray(group_advantages(rewards, valid=valid))
    np.testing.assert_allclose(found, [[0.244279, -1.099256, 0.0, 0.854977]], atol=1e-5)


def test_b19_the_keep_test_looks_at_the_raw_reward():
    assert not keep_group(np.zeros((1, 4)))[0] and keep_group(np.array([[0.0, -0.2, -0.5, -1.0]]))[0]


def test_b25_b26_the_penalty_and_its_floor():
    found = overlong_penalty(np.array([80, 81, 90, 100, 150]), max_length=100, buffer=20)
    np.testing.assert_allclose(found, [0, -0.05, -0.5, -1, -1], atol=1e-6)


def test_b28_truncated_rows_leave_the_denominator():
    mask = mask_truncated(np.ones((2, 3), bool), np.array([False, True]))
    assert loss_of(np.ones((2, 3)), mask) == 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"aggregation": "token_mean"},
        {"aggregation": "sequence_mean_token_mean"},
        {"aggregation": "sequence_mean_token_sum"},
        {"aggregation": "constant", "constant": 3},
    ],
    ids=lambda options: options["aggregation"],
)
def test_b32_twice_the_rows_is_the_same_loss(options):
    losses, mask = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, 0]]), np.array([[1, 1, 1], [1, 1, 0]])
    once = loss_of(losses, mask, **options)
    assert loss_of(np.tile(losses, (2, 1)), np.tile(mask, (2, 1)), **options) == pytest.approx(once)
    if options["aggregation"] == "constant":
        assert once == pytest.approx(0.541667, abs=1e-6)


def test_b35_a_masked_row_changes_nothing():
    losses, mask = np.array([[1.0, 3.0], [9.0, 9.0]]), np.array([[1, 1], [0, 0]])
    for aggregation in ("sequence_mean_token_mean", "token_mean"):
        assert loss_of(losses, mask, aggregation=aggregation) == 2.0


def test_b37_the_ratio_of_a_sequence_is_over_its_real_tokens():
    logp, mask = jnp.array([[3.0, -3.0, 0.6, 0.0]]), np.array([[1, 1, 1, 0]], bool)
    options = {"level": "sequence", "aggregation": "sequence_mean_token_mean"}
    total, weight, metrics = policy_loss(logp, jnp.zeros((1, 4)), jnp.ones(1), mask, **options)
    assert float(total / weight) == pytest.approx(-1.2, abs=1e-6)
    assert float(metrics["ratio/max"]) == pytest.approx(1.221403, abs=1e-5)


def test_b38_a_product_here_and_a_geometric_mean_there():
    logp, mask = jnp.full((1, 3), 0.1), np.ones((1, 3), bool)
    weights = rollout_weights(logp, jnp.zeros((1, 3)), mask, level="sequence", cap=10.0)
    np.testing.assert_allclose(weights, 1.349859, rtol=1e-5)
    _, _, metrics = policy_loss(logp, jnp.zeros((1, 3)), jnp.ones(1), mask, level="sequence")
    assert float(metrics["ratio/max"]) == pytest.approx(1.105171, abs=1e-5)


def test_b41_temperature_before_log_softmax():
    logits = jnp.array([[2.0, 0.5, -1.0, 0.0, 1.5]])
    for seed in range(40):
        token, logprob = sample(logits, jax.random.split(jax.random.key(seed), 1), Sampling(temperature=0.7))
        if int(token[0]) == 0:
            assert float(logprob[0]) == pytest.approx(-0.517637, abs=1e-5)
            return
    raise AssertionError("token 0 was not drawn")


def test_b44_positions_start_at_the_first_real_token():
    assert np.asarray(positions_of(jnp.array([[0, 0, 1, 1, 1]])))[0, 2:].tolist() == [0, 1, 2]


def test_b47_a_truncated_row_has_no_mask_left():
    assert not np.asarray(mask_truncated(np.array([[True, False, True]]), np.array([True]))).any()


def test_b80_left_over_prompts_change_from_epoch_to_epoch():
    order = EpochOrder(7, 0)
    seen = {int(i) for step in range(40) for i in order.take(step * 3, 3)}
    assert seen == set(range(7))
    tails = {tuple(order.take(7 * epoch + 6, 1).tolist()) for epoch in range(20)}
    assert len(tails) > 2


def test_b91_rewards_of_steps():
    found = step_advantages(
        np.array([[1, 0, 0], [1, 1, 1], [0, 0, 0]], np.float32),
        np.array([[2, 4, 0], [1, 3, 5], [3, 0, 0]]),
        np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0]], bool),
        7,
    )
    expected = [
        [-0.645372, -0.645372, -0.645372, -1.290744, -1.290744],
        [1.936117, 1.936117, 1.290744, 1.290744, 0.645372, 0.645372],
        [-1.290744] * 4,
    ]
    for row, values in zip(np.asarray(found), expected, strict=True):
        np.testing.assert_allclose(row[: len(values)], values, atol=1e-5)


def test_b92_stopping_early_is_not_rewarded_by_accident():
    found = np.asarray(
        step_advantages(
            np.array([[0.5, 1.0], [0.5, 0.0]]), np.array([[0, 1], [0, 0]]), np.array([[1, 1], [1, 0]], bool), 2
        )
    )
    assert found[0].min() > 0 > found[1, 0]
