"""What runs read of the bundled corpus: items and documents of a split, redrawn items, drills."""

import functools
import itertools

from thoth_jax.data import bundled
from thoth_jax.data.builder import Corpus, bundle, corpus_of, drills, read_sources, redrawn_items
from thoth_jax.errors import InputError, nearest
from thoth_jax.models.tokenizer import load_tokenizer
from thoth_jax.protocol.schema import ProtocolItem, Row, item_of, protocol_of, read_rows

# task_args.pool -> the training protocols that are meant.
POOLS = {"sft": ("train",), "rl": ("rl",), "all": ("train", "rl")}
# What a trainer or a user may ask for -> splits of the corpus; "train" depends on the pool.
_HELD_OUT = {"eval": ("validation",), "validation": ("validation",), "test": ("test",)}
# Held-out drills: enough for a loss.
_EVAL_DRILLS = 200


def splits_of(split: str, pool: str) -> tuple[str, ...]:
    """The corpus splits behind "train", "eval" (the same as "validation") or "test".

    Raises:
      InputError: no such pool. ValueError: no such split.
    """
    if pool not in POOLS:
        raise InputError(f"task_args.pool={pool!r}{nearest(pool, POOLS)}")
    if split == "train":
        return POOLS[pool]
    if split not in _HELD_OUT:
        raise ValueError(f"split {split!r}: there are train, {', '.join(_HELD_OUT)}")
    return _HELD_OUT[split]


def items(names: tuple[str, ...]) -> list[ProtocolItem]:
    """The shipped items of some corpus splits."""
    return [item for item, split in _rows("items.jsonl") if split in names]


def subtasks() -> list[ProtocolItem]:
    """The rows of the smaller SFT tasks, all of protocols that SFT trains on."""
    return [item for item, _ in _rows("subtasks.jsonl")]


def documents(names: tuple[str, ...], count: int, seed: int) -> list[str | tuple[str, str]]:
    """The metadata records of some corpus splits as texts, with drills made of their steps (given, wanted) among them.

    Args:
      count: of drills; of held-out splits at most 200.
      seed: of the drills.
    """
    path = bundled.path("protocols.jsonl")
    rows = [row for row in read_rows(path).rows if row.data["split"] in names]
    texts = [protocol_of(row.data, f"{path}:{row.line}").document() for row in rows]
    if not count:
        return texts
    held_out = not set(names) <= set(POOLS["all"])
    made = drills(_corpus().of(*names), min(count, _EVAL_DRILLS) if held_out else count, seed)
    # Texts and drills take turns, so that every beginning holds both.
    paired = itertools.zip_longest(texts, made)
    return [document for pair in paired for document in pair if document is not None]


def redrawn(names: tuple[str, ...], count: int, seed: int) -> list[ProtocolItem]:
    """`count` fresh variants of some corpus splits; the same seed gives the same."""
    corpus, tokenizer = _corpus(), load_tokenizer(bundled.path("tokenizer.model"))
    drawn = redrawn_items(corpus, names, seed, lambda text: len(tokenizer.encode_answer(text)))
    rows = (bundle.item_row(corpus, item) for item in itertools.islice(drawn, count))
    return [item_of(Row(0, row, 0), row["id"]) for row in rows]


@functools.cache
def _corpus() -> Corpus:
    return corpus_of(read_sources(bundled.source_directory(), check=False))


@functools.cache
def _rows(name: str) -> list[tuple[ProtocolItem, str]]:
    path = bundled.path(name)
    return [(item_of(row, f"{path}:{row.line}"), row.data.get("split", "train")) for row in read_rows(path).rows]
