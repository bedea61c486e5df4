"""Log-probabilities of given tokens without ever building [B, T, V] logits."""

import jax
import jax.numpy as jnp

from thoth_jax.models.qwen import Params, QwenConfig, head_logits, head_weight
from thoth_jax.sharding import constrain


def token_logprobs(
    params: Params,
    config: QwenConfig,
    hidden: jax.Array,
    targets: jax.Array,
    *,
    temperature: float | jax.Array = 1.0,
    chunk_size: int = 1024,
    with_entropy: bool = False,
    lora=None,
) -> tuple[jax.Array, jax.Array | None]:
    """log p(target) at each position, from hidden states, in chunks of about `chunk_size` tokens.

    The logits of a chunk are recomputed in the backward pass, so at most one chunk [B, chunk_size / B, V] exists at a
    time. A chunk is a range of columns of all rows, so that rows stay on their devices.

    Args:
      hidden: [B, T, D] from `hidden_states`; the state at t predicts targets[:, t].
      targets: [B, T] ids.
      temperature: > 0; divides the logits before the log-softmax.
      with_entropy: also return the entropy of the same distribution.

    Returns:
      (logprobs [B, T], entropy [B, T] or None), float32, in nats.
    """
    B, T, _ = hidden.shape
    width = min(max(chunk_size // B, 1), T)
    chunks = -(-T // width)
    head = head_weight(params, config, lora)

    def split(x):  # [B, T, ...] -> [chunks, B, width, ...]
        x = jnp.pad(x, ((0, 0), (0, chunks * width - T)) + ((0, 0),) * (x.ndim - 2))
        return x.reshape(B, chunks, width, *x.shape[2:]).swapaxes(0, 1)

    def one(chunk):
        states, ids = chunk
        states = constrain(states, ("batch", "length", "features"))
        logits = constrain(head_logits(head, config, states) / temperature, ("batch", "length", "vocab"))
        total = jax.nn.logsumexp(logits, axis=-1)
        logprobs = jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0] - total
        if not with_entropy:
            return logprobs, None
        return logprobs, total - jnp.sum(jnp.exp(logits - total[..., None]) * logits, axis=-1)

    def join(x):  # [chunks, B, width] -> [B, T]
        return x.swapaxes(0, 1).reshape(B, chunks * width)[:, :T]

    out = jax.lax.map(jax.checkpoint(one, prevent_cse=False), (split(hidden), split(targets)))
    return jax.tree.map(join, out)
