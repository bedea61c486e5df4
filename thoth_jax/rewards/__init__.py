"""Verifiable rewards: SCORE on jit-compiled kernels, and the composition of rewards from parts."""

from thoth_jax.rewards.compose import check_specs, compose
from thoth_jax.rewards.score import Score, ScoreConfig, score_batch

__all__ = ["Score", "ScoreConfig", "check_specs", "compose", "score_batch"]
