"""Sampling completions from the policy."""

from thoth_jax.rollout.engine import Engine, Group, Rollouts
from thoth_jax.rollout.sampling import Sampling, sample

__all__ = ["Engine", "Group", "Rollouts", "Sampling", "sample"]
