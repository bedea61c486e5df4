"""Steps of a batch -> fixed-shape integer arrays, in one vectorised pass.

Only equality with the gold matters to every kernel, so each gold gets a vocabulary of its own: actions become indices
into it (-1: not in the gold) and the sets of a step become bit masks over it, with the set's true size beside them.
A mask of 32-bit words is as wide as the gold's vocabulary, however long the model's text is.

Shape letters here: B predictions, G golds, S steps (bucketed), W mask words (bucketed).
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from thoth_jax.protocol.columns import Columns, joined, ranges

SETS = ("objects", "object_tokens", "parameters", "parameter_tokens")

# The published evaluator's tokens (its lower-casing is done before).
_TOKEN = re.compile(r"[a-z0-9%µμ\-._]+|\n")


class Steps(NamedTuple):
    """Padded steps of R rows. masks[name] is uint32 [R, S, W], sizes[name] int32 [R, S]; padding has action -1."""

    count: np.ndarray  # [R] int32
    actions: np.ndarray  # [R, S] int32
    masks: dict[str, np.ndarray]
    sizes: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Side:
    """Flat steps of one side: which row and position each has, and the columns of `Steps` as flat arrays."""

    row: np.ndarray
    position: np.ndarray
    count: np.ndarray
    actions: np.ndarray
    masks: dict[str, np.ndarray]
    sizes: dict[str, np.ndarray]

    def pad(self, rows: np.ndarray, length: int, fill: int) -> Steps:
        """The steps of `rows` as padded arrays; `fill` marks the actions of padding."""
        place = np.full(self.count.shape[0], -1, np.int64)
        place[rows] = np.arange(rows.shape[0])
        chosen = place[self.row] >= 0
        at = place[self.row[chosen]], self.position[chosen]
        shape = (bucket(rows.shape[0]), length)

        def spread(column, value=0):
            out = np.full(shape + column.shape[1:], value, column.dtype)
            out[at] = column[chosen]
            return out

        count = np.zeros(shape[0], np.int32)
        count[: rows.shape[0]] = self.count[rows]
        return Steps(
            count,
            spread(self.actions, fill),
            {name: spread(column) for name, column in self.masks.items()},
            {name: spread(column) for name, column in self.sizes.items()},
        )


class Batch(NamedTuple):
    """One kernel call: `rows` are the predictions' numbers in the whole batch; padding rows come after them."""

    rows: np.ndarray  # [b]
    predicted: Steps  # [B, Sp]
    gold: Steps  # [G, Sg]
    gold_row: np.ndarray  # [B] int32 into gold
    # Only where a gold of the call has a partial order: bool [G, Sg, Sg], [g, i, j]: step i must come before step j.
    before: np.ndarray | None = None
    partial: np.ndarray | None = None  # bool [G]: which golds have one


def bucket(size: int, least: int = 8) -> int:
    """The shape that `size` is padded to: 8, 16, 64, 256, ... (or 1, 2, 4, 16, ...)."""
    shape = least
    while shape < size:
        shape *= 2 if shape < 2 * least or shape < 4 else 4
    return shape


def shard(rows, mesh: jax.sharding.Mesh | None):
    """Arrays [B, ...], padded with zeros to a multiple of the mesh's size and sharded over all of its axes.

    Raises:
      ValueError: the mesh has devices of other processes.
    """
    if mesh is None:
        return rows
    if mesh.is_multi_process:
        raise ValueError("mesh: has devices of other processes; score the rows of a process on its own devices")
    sharding = jax.NamedSharding(mesh, jax.P(mesh.axis_names))

    def place(array):
        short = -array.shape[0] % mesh.size
        padded = np.pad(array, [(0, short)] + [(0, 0)] * (array.ndim - 1)) if short else array
        return jax.device_put(padded, sharding)

    return jax.tree.map(place, rows)


def distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values of an integer array, sorted (np.unique hashes first, which is slower here)."""
    ordered = np.sort(values)
    first = np.ones(ordered.shape, bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


# One kernel call holds at most so many predictions, and so many elements of a [B, Sp, Sg] table.
_ROWS = 1024
_TABLE = 1 << 25
# A batch of at most so many padded steps is not worth several shapes.
_SMALL = 1 << 15


def encode(
    predictions: Columns,
    golds: Columns,
    gold_of: np.ndarray,
    canonical: Callable[[list[str]], list[str]],
    after: Sequence[Sequence[Sequence[int]] | None] | None = None,
) -> list[Batch]:
    """Encode B predictions against their golds.

    Args:
      predictions: the steps of B rows; at least one row.
      golds: the steps of G distinct golds.
      gold_of: [B] which gold each prediction has.
      canonical: maps a list of distinct strings to the forms in which they are compared; blank strings are dropped.
      after: [G] the steps that each step of a gold directly follows, None for a gold whose steps follow one another.

    Returns:
      Kernel calls that cover all rows: one for each bucket of predicted steps, more where one would be too large.
    """
    predicted, gold = _sides(predictions, golds, np.asarray(gold_of, np.int64), canonical)
    lengths = np.fromiter(map(bucket, predicted.count), np.int64, predicted.count.shape[0])
    if lengths.max() * lengths.shape[0] <= _SMALL:
        lengths[:] = lengths.max()
    batches = []
    gold_length = bucket(int(gold.count.max(initial=1)))
    for length in np.unique(lengths):
        members = np.nonzero(lengths == length)[0]
        limit = min(_ROWS, max(1, _TABLE // (int(length) * gold_length)))
        for start in range(0, members.shape[0], limit):
            rows = members[start : start + limit]
            used, gold_row = np.unique(gold_of[rows], return_inverse=True)
            steps = predicted.pad(rows, int(length), fill=-1)
            padded_row = np.zeros(steps.count.shape[0], np.int32)
            padded_row[: rows.shape[0]] = gold_row
            golds_used = gold.pad(used, gold_length, fill=-2)
            orders = () if after is None else _orders([after[number] for number in used], golds_used)
            batches.append(Batch(rows, steps, golds_used, padded_row, *orders))
    return batches


def _orders(after, golds: Steps) -> tuple[np.ndarray, np.ndarray] | tuple[()]:
    """`Batch.before` and `Batch.partial`, nothing where no gold has a partial order."""
    if all(steps is None for steps in after):
        return ()
    rows, length = golds.actions.shape
    before = np.zeros((rows, length, length), bool)
    before[:] = np.triu(np.ones((length, length), bool), 1)
    partial = np.zeros(rows, bool)
    for row, steps in enumerate(after):
        if steps is not None:
            partial[row] = True
            before[row] = _closure(steps, length)
    return before, partial


def _closure(after: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """All pairs (i, j), bool [length, length], such that step i must come before step j, directly or not."""
    before = np.zeros((length, length), bool)
    for step, sooner in enumerate(after):
        before[list(sooner), step] = True
    while True:
        further = before | (before.astype(np.float32) @ before.astype(np.float32) > 0)
        if (further == before).all():
            return before
        before = further


def _sides(predicted: Columns, golds: Columns, gold_of, canonical) -> tuple[_Side, _Side]:
    both = joined(predicted, golds)
    steps, split, rows = both.row.shape[0], predicted.row.shape[0], predicted.count.shape[0]
    is_gold = np.arange(steps) >= split
    gold_of_step = np.concatenate([gold_of[predicted.row], golds.row])

    # Every string once: its canonical form's number (-1 for a blank one) and its tokens.
    raw = dict.fromkeys(both.texts)
    names: dict[str, int] = {"": -1}
    for text, form in zip(raw, canonical(list(raw)), strict=True):
        raw[text] = names.setdefault(form, len(names) - 1)
    del names[""]
    form_of = np.fromiter(map(raw.__getitem__, both.texts), np.int64, len(both.texts))
    tokens, token_start = _tokens(list(names))

    flat = {}
    for name, owner, text in (
        ("object", both.object_step, form_of[both.object]),
        ("parameter", both.parameter_step, form_of[both.parameter]),
    ):
        owner, text = owner[text >= 0], text[text >= 0]
        flat[name + "s"] = owner, text
        flat[name + "_tokens"] = expand(owner, text, tokens, token_start)
    masks, sizes = {}, {}
    for name in SETS:
        masks[name], sizes[name] = _bit_sets(*flat[name], gold_of_step, is_gold)
    # An action is the lowest place of its equals in the gold's vocabulary; blank ones (-1) are equal too.
    action = _local(form_of[both.action] + 1, gold_of_step, is_gold)

    def side(chosen, offset, count):
        return _Side(
            both.row[chosen] - offset,
            both.position[chosen],
            count.astype(np.int32),
            action[chosen],
            {name: masks[name][chosen] for name in SETS},
            {name: sizes[name][chosen] for name in SETS},
        )

    return side(slice(None, split), 0, predicted.count), side(slice(split, None), rows, golds.count)


def _tokens(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of all texts end to end, and where each text's begin ([texts + 1])."""
    joined = "\n".join(text.replace("\n", " ") for text in texts)
    found = _TOKEN.findall(joined)
    table = dict.fromkeys(found)
    table.pop("\n", None)
    table = {token: number for number, token in enumerate(table)}
    table["\n"] = -1
    numbers = np.fromiter(map(table.__getitem__, found), np.int64, len(found))
    breaks = np.nonzero(numbers < 0)[0] - np.arange(max(len(texts) - 1, 0))
    kept = numbers[numbers >= 0]
    return kept, np.concatenate([[0], breaks, [kept.shape[0]]]) if texts else np.zeros(1, np.int64)


