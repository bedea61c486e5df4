"""The policy: Qwen models as plain pytrees, their adapters, checkpoints and tokenizers."""

from thoth_jax.models.decode import Cache, decode_step, init_cache, prefill, unstack
from thoth_jax.models.logprobs import token_logprobs
from thoth_jax.models.qwen import (
    QwenConfig,
    Weight,
    count_params,
    declare,
    forward,
    hidden_states,
    init_params,
    logits_of,
    param_shardings,
)

__all__ = [
    "Cache",
    "QwenConfig",
    "Weight",
    "count_params",
    "declare",
    "decode_step",
    "forward",
    "hidden_states",
    "init_cache",
    "init_params",
    "logits_of",
    "param_shardings",
    "prefill",
    "token_logprobs",
    "unstack",
]
