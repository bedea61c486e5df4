"""Configuration -> mesh, task, tokenizer and weights; weights from an HF directory or from another run."""

import dataclasses
import json
import logging
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from thoth_jax import config as configuration
from thoth_jax.data import bundled
from thoth_jax.errors import InputError
from thoth_jax.models import hf
from thoth_jax.models.lora import Lora, LoraConfig, declare_lora, init_lora, lora_shardings, merge
from thoth_jax.models.qwen import QwenConfig, init_params, param_shardings
from thoth_jax.models.tokenizer import Tokenizer, load_tokenizer
from thoth_jax.sharding import make_mesh, use_mesh
from thoth_jax.task import Task, load_task
from thoth_jax.train.checkpoint import newest_step, restore_trainable

logger = logging.getLogger(__name__)

# Architecture keys that `init_from` decides: a value that is neither the default nor that of the weights is refused.
_ARCHITECTURE = (
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "rope_theta",
    "tie_embeddings",
)


@dataclasses.dataclass
class Run:
    """All that a stage needs.

    params: the base weights. lora: the adapters of a LoRA run. base_step: where `init_from` is a run, the step of its
    checkpoint that the weights are from.
    """

    config: Any
    mesh: jax.sharding.Mesh
    task: Task
    tokenizer: Tokenizer
    model: QwenConfig
    params: Any
    lora: Lora | None
    base_step: int | None = None

    @property
    def batch_shards(self) -> int:
        """Devices that the rows of a batch are spread over."""
        return self.mesh.shape["data"] * self.mesh.shape["fsdp"]


def build(config, devices: Sequence[jax.Device] | None = None) -> Run:
    """Make everything that the configuration names, on all devices by default.

    Raises:
      InputError: what it names does not exist, or does not fit together.
    """
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor, devices)
    task = load_task(config.task, config.task_args.to_dict())
    step = _base_step(config, configuration.run_dir_of(config))
    model, params, tokenizer = base_weights(config, mesh, step=step)
    lora = None
    if config.lora.rank:
        with use_mesh(mesh):
            _warn_of_untrained_end(config, model, params, tokenizer)
            key = jax.random.fold_in(jax.random.key(config.seed), 1)
            lora = init_lora(model, lora_config(config), key, mesh, params)
    return Run(config, mesh, task, tokenizer, model, params, lora, step)


def _warn_of_untrained_end(config, model: QwenConfig, params, tokenizer: Tokenizer) -> None:
    """Base models have never seen the token that ends an answer, and adapters of the layers cannot teach it to them."""
    head = params["embed" if model.tie_embeddings else "lm_head"]
    if len(tokenizer) == model.vocab_size or config.lora.modules_to_save or not config.init_from:
        return  # nothing to compare with, or it is trained
    middle = jnp.mean(head[len(tokenizer) :], axis=0, dtype=jnp.float32)  # rows that no token has
    distance = jnp.linalg.norm(head[: len(tokenizer)].astype(jnp.float32) - middle, axis=1)
    if float(distance[tokenizer.end_id]) < 0.1 * float(jnp.median(distance)):
        logger.warning(
            "%s: the token that ends an answer (id %d) looks untrained, so answers may never end; train it with "
            "lora.modules_to_save=%s, or start from an instruct model",
            config.init_from,
            tokenizer.end_id,
            "embed_tokens" if model.tie_embeddings else "embed_tokens,lm_head",
        )


def lora_config(config) -> LoraConfig:
    """The adapters that the configuration asks for."""
    targets = tuple(config.lora.targets)
    return LoraConfig(
        rank=config.lora.rank,
        alpha=config.lora.alpha,
        dropout=config.lora.get("dropout", 0.0),  # stage rl has none: the ratio compares one policy with itself
        targets="all" if targets == ("all",) else targets,
        rslora=config.lora.rslora,
        modules_to_save=tuple(config.lora.modules_to_save),
    )


def _base_step(config, run_dir: str) -> int | None:
    """The step of the run `init_from` that this run starts from: the one it has started from, else the newest."""
    file = epath.Path(run_dir) / "policy" / "base.json"
    base = configuration.read_json(file) if file.exists() else {}
    if config.init_from and base.get("init_from") == config.init_from:
        return base["step"]
    return newest_step(run_in(config.init_from)) if config.init_from else None


def base_weights(config, mesh, dtype: str | None = None, step: int | None = None) -> tuple[QwenConfig, Any, Tokenizer]:
    """The weights that a run starts from: those of `init_from`, or random ones of the shape in `model.*`.

    Args:
      step: where `init_from` is a run, which checkpoint; None: the newest.
    """
    own = load_tokenizer(config.tokenizer) if config.tokenizer else None
    # Trained weights need float32 masters; a frozen base may rest in the compute type.
    dtype = dtype or (config.model.dtype if config.lora.rank else "float32")
    if config.init_from:
        model, params, tokenizer = load_weights(config.init_from, mesh, dtype, step)
        _check_architecture(config, model)
        tokenizer = own or tokenizer
        if tokenizer is None:
            raise InputError(f"init_from={config.init_from}: it has no tokenizer, set the key tokenizer")
        if len(tokenizer) > model.vocab_size:
            raise InputError(
                f"the tokenizer has {len(tokenizer)} pieces, the weights of init_from have only {model.vocab_size} rows"
            )
        model = model.replace(dtype=config.model.dtype, remat=config.model.remat, valid_vocab_size=len(tokenizer))
        return model, params, tokenizer
    tokenizer = own or load_tokenizer(str(bundled.path("tokenizer.model")))
    model = model_config(config, len(tokenizer))
    with use_mesh(mesh):
        return model, init_params(model, jax.random.key(config.seed), mesh), tokenizer


