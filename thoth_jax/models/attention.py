"""Grouped-query attention in float32 softmax, and the masks that keep segments apart."""

import functools

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
    S, K = k.shape[1:3]
    # Batch and key/value head lead, and the queries that share a head are one long matrix [G T, H]: XLA's CPU backend
    # then calls its fast matrix product, which is six times faster than a contraction with scattered axes.
    q = q.transpose(0, 2, 1, 3).reshape(B, K, -1, H)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    scores = jnp.einsum("BKMH,BKSH->BKMS", q, k, preferred_element_type=jnp.float32) * H**-0.5
    mask = mask[:, None, None]
    scores = jnp.where(mask, scores.reshape(B, K, -1, T, S), MASKED)
    top = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    weights = jnp.where(mask, jnp.exp(scores - top), 0.0)
    weights /= jnp.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
    weights = weights.astype(v.dtype).reshape(B, K, -1, S)
    out = jnp.einsum("BKMS,BKSH->BKMH", weights, v, preferred_element_type=jnp.float32)
    return out.reshape(B, N, T, H).transpose(0, 2, 1, 3).astype(q.dtype)


def training_attention(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array | None = None) -> jax.Array:
    """Causal attention within segments, with a backward pass that keeps no [T, T] weights.

    Queries go in blocks, each against the keys up to its end, so close to half of the square is never computed. The
    backward pass makes a block's weights again from the saved log-sum of its rows (FlashAttention-2, arXiv
    2307.08691, section 3.1): one product and one exponential, where saving them would cost [N, T, T] a row and layer.

    Args:
      q: [B, T, N, H]. k, v: [B, T, K, H], N a multiple of K; head n uses key/value head n // (N // K).
      segment_ids: [B, T], see `causal_mask`; None: each row is one segment.

    Returns:
      [B, T, N, H] in the dtype of q; 0 for a query that may see nothing.
    """
    return _blocked(q, k, v, segment_ids)


