"""The loss under jit, and what it comes to."""

import functools

import jax
import jax.numpy as jnp

from thoth_jax import rl
from thoth_jax.rl import mean_metrics

ARRAYS = ("logp", "logp_old", "advantages", "mask", "logp_ref", "entropy", "rollout_weights")


@functools.cache
def jitted(options):
    return jax.jit(lambda arrays: rl.policy_loss(**arrays, **dict(options)))


def policy_loss(*args, **options):
    """`rl.policy_loss` under jit."""
    arrays = dict(zip(ARRAYS, args, strict=False))
    arrays |= {name: options.pop(name) for name in ARRAYS if name in options}
    arrays = {name: jnp.asarray(value) for name, value in arrays.items()}
    return jitted(tuple(sorted(options.items())))(arrays)


def loss_of(*args, **options):
    loss_sum, weight, _ = policy_loss(*args, **options)
    return float(loss_sum / weight)


def means_of(*args, **options):
    return {name: float(value) for name, value in mean_metrics(policy_loss(*args, **options)[2]).items()}
