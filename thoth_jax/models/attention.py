"""Grouped-query attention in float32 softmax, and the masks that keep segments apart."""

import jax
import jax.numpy as jnp

MASKED = -1e30  # finite, so that no row can turn into NaN


def causal_mask(segment_ids: jax.Array | None, length: int) -> jax.Array:
    """Who may look at whom: [B, T, S] bool (B is 1 without segment ids), True where query t sees key s.

    A token sees itself and earlier tokens of its own segment; segment 0 is padding and sees nothing.
    """
    index = jnp.arange(length)
    causal = (index[:, None] >= index[None, :])[None]
    if segment_ids is None:
        return causal
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return causal & same & (segment_ids != 0)[:, None, :]


def positions_of(segment_ids: jax.Array) -> jax.Array:
    """Positions counted from 0 within each segment (a run of equal ids): [B, T] int32.

    segment_ids [1 1 1 2 2 0] -> positions [0 1 2 0 1 0].
    """
    index = jnp.broadcast_to(jnp.arange(segment_ids.shape[1], dtype=jnp.int32), segment_ids.shape)
    changed = jnp.pad(segment_ids[:, 1:] != segment_ids[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return index - jax.lax.cummax(jnp.where(changed, index, 0), axis=1)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Scaled dot-product attention with grouped key/value heads.

    Args:
      q: [B, T, N, H]. k, v: [B, S, K, H], N a multiple of K; head n uses key/value head n // (N // K).
      mask: [B or 1, T, S] bool, True where query t may see key s.

    Returns:
      [B, T, N, H] in the dtype of q; 0 for a query that may see nothing.
    """
    B, T, N, H = q.shape
    K = k.shape[2]
    q = q.reshape(B, T, K, N // K, H)
    scores = jnp.einsum("BTKGH,BSKH->BKGTS", q, k, preferred_element_type=jnp.float32) * H**-0.5
    mask = mask[:, None, None]
    scores = jnp.where(mask, scores, MASKED)
    top = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    weights = jnp.where(mask, jnp.exp(scores - top), 0.0)
    weights /= jnp.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
    out = jnp.einsum("BKGTS,BSKH->BTKGH", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return out.reshape(B, T, N, H).astype(q.dtype)


def rope_angles(positions: jax.Array, head_dim: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """Rotary angles in float32: (cos, sin), each [B, T, H/2], for positions [B, T]."""
    frequency = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions.astype(jnp.float32)[..., None] * frequency
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, rope: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate the halves of each head of x [B, T, N, H] (the Hugging Face layout) in float32."""
    cos, sin = (angle[:, :, None, :] for angle in rope)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
