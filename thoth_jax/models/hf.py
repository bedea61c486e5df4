"""Hugging Face checkpoints <-> (config, params, tokenizer)."""

import json
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import Mesh
from safetensors.numpy import save_file

from thoth_jax.errors import InputError
from thoth_jax.models.hf_config import config_to_hf, load_config, read_json
from thoth_jax.models.hub import directory_of
from thoth_jax.models.qwen import DTYPES, Params, QwenConfig, declare
from thoth_jax.models.tensors import TensorFiles, hf_names, hf_tensor
from thoth_jax.models.tokenizer import TOKENIZER_FILES, Tokenizer, load_tokenizer

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SHARD_BYTES = 4 * 1024**3


def load(path, mesh: Mesh | None = None, dtype: str = "float32") -> tuple[QwenConfig, Params, Tokenizer | None]:
    """A model in Hugging Face format.

    Args:
      path: directory with config.json, safetensors and (optionally) tokenizer files, or a name on the hub such as
        "Qwen/Qwen3-8B" (see `hub.directory_of`; with HF_HUB_OFFLINE=1 only the local cache is looked at).
      mesh: where to place the parameters; None: the default device.
      dtype: type of the parameters and of the computation. To keep float32 masters and compute in bfloat16, load
        float32 and `config.replace(dtype="bfloat16")`.

    Returns:
      (config, params, tokenizer or None where the directory has none). Ids that the tokenizer lacks are masked
      (config.valid_vocab_size).

    Raises:
      InputError: something is missing, broken or not supported.
    """
    folder = directory_of(path)
    config = load_config(folder).replace(dtype=dtype)
    tokenizer = None
    if any((folder / name).exists() for name in TOKENIZER_FILES):
        tokenizer = load_tokenizer(folder)
        if len(tokenizer) > config.vocab_size:
            raise InputError(f"{folder}: the tokenizer has {len(tokenizer)} ids, the model only {config.vocab_size}")
        config = config.replace(valid_vocab_size=len(tokenizer))
    return config, load_params(folder, config, mesh, dtype), tokenizer


def load_params(path, config: QwenConfig, mesh: Mesh | None = None, dtype: str = "float32") -> Params:
    """Only the parameters of a checkpoint, read tensor by tensor, each placed on its own sharding.

    Raises:
      InputError: no or broken weight files, or missing, unexpected and mis-shaped tensors (all listed).
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype: {dtype!r} must be one of {', '.join(DTYPES)}")
    folder = directory_of(path)
    files = TensorFiles(list(_weight_files(folder)))
    tied = config.tie_embeddings and "lm_head.weight" in files
    files.check(declare(config), str(folder), ignored=("lm_head.weight",) if tied else ())
    if tied and not np.array_equal(files.read("lm_head.weight"), files.read("model.embed_tokens.weight")):
        raise InputError(f"{folder}: lm_head.weight differs from the embeddings, but tie_word_embeddings is true")
    return files.load(declare(config), dtype, mesh)


def _weight_files(folder: epath.Path) -> Iterator[epath.Path]:
    if (folder / SINGLE).exists():
        yield folder / SINGLE
        return
    if not (folder / INDEX).exists():
        raise InputError(f"{folder}: no weights; expected {SINGLE} or {INDEX} (only safetensors are read)")
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise InputError(f"{folder / INDEX}: weight_map must map tensor names to file names")
    for name in sorted(set(names.values())):
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise InputError(f"{folder / INDEX}: weight_map names {name!r}, which is not a file of this directory")
        yield folder / name


def save(
    path,
    config: QwenConfig,
    params: Params,
    tokenizer: Tokenizer | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write a checkpoint that `load` and transformers read: config.json, safetensors in the params' dtype, tokenizer.

    Args:
      max_shard_bytes: weights beyond it go to several files with an index.

    Raises:
      InputError: the architecture has no Hugging Face name.
    """
    folder = epath.Path(path)
    written = config_to_hf(config)
    written["torch_dtype"] = str(jnp.asarray(params["embed"]).dtype)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("model*.safetensors*"):
        stale.unlink()
    shards = _shards(config, params, max_shard_bytes)
    many, weight_map, total = len(shards) > 1, {}, 0
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if many else SINGLE
        tensors = {key: hf_tensor(weight, leaf, layer) for key, (weight, leaf, layer) in shard.items()}
        save_file(tensors, str(folder / name), metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    if many:
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    if tokenizer is not None:
        stops = list(tokenizer.stop_ids)
        written |= {"eos_token_id": tokenizer.end_id, "pad_token_id": tokenizer.pad_id}
        _write_json(folder / "generation_config.json", {"eos_token_id": stops, "pad_token_id": tokenizer.pad_id})
        tokenizer.save(path)
    _write_json(folder / "config.json", written)


def save_config(path, config: QwenConfig) -> None:
    """Write only config.json.

    Raises:
      InputError: the architecture has no Hugging Face name.
    """
    _write_json(epath.Path(path) / "config.json", config_to_hf(config))


def _shards(config: QwenConfig, params: Params, limit: int) -> list[dict]:
    """[{tensor name: (weight, leaf, layer)}], each of at most `limit` bytes (or one tensor)."""
    shards, size = [{}], 0
    pairs = zip(jax.tree.leaves(declare(config)), jax.tree.leaves(params), strict=True)
    for weight, leaf in pairs:
        names = hf_names(weight)
        for layer, name in enumerate(names):
            each = leaf.nbytes // len(names)
            if shards[-1] and size + each > limit:
                shards.append({})
                size = 0
            shards[-1][name] = (weight, leaf, layer)
            size += each
    return shards


def _write_json(file: epath.Path, value: dict) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n")
