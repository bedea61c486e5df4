"""The cached path equals the full forward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thoth_jax.models import LoraConfig, attention, decode_step, forward, init_cache, init_lora, prefill, unstack

TOKENS = np.random.default_rng(1).integers(1, 96, size=(3, 14))
LENGTHS = np.array([5, 8, 1])  # prompts; the rest of each row is fed token by token


@pytest.fixture(scope="module")
def lora(config):
    fresh = init_lora(config, LoraConfig(rank=3, alpha=6.0), jax.random.key(1))
    return jax.tree.map(lambda leaf: leaf + 0.05 * jax.random.normal(jax.random.key(2), leaf.shape), fresh)


@pytest.mark.parametrize("split", [False, True], ids=["stacked", "unstacked"])
@pytest.mark.parametrize("adapted", [False, True], ids=["base", "lora"])
def test_steps_equal_full_forward(config, params, lora, split, adapted):
    lora = lora if adapted else None
    want = jax.jit(forward, static_argnums=1)(params, config, TOKENS, lora=lora)
    if split:
        params, lora = unstack(params), None if lora is None else unstack(lora)
    prompts = np.where(np.arange(8) < LENGTHS[:, None], TOKENS[:, :8], 77)  # what pads a prompt must not matter
    logits, cache = jax.jit(prefill, static_argnums=(1, 5))(params, config, prompts, LENGTHS, lora, 14)
    rows, positions = np.arange(3), LENGTHS
    np.testing.assert_allclose(logits, want[rows, LENGTHS - 1], atol=1e-4)
    step = jax.jit(decode_step, static_argnums=1)
    for _ in range(6):
        logits, cache = step(params, config, cache, TOKENS[rows, positions], positions, lora)
        np.testing.assert_allclose(logits, want[rows, positions], atol=1e-4)
        positions = positions + 1


def test_steps_alone_equal_full_forward(config, params):
    want, cache = jax.jit(forward, static_argnums=1)(params, config, TOKENS), init_cache(config, 3, 14)
    step = jax.jit(decode_step, static_argnums=1)
    for t in range(14):
        logits, cache = step(params, config, cache, TOKENS[:, t], jnp.full(3, t))
        np.testing.assert_allclose(logits, want[:, t], atol=1e-4)


def test_parked_rows_write_nothing(config, params):
    _, cache = jax.jit(prefill, static_argnums=1)(params, config, TOKENS[:, :8], LENGTHS)
    _, after = jax.jit(decode_step, static_argnums=1)(params, config, cache, TOKENS[:, 8], np.array([3, 8, 100]))
    np.testing.assert_array_equal(after.k[:, 1:], cache.k[:, 1:])
    assert not np.array_equal(after.k[:, 0, 3], cache.k[:, 0, 3])


def test_mixed_layouts_are_refused(config, params):
    with pytest.raises(ValueError, match="unstacked"):
        decode_step(unstack(params), config, init_cache(config, 3, 8), TOKENS[:, 0], LENGTHS)


def test_unstacked_cache_has_the_same_batch_axis(config):
    cache = init_cache(config, 3, 8)
    assert {leaf.shape[-4] for leaf in jax.tree.leaves(cache) + jax.tree.leaves(unstack(cache))} == {3}


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65])
def test_attention_in_blocks_equals_attention_at_once(length):
    keys = jax.random.split(jax.random.key(length), 3)
    q, k, v = (jax.random.normal(key, (2, length, heads, 8)) for key, heads in zip(keys, (4, 2, 2), strict=True))
    found = jax.jit(attention.causal_attention, static_argnums=3)(q, k, v, 16)
    np.testing.assert_allclose(found, attention.attention(q, k, v, attention.causal_mask(None, length)), atol=1e-5)


def test_a_long_prompt_is_read_in_blocks(config, params, monkeypatch):
    tokens, lengths = jnp.asarray(TOKENS), jnp.array([TOKENS.shape[1]] * len(TOKENS))
    logits, cache = prefill(params, config, tokens, lengths)
    monkeypatch.setattr("thoth_jax.models.decode._DENSE_PREFILL", 4)
    called = []
    whole = attention.causal_attention
    monkeypatch.setattr(attention, "causal_attention", lambda *args: called.append(1) or whole(*args))
    other, blocked = prefill(params, config, tokens, lengths)
    assert called
    np.testing.assert_allclose(other, logits, atol=1e-4)
    np.testing.assert_allclose(blocked.k, cache.k, atol=1e-4)
