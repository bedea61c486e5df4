"""`thoth convert`: whole models, merged adapters, adapters for PEFT."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.train.conftest import TINY
from thoth_jax import config as configuration
from thoth_jax.cli import main
from thoth_jax.data import bundled
from thoth_jax.models import LoraConfig, QwenConfig, forward, hf, init_lora, init_params, load_peft, merge, save_peft
from thoth_jax.models.tokenizer import load_tokenizer
from thoth_jax.sharding import make_mesh, use_mesh
from thoth_jax.train.build import load_weights, restore_adapters
from thoth_jax.train.loop import train

TOKENS = np.arange(24).reshape(2, 12)
RUN = {
    **TINY,
    "task_args": {"system_prompt": ""},
    "num_steps": 2,
    "batch_size": 8,
    "max_length": 448,
    "learning_rate": 0.1,
}


def logits(directory, lora=None):
    config, params, _ = hf.load(directory)
    return np.asarray(jax.jit(forward, static_argnums=1)(params, config, TOKENS, lora=lora))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A bfloat16 model with the bundled tokenizer."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = load_tokenizer(str(bundled.path("tokenizer.model")))
    config = QwenConfig(-(-len(tokenizer) // 64) * 64, 32, 48, 2, 4, 2, 8, initializer_range=0.3)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), init_params(config, jax.random.key(0)))
    hf.save(directory, config, params, tokenizer)
    return directory


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory, model):
    """A run of two steps that trained adapters and the embeddings on the model."""
    directory = tmp_path_factory.mktemp("run") / "sft"
    changes = {
        **RUN,
        "init_from": str(model),
        "run_dir": str(directory),
        "lora.rank": 3,
        "lora.alpha": 5.0,
        "lora.rslora": True,
        "lora.targets": ("q_proj", "down_proj"),
        "lora.modules_to_save": ("embed_tokens",),
    }
    assert train(configuration.load(None, ["stage=sft"], changes)) == 0
    return directory


def test_a_model_in_several_files(model, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["convert", "--model", str(model), "--out", str(out), "--max-shard-size", "0.0001"]) == 0
    shown = capsys.readouterr().out
    index = json.loads((out / hf.INDEX).read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 1 and all(name in shown for name in files)
    before, after = load_file(model / hf.SINGLE), {}
    for name in files:
        after |= load_file(out / name)
    assert before.keys() == after.keys() == index["weight_map"].keys()
    assert all(np.array_equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in after.values())
    for name in ("config.json", "generation_config.json", "tokenizer.model", "README.md"):
        assert (out / name).exists()
    card = (out / "README.md").read_text()
    assert "Qwen3ForCausalLM" in card and "bfloat16" in card and str(model) in card
    tokenizer = load_tokenizer(out)
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == list(tokenizer.stop_ids)


def test_the_type_can_be_chosen(model, tmp_path):
    assert main(["convert", "--model", str(model), "--out", str(tmp_path / "a"), "--dtype", "float32"]) == 0
    with safe_open(tmp_path / "a" / hf.SINGLE, "np") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32"}
    assert json.loads((tmp_path / "a" / "config.json").read_text())["torch_dtype"] == "float32"
    np.testing.assert_array_equal(logits(tmp_path / "a"), logits(model))


def test_a_lora_run_is_merged_in_float32(model, lora_run, tmp_path):
    out = tmp_path / "merged"
    assert main(["convert", "--model", str(lora_run), "--merge", "--out", str(out)]) == 0
    mesh = make_mesh()
    with use_mesh(mesh):
        config, adapters = restore_adapters(str(lora_run), mesh)
        _, base, _ = hf.load(model)
        wanted = merge(base, config, adapters)
    tensors = load_file(out / hf.SINGLE)
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"float32"}
    _, got, _ = hf.load(out)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), wanted, got)
    assert not np.array_equal(got["embed"], base["embed"])
    np.testing.assert_allclose(logits(out), _run_logits(lora_run), atol=1e-4)


def _run_logits(run):
    mesh = make_mesh()
    with use_mesh(mesh):
        config, params, _ = load_weights(str(run), mesh)
    return np.asarray(jax.jit(forward, static_argnums=1)(params, config, TOKENS))


def test_adapters_travel_to_peft_and_back(model, lora_run, tmp_path):
    out = tmp_path / "adapter"
    assert main(["convert", "--model", str(lora_run), "--to", "peft", "--out", str(out)]) == 0
    saved = json.loads((out / "adapter_config.json").read_text())
    assert (saved["r"], saved["lora_alpha"], saved["use_rslora"]) == (3, 5.0, True)
    assert saved["base_model_name_or_path"] == str(model) and saved["modules_to_save"] == ["embed_tokens"]
    config, _, _ = hf.load(model)
    np.testing.assert_allclose(logits(model, load_peft(out, config)), _run_logits(lora_run), atol=1e-4)
    # And merged into the base again, it is the merged run.
    merged = tmp_path / "merged"
    command = ["convert", "--model", str(model), "--adapter", str(out), "--merge", "--out", str(merged)]
    assert main(command) == 0
    np.testing.assert_allclose(logits(merged), _run_logits(lora_run), atol=1e-4)


def test_a_full_run(tmp_path):
    run = tmp_path / "run"
    assert train(configuration.load(None, ["stage=sft"], {**RUN, "num_steps": 1, "run_dir": str(run)})) == 0
    assert main(["convert", "--model", str(run), "--out", str(tmp_path / "out")]) == 0
    np.testing.assert_allclose(logits(tmp_path / "out"), _run_logits(run), atol=1e-5)


def test_what_does_not_fit_is_refused(model, lora_run, tmp_path, capsys):
    adapter = tmp_path / "adapter"
    config, params, _ = hf.load(model)
    lora_config = LoraConfig(2, 4.0)
    save_peft(adapter, config, lora_config, init_lora(config, lora_config, jax.random.key(0)))
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("x")
    out = str(tmp_path / "new")
    for arguments, message in (
        (["--model", str(model), "--out", str(full)], "exists and is not an empty directory"),
        (["--model", str(model), "--out", str(full / "file")], "exists and is not an empty directory"),
        (["--model", str(model), "--out", out, "--to", "peft"], "--to peft is for a run with lora.rank above 0"),
        (["--model", str(lora_run), "--out", out], "with --merge; --to peft writes them apart"),
        (["--model", str(model), "--out", out, "--adapter", str(adapter)], "with --merge"),
        (["--model", str(model), "--out", out, "--merge"], "--merge needs a run with adapters"),
        (["--model", str(tmp_path / "none"), "--out", out], "no such directory"),
        (["--model", str(lora_run), "--out", out, "--to", "peft", "--adapter", str(adapter)], "--to peft is for a run"),
    ):
        assert main(["convert", *arguments]) == 2
        captured = capsys.readouterr().err
        assert message in captured and captured.count("\n") == 1, (arguments, captured)
    assert not (tmp_path / "new").exists() and (full / "file").read_text() == "x"
