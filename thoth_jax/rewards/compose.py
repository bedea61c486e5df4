"""One reward out of several: `config.rewards = [{fn: "module:name" | "task", weight: 1.0, kwargs: {...}}, ...]`.

A reward function is `fn(examples, completions, **kwargs) -> array [B] | list with None | Rewards`. Its kwargs are
checked against its signature, so a typo is refused before training starts.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from thoth_jax.errors import InputError, nearest
from thoth_jax.plugins import check_kwargs, import_object
from thoth_jax.task import Completion, Example, Rewards, Task

_KEYS = ("fn", "weight", "kwargs")


class Part(NamedTuple):
    """A checked spec: `function` is None for the task's own reward."""

    name: str
    function: Callable | None
    weight: float
    kwargs: Mapping[str, Any]


def check_specs(specs: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Import every reward function and check its kwargs.

    Raises:
      InputError: an unknown key or argument (with the nearest name), a function that does not import, a weight that is
        no finite number, or only weights of zero.
    """
    if isinstance(specs, (str, bytes, Mapping)) or not isinstance(specs, Sequence):
        raise InputError("rewards: expected a list of {fn, weight, kwargs}")
    parts = [_part(spec, f"rewards[{index}]") for index, spec in enumerate(specs)]
    if parts and not any(part.weight for part in parts):
        raise InputError("rewards: every weight is 0, nothing would be learnt")
    names = [part.name for part in parts]
    return [
        part._replace(name=f"{part.name}#{index}") if names.count(part.name) > 1 else part
        for index, part in enumerate(parts)
    ]


def _part(spec: Any, where: str) -> Part:
    if not isinstance(spec, Mapping):
        raise InputError(f"{where}: expected a mapping {{fn, weight, kwargs}}, got {type(spec).__name__}")
    for key in spec:
        if key not in _KEYS:
            raise InputError(f"{where}.{key}: unknown key{nearest(str(key), _KEYS)}")
    name, weight, kwargs = spec.get("fn"), spec.get("weight", 1.0), spec.get("kwargs", {})
    if not isinstance(name, str) or not name:
        raise InputError(f"{where}.fn: expected 'task' or an import path 'module:function'")
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        raise InputError(f"{where}.weight: expected a finite number, got {weight!r}")
    if not isinstance(kwargs, Mapping):
        raise InputError(f"{where}.kwargs: expected a mapping, got {type(kwargs).__name__}")
    if name == "task":
        if kwargs:
            raise InputError(f"{where}.kwargs: the task's own reward takes none (its options are task_args)")
        return Part(name, None, float(weight), {})
    function = import_object(name)
    if not callable(function):
        raise InputError(f"{where}.fn: {name!r} is not a function")
    check_kwargs(function, kwargs, f"{where}.kwargs", positional=2)
    return Part(name, function, float(weight), dict(kwargs))


def compose(
    task: Task, specs: Sequence[Mapping[str, Any]], examples: Sequence[Example], completions: Sequence[Completion]
) -> Rewards:
    """Rewards of B completions from the listed parts; the task's own reward if the list is empty.

    `raw` is the weighted sum of the parts' values, `total` that of their totals (they differ where a part returns
    `Rewards` that are shaped already). A row is valid when every part of non-zero weight is valid and finite there; an
    invalid row has a total of 0 and is to be left out, it did not score 0. A part of weight 0 is only logged: whatever
    it returns, it changes nothing. Step rewards are kept when exactly one weighted part has them.

    Args:
      task: gives the part "task".
      specs: see the module's head; or parts that `check_specs` returned.
      examples, completions: [B].

    Raises:
      InputError: as `check_specs`; a part that does not return one value a completion.
    """
    if len(examples) != len(completions):
        raise InputError(f"rewards: {len(examples)} examples but {len(completions)} completions")
    parts = list(specs) if all(isinstance(spec, Part) for spec in specs) else check_specs(specs)
    if not parts:
        return _rewards("task", task.reward(examples, completions), len(completions))
    size = len(completions)
    total, raw = np.zeros(size, np.float32), np.zeros(size, np.float32)
    valid = np.ones(size, bool)
    logged: dict[str, np.ndarray] = {}
    stepped: list[tuple[float, Rewards]] = []
    for part in parts:
        function = functools.partial(part.function, **part.kwargs) if part.function else task.reward
        found = _rewards(part.name, function(examples, completions), size)
        logged[part.name] = np.where(found.valid, found.total, np.nan).astype(np.float32)
        for name, values in found.parts.items():
            logged[f"{part.name}/{name}"] = values
        if not part.weight:
            continue
        total += part.weight * np.where(found.valid, found.total, 0)
        raw += part.weight * np.where(found.valid, found.raw, 0)
        valid &= found.valid
        if found.steps is not None:
            stepped.append((part.weight, found))
    steps = ends = None
    if len(stepped) == 1:
        weight, found = stepped[0]
        steps, ends = weight * found.steps, found.step_char_ends
    return Rewards(np.where(valid, total, 0), logged, valid, np.where(valid, raw, 0), steps, ends)


def _rewards(name: str, found: Any, size: int) -> Rewards:
    """What a part returned as `Rewards` with finite totals; None and NaN entries become invalid rows."""
    if not isinstance(found, Rewards):
        values, valid = _values(name, found, size)
        return Rewards(values, {}, valid, values)
    total, valid = _values(name, found.total, size)
    raw, raw_valid = _values(f"{name} (raw)", found.raw, size)
    given = np.asarray(found.valid)
    if given.shape != (size,):
        raise InputError(f"reward {name!r}: valid has shape {given.shape} for {size} completions")
    parts = {key: _values(f"{name}/{key}", values, size, mark=True)[0] for key, values in found.parts.items()}
    return Rewards(total, parts, valid & raw_valid & given.astype(bool), raw, found.steps, found.step_char_ends)


def _values(name: str, found: Any, size: int, mark: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Float32 [size] and where it is a finite number; elsewhere it is 0, or NaN with `mark`."""
    if found is None or isinstance(found, (str, bytes)) or not hasattr(found, "__len__"):
        raise InputError(f"reward {name!r}: expected {size} numbers, one a completion, got {type(found).__name__}")
    if len(found) != size:
        raise InputError(f"reward {name!r}: {len(found)} values for {size} completions")
    if isinstance(found, (list, tuple)):
        found = [math.nan if value is None else value for value in found]
    try:
        values = np.asarray(found, np.float32)
    except (TypeError, ValueError):
        raise InputError(f"reward {name!r}: expected {size} numbers, one a completion") from None
    if values.shape != (size,):
        raise InputError(f"reward {name!r}: values have shape {values.shape}, expected ({size},)")
    finite = np.isfinite(values)
    return np.where(finite, values, np.float32(math.nan if mark else 0)), finite
