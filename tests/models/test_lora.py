"""Adapters: what they compute, what they leave alone, how they travel."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from thoth_jax.errors import InputError
from thoth_jax.models import LoraConfig, forward, hidden_states, init_lora, load_peft, merge, save_peft
from thoth_jax.models.lora import TARGETS

run = jax.jit(forward, static_argnums=1)
TOKENS = np.random.default_rng(5).integers(1, 96, size=(2, 9))


def trained(config, lora_config, params=None):
    """An adapter that does something."""
    lora = init_lora(config, lora_config, jax.random.key(1), params=params)
    return jax.tree.map(lambda leaf: leaf + 0.05 * jax.random.normal(jax.random.key(2), leaf.shape), lora)


def test_new_adapter_changes_nothing(config, params):
    lora = init_lora(config, LoraConfig(rank=3, alpha=6.0), jax.random.key(1))
    assert set(lora.layers) == set(TARGETS)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(lora))
    np.testing.assert_allclose(run(params, config, TOKENS, lora=lora), run(params, config, TOKENS), atol=1e-6)
    bound = 1 / np.sqrt(config.hidden_size)
    assert 0.9 * bound < jnp.abs(lora.layers["q_proj"]["a"]).max() < bound


@pytest.mark.parametrize("rslora", [False, True])
def test_merged_equals_adapted(config, params, rslora):
    lora = trained(config, LoraConfig(rank=3, alpha=7.0, rslora=rslora))
    assert lora.scale == pytest.approx(7 / np.sqrt(3) if rslora else 7 / 3)
    before = jax.tree.map(np.asarray, params)
    adapted, merged = run(params, config, TOKENS, lora=lora), run(merge(params, config, lora), config, TOKENS)
    np.testing.assert_allclose(adapted, merged, atol=2e-4)
    assert np.abs(adapted - run(params, config, TOKENS)).max() > 0.1
    jax.tree.map(np.testing.assert_array_equal, before, params)


def test_merge_of_a_bfloat16_base_keeps_small_updates(config, params):
    base = jax.tree.map(lambda leaf: jnp.ones_like(leaf, jnp.bfloat16), params)
    lora = init_lora(config, LoraConfig(rank=1, alpha=1.0, targets=("up_proj",)), jax.random.key(0))
    delta = {"a": jnp.ones_like(lora.layers["up_proj"]["a"]), "b": jnp.full_like(lora.layers["up_proj"]["b"], 0.0021)}
    merged = merge(base, config, lora.replace(layers={"up_proj": delta}))
    np.testing.assert_allclose(merged["layers"]["up_proj"], 1.0021, rtol=1e-6)
    assert merged["layers"]["gate_proj"].dtype == jnp.bfloat16 and (base["layers"]["up_proj"] == 1).all()


def test_dropout_acts_in_training_only(config, params):
    lora = trained(config, LoraConfig(rank=3, alpha=6.0, dropout=0.5))
    call = jax.jit(lambda key: hidden_states(params, config, TOKENS, lora=lora, dropout_key=key))
    first, second = call(jax.random.key(0)), call(jax.random.key(1))
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(first, call(jax.random.key(0)))
    off = jax.jit(lambda lora: hidden_states(params, config, TOKENS, lora=lora))(lora.replace(dropout=0.0))
    np.testing.assert_allclose(call(None), off, atol=1e-5)


def test_saved_modules_stand_in_for_the_base(config, params):
    lora_config = LoraConfig(rank=2, alpha=2.0, modules_to_save=("embed_tokens", "lm_head"))
    fresh = init_lora(config, lora_config, jax.random.key(1), params=params)
    jax.tree.map(np.testing.assert_array_equal, fresh.modules, {name: params[name] for name in ("embed", "lm_head")})
    lora = trained(config, lora_config, params)
    adapted, merged = run(params, config, TOKENS, lora=lora), merge(params, config, lora)
    np.testing.assert_allclose(adapted, run(merged, config, TOKENS), atol=2e-4)
    np.testing.assert_array_equal(merged["lm_head"], lora.modules["lm_head"])


@pytest.mark.parametrize(
    "lora_config",
    [
        LoraConfig(rank=3, alpha=7.0, dropout=0.1),
        LoraConfig(rank=2, alpha=4.0, targets=("o_proj", "down_proj"), rslora=True),
        LoraConfig(rank=2, alpha=4.0, modules_to_save=("embed_tokens", "lm_head")),
    ],
    ids=["all", "some", "modules"],
)
def test_peft_round_trip(config, params, tmp_path, lora_config):
    lora = trained(config, lora_config, params)
    save_peft(tmp_path, config, lora_config, lora)
    again = load_peft(tmp_path, config)
    assert (again.scale, again.dropout) == (lora.scale, lora.dropout)
    jax.tree.map(np.testing.assert_array_equal, again, lora)


def test_golden_peft_adapter_is_written_as_it_was(shared, golden_qwen3, tmp_path):
    source = shared / "golden" / "tiny_qwen3_lora"
    lora = load_peft(source, golden_qwen3.config)
    save_peft(tmp_path, golden_qwen3.config, LoraConfig(rank=4, alpha=8.0, dropout=0.05), lora)
    got, want = (load_file(folder / "adapter_model.safetensors") for folder in (tmp_path, source))
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"targets": ("q_proj", "vproj")}, "'vproj'; did you mean 'v_proj'"),
        ({"targets": ()}, "names no linear map"),
        ({"rank": 0}, "lora.rank"),
        ({"dropout": 1.0}, "lora.dropout"),
        ({"modules_to_save": ("embed_token",)}, "did you mean 'embed_tokens'"),
    ],
)
def test_wrong_configs_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        LoraConfig(**{"rank": 2, "alpha": 4.0, **fields})


def test_tied_output_table_is_refused(config):
    lora_config = LoraConfig(rank=2, alpha=4.0, modules_to_save=("lm_head",))
    with pytest.raises(InputError, match="tied"):
        init_lora(config.replace(tie_embeddings=True), lora_config, jax.random.key(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "use_dora=True"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"bias": "all"}, "bias='all'"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"target_modules": ".*_proj"}, "target_modules: a pattern"),
        ({"target_modules": ["c_attn"]}, "'c_attn'"),
        ({"r": "four"}, "not a PEFT LoRA configuration"),
        ({"target_modules": ["q_proj"]}, "unexpected .*k_proj.lora_A"),
        ({"r": 5}, "has shape"),
    ],
)
def test_unsupported_peft_adapters_are_refused(config, tmp_path, change, message):
    lora_config = LoraConfig(rank=2, alpha=4.0)
    save_peft(tmp_path, config, lora_config, init_lora(config, lora_config, jax.random.key(0)))
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(InputError, match=message):
        load_peft(tmp_path, config)


def test_broken_peft_adapters_are_refused(config, tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_peft(tmp_path, config)
    (tmp_path / "adapter_config.json").write_text("[1]")
    with pytest.raises(InputError, match="not a PEFT LoRA configuration"):
        load_peft(tmp_path, config)
    lora_config = LoraConfig(rank=2, alpha=4.0)
    save_peft(tmp_path, config, lora_config, init_lora(config, lora_config, jax.random.key(0)))
    save_file({"x": np.ones(2, np.float32)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(InputError, match="missing .*; unexpected x"):
        load_peft(tmp_path, config)
