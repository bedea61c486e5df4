"""Import by path, and arguments checked against the signature of what they feed."""

import importlib
import importlib.util
import inspect
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from thoth_jax.errors import InputError, nearest


def import_object(path: str) -> Any:
    """Import `module:name`. The module is a dotted name or a Python file, looked up in the working directory first.

    Args:
      path: "package.module:name", "my_file:name" or "some/dir/my_file.py:name".

    Raises:
      InputError: malformed path, no such module, file or name.
    """
    module_name, separator, name = path.partition(":")
    if not separator or not module_name or not name:
        raise InputError(f"import path {path!r}: expected 'module:name' or 'file.py:name'")
    if module_name.endswith(".py"):
        module = _import_file(path, pathlib.Path(module_name))
    else:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not (module_name + ".").startswith(error.name + "."):
                raise  # the user's module exists, something that it imports does not
            raise InputError(
                f"import path {path!r}: no module {module_name!r} (looked in the working directory too)"
            ) from None
    if not hasattr(module, name):
        public = [attribute for attribute in vars(module) if not attribute.startswith("_")]
        raise InputError(f"import path {path!r}: {module_name!r} has no {name!r}{nearest(name, public)}")
    return getattr(module, name)


def _import_file(path: str, file: pathlib.Path):
    if not file.is_file():
        raise InputError(f"import path {path!r}: no file {str(file)!r}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def parameters_of(fn: Callable) -> dict[str, inspect.Parameter]:
    """Keyword parameters that `fn` (a function or a class) takes by name; empty name "**" if it takes any."""
    found = {}
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found["**"] = parameter
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            found[parameter.name] = parameter
    return found


def check_kwargs(fn: Callable, kwargs: Mapping[str, Any], where: str, positional: int = 0) -> None:
    """Refuse keyword arguments that `fn` does not take.

    Args:
      fn: the function or class that `kwargs` feed.
      kwargs: what the configuration gives it.
      where: the configuration key, for the message.
      positional: leading parameters that the caller fills itself and the configuration must not name.

    Raises:
      InputError: an unknown name, with the nearest valid one; or a required parameter that is missing.
    """
    parameters = parameters_of(fn)
    own = dict(list(parameters.items())[positional:])
    if "**" not in own:
        for name in kwargs:
            if name not in own:
                raise InputError(f"{where}.{name}: {fn.__name__} takes no argument {name!r}{nearest(name, own)}")
    for name, parameter in own.items():
        if name != "**" and parameter.default is inspect.Parameter.empty and name not in kwargs:
            raise InputError(f"{where}: {fn.__name__} needs the argument {name!r}")
