"""Low-rank adapters as their own pytree, passed beside the base parameters.

The base stays as it is: leaving the adapter out gives the reference policy, and only the adapter has gradients and
optimiser state. Adapters are float32 and computed in float32. Targets carry their Hugging Face names.
"""

import dataclasses
import json
import math

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import Mesh
from safetensors.numpy import save_file

from thoth_jax.errors import InputError, nearest
from thoth_jax.models import initial
from thoth_jax.models.qwen import Params, QwenConfig, Weight, declare
from thoth_jax.models.tensors import TensorFiles, to_hf
from thoth_jax.sharding import sharding

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MODULES = {"embed_tokens": "embed", "lm_head": "lm_head"}  # Hugging Face name -> ours


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Which adapter to make.

    targets: "all" (the seven linear maps of a layer) or a tuple of their Hugging Face names.
    alpha:   the low-rank map is scaled by alpha / rank, with rslora by alpha / sqrt(rank).
    dropout: on the adapter's input, in training only.
    modules_to_save: "embed_tokens", "lm_head": trained whole, as a float32 copy. Tied to one another, they are one
        weight, and only "embed_tokens" can be named.
    """

    rank: int
    alpha: float
    dropout: float = 0.0
    targets: str | tuple[str, ...] = "all"
    rslora: bool = False
    modules_to_save: tuple[str, ...] = ()

    def __post_init__(self):
        if self.rank < 1:
            raise InputError(f"lora.rank: {self.rank} must be at least 1")
        if not 0.0 <= self.dropout < 1.0:
            raise InputError(f"lora.dropout: {self.dropout} must be in [0, 1)")
        if not self.names:
            raise InputError("lora.targets: names no linear map; use 'all' or some of " + ", ".join(TARGETS))
        for name in self.names:
            if name not in TARGETS:
                raise InputError(f"lora.targets: no linear map is called {name!r}{nearest(name, TARGETS)}")
        for name in self.modules_to_save:
            if name not in MODULES:
                raise InputError(f"lora.modules_to_save: {name!r} cannot be saved{nearest(name, MODULES)}")

    @property
    def names(self) -> tuple[str, ...]:
        """The targets, spelled out."""
        if self.targets == "all":
            return TARGETS
        return (self.targets,) if isinstance(self.targets, str) else tuple(self.targets)

    @property
    def scale(self) -> float:
        """Factor of the low-rank map."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


@flax.struct.dataclass
class Lora:
    """An adapter.

    layers:  {target: {"a": [L, inputs..., R], "b": [L, R, outputs...]}}, float32.
    modules: {"embed" or "lm_head": [V, D]}, float32: stand in for the base's weights of that name.
    scale, dropout: static, from `LoraConfig`.
    """

    layers: dict[str, dict[str, jax.Array]]
    modules: dict[str, jax.Array] = flax.struct.field(default_factory=dict)
    scale: float = flax.struct.field(pytree_node=False, default=1.0)
    dropout: float = flax.struct.field(pytree_node=False, default=0.0)


def declare_lora(config: QwenConfig, lora_config: LoraConfig) -> Lora:
    """The adapter with a `Weight` at each leaf; hf_name is the name in a PEFT adapter.

    Raises:
      InputError: modules_to_save names "lm_head" where it is tied to the embeddings.
    """
    base, layers, rank = declare(config), {}, lora_config.rank
    for name in lora_config.names:
        weight = base["layers"][name]
        cut = 1 + weight.inputs
        (inputs, outputs), prefix = (weight.shape[1:cut], weight.shape[cut:]), weight.hf_name.removesuffix(".weight")
        down = Weight(
            shape=(config.num_layers, *inputs, rank),
            axes=(*weight.axes[:cut], "rank"),
            init="uniform",
            hf_name=f"base_model.model.{prefix}.lora_A.weight",
            inputs=weight.inputs,
        )
        up = Weight(
            shape=(config.num_layers, rank, *outputs),
            axes=("layers", "rank", *weight.axes[cut:]),
            init="zeros",
            hf_name=f"base_model.model.{prefix}.lora_B.weight",
            inputs=1,
        )
        layers[name] = {"a": down, "b": up}
    modules = {}
    for name in lora_config.modules_to_save:
        if MODULES[name] not in base:
            raise InputError(f"lora.modules_to_save: {name!r} is tied to the embeddings; name 'embed_tokens'")
        weight = base[MODULES[name]]
        modules[MODULES[name]] = dataclasses.replace(weight, hf_name=f"base_model.model.{weight.hf_name}")
    return Lora(layers, modules, lora_config.scale, lora_config.dropout)


