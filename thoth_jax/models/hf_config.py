"""Hugging Face config.json <-> QwenConfig. What we do not support is refused by name, never ignored."""

import dataclasses
import json
from typing import Any

from etils import epath

from thoth_jax.errors import InputError
from thoth_jax.models.hub import directory_of
from thoth_jax.models.qwen import QwenConfig
from thoth_jax.models.rope import Yarn

ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_SIZES = {  # QwenConfig field -> config.json field
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
}

# Fields that do not change what the model computes, or only together with a field that is checked below.
_HARMLESS = {
    *("transformers_version", "torch_dtype", "dtype", "use_cache", "_name_or_path", "name_or_path", "return_dict"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "max_window_layers", "sliding_window", "id2label", "label2id"),
    *("_attn_implementation", "_attn_implementation_autoset", "output_attentions", "output_hidden_states"),
    *("problem_type", "unsloth_version", "unsloth_fixed", "model_name", "tokenizer_class", "auto_map"),
}


def read_json(file: epath.Path) -> dict[str, Any]:
    """The JSON object in `file`.

    Raises:
      InputError: no such file, or not a JSON object.
    """
    if not file.exists():
        raise InputError(f"{file}: no such file")
    try:
        read = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not JSON ({error})") from None
    if not isinstance(read, dict):
        raise InputError(f"{file}: must hold a JSON object")
    return read


def load_config(path) -> QwenConfig:
    """The architecture in config.json of a directory or hub id, in the classic or the newer (rope_parameters) spelling.

    Raises:
      InputError: no such directory or file, a field that is missing, of a wrong type, or not supported.
    """
    folder = directory_of(path, weights=False)
    return config_from_hf(read_json(folder / "config.json"), str(folder / "config.json"))


def config_from_hf(read: dict[str, Any], where: str = "config.json") -> QwenConfig:
    """`load_config` of an already read config.json; `where` names it in messages."""
    left = dict(read)
    model_type = left.pop("model_type", None)
    if model_type not in ARCHITECTURES:
        raise InputError(f"{where}: model_type {model_type!r} is not supported; it must be 'qwen2' or 'qwen3'")
    faults = []

    def number(name, kind, default=None):
        value = left.pop(name, default)
        wanted = (int, float) if kind is float else kind
        if value is None:
            faults.append(f"{name} is missing")
        elif isinstance(value, bool) and kind is not bool or not isinstance(value, wanted):
            faults.append(f"{name}={value!r} is not {'a number' if kind is not bool else 'true or false'}")
        else:
            return kind(value)
        return None

    def only(name, *allowed):
        value = left.pop(name, allowed[0])
        if value not in allowed:
            faults.append(f"{name}={value!r} is not supported")

    fields: dict[str, Any] = {ours: number(theirs, int) for ours, theirs in _SIZES.items()}
    fields["rms_norm_eps"] = number("rms_norm_eps", float)
    fields["rope_theta"], fields["yarn"] = _rope(left, number, faults)
    fields["tie_embeddings"] = number("tie_word_embeddings", bool, False)
    fields["max_position_embeddings"] = number("max_position_embeddings", int, 32768)
    fields["initializer_range"] = number("initializer_range", float, 0.02)
    head_dim = left.pop("head_dim", None)
    if head_dim is None and fields["hidden_size"] and fields["num_heads"]:
        head_dim = 128 if model_type == "qwen3" else fields["hidden_size"] // fields["num_heads"]
    left["head_dim"] = head_dim
    fields["head_dim"] = number("head_dim", int)
    only("hidden_act", "silu")
    only("use_sliding_window", False)
    only("attention_bias", False)
    only("attention_dropout", 0, None)
    only("architectures", None, [], [ARCHITECTURES[model_type]])
    sliding = [kind for kind in left.pop("layer_types", None) or [] if kind != "full_attention"]
    if sliding:
        faults.append(f"layer_types with {sliding[0]!r} is not supported")
    faults += [f"{name}={value!r} is not supported" for name, value in left.items() if value and name not in _HARMLESS]
    if faults:
        raise InputError(f"{where}: {'; '.join(faults)}")
    try:
        return QwenConfig(qk_norm=model_type == "qwen3", qkv_bias=model_type == "qwen2", **fields)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _rope(left: dict[str, Any], number, faults: list[str]) -> tuple[float | None, Yarn | None]:
    """The base of the rotary angles and their scaling, in either spelling."""
    longest = left.get("max_position_embeddings")
    yarn = None
    for name in ("rope_scaling", "rope_parameters"):
        value = left.pop(name, None) or {}
        if not isinstance(value, dict):
            faults.append(f"{name}={value!r} is not an object")
            continue
        value = dict(value)
        old = value.pop("type", "default")
        kind = value.pop("rope_type", old)
        theta = value.pop("rope_theta", None)
        if kind == "yarn":
            yarn = _yarn(value, name, longest, faults)
        elif kind != "default":
            faults.append(f"{name} of type {kind!r} is not supported")
        elif value:
            faults.append(f"{name}.{sorted(value)[0]} is not supported")
        if theta is not None:
            if left.get("rope_theta", theta) != theta:
                faults.append(f"rope_theta={left['rope_theta']!r} contradicts {name}.rope_theta={theta!r}")
            left["rope_theta"] = theta
    return number("rope_theta", float), yarn


def _yarn(value: dict[str, Any], where: str, longest: Any, faults: list[str]) -> Yarn | None:
    fields = {field.name for field in dataclasses.fields(Yarn)}
    given = {name: each for name, each in value.items() if each is not None}
    given.setdefault("original_max_position_embeddings", longest)
    wrong = [name for name in given if name not in fields]
    for name, each in given.items():
        kind = bool if name == "truncate" else (int, float)
        if name in fields and (not isinstance(each, kind) or (kind is not bool and isinstance(each, bool))):
            wrong.append(name)
    if wrong:
        faults.extend(f"{where}.{name}={given[name]!r} is not supported" for name in wrong)
    elif "factor" not in given:
        faults.append(f"{where}.factor is missing")
    else:
        try:
            return Yarn(**given)
        except InputError as error:
            faults.append(f"{where}: {error}")
    return None


def config_to_hf(config: QwenConfig) -> dict[str, Any]:
    """config.json of `config` in the classic spelling, which every transformers version reads.

    Raises:
      InputError: no supported architecture has this combination of qk_norm and qkv_bias.
    """
    if config.qk_norm == config.qkv_bias:
        raise InputError(
            f"model: qk_norm={config.qk_norm} with qkv_bias={config.qkv_bias} is neither Qwen2 (bias) nor Qwen3 (norm)"
        )
    model_type = "qwen3" if config.qk_norm else "qwen2"
    return {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "initializer_range": config.initializer_range,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None if config.yarn is None else _yarn_to_hf(config.yarn),
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "use_cache": True,
    }


def _yarn_to_hf(yarn: Yarn) -> dict[str, Any]:
    """What differs from the defaults, and what has none."""
    defaults = Yarn(yarn.factor, yarn.original_max_position_embeddings)
    written = {"rope_type": "yarn"}
    for field in dataclasses.fields(Yarn):
        value = getattr(yarn, field.name)
        if value != getattr(defaults, field.name) or field.default is dataclasses.MISSING:
            written[field.name] = value
    return written
