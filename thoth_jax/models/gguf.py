"""GGUF files of Llama, Qwen2 and Qwen3 (dense) -> params and a tokenizer, dequantised to float32.

Llama is Qwen2 with zero biases. Needs the package `gguf` (extra: gguf).
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from etils import epath

from thoth_jax.errors import InputError
from thoth_jax.models import chat
from thoth_jax.models.qwen import Params, QwenConfig, declare
from thoth_jax.models.tensors import hf_names, hf_shape, to_ours
from thoth_jax.models.tokenizer import Tokenizer, load_tokenizer

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# How text is cut before the byte-pair merges, by the file's name for it.
_QWEN2_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def is_gguf(path) -> bool:
    """Whether `path` names a GGUF file."""
    return str(path).endswith(".gguf")


def load_gguf(path, folder) -> tuple[QwenConfig, Params, Tokenizer]:
    """A model from a GGUF file.

    Args:
      folder: directory that the tokenizer's files are written into.

    Returns:
      (config, float32 params, tokenizer).

    Raises:
      InputError: no such file, broken, or of an architecture, scaling or tokenizer that is not supported.
    """
    try:
        import gguf
    except ImportError:
        raise InputError(f"{path}: reading GGUF needs the package gguf (pip install 'thoth-jax[gguf]')") from None
    if not epath.Path(path).exists():
        raise InputError(f"{path}: no such file")
    try:
        reader = gguf.GGUFReader(str(path))
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, OSError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable GGUF file ({error})") from None
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(fields, tensors, str(path))
    tokenizer = _tokenizer(fields, folder, str(path))
    params = _params(config, tensors, fields["general.architecture"], str(path), gguf.quants.dequantize)
    return config.replace(valid_vocab_size=len(tokenizer)), params, tokenizer


def _config(fields: Mapping[str, Any], tensors, where: str) -> QwenConfig:
    kind = fields.get("general.architecture")
    if kind not in ("llama", "qwen2", "qwen3"):
        raise InputError(f"{where}: architecture {kind!r} is not supported; it must be llama, qwen2 or qwen3")
    for name, value in fields.items():
        if name.startswith(f"{kind}.") and ("expert" in name or "rope.scaling" in name) and value not in (0, "none"):
            raise InputError(f"{where}: {name}={value!r} is not supported")
    try:
        width, heads = fields[f"{kind}.embedding_length"], fields[f"{kind}.attention.head_count"]
        return QwenConfig(
            vocab_size=int(tensors["token_embd.weight"].shape[1]),
            hidden_size=width,
            intermediate_size=fields[f"{kind}.feed_forward_length"],
            num_layers=fields[f"{kind}.block_count"],
            num_heads=heads,
            num_kv_heads=fields.get(f"{kind}.attention.head_count_kv", heads),
            head_dim=fields.get(f"{kind}.attention.key_length", width // heads),
            rope_theta=_number(fields.get(f"{kind}.rope.freq_base", 10000.0)),
            rms_norm_eps=_number(fields[f"{kind}.attention.layer_norm_rms_epsilon"]),
            tie_embeddings="output.weight" not in tensors,
            qk_norm=kind == "qwen3",
            qkv_bias=kind != "qwen3",
            max_position_embeddings=fields.get(f"{kind}.context_length", 32768),
        )
    except KeyError as error:
        raise InputError(f"{where}: {error.args[0]} is missing") from None


def _number(value: float) -> float:
    """A float32 as it was written: 1e-6 and not 9.99999997e-7."""
    return float(str(np.float32(value)))


def _params(config: QwenConfig, tensors, kind: str, where: str, dequantize) -> Params:
    faults = []

    def tensor(hf_name: str, shape: tuple[int, ...]) -> np.ndarray:
        stem, _, end = hf_name.rpartition(".")
        layer = re.match(r"model\.layers\.(\d+)\.", stem)
        name = _NAMES[stem[layer.end() :] if layer else stem]
        name = f"blk.{layer.group(1)}.{name}.{end}" if layer else f"{name}.{end}"
        if name not in tensors:
            if end == "bias" and kind == "llama":
                return np.zeros(shape, np.float32)
            faults.append(f"missing {name}")
            return np.zeros(shape, np.float32)
        found = np.asarray(dequantize(tensors[name].data, tensors[name].tensor_type), np.float32)
        if found.shape != shape:
            faults.append(f"{name} has shape {list(found.shape)}, not {list(shape)}")
            return np.zeros(shape, np.float32)
        if kind == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
            # Its pairs of rotary positions lie side by side, ours in two halves.
            pairs = found.reshape(-1, config.head_dim // 2, 2, shape[1])
            found = pairs.swapaxes(1, 2).reshape(shape)
        return found

    def one(weight):
        parts = [to_ours(weight, tensor(name, hf_shape(weight))) for name in hf_names(weight)]
        return jnp.asarray(np.stack(parts) if weight.stacked else parts[0])

    params = jax.tree.map(one, declare(config))
    if faults:
        raise InputError(f"{where}: weights do not fit the configuration: {'; '.join(faults)}")
    return params


def _tokenizer(fields: Mapping[str, Any], folder, where: str) -> Tokenizer:
    kind, cut = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    pre = tokenizers.pre_tokenizers
    cuts = {
        "smollm": lambda: [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)],
        "gpt-2": lambda: [pre.ByteLevel(add_prefix_space=False)],
        "qwen2": lambda: [
            pre.Split(tokenizers.Regex(_QWEN2_CUT), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ],
    }
    if kind != "gpt2" or cut not in cuts:
        raise InputError(
            f"{where}: tokenizer {kind!r} with {cut!r} is not supported; it must be gpt2 with {list(cuts)}"
        )
    texts, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    plain = {text: id for id, text in enumerate(texts)}
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=plain, merges=merges))
    bpe.pre_tokenizer = pre.Sequence(cuts[cut]())
    bpe.decoder = tokenizers.decoders.ByteLevel()
    control, user_defined = 3, 4
    for text, type in zip(texts, types, strict=True):
        if type in (control, user_defined):
            special = type == control
            bpe.add_special_tokens([text]) if special else bpe.add_tokens([text])
    folder = epath.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(bpe.to_str(pretty=True))
    end, pad = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "padding"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": chat.IM_END if end is None else texts[end],
        "pad_token": chat.END_OF_TEXT if pad is None else texts[pad],
    }
    if template := fields.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return load_tokenizer(folder)
