"""The loss equals what TRL, verl and NeMo-RL compute on the same batch, where our definitions are theirs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rl.losses import loss_of, policy_loss
from thoth_jax import rl
from thoth_jax.rl import kl_penalty, mean_metrics

# Other libraries' answers on one batch of 4 rows and 14 tokens.
GOLDEN_LOSSES = {
    ("losses_trl", "trl_grpo_eps0.2"): {"aggregation": "sequence_mean_token_mean"},
    ("losses_trl", "trl_bnpo_eps0.2"): {},
    ("losses_trl", "trl_dapo_eps0.2"): {},
    ("losses_trl", "trl_dapo_clip_higher"): {"epsilon_high": 0.28},
    ("losses_trl", "trl_grpo_beta0.04"): {"aggregation": "sequence_mean_token_mean", "kl_coef": 0.04},
    ("losses_trl", "trl_dr_grpo_beta0.04"): {"aggregation": "constant", "constant": 5, "kl_coef": 0.04},
    ("losses_trl", "trl_dapo_beta0.04"): {"kl_coef": 0.04},
    ("losses_trl", "trl_gspo_grpo_agg"): {"aggregation": "sequence_mean_token_mean", "level": "sequence"},
    ("losses_trl", "trl_gspo_small_eps"): {
        "aggregation": "sequence_mean_token_mean",
        "level": "sequence",
        "epsilon_low": 3e-4,
        "epsilon_high": 4e-4,
    },
    ("losses_trl", "trl_dapo_vllm_is_token_truncate_max2"): {"weights": True},
    ("losses_trl", "trl_dapo_vllm_is_token_mask_max2"): {"weights": True},
    ("losses_trl", "trl_dapo_vllm_is_sequence_mask_max2"): {"weights": True},
    ("losses_trl", "trl_dapo_vllm_is_default_sequence_mask_max3"): {"weights": True},
    ("losses_trl", "trl_dapo_entropy_bonus0.01"): {"entropy_coef": 0.01},
    ("losses_verl", "verl_vanilla_token-mean"): {"dual_clip": 3.0},
    ("losses_verl", "verl_vanilla_seq-mean-token-sum"): {
        "dual_clip": 3.0,
        "aggregation": "sequence_mean_token_sum",
    },
    ("losses_verl", "verl_vanilla_clip_higher"): {"dual_clip": 3.0, "epsilon_high": 0.28},
    ("losses_verl", "verl_gspo"): {"aggregation": "sequence_mean_token_mean", "level": "sequence_token"},
    ("losses_nemo", "nemo_token_level"): {},
    ("losses_nemo", "nemo_dual_clip_3"): {"dual_clip": 3.0},
    ("losses_nemo", "nemo_gspo"): {"aggregation": "sequence_mean_token_mean", "level": "sequence"},
    ("losses_nemo", "nemo_is_tis"): {"weights_from": ("importance_correction", "nemo_tis")},
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("section", "name"), GOLDEN_LOSSES, ids=[name for _, name in GOLDEN_LOSSES])
def test_golden_losses(section, name, dtype, golden, x64):
    base = {key: value.astype(dtype) for key, value in golden["base_batch"].items() if isinstance(value, np.ndarray)}
    case, options = golden[section][name], dict(GOLDEN_LOSSES[section, name])
    if options.pop("weights", False):
        options["rollout_weights"] = case["inputs"].get("importance_sampling_ratio", None)
        if options["rollout_weights"] is None:
            options["rollout_weights"] = case["params"]["importance_sampling_ratio"]
    if source := options.pop("weights_from", None):
        options["rollout_weights"] = golden[source[0]][source[1]]["expected"]["weights"]
    if "entropy_coef" in options:
        options["entropy"] = case["params"].get("entropies", case["inputs"].get("entropies")).astype(dtype)
    if "kl_coef" in options:
        options["logp_ref"] = base["logp_ref"]

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def mean_loss(logp):
        loss_sum, weight, metrics = rl.policy_loss(logp, base["logp_old"], base["advantages"], base["mask"], **options)
        return loss_sum / weight, metrics

    (loss, metrics), gradient = mean_loss(base["logp_new"])
    assert loss.dtype == dtype and gradient.dtype == dtype
    tolerance = 1e-7 if dtype == np.float64 else 5e-6
    expected = case["expected"]
    np.testing.assert_allclose(loss, expected["loss"], atol=tolerance)
    np.testing.assert_allclose(gradient, expected["grad_logp_new"], atol=tolerance)
    metrics = {key: float(value) for key, value in mean_metrics(metrics).items()}
    for ours, theirs in {
        "pg_clipfrac/low": "clip_ratio_low_mean",
        "pg_clipfrac/high": "clip_ratio_high_mean",
        "pg_clipfrac/dual": "pg_clipfrac_lower",
        "ratio/approx_kl": "ppo_kl",
        "kl": "kl",
        "ratio/mean": "probs_ratio",
    }.items():
        if theirs in expected and ours in metrics:
            assert metrics[ours] == pytest.approx(expected[theirs], abs=1e-6), ours
    if "pg_clipfrac" in expected:
        both = metrics["pg_clipfrac/low"] + metrics["pg_clipfrac/high"]
        assert both == pytest.approx(expected["pg_clipfrac"], abs=1e-6)


def test_golden_on_policy_and_sum_norm(golden, x64):
    base = golden["base_batch"]
    logp, advantages, mask = base["logp_new"], base["advantages"], base["mask"]
    assert loss_of(logp, logp, advantages, mask) == pytest.approx(-0.05, abs=1e-7)
    # verl's "norm" mode does not divide by the rows, ours does (as Dr. GRPO does).
    verl = golden["losses_verl"]["verl_vanilla_seq-mean-token-sum-norm"]["expected"]["loss"]
    ours = loss_of(
        logp, base["logp_old"], advantages, mask, dual_clip=3.0, aggregation="constant", constant=mask.shape[1]
    )
    assert ours == pytest.approx(verl / 4, abs=1e-7)


def test_golden_bypass(golden, x64):
    base, case = golden["base_batch"], golden["importance_correction"]["verl_bypass_ppo_clip"]

    def mean_loss(logp):
        loss_sum, weight, _ = policy_loss(logp, base["logp_rollout"], base["advantages"], base["mask"], dual_clip=3.0)
        return loss_sum / weight

    loss, gradient = jax.value_and_grad(mean_loss)(base["logp_new"])
    np.testing.assert_allclose(loss, case["expected"]["loss"], atol=1e-7)
    np.testing.assert_allclose(gradient, case["expected"]["grad_logp_new"], atol=1e-7)


def matrix_loss(matrix, mask, **options):
    """A loss matrix through `policy_loss`: ratio 1 and advantage -loss."""
    zeros = np.zeros(np.shape(matrix))
    return loss_of(zeros, zeros, -matrix, mask, **options)


def test_golden_aggregation(golden, x64):
    cases = golden["aggregation"]
    inputs = cases["verl_agg_token-mean"]["inputs"]
    matrix, mask = inputs["loss_matrix"], inputs["mask"]
    for name, options in {
        "verl_agg_token-mean": {},
        "verl_agg_seq-mean-token-sum": {"aggregation": "sequence_mean_token_sum"},
    }.items():
        assert matrix_loss(matrix, mask, **options) == pytest.approx(cases[name]["expected"]["loss"], abs=1e-7)
    assert matrix_loss(matrix, mask, aggregation="sequence_mean_token_mean") == pytest.approx(1.458333333, abs=1e-7)
    # TRL lets the fully masked row count, we do not: 3 rows instead of 4.
    rows = matrix_loss(matrix, mask, aggregation="sequence_mean_token_mean")
    assert rows * 3 / 4 == pytest.approx(cases["trl_agg_grpo_with_fully_masked_row"]["expected"]["loss"], abs=1e-7)
    constant = matrix_loss(matrix, mask, aggregation="constant", constant=3)
    theirs = cases["trl_agg_dr_grpo_with_fully_masked_row"]["expected"]["loss"]
    assert constant * 3 / 4 == pytest.approx(theirs, abs=1e-7)


@pytest.mark.parametrize("name", ["token_mean_two_microbatches", "seq_mean_uneven_microbatches"])
def test_golden_micro_batches(name, golden, x64):
    base, case = golden["base_batch"], golden["microbatch"][name]
    aggregation = "token_mean" if name.startswith("token") else "sequence_mean_token_mean"
    totals, wrong = np.zeros(2), []
    for rows in case["inputs"]["microbatches"]:
        rows = np.asarray(rows, int)
        part = [base[key][rows] for key in ("logp_new", "logp_old", "advantages", "mask")]
        loss_sum, weight, _ = policy_loss(*part, aggregation=aggregation)
        totals += [loss_sum, weight]
        wrong.append(loss_sum / weight)
    loss = totals[0] / totals[1]
    assert loss == pytest.approx(case["expected"]["full_batch_loss"], abs=1e-7)
    trap = next(value for key, value in case["expected"].items() if key.startswith("WRONG"))
    assert np.mean(wrong) == pytest.approx(trap, abs=1e-7)  # the trap is what it says it is
    assert abs(loss - trap) > 1e-3


def test_golden_mask_before_exp(golden, x64):
    case = golden["nan_safety"]["mask_before_exp"]
    inputs, expected = case["inputs"], case["expected"]
    args = (inputs["logp_old"], np.array([-1.0]), inputs["mask"])
    loss, gradient = jax.value_and_grad(lambda logp: policy_loss(logp, *args, epsilon_high=np.inf)[0])(
        inputs["logp_new"]
    )
    assert float(loss) == pytest.approx(expected["loss_mask_before_exp"], abs=1e-7)
    np.testing.assert_allclose(gradient, expected["grad_mask_before_exp"], atol=1e-7)


def test_golden_kl(golden, x64):
    options = {
        "verl_kl_k1": {"estimator": "k1"},
        "verl_kl_abs": {"estimator": "abs"},
        "verl_kl_k3": {"estimator": "k3", "clamp": (20.0, 10.0)},
        "trl_k3_unclamped": {"estimator": "k3"},
        "nemo_kl_k1": {"estimator": "k1", "clamp": (20.0, 10.0)},
        "nemo_kl_k3": {"estimator": "k3", "clamp": (20.0, 10.0)},
    }
    for name, chosen in options.items():
        case = golden["kl"][name]
        logp, ref = case["inputs"]["logp"], case["inputs"]["logp_ref"]
        for dtype, tolerance in ((np.float64, 1e-7), (np.float32, 5e-6)):
            estimate = functools.partial(kl_penalty, logp_ref=ref.astype(dtype), mask=np.ones(logp.shape), **chosen)
            kl, pull_back = jax.vjp(jax.jit(estimate), logp.astype(dtype))
            assert kl.dtype == dtype
            np.testing.assert_allclose(kl, case["expected"]["kl"], rtol=tolerance, atol=tolerance)
            if "grad_logp" in case["expected"]:
                gradient = pull_back(jnp.ones_like(kl))[0]
                np.testing.assert_allclose(gradient, case["expected"]["grad_logp"], rtol=tolerance, atol=tolerance)
    d = golden["kl"]["verl_kl_k1"]["inputs"]
    k2 = kl_penalty(d["logp"], d["logp_ref"], np.ones(6), estimator="k2")
    np.testing.assert_allclose(k2, [0.125, 0, 2, 15.125, 310.005, 447.005], rtol=1e-7)
