"""Import by path, and arguments checked against the signature of what they feed; what user code raises, in one line."""

import importlib
import importlib.util
import inspect
import os
import pathlib
import sys
import sysconfig
import traceback
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thoth_jax.errors import InputError, first_line, nearest

# Files of the user's that were imported by path: an exception that passes through one of them is the user's to mend.
_user_files: set[str] = set()


def import_object(path: str) -> Any:
    """Import `module:name`. The module is a dotted name or a Python file, looked up in the working directory first.

    Args:
      path: "package.module:name", "my_file:name" or "some/dir/my_file.py:name".

    Raises:
      InputError: malformed path, no such module, file or name; or the module raises while it is imported.
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
                raise _import_failed(path, error) from error  # the module exists, something that it imports does not
            raise InputError(
                f"import path {path!r}: no module {module_name!r} (looked in the working directory too)"
            ) from None
        except (Exception, SystemExit) as error:
            raise _import_failed(path, error) from error
    _remember(module)
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
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(file.stem, None)
        raise _import_failed(path, error) from error
    return module


def _remember(module: types.ModuleType) -> None:
    if getattr(module, "__file__", None) and module.__name__.partition(".")[0] not in ("thoth_jax", "vprm_jax"):
        _user_files.add(os.path.abspath(module.__file__))


def _import_failed(path: str, error: BaseException) -> InputError:
    return InputError(f"import path {path!r}: {_where(error, _no_library)}{_what(error)}")


def _where(error: BaseException, mine: Callable[[str], bool]) -> str:
    """ "file:line: " of the last frame in a file that is `mine`, or ""."""
    if isinstance(error, SyntaxError) and error.filename and mine(error.filename):
        return f"{error.filename}:{error.lineno}: "
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if mine(frame.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}: " if own else ""


def _no_library(filename: str) -> bool:
    """Neither Python's, nor an installed package's, nor ours."""
    libraries = [*sysconfig.get_paths().values(), os.path.dirname(__file__)]
    return os.path.isfile(filename) and not any(filename.startswith(directory + os.sep) for directory in libraries)


def _what(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}" if str(error).strip() else type(error).__name__


def user_error(error: BaseException) -> str | None:
    """ "file:line: Type: message" of an exception that passed through code that was imported by path, else None."""
    where = _where(error, lambda filename: os.path.abspath(filename) in _user_files)
    return f"{where}{_what(error)}" if where else None


def parameters_of(fn: Callable) -> dict[str, inspect.Parameter]:
    """Parameters that `fn` (a function or a class) takes by name; one named "**" if it takes any.

    Raises:
      InputError: `fn` cannot be called, or has no signature (some functions written in C).
    """
    found = {}
    try:
        signature = inspect.signature(fn, eval_str=True)
    except NameError:  # an annotation that only a type checker can resolve
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        raise InputError(f"{_name(fn)}: expected a function or a class that is written in Python") from None
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found["**"] = parameter
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            found[parameter.name] = parameter
    return found


def check_kwargs(fn: Callable, kwargs: Mapping[str, Any], where: str, positional: int = 0) -> None:
    """Refuse keyword arguments that `fn` does not take, by name or by type.

    Args:
      fn: the function or class that `kwargs` feed.
      kwargs: what the configuration gives it.
      where: the configuration key, for the message.
      positional: leading parameters that the caller fills itself and the configuration must not name.

    Raises:
      InputError: an unknown name, with the nearest valid one; a required parameter that is missing; a value that its
        annotation rules out (see `check_type`).
    """
    parameters = parameters_of(fn)
    own = dict(list(parameters.items())[positional:])
    if "**" not in own:
        for name in kwargs:
            if name not in own:
                raise InputError(f"{where}.{name}: {_name(fn)} takes no argument {name!r}{nearest(name, own)}")
    for name, parameter in own.items():
        if name != "**" and parameter.default is inspect.Parameter.empty and name not in kwargs:
            raise InputError(f"{where}: {_name(fn)} needs the argument {name!r}")
    for name, value in kwargs.items():
        if name in own:
            check_type(value, own[name].annotation, f"{where}.{name}")


def check_type(value: Any, annotation: Any, where: str) -> None:
    """Refuse a value that an annotation rules out: plain types, unions of them, mappings and sequences are checked.

    Raises:
      InputError: naming `where`, the value, and what would be right.
    """
    if not _fits(value, annotation):
        raise InputError(f"{where}={value!r}: expected {_type_name(annotation)}, got {type(value).__name__}")


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value may be given; an annotation of another kind lets all pass."""
    for kind in alternatives(annotation):
        plain = typing.get_origin(kind) or kind
        if plain in (None, type(None)):
            fits = value is None
        elif plain is float:
            fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        elif plain is int:
            fits = isinstance(value, int) and not isinstance(value, bool)
        elif plain in (str, bool):
            fits = isinstance(value, plain)
        elif plain in (dict, Mapping):
            fits = isinstance(value, Mapping)
        elif plain in (list, tuple, Sequence):
            fits = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        else:
            return True
        if fits:
            return True
    return False


def _type_name(annotation: Any) -> str:
    names = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", type(None): "null"}
    names |= {dict: "a mapping", Mapping: "a mapping"}
    plain = [typing.get_origin(kind) or kind for kind in alternatives(annotation)]
    return " or ".join(names.get(kind, "a list") for kind in plain)


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", None) or repr(fn)
