"""Sampling's side of the model: a key/value cache, prefill of prompts and one-token steps.

Parameters, adapter and cache come stacked on L (one scan; compiles fast) or unstacked (`unstack`, a tuple of layers;
faster steps, since no slice of a stack is copied in the loop). Axis -4 of a cache's leaves is the batch in both forms.
"""

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from thoth_jax.models import attention as attn
from thoth_jax.models.qwen import Params, QwenConfig, block, embed, logits_of, rms_norm, scan_layers
from thoth_jax.models.rope import rope_angles
from thoth_jax.sharding import constrain, sharding

_DENSE_PREFILL = 1024  # tokens; longer prompts are read in blocks of keys, without a [S, S] array
CACHE_AXES = ("layers", "batch", "length", "kv_heads", "head_dim")


@flax.struct.dataclass
class Cache:
    """Keys (rotated) and values of each position: k, v [L, B, S, K, H], or tuples of L arrays [B, S, K, H]."""

    k: jax.Array | tuple[jax.Array, ...]
    v: jax.Array | tuple[jax.Array, ...]


def init_cache(config: QwenConfig, batch: int, length: int, mesh: Mesh | None = None) -> Cache:
    """An empty stacked cache of `length` positions for `batch` rows, in the compute dtype, created on its sharding."""
    shape = (config.num_layers, batch, length, config.num_kv_heads, config.head_dim)
    placed = None if mesh is None else sharding(mesh, CACHE_AXES, shape)
    return Cache(*(jnp.zeros(shape, config.dtype, device=placed) for _ in range(2)))


def unstack(tree):
    """Split the stacked layers of params, a Lora or a Cache into a tuple with one entry per layer."""
    if isinstance(tree, Cache):
        return Cache(k=tuple(tree.k), v=tuple(tree.v))
    layers = tree["layers"] if isinstance(tree, dict) else tree.layers
    count = jax.tree.leaves(layers)[0].shape[0]
    split = tuple(jax.tree.map(lambda x, layer=layer: x[layer], layers) for layer in range(count))
    return {**tree, "layers": split} if isinstance(tree, dict) else tree.replace(layers=split)


def _over_layers(step, x, params: Params, config: QwenConfig, lora, cache: Cache | None):
    """Run `step(x, weights, adapters, (k, v) or None) -> (x, (k, v))` over the layers, scanned or one by one."""
    if not isinstance(params["layers"], tuple):
        extra = None if cache is None else (cache.k, cache.v)
        x, (k, v) = scan_layers(lambda x, w, a, _, kv: step(x, w, a, kv), x, params, config, lora, extra=extra)
        return x, Cache(k, v)
    adapters = ({},) * config.num_layers if lora is None else lora.layers
    if not isinstance(adapters, tuple) or not (cache is None or isinstance(cache.k, tuple)):
        raise ValueError("parameters are unstacked, so the adapter and the cache must be unstacked, too")
    out = []
    for layer, weights in enumerate(params["layers"]):
        x, kv = step(x, weights, adapters[layer], None if cache is None else (cache.k[layer], cache.v[layer]))
        out.append(kv)
    return x, Cache(*map(tuple, zip(*out, strict=True)))


def prefill(
    params: Params, config: QwenConfig, tokens: jax.Array, lengths: jax.Array, lora=None, length: int | None = None
) -> tuple[jax.Array, Cache]:
    """Read prompts into a new cache.

    Args:
      tokens: [B, S] right-padded prompts. lengths: [B] number of real tokens in each.
      length: positions of the returned cache; None: S.

    Returns:
      (float32 logits [B, V] after each prompt's last real token, cache with S or `length` positions). What the cache
      holds from lengths on is overwritten by decode_step before it is looked at.
    """
    B, S = tokens.shape
    index = jnp.arange(S, dtype=jnp.int32)[None]
    # Padding on the right is seen by no real token, so that causality is all the mask there is.
    dense = S <= _DENSE_PREFILL
    rope = rope_angles(index, config.head_dim, config.rope_theta, config.yarn)
    room = 0 if length is None else length - S

    def step(x, weights, adapters, _):
        def attend(q, k, v):
            kept = (jnp.pad(part, ((0, 0), (0, room), (0, 0), (0, 0))) for part in (k, v))
            mixed = attn.attention(q, k, v, attn.causal_mask(None, S)) if dense else attn.causal_attention(q, k, v)
            return mixed, tuple(constrain(part, CACHE_AXES[1:]) for part in kept)

        return block(x, weights, adapters, rope, attend, config, 1.0 if lora is None else lora.scale)

    x, cache = _over_layers(step, embed(params, config, tokens, lora), params, config, lora, None)
    last = jnp.take_along_axis(x, jnp.maximum(lengths - 1, 0)[:, None, None], axis=1)[:, 0]
    return logits_of(params, config, rms_norm(last, params["norm"], config.rms_norm_eps), lora), cache


def decode_step(
    params: Params, config: QwenConfig, cache: Cache, tokens: jax.Array, positions: jax.Array, lora=None
) -> tuple[jax.Array, Cache]:
    """Append one token per row and predict the next.

    Args:
      cache: as from `prefill` or `init_cache`; donate it.
      tokens: [B] ids. positions: [B], each row's own: keys and values are written there, and positions up to it are
        looked at. A position outside the cache writes nothing (a parked row).

    Returns:
      (float32 logits [B, V] of the next token, the cache with the new position).
    """
    B = tokens.shape[0]
    rows = jnp.arange(B)
    rope = rope_angles(positions[:, None], config.head_dim, config.rope_theta, config.yarn)

    def step(x, weights, adapters, kv):
        def attend(q, k, v):
            keys, values = (
                old.at[rows, positions].set(new[:, 0], mode="drop", unique_indices=True)
                for old, new in zip(kv, (k, v), strict=True)
            )
            mask = jnp.arange(keys.shape[1])[None, None] <= positions[:, None, None]
            return attn.attention(q, keys, values, mask), (keys, values)

        return block(x, weights, adapters, rope, attend, config, 1.0 if lora is None else lora.scale)

    x, cache = _over_layers(step, embed(params, config, tokens[:, None], lora), params, config, lora, cache)
    return logits_of(params, config, rms_norm(x[:, 0], params["norm"], config.rms_norm_eps), lora), cache
