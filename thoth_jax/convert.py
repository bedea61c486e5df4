"""`thoth convert`: a run or a model -> a Hugging Face model, or a run's adapters -> a PEFT adapter."""

import importlib.metadata
import tempfile

import jax
import jax.numpy as jnp
from etils import epath

from thoth_jax import config as configuration
from thoth_jax.errors import InputError
from thoth_jax.models import hf, load_peft, lora, merge
from thoth_jax.models.gguf import is_gguf, load_gguf
from thoth_jax.models.hub import directory_of
from thoth_jax.models.qwen import DTYPES, count_params
from thoth_jax.sharding import make_mesh, use_mesh
from thoth_jax.train.build import load_weights, lora_config, restore_adapters, run_in

FORMATS = ("hf", "peft")
_CARD = "README.md"


def convert(
    model: str,
    out: str,
    *,
    to: str = "hf",
    adapter: str | None = None,
    merge_adapter: bool = False,
    dtype: str | None = None,
    max_shard_bytes: int = hf.MAX_SHARD_BYTES,
) -> None:
    """Write a model into the directory `out`.

    Args:
      model: run directory, Hugging Face directory, hub id or GGUF file.
      to: "hf": config.json, safetensors (with an index where there are several), generation_config.json, tokenizer,
        model card; "peft": adapter_config.json and adapter_model.safetensors of a LoRA run.
      adapter: a PEFT adapter to be merged into `model`.
      merge_adapter: needed where adapters are merged, of a LoRA run or of `adapter`; they are added in float32.
      dtype: of the written weights; None: of the checkpoint, float32 after a merge.
      max_shard_bytes: of one file.

    Raises:
      InputError: nothing usable at a path, `out` is not empty, or what is asked for does not fit together.
    """
    directory = epath.Path(out)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{out}: exists and is not an empty directory")
    if to not in FORMATS:
        raise InputError(f"--to {to}: expected one of {', '.join(FORMATS)}")
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"--dtype {dtype}: expected one of {', '.join(DTYPES)}")
    run = _run_config(model)
    adapted = run is not None and bool(run.lora.rank)
    if to == "peft":
        if not adapted or adapter:
            raise InputError(f"{model}: --to peft is for a run with lora.rank above 0")
        _write_peft(model, run, out)
        return
    if (adapted or adapter) and not merge_adapter:
        raise InputError(f"{model}: adapters are added to the weights with --merge; --to peft writes them apart")
    if merge_adapter and not (adapted or adapter):
        raise InputError(f"{model}: --merge needs a run with adapters, or --adapter DIR")
    mesh = make_mesh()
    with use_mesh(mesh):
        config, params, tokenizer, found = _load(model, mesh, adapted or bool(adapter) or run is not None)
        if adapter:
            params = merge(params, config, load_peft(adapter, config, mesh))
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.dtype(dtype or found)), params)
        hf.save(out, config, params, tokenizer, max_shard_bytes)
    _write_card(directory, config, model, adapter, dtype or found, tokenizer)


def _load(model: str, mesh, wide: bool):
    """(config, params, tokenizer, their dtype); `wide`: in float32 whatever is stored."""
    if is_gguf(model):
        with tempfile.TemporaryDirectory() as folder:
            return (*load_gguf(model, folder), "float32")
    found = "float32" if wide else _stored_dtype(model)
    return (*load_weights(model, mesh, found), found)


def _run_config(model: str):
    """The configuration of a run directory, None where `model` is something else."""
    file = epath.Path(run_in(model)) / "config.json"
    if not file.exists():
        return None
    saved = configuration.read_json(file)
    return configuration.load(str(file)) if isinstance(saved, dict) and "stage" in saved else None


def _stored_dtype(model: str) -> str:
    """bfloat16 where the checkpoint's config.json says so, float32 else (float16 fits into that)."""
    read = hf.read_json(directory_of(model, weights=False) / "config.json")
    stored = read.get("dtype") or read.get("torch_dtype")
    return "bfloat16" if stored == "bfloat16" else "float32"


def _write_peft(model: str, run, out: str) -> None:
    mesh = make_mesh()
    with use_mesh(mesh):
        config, adapters = restore_adapters(model, mesh)
    lora.save_peft(out, config, lora_config(run), adapters, base=run.init_from)


def _write_card(directory, config, model: str, adapter: str | None, dtype: str, tokenizer) -> None:
    tokenizer_line = "none was found beside the weights"
    if tokenizer is not None:
        own = (directory / "tokenizer.model").exists()
        tokenizer_line = (
            "tokenizer.model, a SentencePiece model that thoth_jax reads" if own else "the files beside the weights"
        )
    sizes = f"{count_params(config):,} parameters, {config.num_layers} layers, {config.vocab_size} token ids"
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [thoth-jax]",
        "---",
        f"# {directory.name}",
        "",
        f"Written by `thoth convert` of thoth-jax {importlib.metadata.version('thoth-jax')}.",
        "",
        f"- from: `{model}`" + (f" with the adapter `{adapter}` merged in float32" if adapter else ""),
        f"- architecture: {hf.config_to_hf(config)['architectures'][0]}, {sizes}",
        f"- weights: {dtype}",
        f"- tokenizer: {tokenizer_line}",
        "- licence and intended use: those of the model and the data that it was trained from; fill them in.",
        "",
        "```python",
        "from transformers import AutoModelForCausalLM",
        "",
        f'model = AutoModelForCausalLM.from_pretrained("{directory.name}")',
        "```",
        "",
    ]
    (directory / _CARD).write_text("\n".join(lines))


def describe(out: str) -> str:
    """What was written, one line a file."""
    files = sorted(epath.Path(out).iterdir(), key=lambda file: file.name)
    return "\n".join(f"{file}  {file.stat().length:,} bytes" for file in files)