def _ranges(length: int) -> list[tuple[int, int]]:
    """The blocks of queries. Shorter than 64 their products run slowly; more than 8 give little and compile longer."""
    size = max(64, -(-length // 8))
    return [(start, min(start + size, length)) for start in range(0, length, size)]


def _lead(x: jax.Array, heads: int) -> jax.Array:
    """[B, T, N, H] as [B, heads, N / heads, T, H]."""
    B, T, N, H = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, heads, N // heads, T, H)


def _scores(q, k, segment_ids, start: int, end: int) -> jax.Array:
    """Scaled scores [B, K, G, end - start, end] of the queries of a block, `MASKED` where they may not look."""
    B, K, G, T, H = q.shape
    scores = jnp.einsum("BKMH,BKSH->BKMS", q.reshape(B, K, G * T, H), k, preferred_element_type=jnp.float32)
    seen = (jnp.arange(start, end)[:, None] >= jnp.arange(end)[None])[None]
    if segment_ids is not None:
        own = segment_ids[:, start:end, None]
        seen = seen & (own == segment_ids[:, None, :end]) & (own != 0)
    return jnp.where(seen[:, None, None], scores.reshape(B, K, G, T, end) * H**-0.5, MASKED)


@jax.custom_vjp
def _blocked(q, k, v, segment_ids):
    return _blocked_forward(q, k, v, segment_ids)[0]


def _blocked_forward(q, k, v, segment_ids):
    (B, T, N, H), K = q.shape, k.shape[2]
    query, key, value = _lead(q, K), k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    outs, logs = [], []
    for start, end in _ranges(T):
        scores = _scores(query[:, :, :, start:end], key[:, :, :end], segment_ids, start, end)
        # Far below any score, far above MASKED: a query that sees nothing gets weights of exp(-5e29) = 0.
        top = jnp.maximum(scores.max(axis=-1, keepdims=True), MASKED / 2)
        weights = jnp.exp(scores - top)
        total = jnp.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
        weights = weights.astype(v.dtype).reshape(B, K, -1, end)
        out = jnp.einsum("BKMS,BKSH->BKMH", weights, value[:, :, :end], preferred_element_type=jnp.float32)
        outs.append(out.reshape(B, K, -1, end - start, H) / total)
        logs.append(top + jnp.log(total))
    out = jnp.concatenate(outs, axis=3).reshape(B, N, T, H).transpose(0, 2, 1, 3).astype(q.dtype)
    return out, (q, k, v, segment_ids, out, jnp.concatenate(logs, axis=3))


def _blocked_backward(saved, gradient):
    q, k, v, segment_ids, out, logs = saved
    (B, T, N, H), K = q.shape, k.shape[2]
    mean = jnp.sum(gradient.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)  # [B, T, N]
    mean = _lead(mean[..., None], K)
    query, key, value = _lead(q, K), k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    gradient = _lead(gradient, K)
    to_q, to_k, to_v = [], 0.0, 0.0
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    for start, end in _ranges(T):

        def rows(x, start=start, end=end):
            return x[:, :, :, start:end].reshape(B, K, -1, x.shape[-1])

        own, keys, values, up = rows(query), key[:, :, :end], value[:, :, :end], rows(gradient)
        scores = _scores(query[:, :, :, start:end], keys, segment_ids, start, end).reshape(B, K, -1, end)
        weights = jnp.exp(scores - rows(logs))
        change = weights * (product("BKMH,BKSH->BKMS", up, values) - rows(mean)) * H**-0.5
        weights, change = weights.astype(v.dtype), change.astype(q.dtype)
        to_q.append(product("BKMS,BKSH->BKMH", change, keys).reshape(B, K, N // K, end - start, H))
        rest = ((0, 0), (0, 0), (0, T - end), (0, 0))
        to_k += jnp.pad(product("BKMS,BKMH->BKSH", change, own), rest)
        to_v += jnp.pad(product("BKMS,BKMH->BKSH", weights, up), rest)
    to_q = jnp.concatenate(to_q, axis=3).reshape(B, N, T, H)

    def back(x, like):
        return x.transpose(0, 2, 1, 3).astype(like.dtype)

    return back(to_q, q), back(to_k, k), back(to_v, v), None


_blocked.defvjp(_blocked_forward, _blocked_backward)


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array, size: int = 512) -> jax.Array:
    """Causal attention over whole rows, a block of `size` queries and keys at a time: no [T, T] array is built.

    For prefill only (not differentiable in reverse). Blocks above the diagonal are not computed. Rows may be padded on
    the right: what stands there is seen by nothing real.

    Args:
      q: [B, T, N, H]. k, v: [B, T, K, H], see `attention`.

    Returns:
      [B, T, N, H] in the dtype of q.
    """
    (B, T, N, H), K = q.shape, k.shape[2]
    G, count = N // K, -(-T // size)

    def blocks(x):
        """[B, T, heads, H] as [count, B, heads, size, H]."""
        x = jnp.pad(x, ((0, 0), (0, count * size - T), (0, 0), (0, 0)))
        return x.reshape(B, count, size, -1, H).transpose(1, 0, 3, 2, 4)

    keys, values = blocks(k).swapaxes(3, 4), blocks(v)
    diagonal = jnp.arange(size)[:, None] >= jnp.arange(size)[None]

    def one(row):
        at, query = row
        query = query.reshape(B, K, G * size, H)

        def add(other, state):
            top, total, out = state
            scores = jnp.einsum("BKMH,BKHS->BKMS", query, keys[other], preferred_element_type=jnp.float32) * H**-0.5
            scores = jnp.where((other < at) | diagonal, scores.reshape(B, K, G, size, size), MASKED)
            scores = scores.reshape(B, K, G * size, size)
            higher = jnp.maximum(top, scores.max(axis=-1, keepdims=True))
            weights, scale = jnp.exp(scores - higher), jnp.exp(top - higher)
            mixed = jnp.einsum(
                "BKMS,BKSH->BKMH", weights.astype(v.dtype), values[other], preferred_element_type=jnp.float32
            )
            return higher, total * scale + weights.sum(axis=-1, keepdims=True), out * scale + mixed

        top = jnp.full((B, K, G * size, 1), MASKED, jnp.float32)
        state = (top, jnp.zeros_like(top), jnp.zeros((B, K, G * size, H), jnp.float32))
        _, total, out = jax.lax.fori_loop(0, at + 1, add, state)
        return (out / total).astype(q.dtype).reshape(B, N, size, H)

    out = jax.lax.map(one, (jnp.arange(count), blocks(q)))  # [count, B, N, size, H]
    return out.transpose(1, 0, 3, 2, 4).reshape(B, count * size, N, H)[:, :T]
