"""Random initial values that do not depend on the mesh.

Each value is a hash of its key, its weight's name and its index: no state, nothing to communicate, and a few integer
operations. (The Threefry generator of jax.random gives the same freedom, but takes seconds to compile per weight.)
"""

import math
import zlib

import jax
import jax.numpy as jnp


def uniform(key: jax.Array, name: str, shape: tuple[int, ...]) -> jax.Array:
    """Float32 values in (-1, 1) of any shape, a function of `key`, `name` and the index only.

    The first axis (layers, vocabulary) is hashed by itself, so the others may have up to 2**32 elements together.
    """
    seed = jnp.uint32(zlib.crc32(name.encode()))
    for word in jax.random.key_data(key).ravel():
        seed = _mix(seed ^ word)
    # Mixed once more than the other index below: equal hashes of both would make the values symmetric in the two.
    first = _mix(_mix(seed + jax.lax.iota(jnp.uint32, shape[0])) ^ jnp.uint32(0x9E3779B9))
    index = jnp.zeros(shape, jnp.uint32)
    for axis in range(1, len(shape)):
        stride = jnp.uint32(math.prod(shape[axis + 1 :]) % 2**32)
        index += stride * jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    bits = _mix(_mix(_mix(index ^ seed) ^ first.reshape(-1, *(1,) * (len(shape) - 1))))
    # 23 bits, in the middle of their interval: never -1 or 1, where the normal's inverse is infinite.
    return ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-22 - 1.0


def normal(key: jax.Array, name: str, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal float32 values; see `uniform`."""
    return math.sqrt(2.0) * jax.lax.erf_inv(uniform(key, name, shape))


def _mix(x: jax.Array) -> jax.Array:
    # The finaliser of MurmurHash3: each input bit changes each output bit with probability one half.
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
