import jax
import numpy as np
import pytest

from thoth_jax import rl
from thoth_jax.errors import InputError
from thoth_jax.rl import (
    kl_in_reward,
    mask_truncated,
    mean_metrics,
    overlong_penalty,
    rollout_metrics,
)

policy_loss = jax.jit(rl.policy_loss, static_argnames=("dual_clip", "aggregation"))
rollout_weights = jax.jit(rl.rollout_weights, static_argnames=("level", "cap", "mode"))

OLD = np.array([[-1.0, -2.0, -3.0], [-1.0, -1.0, 0.0]])
ROLLOUT = np.array([[-1.5, -2.0, -2.5], [-2.0, -2.0, 0.0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])


def test_overlong_by_hand():
    lengths = [0, 80, 81, 90, 100, 101, 5000]
    penalty = overlong_penalty(lengths, max_length=100, buffer=20, penalty=0.5)
    np.testing.assert_allclose(penalty, [0, 0, -0.025, -0.25, -0.5, -0.5, -0.5], atol=1e-7)
    assert not np.asarray(overlong_penalty(lengths, max_length=100, buffer=0)).any()


def test_overlong_golden(golden, x64):
    case = golden["overlong"]["trl_soft_overlong"]
    penalty = overlong_penalty(case["inputs"]["completion_lengths"], max_length=100, buffer=20)
    np.testing.assert_allclose(penalty, case["expected"]["penalty"], atol=1e-7)
    other = golden["overlong"]["verl_overlong_buffer"]["expected"]["penalty"]  # without the floor
    np.testing.assert_allclose(penalty[:6], other[:6], atol=1e-7)
    assert (np.asarray(penalty[6:]) > other[6:]).all()


def test_truncated_rows_leave_the_mask():
    mask = np.asarray(mask_truncated(MASK, [True, False]))
    assert mask.tolist() == [[False] * 3, [True, True, False]]
    loss_sum, weight, _ = policy_loss(OLD, OLD, np.array([1.0, 3.0]), mask, aggregation="sequence_mean_token_mean")
    assert float(loss_sum / weight) == -3


def test_kl_in_reward(golden, x64):
    rewards = kl_in_reward(np.array([1.0, 0.0]), OLD, ROLLOUT, MASK, coef=0.1)
    np.testing.assert_allclose(rewards, [1 - 0.1 * (0.5 - 0.5), -0.1 * 2], atol=1e-12)
    case = golden["kl"]["verl_kl_in_reward"]
    inputs = case["inputs"]
    rewards = kl_in_reward(
        inputs["token_level_scores"].sum(1), inputs["logp_old"], inputs["logp_ref"], inputs["mask"], coef=0.1
    )
    np.testing.assert_allclose(rewards, case["expected"]["sequence_score_after_kl"], atol=1e-7)


def test_weights_by_hand():
    token = np.exp([[0.5, 0, -0.5], [1, 1, 0]]) * MASK
    np.testing.assert_allclose(rollout_weights(OLD, ROLLOUT, MASK, cap=100.0), token, rtol=1e-6)
    np.testing.assert_allclose(rollout_weights(OLD, ROLLOUT, MASK), np.minimum(token, 2), rtol=1e-6)
    np.testing.assert_allclose(rollout_weights(OLD, ROLLOUT, MASK, mode="mask"), token * (token <= 2), rtol=1e-6)
    rows = rollout_weights(OLD, ROLLOUT, MASK, level="sequence", cap=5.0)
    np.testing.assert_allclose(rows, [[1, 1, 1], [5, 5, 0]], rtol=1e-6)
    rows = rollout_weights(OLD, ROLLOUT, MASK, level="sequence", cap=5.0, mode="mask")
    np.testing.assert_allclose(rows, [[1, 1, 1], [0, 0, 0]], rtol=1e-6)


def test_weights_are_constants_and_survive_anything():
    old = np.array([[0.0, -1.0, np.nan]])
    rollout = np.array([[-1e6, -1.0, np.inf]])
    mask = np.array([[1, 1, 0]])
    for mode, first in {"truncate": 2.0, "mask": 0.0}.items():
        assert np.asarray(rollout_weights(old, rollout, mask, mode=mode)).tolist() == [[first, 1.0, 0.0]]
    gradient = jax.grad(lambda old: rollout_weights(old, ROLLOUT, MASK, cap=100.0).sum())(OLD)
    assert not np.asarray(gradient).any()


def test_mismatch_metrics():
    weights = rollout_weights(OLD, ROLLOUT, MASK, cap=100.0)
    metrics = {name: float(value) for name, value in mean_metrics(rollout_metrics(OLD, ROLLOUT, MASK, weights)).items()}
    assert metrics["logp_diff/mean"] == pytest.approx(3 / 5)
    assert metrics["logp_diff/max"] == pytest.approx(1)
    exact = np.exp([0.5, 0, -0.5, 1, 1])
    assert metrics["rollout_weight/mean"] == pytest.approx(exact.mean(), rel=1e-6)
    assert metrics["rollout_weight/mean_square"] == pytest.approx((exact**2).mean(), rel=1e-6)


def test_weights_golden(golden, x64):
    base, cases = golden["base_batch"], golden["importance_correction"]
    old, rollout, mask = base["logp_old"], base["logp_rollout"], base["mask"]
    token = rollout_weights(old, rollout, mask)
    for name in ("verl_tis_token_thr2_bn_False", "nemo_tis"):
        np.testing.assert_allclose(token, cases[name]["expected"]["weights"], atol=1e-7)
    masked = rollout_weights(old, rollout, mask, mode="mask")
    np.testing.assert_allclose(masked, cases["nemo_icepop"]["expected"]["weights"], atol=1e-7)
    case = cases["verl_tis_token_thr2_bn_False"]["expected"]
    loss_sum, weight, _ = policy_loss(
        base["logp_new"], old, base["advantages"], mask, dual_clip=3.0, rollout_weights=token
    )
    assert float(loss_sum / weight) == pytest.approx(case["vanilla_token_mean_loss"], abs=1e-7)
    metrics = mean_metrics(rollout_metrics(old, rollout, mask, token))
    share = float(metrics["rollout_weight/mean"] ** 2 / metrics["rollout_weight/mean_square"])
    assert share == pytest.approx(case["ess"], abs=1e-6)
    # verl can rescale the weights to mean 1; we leave them as they are.
    scaled = cases["verl_tis_sequence_thr2_bn_True"]["expected"]
    rows = rollout_weights(old, rollout, mask, level="sequence")
    np.testing.assert_allclose(rows, np.asarray(scaled["weights"]) * scaled["batch_norm_factor"], atol=1e-7)
    for options, loss in (
        ({"level": "token"}, 0.421836),
        ({"level": "token", "mode": "mask"}, -0.154768),
        ({"level": "sequence"}, 0.576841),
        ({"level": "sequence", "mode": "mask"}, -0.448625),
        ({"level": "sequence", "mode": "mask", "cap": 3.0}, -0.448625),
    ):
        weights = rollout_weights(old, rollout, mask, **options)
        loss_sum, weight, _ = policy_loss(base["logp_new"], old, base["advantages"], mask, rollout_weights=weights)
        assert float(loss_sum / weight) == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: overlong_penalty([1], max_length=10, buffer=11),
            "overlong.buffer=11: must be a number >= 0 and <= 10",
        ),
        (lambda: overlong_penalty([1], max_length=10, buffer=2, penalty=-1.0), "overlong.penalty=-1.0"),
        (lambda: rl.rollout_weights(OLD, ROLLOUT, MASK, level="seq"), "rollout_correction.level='seq'"),
        (lambda: rl.rollout_weights(OLD, ROLLOUT, MASK, mode="clip"), "rollout_correction.mode='clip'"),
        (lambda: rl.rollout_weights(OLD, ROLLOUT, MASK, cap=0), "rollout_correction.cap=0: must be a number > 0"),
        (lambda: rl.rollout_weights(OLD, ROLLOUT[:1], MASK), "shapes differ"),
        (lambda: kl_in_reward([1.0, 2.0], OLD, ROLLOUT, MASK, coef=-1), "coef=-1"),
    ],
)
def test_bad_options_are_named(call, message):
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)
