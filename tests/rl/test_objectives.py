import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rl.losses import loss_of, means_of, policy_loss
from thoth_jax import rl
from thoth_jax.errors import InputError
from thoth_jax.rl import combine_metrics, formula, loss_weight, mean_metrics

# One row of three tokens, one of one token, one that is masked.
LOGP = np.array([[-1.0, -0.5, -2.0], [-0.3, 0.0, 0.0], [0.0, 0.0, 0.0]])
OLD = np.array([[-1.3, -0.4, -2.0], [-1.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
REF = np.array([[-1.1, -0.9, -1.5], [-0.8, 0.0, 0.0], [0.0, 0.0, 0.0]])
MASK = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
ADVANTAGES = np.array([2.0, -1.0, 0.5])
AGGREGATIONS = ("token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant")


def test_by_hand(x64):
    # Row 0: exp(.3) = 1.35 is clipped to 1.2, exp(-.1), 1. Row 1: exp(1.2), negative advantage, not clipped.
    tokens = np.array([-2 * 1.2, -2 * np.exp(-0.1), -2.0, np.exp(1.2)])
    constants = {"constant": {"constant": 8}}
    expected = {
        "token_mean": tokens.mean(),
        "sequence_mean_token_mean": (tokens[:3].mean() + tokens[3]) / 2,
        "sequence_mean_token_sum": tokens.sum() / 2,
        "constant": tokens.sum() / 16,
    }
    for aggregation, value in expected.items():
        options = {"aggregation": aggregation, **constants.get(aggregation, {})}
        np.testing.assert_allclose(loss_of(LOGP, OLD, ADVANTAGES, MASK, **options), value, rtol=1e-12)
        assert policy_loss(LOGP, OLD, ADVANTAGES, MASK, **options)[1] == loss_weight(MASK, **options)
    clipped = tokens[:3].sum() + 1.5
    assert loss_of(LOGP, OLD, ADVANTAGES, MASK, dual_clip=1.5) == pytest.approx(clipped / 4, rel=1e-12)
    d = (LOGP - REF)[MASK == 1]
    with_kl = loss_of(LOGP, OLD, ADVANTAGES, MASK, logp_ref=REF, kl_coef=0.1, kl_estimator="k2")
    assert with_kl == pytest.approx(expected["token_mean"] + 0.1 * (d**2 / 2).mean(), rel=1e-12)
    entropy = np.array([[1.0, 2.0, 3.0], [4.0, np.nan, np.inf], [np.nan] * 3])
    with_entropy = loss_of(LOGP, OLD, ADVANTAGES, MASK, entropy=entropy, entropy_coef=0.01)
    assert with_entropy == pytest.approx(expected["token_mean"] - 0.01 * 2.5, rel=1e-12)
    weighted = loss_of(LOGP, OLD, ADVANTAGES, MASK, rollout_weights=np.array([0.5, 2.0, np.nan]))
    assert weighted == pytest.approx((tokens[:3].sum() / 2 + 2 * tokens[3]) / 4, rel=1e-12)


def test_metrics_by_hand():
    metrics = means_of(LOGP, OLD, ADVANTAGES, MASK, dual_clip=1.5, logp_ref=REF, kl_coef=0.1, kl_estimator="k1")
    assert metrics["pg_clipfrac/high"] == 0.25
    assert metrics["pg_clipfrac/low"] == 0
    assert metrics["pg_clipfrac/dual"] == 0.25
    assert metrics["ratio/mean"] == pytest.approx(np.exp([0.3, -0.1, 0, 1.2]).mean(), rel=1e-6)
    assert metrics["ratio/max"] == pytest.approx(np.exp(1.2), rel=1e-6)
    assert metrics["ratio/approx_kl"] == pytest.approx(-1.4 / 4, rel=1e-6)
    d = (LOGP - REF)[MASK == 1]
    assert metrics["kl"] == pytest.approx(d.mean(), rel=1e-6)
    assert metrics["loss/kl"] == pytest.approx(0.1 * d.mean(), rel=1e-6)
    whole = loss_of(LOGP, OLD, ADVANTAGES, MASK, dual_clip=1.5, logp_ref=REF, kl_coef=0.1, kl_estimator="k1")
    assert metrics["loss/policy"] + metrics["loss/kl"] == pytest.approx(whole, rel=1e-5)


def test_measuring_changes_nothing():
    plain = loss_of(LOGP, OLD, ADVANTAGES, MASK)
    measured = policy_loss(LOGP, OLD, ADVANTAGES, MASK, logp_ref=REF, entropy=np.ones_like(LOGP))
    assert float(measured[0] / measured[1]) == plain
    assert {"kl", "entropy"} <= set(measured[2])
    assert {"loss/kl", "loss/entropy"}.isdisjoint(measured[2])


def test_levels(x64):
    advantages = np.array([1.0, -1.0, 0.0])
    gradient = jax.grad(lambda logp, level: policy_loss(logp, OLD, advantages, MASK, level=level)[0])
    s = np.exp(np.mean([0.3, -0.1, 0.0]))
    for level, row in {
        "sequence": [-s] * 3,  # three tokens, each with the gradient s / 3 of the mean
        "sequence_token": [-s] * 3,
        "token": [0, -np.exp(-0.1), -1.0],
    }.items():
        np.testing.assert_allclose(gradient(LOGP, level)[0], row, rtol=1e-12)
        np.testing.assert_allclose(gradient(LOGP, level)[1], [np.exp(1.2), 0, 0], rtol=1e-12)
    # Where the advantage differs by token, the sequence's ratio couples the tokens and its token form does not.
    by_token = np.array([[1.0, 0.5, -2.0], [0.0] * 3, [0.0] * 3])
    coupled = jax.grad(lambda logp: policy_loss(logp, OLD, by_token, MASK, level="sequence")[0])(LOGP)
    own = jax.grad(lambda logp: policy_loss(logp, OLD, by_token, MASK, level="sequence_token")[0])(LOGP)
    np.testing.assert_allclose(coupled[0], [0.5 * s / 3] * 3, rtol=1e-9)
    np.testing.assert_allclose(own[0], -s * by_token[0], rtol=1e-9)


def test_values_on_the_bound_still_learn():
    """On-policy with epsilon 0 the ratio is exactly on both bounds; the gradient must not be halved or lost."""
    gradient = jax.grad(lambda logp: policy_loss(logp, LOGP, ADVANTAGES, MASK, epsilon_low=0.0, epsilon_high=0.0)[0])(
        LOGP
    )
    np.testing.assert_allclose(gradient, -ADVANTAGES[:, None] * MASK, rtol=1e-6)


def test_open_bounds():
    options = {"epsilon_low": 1.0, "epsilon_high": np.inf}
    old = LOGP + np.array([[3.0, -3.0, 0.0], [5.0, 0, 0], [0, 0, 0]])
    tokens = np.array([-2 * np.exp(-3.0), -2 * np.exp(3.0), -2.0, np.exp(-5.0)])
    assert loss_of(LOGP, old, ADVANTAGES, MASK, **options) == pytest.approx(tokens.mean(), rel=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -1e4])
def test_masked_positions_may_hold_anything(level, bad):
    poison = np.where(MASK, 0, bad)
    options = {"level": level, "kl_coef": 0.1, "entropy_coef": 0.01, "dual_clip": 3.0}

    def loss(logp, entropy, poison):
        rest = (OLD + poison, np.broadcast_to(ADVANTAGES[:, None], MASK.shape) + poison, MASK)
        weights = np.ones(MASK.shape) + poison
        return policy_loss(logp, *rest, logp_ref=REF - poison, entropy=entropy, rollout_weights=weights, **options)

    for clean, dirty in zip(
        jax.tree.leaves(loss(LOGP, np.ones(MASK.shape), 0)),
        jax.tree.leaves(loss(LOGP - poison, poison + 1, poison)),
        strict=True,
    ):
        assert float(clean) == float(dirty)
    gradients = jax.grad(lambda logp, entropy: loss(logp, entropy, poison)[0], argnums=(0, 1))(
        LOGP - poison, poison + 1
    )
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        assert (np.asarray(gradient)[MASK == 0] == 0).all()


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
def test_runaway_ratios_of_clipped_tokens_are_harmless(level):
    logp, old = np.array([[-1.0], [-1.0], [-2000.0]]), np.array([[-2000.0], [-2000.0], [-1.0]])
    advantages, mask = np.array([1.0, 0.0, -1.0]), np.ones((3, 1))
    value, gradient = jax.value_and_grad(lambda logp: policy_loss(logp, old, advantages, mask, level=level)[0])(logp)
    assert float(value) == pytest.approx(-1.2 + 0.8)
    assert (np.asarray(gradient) == 0).all()
    assert all(np.isfinite(value) for value in means_of(logp, old, advantages, mask, level=level).values())


def test_all_masked():
    loss_sum, weight, metrics = policy_loss(LOGP, OLD, ADVANTAGES, np.zeros_like(MASK), logp_ref=REF)
    assert float(loss_sum) == 0 and float(weight) == 0
    assert all(float(value) == 0 for value in mean_metrics(metrics).values())


def random_batch(rows=12, tokens=7):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, tokens + 1, rows)
    lengths[3] = 0
    mask = np.arange(tokens) < lengths[:, None]
    logp, old, ref, rollout = (-rng.exponential(1, (rows, tokens)) for _ in range(4))
    batch = {
        "logp": logp,
        "logp_old": logp + 0.3 * rng.standard_normal((rows, tokens)),
        "advantages": rng.standard_normal(rows),
        "mask": mask,
        "logp_ref": ref,
        "entropy": rng.exponential(1, (rows, tokens)),
        "rollout_weights": np.exp(0.2 * rng.standard_normal((rows, tokens))),
    }
    return batch


def by_names(logp, batch, **options):
    rest = {name: value for name, value in batch.items() if name != "logp"}
    return policy_loss(logp, rest.pop("logp_old"), rest.pop("advantages"), rest.pop("mask"), **rest, **options)


@pytest.mark.parametrize(
    ("aggregation", "level"),
    [*((name, "token") for name in AGGREGATIONS), ("token_mean", "sequence"), ("constant", "sequence_token")],
)
def test_micro_batches_add_up(aggregation, level, x64):
    options = {"aggregation": aggregation, "level": level, "kl_coef": 0.1, "entropy_coef": 0.01, "dual_clip": 1.2}
    if aggregation == "constant":
        options["constant"] = 7.0
    batch = random_batch()

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def summed(logp, batch):
        loss_sum, weight, metrics = by_names(logp, batch, **options)
        return loss_sum, (weight, metrics)

    (loss_sum, (weight, metrics)), gradient = summed(batch["logp"], batch)
    assert weight == loss_weight(batch["mask"], aggregation=aggregation, constant=options.get("constant"))
    wrong = []
    for cuts in ([1, 11], [4, 8]):
        loss_total, weight_total, metrics_total, gradient_total = 0.0, 0.0, None, []
        for start, stop in itertools.pairwise([0, *cuts, 12]):
            part = {name: value[start:stop] for name, value in batch.items()}
            (part_sum, (part_weight, part_metrics)), part_gradient = summed(part["logp"], part)
            loss_total, weight_total = loss_total + part_sum, weight_total + part_weight
            metrics_total = part_metrics if metrics_total is None else combine_metrics(metrics_total, part_metrics)
            gradient_total.append(part_gradient)
            wrong.append(part_sum / max(part_weight, 1))
        assert weight_total == weight
        np.testing.assert_allclose(loss_total / weight_total, loss_sum / weight, rtol=1e-12)
        np.testing.assert_allclose(np.concatenate(gradient_total) / weight_total, gradient / weight, rtol=1e-12)
        for name, value in mean_metrics(metrics).items():
            np.testing.assert_allclose(mean_metrics(metrics_total)[name], value, rtol=1e-12, err_msg=name)
    assert abs(np.mean(wrong[:3]) - loss_sum / weight) > 1e-3


def test_micro_batches_under_scan():
    batch = random_batch()
    stacked = jax.tree.map(lambda x: jnp.asarray(x).reshape(3, 4, *x.shape[1:]), batch)
    whole = by_names(batch["logp"], batch, kl_coef=0.1)

    @jax.jit
    def scanned(stacked):
        def body(total, part):
            loss_sum, weight, metrics = by_names(part["logp"], part, kl_coef=0.1)
            return (total[0] + loss_sum, total[1] + weight, combine_metrics(total[2], metrics)), None

        zeros = jax.tree.map(jnp.zeros_like, whole)
        return jax.lax.scan(body, zeros, stacked)[0]

    for actual, expected in zip(jax.tree.leaves(scanned(stacked)), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5)


def test_every_option_changes_the_loss():
    batch = random_batch()
    options = {
        "epsilon_low": 0.1,
        "epsilon_high": 0.28,
        "dual_clip": 1.2,
        "level": "sequence",
        "aggregation": "sequence_mean_token_sum",
        "kl_coef": 0.05,
        "entropy_coef": 0.05,
    }
    plain = by_names(batch["logp"], batch)
    for name, value in options.items():
        changed = by_names(batch["logp"], batch, **{name: value})
        assert abs(changed[0] / changed[1] - plain[0] / plain[1]) > 1e-4, name
    for name, value in {"kl_estimator": "abs", "kl_clamp": (0.5, 0.1)}.items():
        first = by_names(batch["logp"], batch, kl_coef=0.05)
        second = by_names(batch["logp"], batch, kl_coef=0.05, **{name: value})
        assert abs(first[0] - second[0]) > 1e-4, name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon_low": -0.1}, "epsilon_low=-0.1: must be a number >= 0 and <= 1"),
        ({"epsilon_low": 1.5}, "epsilon_low=1.5"),
        ({"epsilon_high": float("nan")}, "epsilon_high=nan"),
        ({"dual_clip": 1.0}, "dual_clip=1.0: must be a number > 1"),
        ({"level": "sequences"}, "did you mean 'sequence'"),
        ({"aggregation": "seq-mean-token-mean"}, "called 'sequence_mean_token_mean'"),
        ({"aggregation": "dapo"}, "called 'token_mean'"),
        ({"aggregation": "constant"}, "needs `constant`"),
        ({"aggregation": "constant", "constant": 0}, "constant=0: must be a number > 0"),
        ({"constant": 5}, "constant=5: only used with"),
        ({"kl_coef": 0.1}, "needs the reference"),
        ({"kl_coef": -0.1, "logp_ref": REF}, "kl_coef=-0.1"),
        ({"kl_estimator": "low_var_kl"}, "called 'k3'"),
        ({"kl_clamp": 3.0}, "kl_clamp=3.0"),
        ({"kl_clamp": (20, -1)}, "kl_clamp output=-1"),
        ({"entropy_coef": 0.1}, "needs the policy's entropy"),
        ({"entropy_coef": float("inf"), "entropy": REF}, "entropy_coef=inf: must be finite"),
        ({"rollout_weights": np.ones((3, 2))}, "rollout_weights: shape"),
        ({"mask": np.ones((3, 2))}, "mask: shape"),
        ({"logp_old": np.ones((2, 3))}, "logp_old: shape"),
        ({"advantages": np.ones(2)}, "advantages: shape"),
        ({"logp": np.ones(3)}, "logp: shape"),
    ],
)
def test_bad_options_are_named(options, message):
    arguments = {"logp": LOGP, "logp_old": OLD, "advantages": ADVANTAGES, "mask": MASK, **options}
    with pytest.raises(InputError) as caught:
        rl.policy_loss(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_formula_says_what_is_computed():
    text = formula()
    for part in ("sample std of the group + 0.0001", "clip(r[i,t], 0.8, 1.2)", "/ number of tokens"):
        assert part in text
    for part in ("KL", "H[i,t]", "w[i,t]", "overlong", "logits /"):
        assert part not in text
    text = formula(
        scale_rewards="none",
        baseline="leave_one_out",
        epsilon_high=0.28,
        dual_clip=3,
        level="sequence",
        aggregation="constant",
        constant=256,
        kl_coef=0.04,
        kl_clamp=(20, 10),
        kl_in_reward=0.1,
        entropy_coef=0.01,
        mask_truncated=True,
        overlong=(20, 1.0),
        rollout_correction=("sequence", 2.0, "mask"),
        temperature=0.6,
        max_completion_length=100,
    )
    for part in (
        "other samples",
        "1.28",
        "at least 3 A[i]",
        "one per completion",
        "(number of completions x 256)",
        "+ 0.04 KL",
        "+-20",
        "- 0.1 x sum",
        "- 0.01 H",
        "cut off",
        "(100 - 20 - length[i]) / 20",
        "0 above 2",
        "logits / 0.6",
    ):
        assert part in text, part
    with pytest.raises(InputError, match="constant"):
        formula(aggregation="constant")
