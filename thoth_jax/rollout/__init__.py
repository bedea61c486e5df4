"""Sampling completions from the policy."""

from thoth_jax.rollout.backend import Answer, Endpoint, EndpointOptions, RolloutBackend
from thoth_jax.rollout.engine import Engine, Group, Rollouts
from thoth_jax.rollout.sampling import Sampling, sample

__all__ = [
    "Answer",
    "Endpoint",
    "EndpointOptions",
    "Engine",
    "Group",
    "RolloutBackend",
    "Rollouts",
    "Sampling",
    "sample",
]
