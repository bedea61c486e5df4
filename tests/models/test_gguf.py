"""GGUF files become the model that they were written from."""

import gguf
import jax
import numpy as np
import pytest

from thoth_jax.cli import main
from thoth_jax.errors import InputError
from thoth_jax.models import QwenConfig, declare, forward, hf, init_params
from thoth_jax.models.gguf import load_gguf
from thoth_jax.models.tensors import to_hf

TEXTS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "Ġ", "1", "2", "ab", "Ġab", "Ċ", "c"]
SPECIAL = 3
TOKENS = np.arange(20).reshape(2, 10) % len(TEXTS)
NAMES = {
    "self_attn.": "attn_",
    "_proj": "",
    "attn_o.": "attn_output.",
    "mlp.": "ffn_",
    "model.layers": "blk",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def config_of(kind: str) -> QwenConfig:
    return QwenConfig(
        vocab_size=len(TEXTS),
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rope_theta=1e4,
        tie_embeddings=kind != "qwen2",
        qk_norm=kind == "qwen3",
        qkv_bias=kind != "qwen3",
        initializer_range=0.3,
        max_position_embeddings=256,
    )


def gguf_name(name: str) -> str:
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


def write(path, kind: str, quantized: bool = False, change=lambda writer: None, leave_out: str = ""):
    """A file of random weights; returns the parameters that are in it."""
    config = config_of(kind)
    params = init_params(config, jax.random.key(0))
    if kind == "llama":
        params["layers"].update({name: 0 * params["layers"][name] for name in ("q_bias", "k_bias", "v_bias")})
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TEXTS)
    writer.add_token_types([3] * SPECIAL + [1] * (len(TEXTS) - SPECIAL))
    writer.add_token_merges(["a b", "Ġ ab"])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    change(writer)
    tensors = {}
    jax.tree.map(lambda weight, leaf: tensors.update(to_hf(weight, leaf)), declare(config), params)
    for name, tensor in tensors.items():
        if (kind == "llama" and name.endswith("bias")) or gguf_name(name) == leave_out:
            continue
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            halves = tensor.reshape(-1, 2, config.head_dim // 2, tensor.shape[1])
            tensor = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
        if quantized and tensor.ndim == 2:
            q8 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(tensor, q8), raw_dtype=q8)
        else:
            writer.add_tensor(gguf_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config, params


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_weights_and_tokenizer(tmp_path, kind):
    config, params = write(tmp_path / "a.gguf", kind)
    found, loaded, tokenizer = load_gguf(tmp_path / "a.gguf", tmp_path / "files")
    assert found == config.replace(valid_vocab_size=len(TEXTS), initializer_range=found.initializer_range)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert tokenizer.encode(" ab12") == [TEXTS.index("Ġab"), TEXTS.index("1"), TEXTS.index("2")]
    assert tokenizer.encode("<|im_end|>", allow_special=True) == [2] and (tokenizer.end_id, tokenizer.pad_id) == (2, 0)
    assert tokenizer.decode(tokenizer.encode("ab ab\nab")) == "ab ab\nab"


def test_convert_writes_a_model_that_loads(tmp_path):
    config, params = write(tmp_path / "a.gguf", "llama", quantized=True)
    assert main(["convert", "--model", str(tmp_path / "a.gguf"), "--out", str(tmp_path / "out")]) == 0
    found, loaded, tokenizer = hf.load(tmp_path / "out")
    assert (found.qkv_bias, found.qk_norm, len(tokenizer)) == (True, False, len(TEXTS))
    run = jax.jit(forward, static_argnums=1)
    exact, got = run(params, config, TOKENS), run(loaded, found, TOKENS)
    assert 0 < np.abs(exact - got).max() < 0.1 * np.abs(exact).max()  # eight bits


@pytest.mark.parametrize(
    ("change", "leave_out", "message"),
    [
        (lambda w: w.add_expert_count(8), "", "llama.expert_count=8 is not supported"),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "", "rope.scaling.type='yarn' is not supported"),
        (lambda w: w.add_tokenizer_pre("other"), "", "tokenizer 'gpt2' with 'other' is not supported"),
        (lambda w: None, "blk.1.ffn_up.weight", "missing blk.1.ffn_up.weight"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, change, leave_out, message):
    def changed(writer):
        for key in ("tokenizer.ggml.pre",):
            writer.kv_data[0].pop(key, None) if message.startswith("tokenizer") else None
        change(writer)

    write(tmp_path / "a.gguf", "llama", change=changed, leave_out=leave_out)
    with pytest.raises(InputError, match=message):
        load_gguf(tmp_path / "a.gguf", tmp_path / "files")


def test_broken_files_are_refused(tmp_path):
    write(tmp_path / "a.gguf", "llama")
    whole = (tmp_path / "a.gguf").read_bytes()
    for name, content in (
        ("text", b"not a model"),
        ("empty", b""),
        ("cut", whole[:600]),
        ("short", whole[: len(whole) // 2]),
    ):
        (tmp_path / f"{name}.gguf").write_bytes(content)
        with pytest.raises(InputError, match=f"{name}.gguf: not a readable GGUF file"):
            load_gguf(tmp_path / f"{name}.gguf", tmp_path / "files")
    with pytest.raises(InputError, match="no such file"):
        load_gguf(tmp_path / "none.gguf", tmp_path / "files")
    assert main(["convert", "--model", str(tmp_path / "cut.gguf"), "--out", str(tmp_path / "out")]) == 2
