"""The policy: Qwen models as plain pytrees, their adapters, checkpoints and tokenizers."""

from thoth_jax.models.decode import Cache, decode_step, init_cache, prefill, unstack
from thoth_jax.models.hf import load, load_config, load_params, save
from thoth_jax.models.known import published
from thoth_jax.models.logprobs import token_logprobs
from thoth_jax.models.lora import Lora, LoraConfig, init_lora, load_peft, merge, save_peft
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
from thoth_jax.models.rope import Yarn
from thoth_jax.models.tokenizer import Tokenizer, load_tokenizer, train_sentencepiece

__all__ = [
    "Cache",
    "Lora",
    "LoraConfig",
    "QwenConfig",
    "Tokenizer",
    "Weight",
    "Yarn",
    "count_params",
    "declare",
    "decode_step",
    "forward",
    "hidden_states",
    "init_cache",
    "init_lora",
    "init_params",
    "load",
    "load_config",
    "load_params",
    "load_peft",
    "load_tokenizer",
    "logits_of",
    "merge",
    "param_shardings",
    "prefill",
    "published",
    "save",
    "save_peft",
    "token_logprobs",
    "train_sentencepiece",
    "unstack",
]
