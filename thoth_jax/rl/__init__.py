"""Objectives of reinforcement learning: pure functions on arrays that work under jit, scan and vmap."""

from thoth_jax.rl.advantages import group_advantages, step_advantages
from thoth_jax.rl.formula import formula
from thoth_jax.rl.metrics import combine_metrics, mean_metrics
from thoth_jax.rl.objectives import kl_penalty, loss_weight, policy_loss
from thoth_jax.rl.shaping import (
    keep_group,
    kl_in_reward,
    mask_truncated,
    overlong_penalty,
    rollout_metrics,
    rollout_weights,
)

__all__ = [
    "combine_metrics",
    "formula",
    "group_advantages",
    "keep_group",
    "kl_in_reward",
    "kl_penalty",
    "loss_weight",
    "mask_truncated",
    "mean_metrics",
    "overlong_penalty",
    "policy_loss",
    "rollout_metrics",
    "rollout_weights",
    "step_advantages",
]
