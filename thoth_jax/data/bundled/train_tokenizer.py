"""Trains the bundled tokenizer again, after a change of the texts or of the prompts.

Command: python -m thoth_jax.data.bundled.train_tokenizer
"""

import pathlib
from collections.abc import Iterator

from thoth_jax.data import bundled
from thoth_jax.models.tokenizer import train_sentencepiece
from thoth_jax.protocol import prompts, schema

VOCAB_SIZE = 1024
SEED = 0


def texts() -> Iterator[str]:
    """All that the bundled runs read or write: documents, chat turns and answers."""
    yield from schema.read_documents(bundled.path("protocols.jsonl"))[0]
    for item in schema.read_items(bundled.path("items.jsonl")).items:
        yield from (message["content"] for message in prompts.messages(item))
        yield item.answer


def train(path: pathlib.Path) -> None:
    """Write the tokenizer to `path`; the same texts give the same bytes."""
    train_sentencepiece(texts(), path, VOCAB_SIZE, SEED)


if __name__ == "__main__":
    target = bundled.path("tokenizer.model")
    train(target)
    print(f"wrote {target} ({target.stat().st_size} bytes)")
