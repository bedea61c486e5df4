"""Decision procedures of risk-of-bias tools as data: signalling questions, their labels, and what the labels decide.

A domain is an ordered list of rules over its steps; the first that holds decides. RoB 1 and EPOC are decision lists, in
which each rule looks at one step; RoB 2 has conditions over several and questions that are asked only in some cases. A
user's own table is a file of the same form (docs/vprm_tools.md).

    >>> load("rob1").domain("A").verdict({"Identify_randomization_report": "not_reported"})
    'moderate'
    >>> load("rob2").domain("D2", effect="assignment").verdict({"2.1": "N", "2.2": "PN", "2.6": "Y"})
    'low'
"""

import functools
import importlib.resources
import os

from thoth_jax.errors import InputError, nearest
from vprm_jax.tools.model import SOURCES, VERDICTS, Decision, Domain, Part, Rule, Step, Tool, fold, steps_of
from vprm_jax.tools.reading import parse_tool, read_tool

TOOLS = ("rob1", "epoc", "rob2")

__all__ = [
    "SOURCES",
    "TOOLS",
    "VERDICTS",
    "Decision",
    "Domain",
    "Part",
    "Rule",
    "Step",
    "Tool",
    "fold",
    "load",
    "parse_tool",
    "read_tool",
    "steps_of",
]


def load(name) -> Tool:
    """A tool by name (rob1, epoc, rob2), or a user's own by the path of its .yaml or .json file.

    Raises:
      InputError: no such tool; a file that breaks a rule of the format, with file and line.
    """
    path = os.fspath(name) if isinstance(name, (str, os.PathLike)) else str(name)
    if path in TOOLS:
        return _built_in(path)
    if os.sep in path or path.endswith((".yaml", ".yml", ".json")):
        return read_tool(path)
    raise InputError(f"no tool {path!r}{nearest(path, TOOLS)} (or the path of a .yaml or .json file)")


@functools.cache
def _built_in(name: str) -> Tool:
    text = (importlib.resources.files(__name__) / f"{name}.json").read_text(encoding="utf-8")
    return parse_tool(text, f"{name}.json")
