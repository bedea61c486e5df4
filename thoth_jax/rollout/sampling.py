"""Choosing the next token: temperature, top-k, top-p, min-p, greedy.

Shapes: B rows, V vocabulary. One token costs two uniform numbers per row, no noise over the vocabulary, and no sort.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from thoth_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Filters apply in the order top-k, top-p, min-p; tokens that tie with the last one kept
    are kept.

    temperature: divides the logits; 0 is greedy (the filters then change nothing).
    top_k:       keep the k most probable tokens; 0: all.
    top_p:       of what is left keep the smallest set of most probable tokens with at least this share; 1: all.
    min_p:       keep tokens with at least min_p times the probability of the most probable one; 0: all.
    max_tokens:  tokens of an answer, the stop token included; None: the engine's maximum.
    stop_ids:    tokens that end an answer.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int | None = None
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self):
        def number(name, low, high=math.inf):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                upper = f" and <= {high:g}" if high < math.inf else ""
                raise InputError(f"sampling.{name}={value!r}: must be a number >= {low:g}{upper}")
            if math.isinf(value):
                raise InputError(f"sampling.{name}={value!r}: must be finite")

        number("temperature", 0)
        number("top_k", 0)
        number("top_p", 0, 1)
        number("min_p", 0, 1)
        if self.top_p == 0:
            raise InputError("sampling.top_p=0: must be above 0 (temperature=0 is greedy)")
        if self.max_tokens is not None:
            number("max_tokens", 1)
        for name in ("top_k", "max_tokens"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int):
                raise InputError(f"sampling.{name}={value!r}: must be an integer")
        stop_ids = tuple(int(token) for token in self.stop_ids)
        if any(token < 0 for token in stop_ids):
            raise InputError(f"sampling.stop_ids={stop_ids}: token ids are at least 0")
        object.__setattr__(self, "stop_ids", stop_ids)  # a list would not be hashable

    @property
    def filtered(self) -> bool:
        """Whether sampling leaves tokens out, so that its distribution is not the full softmax."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


def sample(logits: jax.Array, keys: jax.Array, sampling: Sampling) -> tuple[jax.Array, jax.Array]:
    """Draw one token per row.

    Args:
      logits: [B, V]; ids with logit -1e30 or -inf are never drawn.
      keys: [B] typed random keys, one per row; a row's token depends on its own key and logits only.
      sampling: static.

    Returns:
      (tokens [B] int32, logprobs [B] float32). A logprob is that of the drawn token under the temperature's full
      distribution, log_softmax(logits / temperature), whatever the filters; for greedy the temperature counts as 1.
    """
    logits = logits.astype(jnp.float32)
    if sampling.temperature > 0:
        logits = logits / sampling.temperature
    top = jnp.max(logits, axis=-1, keepdims=True)
    weights = jnp.exp(logits - top)  # the most probable token has exactly 1
    total = jnp.sum(weights, axis=-1)
    if sampling.temperature == 0:
        tokens = jnp.argmax(logits, axis=-1)
    else:
        noise = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
        tokens = _draw(jnp.where(keep(weights, sampling), weights, 0) if sampling.filtered else weights, noise)
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return tokens.astype(jnp.int32), chosen - top[:, 0] - jnp.log(total)


def keep(weights: jax.Array, sampling: Sampling) -> jax.Array:
    """[B, V] bool: the tokens that the filters leave, from weights [B, V] proportional to their probabilities."""
    kept = weights > 0
    if sampling.top_k > 0:
        kept &= weights >= _threshold(weights, kept.astype(jnp.int32), jnp.int32(sampling.top_k))
    if sampling.top_p < 1:
        mass = jnp.where(kept, weights, 0)
        kept &= weights >= _threshold(weights, mass, sampling.top_p * jnp.sum(mass, axis=-1))
    if sampling.min_p > 0:
        kept &= weights >= sampling.min_p * jnp.max(weights, axis=-1, keepdims=True)
    return kept


def _threshold(weights, measure, wanted):
    """[B, 1]: the largest t with `sum of measure where weights >= t` at least `wanted` (0 where there is none).

    Non-negative floats are ordered as the integers of their bits, so 31 halvings of the range of integers find t
    exactly: 31 passes over the vocabulary instead of a sort.
    """
    bits = jax.lax.bitcast_convert_type(weights, jnp.int32)

    def halve(_, bounds):
        low, high = bounds  # enough at low, not enough at high
        middle = low + (high - low) // 2
        enough = jnp.sum(jnp.where(bits >= middle[:, None], measure, 0), axis=-1) >= wanted
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low = jnp.zeros(weights.shape[0], jnp.int32)
    high = jnp.full_like(low, 0x7F800000)  # bits of inf
    low, _ = jax.lax.fori_loop(0, 31, halve, (low, high))
    return jax.lax.bitcast_convert_type(low, jnp.float32)[:, None]


def _draw(weights, noise):
    """Index [B] drawn with probability proportional to weights [B, V], from uniform noise [B, 2] in [0, 1).

    Inverse of the distribution function in two stages: a block of about sqrt(V) tokens by its total, then a token of
    that block. Each stage has a number of its own, so that tokens of tiny probability are not lost to its 24 bits.
    """
    B, V = weights.shape
    width = max(1, 2 ** round(math.log2(V) / 2))
    count = -(-V // width)
    blocks = jnp.pad(weights, ((0, 0), (0, count * width - V))).reshape(B, count, width)
    block = _invert(jnp.sum(blocks, axis=-1), noise[:, 0])
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * width + _invert(inside, noise[:, 1])


def _invert(weights, uniform):
    """First index [B] where the running sum of weights [B, n] exceeds uniform x total; never one of weight 0."""
    sums = jnp.cumsum(weights, axis=-1)
    positive = weights > 0
    # The last possible index is always a candidate: rounding can lift uniform x total to the total itself.
    last = weights.shape[-1] - 1 - jnp.argmax(positive[:, ::-1], axis=-1)
    candidate = positive & (sums > (uniform * sums[:, -1])[:, None])
    candidate |= jnp.arange(weights.shape[-1]) == last[:, None]
    return jnp.argmax(candidate, axis=-1)
