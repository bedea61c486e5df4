"""The policy on eight virtual devices equals one device, and every leaf lies where the rules say."""

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from thoth_jax.models import (
    LoraConfig,
    QwenConfig,
    decode_step,
    hidden_states,
    init_cache,
    init_lora,
    init_params,
    prefill,
    token_logprobs,
)
from thoth_jax.sharding import batch_sharding, make_mesh, use_mesh
from thoth_jax.train.state import create_state

MESHES = [{"fsdp": 8}, {"fsdp": 4, "tensor": 2}, {"data": 2, "fsdp": 2, "tensor": 2}, {"fsdp": 2, "tensor": 4}]
TOKENS = np.random.default_rng(4).integers(1, 128, size=(8, 12)).astype(np.int32)
SEGMENTS = np.array([[1] * 5 + [2] * 6 + [0]] * 8, np.int32)


@pytest.fixture(scope="module")
def wide():
    """Dimensions that divide by 8 and 4, K/V heads that do not divide by 4."""
    return QwenConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=8,
        num_kv_heads=2,
        head_dim=8,
        tie_embeddings=False,
        initializer_range=0.2,
    )


def objective(trained, base, config, tokens, segments):
    params, lora = ({**base, **trained[0]}, trained[1])
    hidden = hidden_states(params, config, tokens, None, segments, lora)
    logprobs, _ = token_logprobs(params, config, hidden[:, :-1], tokens[:, 1:], chunk_size=32, lora=lora)
    return (logprobs * (segments[:, 1:] > 0)).mean()


step = jax.jit(jax.value_and_grad(objective), static_argnums=2)


def make(config, mesh):
    params = init_params(config, jax.random.key(0), mesh)
    lora = init_lora(config, LoraConfig(rank=4, alpha=8.0), jax.random.key(1), mesh)
    return params, jax.tree.map(lambda leaf: leaf + 0.01, lora)


