"""The configuration of a run: files, typed overrides, unknown keys refused. The keys are in config_keys.py.

A configuration file is Python with `get_config() -> ConfigDict` that starts from `defaults(stage)` and sets what
differs, or the `config.json` of a run. Overrides come as `--config.a.b=value`. They are parsed here and not by
config_flags, because `task_args` takes its names and types from the Task's signature, and every fault must be one line.
"""

import importlib.util
import inspect
import json
import math
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from thoth_jax.config_keys import FREE, KEYS, STAGES, Key, describe, keys_of
from thoth_jax.config_presets import elsewhere, preset_values
from thoth_jax.errors import InputError, first_line, nearest
from thoth_jax.plugins import alternatives, check_type, import_object, parameters_of

__all__ = [
    "KEYS",
    "STAGES",
    "Key",
    "beside",
    "defaults",
    "describe",
    "flatten",
    "from_file",
    "keys_of",
    "load",
    "read_json",
    "run_dir_of",
    "to_json",
]


_LARGEST = 2**31 - 1  # of every whole number: what random keys, array shapes and step counters hold


def defaults(stage: str) -> ConfigDict:
    """The default configuration of a stage, locked: setting a key that it does not have raises AttributeError."""
    tree: dict[str, Any] = {}
    for name, key in keys_of(stage).items():
        *parents, leaf = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = ConfigDict(type_safe=False) if name == "task_args" else key.default
    config = ConfigDict(tree, type_safe=False)  # types are checked by `validate`, with better messages
    config.lock()
    config.task_args.unlock()
    return config