def lora_shardings(config: QwenConfig, lora_config: LoraConfig, mesh: Mesh) -> Lora:
    """The sharding of each leaf, as a tree like the adapter."""
    return jax.tree.map(lambda w: sharding(mesh, w.axes, w.shape), declare_lora(config, lora_config))


def init_lora(
    config: QwenConfig,
    lora_config: LoraConfig,
    key: jax.Array,
    mesh: Mesh | None = None,
    params: Params | None = None,
) -> Lora:
    """A new adapter that changes nothing yet: a is uniform in +-1/sqrt(inputs) as in PEFT, b is zero.

    Args:
      params: the base; needed with modules_to_save, which start as a copy of it.
    """
    declared = declare_lora(config, lora_config)
    if declared.modules and params is None:
        raise ValueError("modules_to_save start as a copy of the base: give init_lora params")

    def create(key, base):
        def one(weight):
            if weight.init == "zeros":
                return jnp.zeros(weight.shape, jnp.float32)
            bound = 1.0 / math.sqrt(math.prod(weight.shape[1:-1]))
            return bound * initial.uniform(key, weight.hf_name, weight.shape)

        layers = jax.tree.map(one, declared.layers)
        modules = {name: base[name].astype(jnp.float32) for name in declared.modules}
        return declared.replace(layers=layers, modules=modules)

    out = None if mesh is None else lora_shardings(config, lora_config, mesh)
    return jax.jit(create, out_shardings=out)(key, {name: params[name] for name in declared.modules})


def merge(params: Params, config: QwenConfig, lora: Lora) -> Params:
    """params with the adapter added into the weights that it targets, which become float32.

    Other leaves are shared with `params`, which stays as it is. In bfloat16 most small updates would round away.
    """
    declared, layers = declare(config)["layers"], dict(params["layers"])
    for name, adapter in lora.layers.items():
        shape = declared[name].shape
        low = jnp.einsum(
            "LIR,LRO->LIO",
            adapter["a"].reshape(shape[0], -1, adapter["a"].shape[-1]),
            adapter["b"].reshape(shape[0], adapter["b"].shape[1], -1),
            precision=jax.lax.Precision.HIGHEST,
        )
        layers[name] = layers[name].astype(jnp.float32) + lora.scale * low.reshape(shape)
    return {**params, **lora.modules, "layers": layers}


_TIED_HEAD = "base_model.model.lm_head.weight"
# Fields of adapter_config.json that change the adapter's meaning and that we do not have; falsy values are fine.
_UNSUPPORTED = (
    *("use_dora", "use_qalora", "use_bdlora", "fan_in_fan_out", "lora_bias", "rank_pattern", "alpha_pattern"),
    *("layers_to_transform", "layers_pattern", "layer_replication", "exclude_modules"),
    *("target_parameters", "trainable_token_indices", "alora_invocation_tokens", "megatron_config"),
)


