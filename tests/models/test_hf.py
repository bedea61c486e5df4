"""Checkpoints in and out, and what is refused."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from thoth_jax.errors import InputError
from thoth_jax.models import hf, init_params, param_shardings
from thoth_jax.sharding import make_mesh


@pytest.fixture
def saved(config, params, tmp_path):
    """A checkpoint directory of the small model."""
    hf.save(tmp_path, config, params)
    return tmp_path


def edit(folder, **changes):
    file = folder / "config.json"
    read = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in read.items() if value != "gone"}))


def test_round_trip(saved, config, params):
    got_config, got, tokenizer = hf.load(saved)
    assert tokenizer is None
    assert got_config == config.replace(initializer_range=config.initializer_range)
    jax.tree.map(np.testing.assert_array_equal, got, params)


def test_qwen2_round_trip(config, tmp_path):
    config = config.replace(qk_norm=False, qkv_bias=True, tie_embeddings=True)
    params = jax.tree.map(lambda leaf: leaf + 0.5, init_params(config, jax.random.key(3)))
    hf.save(tmp_path, config, params)
    got_config, got, _ = hf.load(tmp_path)
    assert got_config == config
    jax.tree.map(np.testing.assert_array_equal, got, params)


def test_shards_with_index(config, params, saved):
    hf.save(saved, config, params, max_shard_bytes=20_000)
    assert not (saved / hf.SINGLE).exists()  # the stale single file would win
    files = sorted(saved.glob("model-*.safetensors"))
    assert len(files) > 2
    index = json.loads((saved / hf.INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert set(index["weight_map"].values()) == {file.name for file in files}
    jax.tree.map(np.testing.assert_array_equal, hf.load(saved)[1], params)


@pytest.mark.parametrize("source", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_types(saved, params, source, dtype):
    tensors = {name: tensor.astype(source) for name, tensor in load_file(saved / hf.SINGLE).items()}
    save_file(tensors, saved / hf.SINGLE)
    config, got, _ = hf.load(saved, dtype=dtype)
    assert config.dtype == dtype
    want = jax.tree.map(lambda leaf: leaf.astype(source).astype(dtype), params)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {jnp.dtype(dtype)}


def test_loads_onto_its_shardings(saved, config, params):
    mesh = make_mesh(fsdp=4, tensor=2)
    got = hf.load(saved, mesh)[1]
    jax.tree.map(np.testing.assert_array_equal, got, params)
    assert jax.tree.map(lambda leaf: leaf.sharding, got) == param_shardings(config, mesh)
    hf.save(saved, config, got)
    jax.tree.map(np.testing.assert_array_equal, hf.load(saved)[1], params)


def test_all_misfits_are_listed_at_once(saved):
    tensors = load_file(saved / hf.SINGLE)
    del tensors["model.norm.weight"]
    tensors["model.layers.1.mlp.up_proj.weight"] = np.ones((3, 4), np.float32)
    tensors["model.layers.0.input_layernorm.weight"] = np.ones(32, np.int8)
    tensors["extra"] = np.ones(1, np.float32)
    save_file(tensors, saved / hf.SINGLE)
    with pytest.raises(InputError) as error:
        hf.load(saved)
    message = str(error.value)
    assert "missing model.norm.weight" in message and "unexpected extra" in message and "\n" not in message
    assert "model.layers.1.mlp.up_proj.weight has shape [3, 4], not [56, 32]" in message
    assert "model.layers.0.input_layernorm.weight is of type I8" in message


def test_broken_files_are_refused(saved):
    file = saved / hf.SINGLE
    content = file.read_bytes()
    for broken in (
        b"",
        content[:5],
        content[:200],
        content[:-10],
        b"\xff" * 8 + content[8:],
        b"\x02" + b"\0" * 7 + b"{]",
    ):
        file.write_bytes(broken)
        with pytest.raises(InputError, match="not a readable safetensors file"):
            hf.load(saved)


def test_missing_things_are_named(saved, tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        hf.load(tmp_path / "nowhere")
    (saved / hf.SINGLE).unlink()
    with pytest.raises(InputError, match="no weights; expected model.safetensors"):
        hf.load(saved)
    (saved / "config.json").unlink()
    with pytest.raises(InputError, match="config.json: no such file"):
        hf.load(saved)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "../model.safetensors"}}, "not a file of this directory"),
        ({"weight_map": {"a": "/etc/passwd"}}, "not a file of this directory"),
        ({"weight_map": {"a": "sub/model.safetensors"}}, "not a file of this directory"),
        ({"weight_map": {"a": ".."}}, "not a file of this directory"),
        ({"weight_map": {"a": 1}}, "must map tensor names to file names"),
        ({"weight_map": {}}, "must map tensor names to file names"),
        ({"weight_map": {"a": "gone.safetensors"}}, "gone.safetensors: no such file"),
        ([], "must hold a JSON object"),
    ],
)
def test_hostile_indexes_are_refused(saved, index, message):
    (saved / hf.SINGLE).rename(saved / "other.safetensors")
    (saved / hf.INDEX).write_text(json.dumps(index))
    with pytest.raises(InputError, match=message):
        hf.load(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama' is not supported"),
        ({"use_sliding_window": True}, "use_sliding_window=True is not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types with 'sliding_attention'"),
        ({"num_experts": 8}, "num_experts=8 is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"attention_dropout": 0.1}, "attention_dropout=0.1"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_scaling of type 'linear'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, "rope_scaling.factor='4' is not supported"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "low": 1}}, "rope_scaling.low=1 is not supported"),
        ({"rope_scaling": {"type": "yarn", "factor": 0.5}}, "rope_scaling: yarn.factor: 0.5 must be at least 1"),
        ({"rope_parameters": {"rope_type": "default", "factor": 4.0}}, "rope_parameters.factor"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "contradicts rope_parameters.rope_theta"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "architectures="),
        ({"hidden_size": "gone"}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "hidden_size='32' is not a number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings=1 is not true or false"),
        ({"num_attention_heads": 5}, "num_heads: 5"),
    ],
)
def test_unsupported_fields_are_refused_by_name(saved, changes, message):
    edit(saved, **changes)
    with pytest.raises(InputError, match=f"config.json: .*{message}"):
        hf.load(saved)


def test_defaults_of_transformers(saved):
    edit(saved, head_dim="gone", tie_word_embeddings="gone")
    config = hf.load_config(saved)
    assert (config.head_dim, config.tie_embeddings) == (128, False)
    edit(saved, model_type="qwen2", architectures="gone", num_attention_heads=4)
    assert hf.load_config(saved).head_dim == 8


def test_config_that_is_not_json_is_refused(saved):
    (saved / "config.json").write_text("{")
    with pytest.raises(InputError, match="config.json: not JSON"):
        hf.load(saved)


def test_tied_output_table_may_be_there_when_equal(config, tmp_path):
    config = config.replace(tie_embeddings=True)
    hf.save(tmp_path, config, init_params(config, jax.random.key(0)))
    tensors = load_file(tmp_path / hf.SINGLE)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    save_file(tensors, tmp_path / hf.SINGLE)
    assert "lm_head" not in hf.load(tmp_path)[1]
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    save_file(tensors, tmp_path / hf.SINGLE)
    with pytest.raises(InputError, match="lm_head.weight differs"):
        hf.load(tmp_path)


def test_neither_architecture_is_refused(config, params, tmp_path):
    with pytest.raises(InputError, match="neither Qwen2 .* nor Qwen3"):
        hf.save(tmp_path, config.replace(qk_norm=False), params)
