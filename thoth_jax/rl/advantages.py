"""Advantages of groups of samples: how much better a sample (or a step) is than the others of its prompt.

Shapes: P prompts, G samples per prompt, S steps, T tokens. Statistics are at least float32; float64 in, float64 out.
"""

import jax
import jax.numpy as jnp
import numpy as np

from thoth_jax.errors import InputError
from thoth_jax.rl.checks import check_choice, check_finite

SCALES = ("group", "batch", "none")
BASELINES = ("mean", "leave_one_out")

# Rewards are of order 1. A group whose rewards span at most this much carries no signal: its float32 standard
# deviation need not be 0 (twelve times 0.35), and dividing by it would make advantages out of rounding.
ZERO_RANGE = 1e-6


def at_least_float32(x) -> jax.Array:
    """x as a float array of at least 32 bits (float64 stays float64)."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _check_statistics(epsilon: float, ddof: int) -> None:
    check_finite("epsilon", epsilon, 0)
    if ddof not in (0, 1):
        raise InputError(f"ddof={ddof!r}: must be 1 (sample standard deviation) or 0 (population)")


def _std(deviations, valid, count, ddof: int, axis=None):
    """Standard deviation from deviations that are 0 where not valid; 0 where count <= ddof. Dimensions are kept."""
    squares = jnp.sum(jnp.where(valid, deviations**2, 0), axis=axis, keepdims=True)
    return jnp.sqrt(squares / jnp.maximum(count - ddof, 1))


def has_spread(values, valid=None) -> jax.Array:
    """[..., G] -> [...]: True where the valid values of a group span more than 1e-6 (so: at least two differ)."""
    values = at_least_float32(values)
    valid = jnp.isfinite(values) if valid is None else jnp.asarray(valid, bool) & jnp.isfinite(values)
    highest = jnp.max(jnp.where(valid, values, -jnp.inf), axis=-1)
    lowest = jnp.min(jnp.where(valid, values, jnp.inf), axis=-1)
    return highest - lowest > ZERO_RANGE


def group_advantages(
    rewards,
    *,
    scale_rewards: str = "group",
    baseline: str = "mean",
    epsilon: float = 1e-4,
    ddof: int = 1,
    valid=None,
) -> jax.Array:
    """Advantages [P, G] of rewards [P, G]: (reward - baseline) / (std + epsilon).

    The baseline is the mean of the sample's group, or with "leave_one_out" the mean of the group's other samples.
    The standard deviation is always that of the whole group ("group") or of all rewards ("batch"), never that of a
    group without one member; "none" does not divide.

    A group whose rewards span at most 1e-6 gets exact zeros. Invalid samples (`valid` False, or a reward that is
    not finite) enter no mean and no deviation and get 0; so does the only valid sample of a group.

    GRPO (arXiv 2402.03300, section 4.1.2); without division and with it, Dr. GRPO (arXiv 2503.20783); leave-one-out,
    RLOO (arXiv 2402.14740).

    Args:
      rewards: [P, G], float.
      scale_rewards: "group", "batch" or "none".
      baseline: "mean" or "leave_one_out".
      epsilon: added to the standard deviation.
      ddof: 1 (sample standard deviation) or 0.
      valid: [P, G] bool, all valid when None.

    Raises:
      InputError: an option's value is unknown or out of range, or the shapes do not fit.
    """
    check_choice("scale_rewards", scale_rewards, SCALES)
    check_choice("baseline", baseline, BASELINES)
    _check_statistics(epsilon, ddof)
    rewards = at_least_float32(rewards)
    if rewards.ndim != 2:
        raise InputError(f"rewards: shape {rewards.shape}, expected [prompts, samples per prompt]")
    if valid is not None and np.shape(valid) != rewards.shape:
        raise InputError(f"valid: shape {np.shape(valid)}, expected that of rewards {rewards.shape}")

    valid = jnp.isfinite(rewards) if valid is None else jnp.asarray(valid, bool) & jnp.isfinite(rewards)
    rewards = jnp.where(valid, rewards, 0)
    count = jnp.sum(valid, axis=1, keepdims=True).astype(rewards.dtype)
    mean = jnp.sum(rewards, axis=1, keepdims=True) / jnp.maximum(count, 1)
    deviations = jnp.where(valid, rewards - mean, 0)

    advantages = deviations
    if baseline == "leave_one_out":  # r - mean of the others = (r - mean) n / (n - 1)
        advantages = deviations * count / jnp.maximum(count - 1, 1)
    if scale_rewards == "group":
        advantages = advantages / (_std(deviations, valid, count, ddof, axis=1) + epsilon)
    elif scale_rewards == "batch":
        everything = jnp.sum(count)
        from_batch_mean = rewards - jnp.sum(rewards) / jnp.maximum(everything, 1)
        advantages = advantages / (_std(from_batch_mean, valid, everything, ddof) + epsilon)
    return jnp.where(valid & has_spread(rewards, valid)[:, None], advantages, 0)


def step_advantages(
    step_rewards, step_ends, step_valid, length: int, *, epsilon: float = 1e-4, ddof: int = 1
) -> jax.Array:
    """Token advantages [G, T] from rewards of single steps of one group.

    All step rewards of all samples of the group are normalised together, and each token gets the sum of the
    normalised rewards of those steps of its sample that end at or after it (process supervision of GRPO,
    arXiv 2402.03300, section 4.1.3). Tokens behind the last step get 0. All zeros when the rewards span at most 1e-6.

    Normalising per step index instead would make the baseline depend on where the other samples stopped.

    For [P, G, S] use `jax.vmap(lambda r, e, v: step_advantages(r, e, v, length))`.

    Args:
      step_rewards: [G, S].
      step_ends: [G, S] int, index (from 0) of the last token of each step; need not be sorted.
      step_valid: [G, S] bool, False for padding and for steps without a reward; None: all that are finite.
      length: T, the number of token columns (a Python int).

    Raises:
      InputError: an option is out of range or the shapes do not fit.
    """
    _check_statistics(epsilon, ddof)
    step_rewards, step_ends = at_least_float32(step_rewards), jnp.asarray(step_ends)
    if step_rewards.ndim != 2 or step_rewards.shape != step_ends.shape:
        raise InputError(
            f"step_rewards {step_rewards.shape} and step_ends {step_ends.shape}: expected one shape [samples, steps]"
        )
    if step_valid is not None and np.shape(step_valid) != step_rewards.shape:
        raise InputError(f"step_valid: shape {np.shape(step_valid)}, expected {step_rewards.shape}")

    finite = jnp.isfinite(step_rewards)
    valid = finite if step_valid is None else jnp.asarray(step_valid, bool) & finite
    step_rewards = jnp.where(valid, step_rewards, 0)
    count = jnp.sum(valid).astype(step_rewards.dtype)
    deviations = jnp.where(valid, step_rewards - jnp.sum(step_rewards) / jnp.maximum(count, 1), 0)
    normalised = deviations / (_std(deviations, valid, count, ddof) + epsilon)
    normalised = jnp.where(valid & has_spread(step_rewards.ravel(), valid.ravel()), normalised, 0)
    still_ahead = step_ends[:, :, None] >= jnp.arange(length)[None, None, :]
    return jnp.sum(jnp.where(still_ahead, normalised[:, :, None], 0), axis=1)
