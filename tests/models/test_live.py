"""What we write, read by transformers and peft themselves, and the other way; runs where torch and peft are installed.

The stored outputs of test_transformers.py stand in for them elsewhere.
"""

import logging
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thoth_jax.convert import convert
from thoth_jax.models import LoraConfig, Yarn, forward, hf, init_lora, init_params, load_peft, merge, save_peft

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
TOKENS = np.random.default_rng(0).integers(0, 96, size=(2, 15))
CONFIGS = {
    "qwen3": {},
    "qwen3_tied_yarn": {"tie_embeddings": True, "yarn": Yarn(4.0, 64, beta_fast=16.0)},
    "qwen2": {"qk_norm": False, "qkv_bias": True},
    "qwen2_tied": {"qk_norm": False, "qkv_bias": True, "tie_embeddings": True},
}


@pytest.fixture(params=CONFIGS)
def written(request, config, tmp_path):
    changes = {"max_position_embeddings": 256, **CONFIGS[request.param]}
    config = config.replace(**changes)
    params = init_params(config, jax.random.key(0))
    noise = iter(jax.random.split(jax.random.key(1), 32))
    params = jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(next(noise), leaf.shape), params)
    hf.save(tmp_path / "source", config, params)
    convert(str(tmp_path / "source"), str(tmp_path / "model"), max_shard_bytes=20_000)
    return config, params, tmp_path


def torch_logits(model):
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits.float().numpy()


def quietly(load, caplog):
    """Call `load`; a warning of transformers or peft fails the test."""
    transformers.utils.logging.enable_propagation()
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=FutureWarning, message=".*(deprecated|removed).*")
        loaded = load()
    assert not caplog.records, caplog.text
    return loaded


def test_transformers_loads_it_without_a_warning(written, caplog):
    config, params, path = written
    assert len(list((path / "model").glob("*.safetensors"))) > 1
    model = quietly(lambda: transformers.AutoModelForCausalLM.from_pretrained(path / "model"), caplog)
    np.testing.assert_allclose(torch_logits(model), forward(params, config, TOKENS), atol=2e-4)


def test_bfloat16_stays_bfloat16(config, tmp_path, caplog):
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), init_params(config, jax.random.key(0)))
    hf.save(tmp_path / "model", config, params)
    model = quietly(lambda: transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model"), caplog)
    assert model.dtype == torch.bfloat16
    wide = torch_logits(model.float())
    want = forward(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params), config, TOKENS)
    np.testing.assert_allclose(wide, want, atol=2e-4)


@pytest.mark.parametrize(
    "lora_config",
    [
        LoraConfig(3, 7.0, rslora=True),
        LoraConfig(2, 5.0, targets=("q_proj", "down_proj"), modules_to_save=("embed_tokens",)),
    ],
    ids=["all_rslora", "some_with_embeddings"],
)
def test_peft_loads_an_adapter_with_no_key_too_many_or_too_few(written, caplog, lora_config):
    peft = pytest.importorskip("peft")
    config, params, path = written
    lora = init_lora(config, lora_config, jax.random.key(2), params=params)
    lora = jax.tree.map(lambda leaf: leaf + 0.05 * jax.random.normal(jax.random.key(3), leaf.shape), lora)
    save_peft(path / "adapter", config, lora_config, lora, base=str(path / "model"))
    base = transformers.AutoModelForCausalLM.from_pretrained(path / "model")
    adapted = quietly(lambda: peft.PeftModel.from_pretrained(base, path / "adapter"), caplog)
    want = forward(params, config, TOKENS, lora=lora)
    np.testing.assert_allclose(torch_logits(adapted), want, atol=5e-4)
    result = peft.set_peft_model_state_dict(adapted, peft.utils.load_peft_weights(str(path / "adapter")))
    assert not result.unexpected_keys
    assert not [key for key in result.missing_keys if "lora_" in key or "modules_to_save" in key]
    convert(str(path / "model"), str(path / "merged"), adapter=str(path / "adapter"), merge_adapter=True)
    merged = quietly(lambda: transformers.AutoModelForCausalLM.from_pretrained(path / "merged"), caplog)
    np.testing.assert_allclose(torch_logits(merged), want, atol=5e-4)
    np.testing.assert_allclose(torch_logits(merged), forward(merge(params, config, lora), config, TOKENS), atol=5e-4)


def test_adapters_that_peft_wrote_load(written):
    peft = pytest.importorskip("peft")
    config, params, path = written
    tied = config.tie_embeddings
    modules = ["embed_tokens"] if tied else ["embed_tokens", "lm_head"]
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=2,
        lora_alpha=6,
        target_modules=["k_proj", "o_proj"],
        modules_to_save=modules,
        ensure_weight_tying=tied,
    )
    adapted = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(path / "model"), settings)
    with torch.no_grad():
        for name, tensor in adapted.named_parameters():
            if tensor.requires_grad:
                tensor.add_(0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name))))
    adapted.save_pretrained(path / "theirs")
    lora = load_peft(path / "theirs", config)
    assert set(lora.modules) == ({"embed"} if tied else {"embed", "lm_head"})
    np.testing.assert_allclose(forward(params, config, TOKENS, lora=lora), torch_logits(adapted.eval()), atol=5e-4)
