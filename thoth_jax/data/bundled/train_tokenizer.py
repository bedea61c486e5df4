"""Trains the bundled tokenizer again, after a change of the sources or of the prompts.

Command: python -m thoth_jax.data.bundled.train_tokenizer
`thoth data build` does the same for all files.
"""

import pathlib

from thoth_jax.data import bundled
from thoth_jax.data.builder import bundle, corpus_of, read_sources


def train(path: pathlib.Path) -> None:
    """Write the tokenizer to `path`; the same texts give the same bytes."""
    bundle.train_tokenizer(corpus_of(read_sources(bundled.source_directory(), check=False)), path)


if __name__ == "__main__":
    target = bundled.path("tokenizer.model")
    train(target)
    print(f"wrote {target} ({target.stat().st_size} bytes)")
