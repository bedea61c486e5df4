"""Chunked log-probabilities: the numbers, the gradients and the memory."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thoth_jax.models import hidden_states, logits_of, token_logprobs

TOKENS = np.random.default_rng(2).integers(0, 90, size=(3, 17))


@partial(jax.jit, static_argnums=1)
def plain(params, config, hidden, targets, temperature):
    logprobs = jax.nn.log_softmax(logits_of(params, config, hidden) / temperature)
    entropy = -(jnp.exp(logprobs) * jnp.where(jnp.exp(logprobs) > 0, logprobs, 0)).sum(axis=-1)
    return jnp.take_along_axis(logprobs, targets[..., None], axis=-1)[..., 0], entropy


@pytest.mark.parametrize("chunk_size", [1, 12, 10_000])
def test_equal_to_the_plain_form(config, params, chunk_size):
    config = config.replace(valid_vocab_size=90)
    hidden = jax.random.normal(jax.random.key(0), (*TOKENS.shape, config.hidden_size))

    @jax.jit
    def chunked(params, temperature):
        return token_logprobs(
            params, config, hidden, TOKENS, temperature=temperature, chunk_size=chunk_size, with_entropy=True
        )

    for mine, want in zip(chunked(params, 0.7), plain(params, config, hidden, TOKENS, 0.7), strict=True):
        assert mine.shape == TOKENS.shape and mine.dtype == jnp.float32
        np.testing.assert_allclose(mine, want, atol=1e-5)


def test_entropy_only_on_request(config, params):
    assert token_logprobs(params, config, jnp.ones((1, 2, config.hidden_size)), TOKENS[:1, :2])[1] is None


def test_temperature_divides_logits_before_log_softmax(config):
    logits = jnp.array([2.0, 0.5, -1.0, 0.0, 1.5])
    config = config.replace(vocab_size=5, hidden_size=5)
    got = token_logprobs(
        {"lm_head": jnp.eye(5)}, config, logits[None, None], jnp.zeros((1, 1), int), temperature=0.7, with_entropy=True
    )
    np.testing.assert_allclose(np.squeeze(got), [-0.517637, 1.008771], atol=1e-6)


def test_gradients_equal_the_plain_form(config, params):
    weights = np.random.default_rng(3).normal(size=(2, *TOKENS.shape))

    def loss(params, fn):
        hidden = hidden_states(params, config, TOKENS)
        return sum((weight * part).sum() for weight, part in zip(weights, fn(params, config, hidden), strict=True))

    def chunked(*args):
        return token_logprobs(*args, TOKENS, temperature=0.8, chunk_size=9, with_entropy=True)

    got = jax.jit(jax.grad(loss), static_argnums=1)(params, chunked)
    want = jax.jit(jax.grad(loss), static_argnums=1)(params, lambda *args: plain(*args, TOKENS, 0.8))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4, rtol=1e-3), got, want)


def test_no_buffer_holds_all_logits(config, params):
    B, T, V = 4, 64, 16384
    config = config.replace(vocab_size=V)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    shapes["embed"] = shapes["lm_head"] = jax.ShapeDtypeStruct((V, config.hidden_size), jnp.float32)
    tokens = jax.ShapeDtypeStruct((B, T), jnp.int32)

    def loss(params, tokens, chunk_size):
        hidden = hidden_states(params, config, tokens)
        return token_logprobs(params, config, hidden, tokens, chunk_size=chunk_size)[0].sum()

    def largest(chunk_size):
        compiled = jax.jit(jax.grad(loss), static_argnums=2).lower(shapes, tokens, chunk_size).compile()
        sizes = re.findall(r"\b(?:f32|bf16|s32|pred)\[([\d,]+)\]", compiled.as_text())
        return max(np.prod([int(n) for n in size.split(",")]) for size in sizes)

    assert largest(32) <= max(32 * V, V * config.hidden_size)
    assert largest(B * T) >= B * T * V  # the inspection does see such a buffer where there is one
