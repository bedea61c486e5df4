"""YAML and JSON as texts, lists and mappings that know their line.

Scalars stay texts, so that the labels yes and no are no booleans and a step 1.10 is not the number 1.1; a key given
twice, an anchor and a document nested without end are refused. JSON is read as the YAML that it is.
"""

import json

import yaml
from etils import epath

from thoth_jax.errors import InputError

# The loader in C where PyYAML was built with it; both read the same. It builds nothing but nodes.
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_LONGEST = 1_000_000
_DEEPEST = 60


class Text(str):
    """A scalar; `where` is file:line."""

    where: str = ""


class Items(list):
    """A sequence; `where` is file:line."""

    where: str = ""


class Fields(dict):
    """A mapping; `where` is file:line, `at` gives that of each key."""

    where: str = ""
    at: dict[str, str]


def read_file(path) -> Text | Items | Fields:
    """The content of a .yaml, .yml or .json file.

    Raises:
      InputError: no such file, not readable as what its name says, or too large.
    """
    file = epath.Path(path)
    if file.suffix not in (".yaml", ".yml", ".json"):
        raise InputError(f"{path}: expected a file .yaml, .yml or .json")
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        return parse(data.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 (byte {error.start + 1})") from None


def parse(text: str, name: str) -> Text | Items | Fields:
    """The content of a text.

    Args:
      name: the file's name, for messages; JSON if it ends so.

    Raises:
      InputError: as `read_file`, with the line.
    """
    if len(text) > _LONGEST:
        raise InputError(f"{name}: is longer than {_LONGEST} characters")
    if name.endswith(".json"):
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"{name}:{error.lineno}: broken JSON: {error.msg}") from None
        except RecursionError:
            raise InputError(f"{name}: is nested too deeply") from None
        text = text.replace("\t", " ")  # YAML allows none between tokens, and JSON none within its strings
    try:
        _check_nesting(text, name)
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not readable"
        raise InputError(f"{name}{line}: broken YAML: {problem}") from None
    if node is None:
        raise InputError(f"{name}: is empty")
    return _content(node, name)


def _check_nesting(text: str, name: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise InputError(f"{name}:{line}: aliases (*name) are not read; write it out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise InputError(f"{name}:{line}: is nested too deeply")


def _content(node: yaml.Node, name: str) -> Text | Items | Fields:
    where = f"{name}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        # JSON writes characters beyond the first plane as two escapes.
        found = Text(node.value.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    elif isinstance(node, yaml.SequenceNode):
        found = Items(_content(value, name) for value in node.value)
    else:
        found = Fields()
        found.at = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise InputError(f"{name}:{line}: a key must be a text")
            key = str(_content(key_node, name))
            if key in found:
                raise InputError(f"{name}:{line}: {key!r} is given twice")
            found[key] = _content(value_node, name)
            found.at[key] = f"{name}:{line}"
    found.where = where
    return found