def flatten(tree: Mapping, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; task_args and rewards stay whole."""
    flat = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, (Mapping, ConfigDict)) and path not in FREE:
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
    if stage == "rl" and not (path and path.endswith(".json") and "preset" not in dict(pairs)):
        _fill_in_preset(config, {**dict(pairs), **(set_keys or {})}, flatten(tree))
    validate(config)
    return config


def _fill_in_preset(config: ConfigDict, given: Mapping[str, Any], in_file: Mapping[str, Any]) -> None:
    """Set the keys of config.preset.

    What the command line sets stays. So does what a file sets, if the file names the preset, too; a preset of the
    command line goes before a file. (A run's config.json holds the values themselves: nothing is left to fill in.)
    """
    own = keys_of(config.stage)
    for name, value in preset_values(config.preset, config.max_completion_length).items():
        changed = name in in_file and in_file[name] != own[name].default and "preset" not in given
        if name not in given and not changed:
            _assign(config, name, value, f"preset {config.preset}")


def from_file(path: str) -> ConfigDict:
    """The configuration that a Python file's get_config() returns, for a file that changes a few keys of another.

    Args:
      path: of the other file; `beside(__file__, "name.py")` for one in the same directory.
    """
    tree, _ = _read_file(path)
    config = defaults(tree["stage"])
    for name, value in flatten(tree).items():
        _assign(config, name, value, path)
    return config


def beside(file: str, name: str) -> str:
    """Path of `name` in the directory of `file`."""
    return str(epath.Path(file).parent / name)


def read_json(path) -> Any:
    """The content of a JSON file.

    Raises:
      InputError: it is not JSON, or not UTF-8; names the line.
    """
    try:
        return json.loads(epath.Path(path).read_text())
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (UnicodeDecodeError, RecursionError):
        raise InputError(f"{path}: not a JSON text in UTF-8") from None


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
        tree = read_json(file)
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
    except (Exception, SystemExit) as error:  # whatever a user's file raises becomes one line that names its line
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if os.path.abspath(frame.filename) == os.path.abspath(path)
        ]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else 1)
        raise InputError(f"{path}:{line}: {_message(error)}") from None


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "it ends the process (sys.exit); a configuration file returns a ConfigDict"
    if isinstance(error, (AttributeError, KeyError)):  # ConfigDict lists all fields, over many lines
        found = re.search(r'Key "(\w+)" does not exist|instead of "(\w+)"', str(error))
        if found:
            unknown = found[1] or found[2]
            if known := elsewhere(unknown):
                return f"unknown key {unknown!r}: {known}"
            return f"unknown key {unknown!r}{nearest(unknown, {name.rpartition('.')[2] for name in KEYS})}"
    return first_line(error)


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
        hint = "; items over the length limit follow too_long" if name == "overlong" else ""
        raise InputError(f"{where}: {name!r} is a group of keys: set {members}{hint}")
    if known := elsewhere(name):
        raise InputError(f"{where}: unknown key {name!r}: {known}")
    raise InputError(f"{where}: unknown key {name!r}{nearest(name, KEYS)}")


def _assign(config: ConfigDict, name: str, value: Any, where: str) -> None:
    key = _lookup(name, config.stage, where)
    if name == "task_args":
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: task_args={value!r}: expected a mapping of the Task's arguments")
        for argument, given in value.items():
            try:
                json.dumps(given)
            except (TypeError, ValueError):
                raise InputError(
                    f"{where}: task_args.{argument}={given!r}: expected a text, number, list or mapping, which the "
                    f"run's config.json can keep; got {type(given).__name__}"
                ) from None
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
        if name in FREE:
            return json.loads(text)
        if key.type is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if key.type is tuple:
            return _parts(text)
        return key.type(text)
    except (ValueError, KeyError):
        expected = {bool: "true or false", int: "a whole number", float: "a number"}.get(key.type, "JSON")
        raise InputError(f"--config.{name}={text}: expected {expected}") from None


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.strip("()[]").split(",") if part.strip())


def _check(name: str, key: Key, value: Any, where: str) -> Any:
    """A value of the right type and range, or InputError."""
    if value is None and key.optional:
        return None
    if key.type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if key.type is tuple and isinstance(value, list):
        value = tuple(value)
    if key.type is tuple and isinstance(value, str) and name not in FREE:
        value = _parts(value)
    if name == "kl_clamp":
        value = _two_numbers(name, value, where)
    if not isinstance(value, key.type) or (key.type is int and isinstance(value, bool)):
        raise InputError(f"{where}: {name}={value!r}: expected {key.type.__name__}, got {type(value).__name__}")
    if key.choices and value not in key.choices:
        raise InputError(f"{where}: {name}={value!r}{nearest(str(value), key.choices)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}: {name}={value!r}: expected a finite number")
    if key.minimum is not None and value < key.minimum:
        raise InputError(f"{where}: {name}={value!r}: must be at least {key.minimum}")
    maximum = _LARGEST if key.maximum is None and key.type is int else key.maximum
    if maximum is not None and value > maximum:
        raise InputError(f"{where}: {name}={value!r}: must be at most {maximum}")
    return value


def _two_numbers(name: str, value: Any, where: str) -> tuple[float, float]:
    try:
        first, second = (float(part) for part in value)
    except (TypeError, ValueError):
        first = second = math.nan
    if not (0 < first < math.inf and 0 < second < math.inf):
        raise InputError(f"{where}: {name}={value!r}: expected two positive numbers, as 20,10")
    return first, second


def _parse_task_arg(task_path: str, name: str, text: str) -> Any:
    """Text -> a value of the type that the Task's signature gives its argument `name`."""
    where = f"--config.task_args.{name}"
    parameters = parameters_of(import_object(task_path))
    if name not in parameters and "**" not in parameters:
        raise InputError(f"{where}: {task_path} takes no argument {name!r}{nearest(name, parameters)}")
    annotation = parameters[name].annotation if name in parameters else inspect.Parameter.empty
    kinds = alternatives(annotation)
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    if str in kinds:
        return text
    try:
        value = {"True": True, "False": False}[text] if text in ("True", "False") else json.loads(text)
    except (ValueError, RecursionError):
        value = text
    check_type(value, annotation, where)
    return value


def validate(config: ConfigDict) -> None:
    """Relations between keys.

    Raises:
      InputError: naming the keys.
    """
    if config.model.num_heads % config.model.num_kv_heads:
        raise InputError(
            f"model.num_heads={config.model.num_heads} is not a multiple of "
            f"model.num_kv_heads={config.model.num_kv_heads}"
        )
    if config.model.head_dim % 2:
        raise InputError(f"model.head_dim={config.model.head_dim}: must be even (rotary embedding)")
    if [config.mesh.data, config.mesh.fsdp, config.mesh.tensor].count(-1) > 1:
        raise InputError("mesh: at most one axis can be -1 (the rest)")
    if 0 in (config.mesh.data, config.mesh.fsdp, config.mesh.tensor):
        raise InputError("mesh: an axis must be a positive number, or -1 for the rest")
    if config.stage == "rl":
        if config.aggregation == "constant" and config.constant is None:
            raise InputError(
                "aggregation=constant needs the key constant (tokens per row, for example max_completion_length)"
            )
        if config.aggregation != "constant" and config.constant is not None:
            raise InputError(
                f"constant={config.constant} is read only with aggregation=constant, here it is {config.aggregation}"
            )
        if config.prompts_per_update and config.prompts_per_step % config.prompts_per_update:
            raise InputError(
                f"prompts_per_step={config.prompts_per_step} is not a multiple of "
                f"prompts_per_update={config.prompts_per_update}"
            )
        if config.overlong.buffer > config.max_completion_length:
            raise InputError(
                f"overlong.buffer={config.overlong.buffer} is more than "
                f"max_completion_length={config.max_completion_length}"
            )
        for unread, value, default, reader in (
            ("overlong.penalty", config.overlong.penalty, 1.0, "overlong.buffer"),
            ("dynamic_sampling.filter", config.dynamic_sampling.filter, "raw", "dynamic_sampling.max_rounds"),
            ("kl_clamp", config.kl_clamp, None, "kl_coef"),
        ):
            if value != default and not flatten(config)[reader]:
                raise InputError(f"{unread}={value!r} is read only with {reader}, which is 0")
    if bool(config.keep_best) != bool(config.best_metric):
        raise InputError(
            f"keep_best={config.keep_best} and best_metric={config.best_metric!r}: one says how many checkpoints, the "
            "other of what; set both or none"
        )
    if not config.num_steps and not config.num_epochs:
        raise InputError("num_steps and num_epochs are both 0: there is nothing to train")


def run_dir_of(config: ConfigDict) -> str:
    """The run directory: `run_dir`, or runs/STAGE."""
    return config.run_dir or f"runs/{config.stage}"


def to_json(config: ConfigDict) -> str:
    """The resolved configuration as indented JSON, keys sorted."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True, default=list) + "\n"
