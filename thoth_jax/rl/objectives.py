"""The policy-gradient loss: clipped surrogate, KL to a reference, entropy bonus, and how tokens are averaged.

Shapes: B completions, T tokens. Losses are minimised. Everything is at least float32; float64 in, float64 out.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from thoth_jax.errors import InputError
from thoth_jax.rl.advantages import at_least_float32
from thoth_jax.rl.checks import check_choice, check_finite, check_number

LEVELS = ("token", "sequence", "sequence_token")
AGGREGATIONS = ("token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant")
KL_ESTIMATORS = ("k3", "k1", "k2", "abs")

_RATIO_CAP = 20.0  # of the log ratio, in metrics only: one runaway token must not turn a logged mean into inf


def policy_loss(
    logp,
    logp_old,
    advantages,
    mask,
    *,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    dual_clip: float | None = None,
    level: str = "token",
    aggregation: str = "token_mean",
    constant: float | None = None,
    logp_ref=None,
    kl_coef: float = 0.0,
    kl_estimator: str = "k3",
    kl_clamp: tuple[float, float] | None = None,
    entropy=None,
    entropy_coef: float = 0.0,
    rollout_weights=None,
) -> tuple[jax.Array, jax.Array, dict]:
    """Loss of one micro-batch as (loss_sum, weight, metrics).

    With ratio r = exp(logp - logp_old), the loss of a token is

        - w min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) + kl_coef KL - entropy_coef H

    (w: `rollout_weights`, 1 without). With `dual_clip` = c the first term of a token with A < 0 is at most c |A|
    (before w). Tokens are combined by `aggregation`; a row that is masked throughout counts in no denominator:

        aggregation                 loss_sum                       weight
        token_mean                  sum over tokens                unmasked tokens
        sequence_mean_token_mean    sum over rows of row means     rows with an unmasked token
        sequence_mean_token_sum     sum over rows of row sums      rows with an unmasked token
        constant                    sum over tokens                rows with an unmasked token x constant

    Micro-batches, in every aggregation: cut the batch by rows as you like, then

        loss     = sum of loss_sum over micro-batches / sum of weight over micro-batches
        gradient = sum of gradient(loss_sum)          / sum of weight

    are those of the whole batch. `weight` depends on the mask alone and carries no gradient; `loss_weight(mask)`
    gives it for the whole batch beforehand. Dividing each micro-batch by its own weight would be wrong. Metrics are
    (sum, weight) pairs and maxima: `rl.metrics.combine_metrics` adds them up, `mean_metrics` divides once.

    Levels: "token" PPO/GRPO; "sequence" one ratio per row, exp(mean over its tokens of logp - logp_old), with the
    gradient through the mean (GSPO, arXiv 2507.18071, equation 5); "sequence_token" that value, but each token's
    gradient is its own, ratio x gradient(logp_t) (GSPO-token, equation 14).

    A clipped token has no gradient; a token exactly on the bound has. Masked tokens may hold anything (inf, NaN).
    All but `logp` and `entropy` is taken as constant. Options are Python values (static under jit).

    Args:
      logp: [B, T] log-probabilities of the sampled tokens by the policy that is trained.
      logp_old: [B, T] the same before the update.
      advantages: [B] or [B, T].
      mask: [B, T] bool or 0/1, the completion's tokens that count.
      epsilon_low: in [0, 1]; 1 means no lower clip.
      epsilon_high: at least 0; inf means no upper clip. "Clip-higher" (DAPO, arXiv 2503.14476) is 0.28.
      dual_clip: above 1, or None (arXiv 1912.09729, equation 5).
      level: "token", "sequence" or "sequence_token".
      aggregation: see above.
      constant: for aggregation "constant" only, for example the maximum completion length (Dr. GRPO).
      logp_ref: [B, T] by the reference policy. With kl_coef 0 the KL is only measured.
      kl_coef: at least 0.
      kl_estimator: see `kl_penalty`.
      kl_clamp: (largest |logp - logp_ref|, largest |KL|) per token, or None.
      entropy: [B, T] entropy of the policy at each token. With entropy_coef 0 it is only measured.
      entropy_coef: finite.
      rollout_weights: [B, T] or [B], see `rl.shaping.rollout_weights`. They multiply the clipped surrogate only.

    Returns:
      loss_sum, weight: scalars.
      metrics: "loss/policy" (and "loss/kl", "loss/entropy" when given) as aggregated; means over tokens of
        "ratio/mean", "ratio/approx_kl" (logp_old - logp), "kl", "entropy"; "ratio/max"; and the share of tokens (of
        rows for level "sequence") that are clipped: "pg_clipfrac/low", "pg_clipfrac/high", "pg_clipfrac/dual".

    Raises:
      InputError: an option is unknown, out of range, of no effect or lacks its input; or the shapes do not fit.
    """
    check_options(epsilon_low, epsilon_high, dual_clip, level, kl_coef, kl_estimator, kl_clamp, entropy_coef)
    check_aggregation(aggregation, constant)
    if kl_coef and logp_ref is None:
        raise InputError(f"kl_coef={kl_coef}: needs the reference's log-probabilities (logp_ref)")
    if entropy_coef and entropy is None:
        raise InputError(f"entropy_coef={entropy_coef}: needs the policy's entropy")
    logp = at_least_float32(logp)
    dtype = logp.dtype
    if logp.ndim != 2:
        raise InputError(f"logp: shape {logp.shape}, expected [completions, tokens]")
    if np.shape(mask) != logp.shape:
        raise InputError(f"mask: shape {np.shape(mask)}, expected that of logp {logp.shape}")
    mask = jnp.asarray(mask, bool)

    def constant_input(name, x):
        return jax.lax.stop_gradient(_select(name, x, mask, dtype))

    logp_old = constant_input("logp_old", logp_old)
    advantages = constant_input("advantages", advantages)
    log_ratio = jnp.where(mask, logp, 0) - logp_old
    if level != "token":
        length = jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
        row_mean = jnp.where(mask, jnp.sum(log_ratio, axis=1, keepdims=True) / length, 0)
        if level == "sequence":
            log_ratio = row_mean
        else:
            log_ratio = jax.lax.stop_gradient(row_mean - log_ratio) + log_ratio

    surrogate, clipped = _clipped_surrogate(log_ratio, advantages, mask, epsilon_low, epsilon_high, dual_clip)
    if rollout_weights is not None:
        surrogate = surrogate * constant_input("rollout_weights", rollout_weights)
    token_loss = -surrogate

    tokens = jnp.sum(mask).astype(dtype)
    log_ratio_value = jax.lax.stop_gradient(log_ratio)
    ratio = jnp.where(mask, jnp.exp(jnp.clip(log_ratio_value, -_RATIO_CAP, _RATIO_CAP)), 0)
    metrics = {
        "loss/policy": _aggregate(jax.lax.stop_gradient(-surrogate), mask, aggregation, constant),
        "ratio/mean": (jnp.sum(ratio), tokens),
        "ratio/max": jnp.max(ratio, initial=0),
        "ratio/approx_kl": (-jnp.sum(log_ratio_value), tokens),
    }
    share = "sequence_mean_token_mean" if level == "sequence" else "token_mean"
    for name, where in clipped.items():
        metrics[f"pg_clipfrac/{name}"] = _aggregate(where.astype(dtype), mask, share, None)
    if logp_ref is not None:
        kl = kl_penalty(logp, constant_input("logp_ref", logp_ref), mask, estimator=kl_estimator, clamp=kl_clamp)
        if kl_coef:
            token_loss = token_loss + kl_coef * kl
            metrics["loss/kl"] = _aggregate(jax.lax.stop_gradient(kl_coef * kl), mask, aggregation, constant)
        metrics["kl"] = (jax.lax.stop_gradient(jnp.sum(kl)), tokens)
    if entropy is not None:
        entropy = _select("entropy", entropy, mask, dtype)
        if entropy_coef:
            token_loss = token_loss - entropy_coef * entropy
            metrics["loss/entropy"] = _aggregate(
                jax.lax.stop_gradient(-entropy_coef * entropy), mask, aggregation, constant
            )
        metrics["entropy"] = (jax.lax.stop_gradient(jnp.sum(entropy)), tokens)

    loss_sum, weight = _aggregate(token_loss, mask, aggregation, constant)
    return loss_sum, weight, metrics


def loss_weight(mask, *, aggregation: str = "token_mean", constant: float | None = None, dtype=jnp.float32):
    """The `weight` that `policy_loss` returns for `mask` [B, T]: the denominator of the whole batch, known beforehand.

    Raises:
      InputError: unknown aggregation, or a missing or surplus `constant`.
    """
    check_aggregation(aggregation, constant)
    mask = jnp.asarray(mask, bool)
    return _aggregate(jnp.zeros(mask.shape, dtype), mask, aggregation, constant)[1]


def kl_penalty(logp, logp_ref, mask, *, estimator: str = "k3", clamp: tuple[float, float] | None = None) -> jax.Array:
    """Per-token estimate of KL(policy || reference) [..., T] from the sampled tokens, 0 where masked.

    With d = logp - logp_ref: k1 = d, abs = |d|, k2 = d^2 / 2, k3 = exp(-d) + d - 1 (never negative; GRPO,
    arXiv 2402.03300, equation 4). The gradient is the plain derivative in logp.

    Args:
      logp, logp_ref, mask: one shape.
      clamp: (input, output): d is limited to +-input, the result to +-output; no gradient beyond.

    Raises:
      InputError: unknown estimator, or a clamp that is not two positive numbers.
    """
    check_choice("kl_estimator", estimator, KL_ESTIMATORS)
    _check_clamp(clamp)
    mask = jnp.asarray(mask, bool)
    # Selected before any arithmetic: what masked positions hold can reach neither value nor gradient.
    d = jnp.where(mask, at_least_float32(logp), 0) - jnp.where(mask, at_least_float32(logp_ref), 0)
    if clamp is not None:
        d = jnp.clip(d, -clamp[0], clamp[0])
    if estimator == "k1":
        kl = d
    elif estimator == "k2":
        kl = d**2 / 2
    elif estimator == "abs":
        kl = d * jax.lax.stop_gradient(jnp.sign(d))  # so that the gradient at d = 0 is 0
    else:
        kl = jnp.expm1(-d) + d
    return kl if clamp is None else jnp.clip(kl, -clamp[1], clamp[1])


def _clipped_surrogate(log_ratio, advantages, mask, epsilon_low, epsilon_high, dual_clip):
    """min(r A, clip(r) A), floored for A < 0 by dual_clip * A; and where each bound holds: {name: [B, T] bool}.

    The decision is made on log ratios and selected before `exp`, so that a clipped token's runaway ratio gives
    neither inf nor NaN in the gradient.
    """
    log_low = math.log1p(-epsilon_low) if epsilon_low < 1 else -math.inf
    clipped = {
        "low": mask & (advantages < 0) & (log_ratio < log_low),
        "high": mask & (advantages > 0) & (log_ratio > math.log1p(epsilon_high)),
    }
    bound = jnp.where(clipped["high"], 1 + epsilon_high, 1 - epsilon_low)
    stopped = clipped["low"] | clipped["high"]
    if dual_clip is not None:
        clipped["dual"] = mask & (advantages < 0) & (log_ratio > math.log(dual_clip))
        bound = jnp.where(clipped["dual"], dual_clip, bound)
        stopped = stopped | clipped["dual"]
    free = mask & ~stopped & (advantages != 0)
    ratio = jnp.exp(jnp.where(free, log_ratio, 0))
    return jnp.where(stopped, bound.astype(ratio.dtype), ratio) * advantages, clipped


def _aggregate(values, mask, aggregation: str, constant):
    """(sum, weight) of values [B, T], 0 where masked, see the table in `policy_loss`."""
    lengths = jnp.sum(mask, axis=1).astype(values.dtype)
    values = jnp.where(mask, values, 0)
    if aggregation == "token_mean":
        return jnp.sum(values), jnp.sum(lengths)
    rows = jnp.sum(lengths > 0).astype(values.dtype)
    if aggregation == "sequence_mean_token_mean":
        return jnp.sum(jnp.sum(values, axis=1) / jnp.maximum(lengths, 1)), rows
    if aggregation == "sequence_mean_token_sum":
        return jnp.sum(values), rows
    return jnp.sum(values), rows * constant


def _select(name: str, x, mask, dtype):
    """x ([B] or [B, T]) as [B, T] of `dtype` with 0 where masked."""
    x = jnp.asarray(x)
    if x.shape == mask.shape[:1]:
        x = x[:, None]
    elif x.shape != mask.shape and x.shape != (mask.shape[0], 1):
        raise InputError(f"{name}: shape {x.shape}, expected {mask.shape} or {mask.shape[:1]}")
    return jnp.where(mask, x, 0).astype(dtype)


def check_options(epsilon_low, epsilon_high, dual_clip, level, kl_coef, kl_estimator, kl_clamp, entropy_coef):
    """Raise InputError unless the options of `policy_loss` of these names are known and in range."""
    check_number("epsilon_low", epsilon_low, 0, 1)
    check_number("epsilon_high", epsilon_high, 0)
    if dual_clip is not None:
        check_finite("dual_clip", dual_clip, 1, above=True)
    check_choice("level", level, LEVELS)
    check_finite("kl_coef", kl_coef, 0)
    check_choice("kl_estimator", kl_estimator, KL_ESTIMATORS)
    _check_clamp(kl_clamp)
    check_finite("entropy_coef", entropy_coef)


def check_aggregation(aggregation, constant):
    """Raise InputError unless `aggregation` is known and `constant` is given exactly where it is used."""
    check_choice("aggregation", aggregation, AGGREGATIONS)
    if aggregation == "constant":
        if constant is None:
            raise InputError("aggregation='constant': needs `constant`, for example the maximum completion length")
        check_finite("constant", constant, 0, above=True)
    elif constant is not None:
        raise InputError(f"constant={constant!r}: only used with aggregation='constant', not with {aggregation!r}")


def _check_clamp(clamp):
    if clamp is None:
        return
    if not isinstance(clamp, (tuple, list)) or len(clamp) != 2:
        raise InputError(f"kl_clamp={clamp!r}: expected (input, output), two positive numbers, or None")
    for name, value in zip(("input", "output"), clamp, strict=True):
        check_number(f"kl_clamp {name}", value, 0, above=True)
