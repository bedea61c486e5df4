"""Every configuration key: default, one-line help, type and limits; typed overrides; unknown keys refused.

A configuration file is Python with `get_config() -> ConfigDict` that starts from `defaults(stage)` and sets what differs,
or the `config.json` of a run. Overrides come as `--config.a.b=value`. They are parsed here and not by config_flags,
because `task_args` takes its names and types from the Task's signature and because every fault must be one clear line.
"""

import dataclasses
import importlib.util
import inspect
import json
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from thoth_jax.errors import InputError, nearest
from thoth_jax.plugins import import_object, parameters_of

STAGES = ("pretrain", "sft", "rl")
_LM = ("pretrain", "sft")
_RL = ("rl",)
_CHAT = ("sft", "rl")
# Free-form keys: their names belong to the Task and to the reward functions.
_FREE = ("task_args", "rewards")


@dataclasses.dataclass(frozen=True)
class Key:
    """One configuration key. The type is that of the default; `stages` are those that read it."""

    default: Any
    help: str
    stages: tuple[str, ...] = STAGES
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False  # None is allowed
    kind: type | None = None  # only where the default does not tell (None)

    @property
    def type(self) -> type:
        return self.kind or type(self.default)


KEYS: dict[str, Key] = {
    "stage": Key("sft", "which training stage this run is", choices=STAGES),
    "run_dir": Key("", "run directory; empty: runs/STAGE"),
    "seed": Key(0, "seed of initialisation, data order, dropout and sampling", minimum=0),
    "task": Key("thoth_jax.tasks.protocol:ProtocolTask", "the Task, as an import path module:name"),
    "task_args": Key({}, "arguments of the Task (task_args.NAME=VALUE), checked against its signature"),
    "rewards": Key((), "rewards [{fn, weight, kwargs}]; empty: the task's own; fn 'task' puts that in", _RL),
    "init_from": Key("", "weights to start from: an HF directory or a run directory; empty: random, from model.*"),
    "tokenizer": Key("", "tokenizer: HF directory, tokenizer.json or SentencePiece .model; empty: that of init_from, else the bundled one"),
    # The policy. With init_from the architecture comes from there.
    "model.hidden_size": Key(128, "D, model width", minimum=1),
    "model.intermediate_size": Key(384, "F, feed-forward width", minimum=1),
    "model.num_layers": Key(4, "L, layers", minimum=1),
    "model.num_heads": Key(4, "N, query heads", minimum=1),
    "model.num_kv_heads": Key(2, "K, key/value heads (divides num_heads)", minimum=1),
    "model.head_dim": Key(32, "H, width of a head (even)", minimum=2),
    "model.rope_theta": Key(10000.0, "base of the rotary embedding", minimum=1.0),
    "model.tie_embeddings": Key(True, "the output head is the embedding"),
    "model.dtype": Key("float32", "compute type; master parameters are float32", choices=("float32", "bfloat16")),
    "model.remat": Key("none", "recompute layers in the backward pass to save memory", choices=("none", "full")),
    "lora.rank": Key(0, "R, rank of the adapters; 0: train all parameters", minimum=0),
    "lora.alpha": Key(16.0, "adapters are scaled by alpha / rank", minimum=0.0),
    "lora.dropout": Key(0.0, "dropout on the adapters' input", minimum=0.0, maximum=0.99),
    "lora.targets": Key(("all",), "adapted matrices by HF name (q_proj, ...), or all"),
    "mesh.data": Key(1, "devices on the data axis; -1: the rest", minimum=-1),
    "mesh.fsdp": Key(-1, "devices on the fsdp axis; -1: the rest", minimum=-1),
    "mesh.tensor": Key(1, "devices on the tensor axis; -1: the rest", minimum=-1),
    # Optimiser.
    "learning_rate": Key(1e-3, "peak learning rate of AdamW", minimum=0.0),
    "schedule": Key("cosine", "learning rate after warm-up", choices=("cosine", "linear", "constant")),
    "warmup_ratio": Key(0.0, "share of the steps with a linear warm-up", minimum=0.0, maximum=1.0),
    "weight_decay": Key(0.0, "decoupled weight decay on matrices (not on norms and biases)", minimum=0.0),
    "adam_b1": Key(0.9, "decay of the first moment", minimum=0.0, maximum=1.0),
    "adam_b2": Key(0.95, "decay of the second moment", minimum=0.0, maximum=1.0),
    "max_grad_norm": Key(1.0, "clip gradients to this global norm; 0: off", minimum=0.0),
    # Length of the run.
    "num_epochs": Key(1.0, "passes over the data, where num_steps is 0", minimum=0.0),
    "num_steps": Key(0, "optimiser steps (stage rl: rollout steps); 0: from num_epochs", minimum=0),
    "batch_size": Key(16, "rows of an update", _LM, minimum=1),
    "max_length": Key(512, "tokens of a row; longer documents are split, longer examples follow `overlong`", _LM, minimum=2),
    "packing": Key(True, "several examples in a row, kept apart by segment ids", ("sft",)),
    "overlong": Key("refuse", "an item over the length limit: refuse, or truncate or drop and count it", _CHAT, choices=("refuse", "truncate", "drop")),
    "enable_thinking": Key(True, "chat template leaves the think block to the policy; False: opens the answer with an empty one", _CHAT),
    "tokens_per_microbatch": Key(0, "tokens of a forward and backward pass (gradients stay exact); 0: the whole batch", minimum=0),
    "loss_chunk_size": Key(1024, "tokens whose logits exist at one time", minimum=1),
    # Reinforcement learning.
    "prompts_per_step": Key(8, "P, prompts of a step", _RL, minimum=1),
    "group_size": Key(8, "G, samples of a prompt", _RL, minimum=2),
    "temperature": Key(1.0, "sampling temperature; divides the training logits too", _RL, minimum=1e-3),
    "max_prompt_length": Key(256, "tokens of a prompt; longer ones follow `overlong`", _CHAT, minimum=1),
    "max_completion_length": Key(256, "tokens of a sampled answer", minimum=1),
    "num_iterations": Key(1, "updates on each batch of rollouts", _RL, minimum=1),
    "epsilon_low": Key(0.2, "the ratio is clipped below at 1 - epsilon_low", _RL, minimum=0.0, maximum=1.0),
    "epsilon_high": Key(0.2, "the ratio is clipped above at 1 + epsilon_high", _RL, minimum=0.0),
    "level": Key("token", "importance ratio by token, or by sequence (GSPO)", _RL, choices=("token", "sequence", "sequence_token")),
    "aggregation": Key(
        "token_mean", "how token losses become one loss", _RL,
        choices=("token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"),
    ),
    "constant": Key(None, "tokens per row in aggregation=constant", _RL, minimum=1.0, optional=True, kind=float),
    "scale_rewards": Key("group", "advantages are divided by the std of the group, of the batch, or not", _RL, choices=("group", "batch", "none")),
    "baseline": Key("mean", "what is subtracted from a reward", _RL, choices=("mean", "leave_one_out")),
    "kl_coef": Key(0.0, "weight of the KL to the reference policy; 0: no reference is computed", _RL, minimum=0.0),
    "kl_estimator": Key("k3", "estimator of that KL", _RL, choices=("k3", "k1", "k2", "abs")),
    "entropy_coef": Key(0.0, "weight of an entropy bonus", _RL),
    "mask_truncated": Key(False, "answers cut off at the length limit give no loss", _RL),
    "slots": Key(0, "rows that are decoded together; 0: all of a step", _RL, minimum=0),
    # Evaluation, checkpoints.
    "eval_every": Key(0, "evaluate every N steps, and at the end; 0: only at the end", minimum=0),
    "eval_at_start": Key(True, "evaluate before the first step"),
    "eval_examples": Key(64, "evaluation items, at most; 0: all", minimum=0),
    "save_every": Key(50, "checkpoint every N steps, and at the end", minimum=1),
    "keep_checkpoints": Key(2, "newest checkpoints that are kept", minimum=1),
}

