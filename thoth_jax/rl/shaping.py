"""What happens to rewards, masks and groups before the loss: length penalty, truncation, filtering, correction.

Shapes: B completions, T tokens, P prompts, G samples per prompt. Lengths are in tokens.
"""

import math

import jax
import jax.numpy as jnp

from thoth_jax.errors import InputError
from thoth_jax.rl.advantages import at_least_float32, has_spread
from thoth_jax.rl.checks import check_choice, check_finite, check_number
from thoth_jax.rl.objectives import kl_penalty

CORRECTION_LEVELS = ("token", "sequence")
CORRECTION_MODES = ("truncate", "mask")


def overlong_penalty(lengths, *, max_length: int, buffer: int, penalty: float = 1.0) -> jax.Array:
    """Soft penalty for long completions (DAPO, arXiv 2503.14476, equation 13), to be added to the reward.

    0 up to `max_length - buffer` tokens, then linear down to -penalty at `max_length`, and -penalty beyond.

    Args:
      lengths: [...] completion lengths in tokens.
      max_length: tokens from which the full penalty holds.
      buffer: tokens over which it grows; 0 switches it off.
      penalty: its size.

    Raises:
      InputError: buffer is not in 0..max_length, or penalty is negative.
    """
    check_number("max_completion_length", max_length, 1)
    check_number("overlong.buffer", buffer, 0, max_length)
    check_finite("overlong.penalty", penalty, 0)
    lengths = at_least_float32(lengths)
    if buffer == 0:
        return jnp.zeros_like(lengths)
    return penalty * jnp.clip((max_length - buffer - lengths) / buffer, -1, 0)


def mask_truncated(mask, truncated) -> jax.Array:
    """Loss mask [B, T] without the rows that were cut off (finish reason "length").

    Their rewards stay in the group's mean and deviation. Whether a row was cut off comes from the engine, never from
    comparing its last token with an end token (a model may have several).
    """
    return jnp.asarray(mask, bool) & ~jnp.asarray(truncated, bool)[:, None]


def keep_group(raw, valid=None) -> jax.Array:
    """[P] bool: dynamic sampling keeps a prompt when its samples' raw verifiable rewards [P, G] differ.

    "Differ" is a span above 1e-6 among the valid samples, so that rounding keeps nothing. `raw` is the reward before
    shaping: a length penalty must not make a hopeless prompt look informative. (DAPO, arXiv 2503.14476, equation 11.)
    """
    return has_spread(raw, valid)


def kl_in_reward(rewards, logp_old, logp_ref, mask, *, coef: float, estimator: str = "k1") -> jax.Array:
    """Rewards [B] minus `coef` times the KL estimate to the reference summed over the completion's tokens.

    The penalty so enters the group's baseline and advantage, unlike a KL term in the loss.

    Args:
      rewards: [B].
      logp_old, logp_ref, mask: [B, T].

    Raises:
      InputError: unknown estimator or negative coefficient.
    """
    check_finite("coef", coef, 0)
    rewards = at_least_float32(rewards)
    mask = jnp.asarray(mask, bool)
    kl = kl_penalty(logp_old, logp_ref, mask, estimator=estimator)
    return rewards - coef * jnp.sum(kl, axis=-1)


def rollout_weights(
    logp_old, logp_rollout, mask, *, level: str = "token", cap: float = 2.0, mode: str = "truncate"
) -> jax.Array:
    """Importance weights [B, T] between sampler and trainer, exp(logp_old - logp_rollout), never differentiated.

    Args:
      logp_old: [B, T] log-probabilities of the sampled tokens by the trainer's model before the update.
      logp_rollout: [B, T] the same as the sampler returned them.
      mask: [B, T]; masked tokens get weight 0.
      level: "token", or "sequence": one weight per row, the product of its tokens' ratios.
      cap: weights above it are set to it ("truncate") or to 0 ("mask").
      mode: "truncate" or "mask".

    Raises:
      InputError: an option's value is unknown or out of range.
    """
    check_choice("rollout_correction.level", level, CORRECTION_LEVELS)
    check_choice("rollout_correction.mode", mode, CORRECTION_MODES)
    check_number("rollout_correction.cap", cap, 0, above=True)
    mask = jnp.asarray(mask, bool)
    log_weights = _log_ratio(logp_old, logp_rollout, mask)
    if level == "sequence":
        log_weights = jnp.where(mask, jnp.sum(log_weights, axis=-1, keepdims=True), 0)
    over = log_weights > math.log(cap)
    capped = 0.0 if mode == "mask" else cap
    # `where` before `exp`: a huge ratio must not become inf.
    weights = jnp.where(over, capped, jnp.exp(jnp.where(over, 0, log_weights)))
    return jax.lax.stop_gradient(jnp.where(mask, weights, 0))


def rollout_metrics(logp_old, logp_rollout, mask, weights=None) -> dict:
    """How far the sampler's log-probabilities are from the trainer's, as metrics that combine (see rl/metrics.py).

    "logp_diff/mean", "logp_diff/max": |logp_old - logp_rollout| over unmasked tokens; should be about 0.
    "rollout_weight/mean", "rollout_weight/mean_square" (with `weights` [B, T]): mean^2 / mean_square is the
    effective sample size as a share of the tokens.
    """
    mask = jnp.asarray(mask, bool)
    difference = jnp.abs(_log_ratio(logp_old, logp_rollout, mask))
    tokens = jnp.sum(mask).astype(difference.dtype)
    metrics = {"logp_diff/mean": (jnp.sum(difference), tokens), "logp_diff/max": jnp.max(difference, initial=0)}
    if weights is not None:
        weights = jnp.where(mask, at_least_float32(weights), 0)
        metrics["rollout_weight/mean"] = (jnp.sum(weights), tokens)
        metrics["rollout_weight/mean_square"] = (jnp.sum(weights**2), tokens)
    return metrics


def _log_ratio(logp, logp_other, mask):
    """logp - logp_other, 0 where masked; both selected before the subtraction, so that inf - inf cannot occur."""
    logp, logp_other = at_least_float32(logp), at_least_float32(logp_other)
    if logp.shape != logp_other.shape or logp.shape != mask.shape:
        raise InputError(f"log-probabilities {logp.shape} and {logp_other.shape}, mask {mask.shape}: shapes differ")
    return jnp.where(mask, logp, 0) - jnp.where(mask, logp_other, 0)