def load_peft(path, config: QwenConfig, mesh: Mesh | None = None) -> Lora:
    """Read a PEFT LoRA adapter (adapter_config.json and adapter_model.safetensors) for a model of `config`.

    Raises:
      InputError: a file is missing or broken, the adapter uses something that we do not support (named), or tensors
        are missing, unexpected or of a wrong shape (all listed).
    """
    folder = epath.Path(path)
    source = folder / "adapter_config.json"
    if not source.exists():
        raise InputError(f"{source}: no such file; a PEFT adapter has one")
    try:
        read = json.loads(source.read_text())
        lora_config = _from_peft(read, str(source), config.tie_embeddings)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{source}: not a PEFT LoRA configuration ({type(error).__name__}: {error})") from None
    declared = declare_lora(config, lora_config)
    files = TensorFiles([folder / "adapter_model.safetensors"])
    # Where the embeddings are tied to the output table, peft writes them under both names.
    twice = config.tie_embeddings and "embed" in declared.modules and _TIED_HEAD in files
    files.check(declared, str(folder), ignored=(_TIED_HEAD,) if twice else ())
    if twice and not np.array_equal(files.read(_TIED_HEAD), files.read(declared.modules["embed"].hf_name)):
        raise InputError(f"{folder}: {_TIED_HEAD} differs from the embeddings that it is tied to")
    return files.load(declared, "float32", mesh)


def _from_peft(read: dict, source: str, tied: bool) -> LoraConfig:
    if read.get("peft_type") != "LORA":
        raise InputError(f"{source}: peft_type is {read.get('peft_type')!r}; only 'LORA' is supported")
    used = [name for name in _UNSUPPORTED if read.get(name)]
    if read.get("bias", "none") != "none":
        used.append("bias")
    if tied and read.get("modules_to_save") and not read.get("ensure_weight_tying"):
        used.append("modules_to_save")  # would untie the embeddings from the output table
    if used:
        raise InputError(f"{source}: not supported: {', '.join(f'{name}={read[name]!r}' for name in used)}")
    targets = read["target_modules"]
    if targets == "all-linear":
        targets = "all"
    elif isinstance(targets, str):
        raise InputError(f"{source}: target_modules: a pattern {targets!r} is not supported; list the names")
    else:
        targets = tuple(sorted(targets, key=lambda name: TARGETS.index(name) if name in TARGETS else len(TARGETS)))
    return LoraConfig(
        rank=int(read["r"]),
        alpha=float(read["lora_alpha"]),
        dropout=float(read.get("lora_dropout", 0.0)),
        targets=targets,
        rslora=bool(read.get("use_rslora", False)),
        modules_to_save=_modules(read.get("modules_to_save") or (), tied),
    )


def _modules(names, tied: bool) -> tuple[str, ...]:
    """Names as peft writes them ("model.embed_tokens" beside "embed_tokens"), each once; tied weights are one."""
    short = dict.fromkeys(name.removeprefix("model.") for name in names)
    if tied and "embed_tokens" in short:
        short.pop("lm_head", None)
    return tuple(short)


def save_peft(path, config: QwenConfig, lora_config: LoraConfig, lora: Lora, base: str = "") -> None:
    """Write an adapter that peft loads: adapter_config.json and adapter_model.safetensors.

    Args:
      base: what adapter_config.json names as the base model.
    """
    folder = epath.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora_config.rank,
        "lora_alpha": lora_config.alpha,
        "lora_dropout": lora_config.dropout,
        "use_rslora": lora_config.rslora,
        "target_modules": list(lora_config.names),
        "modules_to_save": list(lora_config.modules_to_save) or None,
        "ensure_weight_tying": bool(lora_config.modules_to_save) and config.tie_embeddings,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    tensors: dict[str, np.ndarray] = {}
    declared = declare_lora(config, lora_config)
    jax.tree.map(lambda weight, leaf: tensors.update(to_hf(weight, leaf)), declared, lora)
    if config.tie_embeddings and "embed" in declared.modules:
        tensors[_TIED_HEAD] = tensors[declared.modules["embed"].hf_name].copy()
    save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(written, indent=2) + "\n")