# Where a stage has another default than the table.
STAGE_DEFAULTS: dict[str, dict[str, Any]] = {
    "pretrain": {"learning_rate": 3e-3, "max_completion_length": 64},
    "rl": {"learning_rate": 1e-4, "schedule": "constant", "num_epochs": 1.0},
}


def keys_of(stage: str) -> dict[str, Key]:
    """The keys that `stage` reads, with that stage's defaults."""
    if stage not in STAGES:
        raise InputError(f"stage {stage!r}{nearest(stage, STAGES)}")
    own = STAGE_DEFAULTS.get(stage, {})
    found = {}
    for name, key in KEYS.items():
        if stage in key.stages:
            default = stage if name == "stage" else own.get(name, key.default)
            found[name] = dataclasses.replace(key, default=default)
    return found


def defaults(stage: str) -> ConfigDict:
    """The default configuration of a stage, locked: setting a key that it does not have raises AttributeError."""
    tree: dict[str, Any] = {}
    for name, key in keys_of(stage).items():
        *parents, leaf = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = ConfigDict() if name == "task_args" else key.default
    config = ConfigDict(tree, type_safe=False)  # types are checked by `validate`, with better messages
    config.lock()
    config.task_args.unlock()
    return config


def flatten(tree: Mapping, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; task_args and rewards stay whole."""
    flat = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, (Mapping, ConfigDict)) and path not in _FREE:
            flat.update(flatten(value, f"{path}."))
        else:
            flat[path] = value
    return flat


def load(path: str | None, overrides: Sequence[str] = (), set_keys: Mapping[str, Any] | None = None) -> ConfigDict:
    """The resolved, checked configuration.

    Args:
      path: a Python file with get_config(), a run's config.json, or None for the defaults.
      overrides: ["a.b=value", ...].
      set_keys: values that a command sets itself, before the overrides.

    Raises:
      InputError: no such file, an error inside it, an unknown key, a wrong type, a value out of range.
    """
    pairs = [_split_override(override) for override in overrides]
    if path:
        tree, where = _read_file(path)
    else:
        tree, where = {}, "command line"
    stage = dict(pairs).get("stage", tree.get("stage", KEYS["stage"].default))
    if not isinstance(stage, str) or stage not in STAGES:
        raise InputError(f"{where}: stage={stage!r}{nearest(str(stage), STAGES)}")
    config = defaults(stage)
    for name, value in {**flatten(tree), **(set_keys or {})}.items():
        _assign(config, name, value, where)
    for name, text in pairs:
        if name.startswith("task_args."):
            argument = name.removeprefix("task_args.")
            config.task_args[argument] = _parse_task_arg(config.task, argument, text)
        else:
            _assign(config, name, _parse(name, _lookup(name, stage, f"--config.{name}"), text), f"--config.{name}")
    validate(config)
    return config


def _split_override(override: str) -> tuple[str, str]:
    name, separator, value = override.partition("=")
    if not separator:
        raise InputError(f"override --config.{override}: expected --config.KEY=VALUE")
    return name, value


def _read_file(path: str) -> tuple[dict, str]:
    file = epath.Path(path)
    if not file.exists() or file.is_dir():
        raise InputError(f"config file {path!r}: no such file")
    if path.endswith(".json"):
        try:
            tree = json.loads(file.read_text())
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    else:
        tree = _run_config_file(path)
    if isinstance(tree, ConfigDict):
        tree = tree.to_dict()
    if not isinstance(tree, dict):
        raise InputError(f"config file {path!r}: get_config() must return a ConfigDict, got {type(tree).__name__}")
    return tree, path


def _run_config_file(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("thoth_config_file", path)
    if spec is None:
        raise InputError(f"config file {path!r}: expected a .py or .json file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise InputError(f"config file {path!r}: it defines no get_config()")
        return module.get_config()
    except InputError:
        raise
    except Exception as error:  # whatever a user's file raises becomes one line that names the file's line
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else 1)
        message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path}:{line}: {message}") from None


def _lookup(name: str, stage: str, where: str) -> Key:
    keys = keys_of(stage)
    if name in keys:
        return keys[name]
    if name in KEYS:
        readers = " and ".join(KEYS[name].stages)
        raise InputError(f"{where}: key {name!r} is read by stage {readers} only, this run has stage {stage}")
    groups = {key.rpartition(".")[0] for key in keys} - {""}
    if name in groups:
        members = ", ".join(key for key in keys if key.startswith(f"{name}."))
        raise InputError(f"{where}: {name!r} is a group of keys: set {members}")
    raise InputError(f"{where}: unknown key {name!r}{nearest(name, KEYS)}")


def _assign(config: ConfigDict, name: str, value: Any, where: str) -> None:
    key = _lookup(name, config.stage, where)
    if name == "task_args":
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: task_args={value!r}: expected a mapping of the Task's arguments")
        config.task_args.update(value)
        return
    *parents, leaf = name.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    node[leaf] = _check(name, key, value, where)


def _parse(name: str, key: Key, text: str) -> Any:
    """Command-line text -> a value of the key's type."""
    if key.optional and text.lower() in ("none", "null"):
        return None
    try:
        if name in _FREE:
            return json.loads(text)
        if key.type is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if key.type is tuple:
            return tuple(part.strip() for part in text.strip("()[]").split(",") if part.strip())
        return key.type(text)
    except (ValueError, KeyError):
        expected = {bool: "true or false", int: "a whole number", float: "a number"}.get(key.type, "JSON")
        raise InputError(f"--config.{name}={text}: expected {expected}") from None


def _check(name: str, key: Key, value: Any, where: str) -> Any:
    """A value of the right type and range, or InputError."""
    if value is None and key.optional:
        return None
    if key.type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if key.type is tuple and isinstance(value, list):
        value = tuple(value)
    if not isinstance(value, key.type) or (key.type is int and isinstance(value, bool)):
        raise InputError(f"{where}: {name}={value!r}: expected {key.type.__name__}, got {type(value).__name__}")
    if key.choices and value not in key.choices:
        raise InputError(f"{where}: {name}={value!r}{nearest(str(value), key.choices)}")
    if isinstance(value, float) and value != value:
        raise InputError(f"{where}: {name}={value!r}: expected a number")
    if key.minimum is not None and value < key.minimum:
        raise InputError(f"{where}: {name}={value!r}: must be at least {key.minimum}")
    if key.maximum is not None and value > key.maximum:
        raise InputError(f"{where}: {name}={value!r}: must be at most {key.maximum}")
    return value


def _parse_task_arg(task_path: str, name: str, text: str) -> Any:
    """Text -> a value of the type that the Task's signature gives its argument `name`."""
    parameters = parameters_of(import_object(task_path))
    if name not in parameters and "**" not in parameters:
        raise InputError(f"--config.task_args.{name}: {task_path} takes no argument {name!r}{nearest(name, parameters)}")
    parameter = parameters.get(name)
    annotation = parameter.annotation if parameter is not None else inspect.Parameter.empty
    if annotation is str:
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = {"True": True, "False": False}.get(text, text)
    simple = annotation if annotation in (int, float, bool) else None
    if simple is not None and not (type(value) is simple or (simple is float and type(value) is int)):
        raise InputError(f"--config.task_args.{name}={text}: expected {simple.__name__}")
    return value


def validate(config: ConfigDict) -> None:
    """Relations between keys.

    Raises:
      InputError: naming the keys.
    """
    if config.model.num_heads % config.model.num_kv_heads:
        raise InputError(f"model.num_heads={config.model.num_heads} is not a multiple of model.num_kv_heads={config.model.num_kv_heads}")
    if config.model.head_dim % 2:
        raise InputError(f"model.head_dim={config.model.head_dim}: must be even (rotary embedding)")
    if [config.mesh.data, config.mesh.fsdp, config.mesh.tensor].count(-1) > 1:
        raise InputError("mesh: at most one axis can be -1 (the rest)")
    if 0 in (config.mesh.data, config.mesh.fsdp, config.mesh.tensor):
        raise InputError("mesh: an axis must be a positive number, or -1 for the rest")
    if config.stage == "rl":
        if config.aggregation == "constant" and config.constant is None:
            raise InputError("aggregation=constant needs the key constant (tokens per row, for example max_completion_length)")
        if config.aggregation != "constant" and config.constant is not None:
            raise InputError(f"constant={config.constant} is read only with aggregation=constant, here aggregation={config.aggregation}")
    if not config.num_steps and not config.num_epochs:
        raise InputError("num_steps and num_epochs are both 0: there is nothing to train")


def run_dir_of(config: ConfigDict) -> str:
    """The run directory: `run_dir`, or runs/STAGE."""
    return config.run_dir or f"runs/{config.stage}"


def to_json(config: ConfigDict) -> str:
    """The resolved configuration as indented JSON, keys sorted."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True, default=list) + "\n"


def describe(stage: str) -> str:
    """One line for each key of a stage: name, default, help."""
    lines = [f"keys of stage {stage} (--config.KEY=VALUE):"]
    for name, key in keys_of(stage).items():
        choices = f" [{'|'.join(key.choices)}]" if key.choices else ""
        lines.append(f"  {name} = {key.default!r}{choices}\n      {key.help}")
    return "\n".join(lines)