def model_config(config, pieces: int) -> QwenConfig:
    """A Qwen3-shaped policy from `model.*`; the vocabulary is filled up to a multiple of 64, which shards evenly."""
    keys = config.model
    return QwenConfig(
        vocab_size=-(-pieces // 64) * 64,
        hidden_size=keys.hidden_size,
        intermediate_size=keys.intermediate_size,
        num_layers=keys.num_layers,
        num_heads=keys.num_heads,
        num_kv_heads=keys.num_kv_heads,
        head_dim=keys.head_dim,
        rope_theta=keys.rope_theta,
        tie_embeddings=keys.tie_embeddings,
        dtype=keys.dtype,
        remat=keys.remat,
        valid_vocab_size=pieces,
    )


def _check_architecture(config, model: QwenConfig) -> None:
    for name in _ARCHITECTURE:
        value = config.model[name]
        if value not in (configuration.KEYS[f"model.{name}"].default, getattr(model, name)):
            raise InputError(
                f"model.{name}={value}: the weights of init_from have {getattr(model, name)}; leave the key out"
            )


def run_in(path: str) -> str:
    """`path`, or the last stage of a quickstart directory."""
    directory = epath.Path(path)
    if not (directory / "config.json").exists() and (directory / "rl" / "config.json").exists():
        return str(directory / "rl")
    return path


def load_weights(
    path: str, mesh, dtype: str = "float32", step: int | None = None
) -> tuple[QwenConfig, Any, Tokenizer | None]:
    """Weights of an HF directory or hub id, a run directory (adapters merged) or a quickstart's (its last stage).

    Args:
      step: which checkpoint of a run; None: the newest.

    Returns:
      Model configuration, parameters on the mesh, and the tokenizer found there, if any.

    Raises:
      InputError: nothing usable lies at `path`.
    """
    path = run_in(path)
    if not epath.Path(path).is_dir():
        return hf.load(path, mesh, dtype)
    file = epath.Path(path) / "config.json"
    if not file.exists():
        raise InputError(f"{path}: neither a model directory nor a run directory (no config.json)")
    saved = configuration.read_json(file)
    if not isinstance(saved, dict):
        raise InputError(f"{file}: expected a JSON object")
    if "stage" not in saved:
        return hf.load(path, mesh, dtype)
    return _load_run(path, configuration.load(str(file)), mesh, dtype, step)


def _load_run(path: str, config, mesh, dtype: str, step: int | None) -> tuple[QwenConfig, Any, Tokenizer]:
    policy = str(epath.Path(path) / "policy")
    tokenizer = load_tokenizer(policy)
    model = hf.load_config(policy).replace(valid_vocab_size=len(tokenizer))
    if config.lora.rank:
        # Merged, and perhaps trained further as a whole: what rested in bfloat16 is read in float32 again.
        try:
            _, params, _ = base_weights(config, mesh, "float32", _base_step(config, path))
        except InputError as error:
            raise InputError(f"{path} holds adapters only, their base cannot be read: {error}") from None
        with use_mesh(mesh):
            params = merge(params, model, _adapters(path, config, model, mesh, step))
    else:
        shapes = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
        wanted = jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
            shapes,
            param_shardings(model, mesh),
        )
        params = restore_trainable(path, wanted, step)
    if dtype != "float32":
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    return model, params, tokenizer


def _adapters(path: str, config, model: QwenConfig, mesh, step: int | None) -> Lora:
    declared = declare_lora(model, lora_config(config))
    shaped = jax.tree.map(
        lambda weight, place: jax.ShapeDtypeStruct(weight.shape, jnp.float32, sharding=place),
        declared,
        lora_shardings(model, lora_config(config), mesh),
    )
    return restore_trainable(path, shaped, step)


def restore_adapters(path: str, mesh, step: int | None = None) -> tuple[QwenConfig, Lora]:
    """The adapters of a LoRA run, without its base.

    Args:
      step: which checkpoint; None: the newest.

    Raises:
      InputError: no run with adapters, or no readable checkpoint.
    """
    path = run_in(path)
    config = configuration.load(str(epath.Path(path) / "config.json"))
    if not config.lora.rank:
        raise InputError(f"{path}: a run without adapters (lora.rank is 0)")
    model = hf.load_config(epath.Path(path) / "policy")
    return model, _adapters(path, config, model, mesh, step)


def save_policy_files(run: Run, run_dir: str) -> None:
    """RUN/policy: model configuration, tokenizer and base, which together with a checkpoint make the run loadable."""
    directory = epath.Path(run_dir) / "policy"
    directory.mkdir(parents=True, exist_ok=True)
    hf.save_config(str(directory), run.model)
    run.tokenizer.save(str(directory))
    if run.base_step is not None:
        # A LoRA run is nothing without its base: pinned, so that it does not change when the base trains on.
        base = {"init_from": run.config.init_from, "step": run.base_step}
        (directory / "base.json").write_text(json.dumps(base) + "\n")
