"""The sample that comes with the package: ten protocols, ten items and a tokenizer trained from them.

protocols.jsonl   ten metadata records: exp_name, abstract, materials, equipments, procedures, notes
items.jsonl       ten items: id, type, level, split ("train" 8, "eval" 2), question, think, key, orc, note, action
source/           structured protocols in YAML, from which data/builder makes items (a corpus under way)
tokenizer.model   SentencePiece, trained from the two files by `python -m thoth_jax.data.bundled.train_tokenizer`
"""

import importlib.resources
import pathlib

FILES = ("protocols.jsonl", "items.jsonl", "tokenizer.model")


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
    """Where the YAML files of the structured protocols lie."""
    return pathlib.Path(str(importlib.resources.files(__name__) / "source"))
