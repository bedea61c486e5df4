"""Rotary positions: angles, their YaRN scaling for longer contexts, and the rotation."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from thoth_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Yarn:
    """YaRN (arXiv 2309.00071): slow rotations are stretched by `factor`, fast ones are kept, with a ramp between them.

    Names and defaults are those of config.json. The ramp runs between the pairs that turn beta_fast and beta_slow times
    within original_max_position_embeddings, in whole pairs where `truncate`. Angles' cosine and sine are multiplied by
    attention_factor; None: 0.1 ln(factor) + 1, or with mscale and mscale_all_dim the ratio of that for each of them.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self):
        if self.factor < 1:
            raise InputError(f"yarn.factor: {self.factor} must be at least 1")
        if self.original_max_position_embeddings < 1:
            raise InputError(
                f"yarn.original_max_position_embeddings: {self.original_max_position_embeddings} must be at least 1"
            )
        if self.attention_factor is not None and self.attention_factor <= 0:
            raise InputError(f"yarn.attention_factor: {self.attention_factor} must be above 0")
        if not 0 < self.beta_slow <= self.beta_fast:
            raise InputError(f"yarn.beta_slow: {self.beta_slow} must be above 0 and at most beta_fast {self.beta_fast}")

    @property
    def amplitude(self) -> float:
        """What cosine and sine are multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor

        def of(scale: float) -> float:
            return 0.1 * scale * math.log(self.factor) + 1.0

        if self.mscale and self.mscale_all_dim:
            return of(self.mscale) / of(self.mscale_all_dim)
        return of(1.0)

    def frequencies(self, plain: np.ndarray, head_dim: int, theta: float) -> np.ndarray:
        """The scaled frequencies [H/2] of the plain ones."""

        def pair(turns: float) -> float:
            """The pair that turns so often within the original length."""
            length = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return head_dim * math.log(length) / (2 * math.log(theta))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        ramp = (np.arange(head_dim // 2, dtype=np.float32) - low) / (high - low if high != low else 0.001)
        stretched = np.clip(ramp, 0, 1)
        return plain / self.factor * stretched + plain * (1 - stretched)


def rope_angles(
    positions: jax.Array, head_dim: int, theta: float, yarn: Yarn | None = None
) -> tuple[jax.Array, jax.Array]:
    """Rotary angles in float32: (cos, sin), each [B, T, H/2], for positions [B, T]."""
    if yarn is None:
        frequency, amplitude = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim), 1.0
    else:
        plain = 1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
        frequency, amplitude = yarn.frequencies(plain, head_dim, theta).astype(np.float32), yarn.amplitude
    angles = positions.astype(jnp.float32)[..., None] * frequency
    return jnp.cos(angles) * amplitude, jnp.sin(angles) * amplitude


def rotate(x: jax.Array, rope: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate the halves of each head of x [B, T, N, H] (the Hugging Face layout) in float32."""
    cos, sin = (angle[:, :, None, :] for angle in rope)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