@pytest.fixture(scope="module")
def single(wide):
    params, lora = make(wide, None)
    return params, step((params, lora), params, wide, TOKENS, SEGMENTS)


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_value_and_gradient_equal_one_device(wide, single, sizes):
    mesh = make_mesh(**{"fsdp": 1, **sizes})
    with use_mesh(mesh):
        params, lora = make(wide, mesh)
        jax.tree.map(np.testing.assert_array_equal, params, single[0])
        batch = jax.device_put((TOKENS, SEGMENTS), batch_sharding(mesh))
        value, grads = step((params, lora), params, wide, *batch)
    np.testing.assert_allclose(value, single[1][0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, single[1][1])


def test_spec_of_every_leaf(wide):
    def specs(tree):
        return jax.tree.map(lambda leaf: leaf.sharding.spec, tree)

    mesh = make_mesh(data=1, fsdp=2, tensor=4)
    params = init_params(wide.replace(qkv_bias=True), jax.random.key(0), mesh)
    assert specs(params) == {
        "embed": P("tensor", "fsdp"),
        "lm_head": P("tensor", "fsdp"),
        "norm": P(None),
        "layers": {
            "input_norm": P(None, None),
            "post_norm": P(None, None),
            "q_norm": P(None, None),
            "k_norm": P(None, None),
            "q_proj": P(None, "fsdp", "tensor", None),
            "k_proj": P(None, "fsdp", None, None),
            "v_proj": P(None, "fsdp", None, None),
            "q_bias": P(None, "tensor", None),
            "k_bias": P(None, None, None),
            "v_bias": P(None, None, None),
            "o_proj": P(None, "tensor", None, "fsdp"),
            "gate_proj": P(None, "fsdp", "tensor"),
            "up_proj": P(None, "fsdp", "tensor"),
            "down_proj": P(None, "tensor", "fsdp"),
        },
    }
    lora = init_lora(wide, LoraConfig(4, 8.0, targets=("q_proj", "o_proj", "down_proj")), jax.random.key(1), mesh)
    assert specs(lora.layers) == {
        "q_proj": {"a": P(None, "fsdp", None), "b": P(None, None, "tensor", None)},
        "o_proj": {"a": P(None, "tensor", None, None), "b": P(None, None, "fsdp")},
        "down_proj": {"a": P(None, "tensor", None), "b": P(None, None, "fsdp")},
    }
    cache = init_cache(wide, 8, 16, make_mesh(data=2, fsdp=2, tensor=2))
    assert specs((cache.k, cache.v)) == (P(None, ("data", "fsdp"), None, "tensor", None),) * 2


# (mesh, what splits: model width, query heads, K/V heads, feed-forward and vocabulary, batch of a cache)
_PRESETS = [
    ({"fsdp": 8}, "fsdp", None, None, None, "fsdp"),
    ({"fsdp": 4, "tensor": 2}, "fsdp", "tensor", "tensor", "tensor", "fsdp"),
    ({"fsdp": 2, "tensor": 4}, "fsdp", "tensor", None, "tensor", "fsdp"),  # two K/V heads: replicated
    ({"data": 2, "fsdp": 2, "tensor": 2}, "fsdp", "tensor", "tensor", "tensor", ("data", "fsdp")),
    ({"data": 8}, None, None, None, None, "data"),
]


@pytest.mark.parametrize(("sizes", "width", "heads", "kv", "wide_axis", "batch"), _PRESETS, ids=str)
def test_where_every_leaf_lies_on_every_mesh(wide, sizes, width, heads, kv, wide_axis, batch):
    mesh = make_mesh(**{"fsdp": 1, **sizes})
    params = init_params(wide.replace(qkv_bias=True), jax.random.key(0), mesh)
    lora = init_lora(wide, LoraConfig(4, 8.0), jax.random.key(1), mesh)
    optimizer = optax.adam(1e-3)
    state = create_state(params, None, optimizer, mesh)
    adapted = create_state(params, lora, optimizer, mesh)
    whole = P()
    expected = {
        "embed": P(wide_axis, width),
        "lm_head": P(wide_axis, width),
        "norm": whole,
        "layers/input_norm": whole,
        "layers/post_norm": whole,
        "layers/q_norm": whole,
        "layers/k_norm": whole,
        "layers/q_proj": P(None, width, heads, None),
        "layers/k_proj": P(None, width, kv, None),
        "layers/v_proj": P(None, width, kv, None),
        "layers/q_bias": P(None, heads, None),
        "layers/k_bias": P(None, kv, None),
        "layers/v_bias": P(None, kv, None),
        "layers/o_proj": P(None, heads, None, width),
        "layers/gate_proj": P(None, width, wide_axis),
        "layers/up_proj": P(None, width, wide_axis),
        "layers/down_proj": P(None, wide_axis, width),
    }
    adapters = {
        "q_proj": (P(None, width, None), P(None, None, heads, None)),
        "k_proj": (P(None, width, None), P(None, None, kv, None)),
        "v_proj": (P(None, width, None), P(None, None, kv, None)),
        "o_proj": (P(None, heads, None, None), P(None, None, width)),
        "gate_proj": (P(None, width, None), P(None, None, wide_axis)),
        "up_proj": (P(None, width, None), P(None, None, wide_axis)),
        "down_proj": (P(None, wide_axis, None), P(None, None, width)),
    }

    def same(leaf, spec):
        return leaf.sharding.is_equivalent_to(jax.NamedSharding(mesh, spec), leaf.ndim)

    def leaves(tree):
        found = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in found}

    moments = state.opt_state[0]
    for tree in (state.params, moments.mu, moments.nu):
        found = leaves(tree)
        assert found.keys() == expected.keys()
        for name, leaf in found.items():
            assert same(leaf, expected[name]), (name, leaf.sharding)
    for tree in (adapted.lora, adapted.opt_state[0].mu, adapted.opt_state[0].nu):
        for name, specs in adapters.items():
            for part, spec in zip("ab", specs, strict=True):
                assert same(tree.layers[name][part], spec), (name, part)
    assert not set(leaves(adapted.opt_state[0].mu)) & set(expected)  # the base has no optimiser state
    for leaf in jax.tree.leaves(init_cache(wide, 8, 16, mesh)):
        assert same(leaf, P(None, batch, None, kv, None))


def test_no_device_holds_a_whole_weight(wide):
    mesh = make_mesh(fsdp=8)
    for leaf in jax.tree.leaves(init_params(wide, jax.random.key(0), mesh)):
        if leaf.ndim > 2 or leaf.shape[0] == wide.vocab_size:
            assert {shard.data.size for shard in leaf.addressable_shards} == {leaf.size // 8}


def test_decoding_equals_one_device(wide, single):
    def decode(params):
        logits, cache = jax.jit(prefill, static_argnums=(1, 5))(params, wide, TOKENS, np.full(8, 9), None, 16)
        return jax.jit(decode_step, static_argnums=1)(params, wide, cache, logits.argmax(-1), np.full(8, 9))[0]

    mesh = make_mesh(fsdp=4, tensor=2)
    with use_mesh(mesh):
        got = decode(init_params(wide, jax.random.key(0), mesh))
    np.testing.assert_allclose(got, decode(single[0]), atol=1e-4)