def expand(owner, text, tokens, start) -> tuple[np.ndarray, np.ndarray]:
    """(owner, text) pairs -> (owner, token) pairs; the tokens of text t are tokens[start[t]:start[t + 1]]."""
    length = start[text + 1] - start[text]
    return np.repeat(owner, length), tokens[ranges(start[text], length)]


def _vocabulary(gold, value, is_gold):
    """Sorted keys of the golds' vocabularies, the stride of a gold in them, and the first key's number of each."""
    stride = int(value.max(initial=0)) + 1
    keys = gold * stride + value
    vocabulary = distinct(keys[is_gold])
    first = np.searchsorted(vocabulary, np.arange(int(gold.max(initial=0)) + 2) * stride)
    return keys, vocabulary, first


def _local(value, gold, is_gold) -> np.ndarray:
    """Index of each value in its gold's vocabulary, -1 where the gold lacks it."""
    keys, vocabulary, first = _vocabulary(gold, value, is_gold)
    if not vocabulary.shape[0]:
        return np.full(value.shape, -1, np.int32)
    at = np.minimum(np.searchsorted(vocabulary, keys), vocabulary.shape[0] - 1)
    return np.where(vocabulary[at] == keys, at - first[gold], -1).astype(np.int32)


def _bit_sets(owner, value, gold_of_step, is_gold_step) -> tuple[np.ndarray, np.ndarray]:
    """Sets given as (step, value) pairs -> masks over the gold's vocabulary [steps, W] and true sizes [steps]."""
    steps = gold_of_step.shape[0]
    stride = int(value.max(initial=0)) + 1
    pairs = distinct(owner * stride + value)
    owner, value = pairs // stride, pairs % stride
    sizes = np.bincount(owner, minlength=steps).astype(np.int32)
    gold = gold_of_step[owner]
    local = _local(value, gold, is_gold_step[owner])
    words = bucket(int(local.max(initial=0)) // 32 + 1, least=1)
    owner, local = owner[local >= 0], local[local >= 0]
    bits = np.ldexp(1.0, local % 32)  # exact in float64; each bit of a word occurs once
    masks = np.bincount(owner * words + local // 32, weights=bits, minlength=steps * words)
    return masks.astype(np.uint32).reshape(steps, words), sizes
