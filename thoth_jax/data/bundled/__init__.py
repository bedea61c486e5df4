"""The corpus that comes with the package, built by data/builder from the YAML files in source/.

protocols.jsonl      metadata records (exp_name, abstract, materials, equipments, procedures, notes), subfield, split
items.jsonl          items of the eight types, in the schema of SciRecipe-Eval with think, note, subfield and split
subtasks.jsonl       rows of the smaller SFT tasks, in the chat layout
checked_numbers.txt  every number with a unit in the steps, and the range that its unit is believed in
tokenizer.model      SentencePiece, trained on the training split

Splits are by protocol: "train" (SFT), "rl" (training, but for RL alone), "validation", "test". `thoth data build`
makes all files again, byte for byte.
"""

import importlib.resources
import pathlib

FILES = ("protocols.jsonl", "items.jsonl", "subtasks.jsonl", "checked_numbers.txt", "tokenizer.model")


def path(name: str) -> pathlib.Path:
    """Where a bundled file lies, in a source tree as in an installed package.

    Args:
      name: one of `FILES`.

    Raises:
      KeyError: another name.
    """
    if name not in FILES:
        raise KeyError(f"no bundled file {name!r}; there are {', '.join(FILES)}")
    return pathlib.Path(str(importlib.resources.files(__name__) / name))


def source_directory() -> pathlib.Path:
    """Where the YAML files of the protocols lie."""
    return pathlib.Path(str(importlib.resources.files(__name__) / "source"))
