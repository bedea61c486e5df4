"""Sequences -> rows of one length: several in a row, kept apart by segment ids, positions counted anew in each."""

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Sample:
    """A token sequence and which of its tokens the policy is to learn.

    tokens: [n] token ids; learn: [n] bool, True where predicting this token counts in the loss.
    """

    tokens: np.ndarray
    learn: np.ndarray

    @property
    def width(self) -> int:
        """Places it takes in a row: n tokens make n - 1 (input, target) pairs."""
        return len(self.tokens) - 1


@dataclasses.dataclass(frozen=True)
class Rows:
    """Training rows, all [R, T]: input token, target token, segment id (0 = padding), position, target counts."""

    tokens: np.ndarray
    targets: np.ndarray
    segment_ids: np.ndarray
    positions: np.ndarray
    loss_mask: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at `indices` as a batch."""
        return {field.name: getattr(self, field.name)[indices] for field in dataclasses.fields(self)}


def split_document(tokens: Sequence[int], max_length: int) -> list[Sample]:
    """Cut a document into samples of at most `max_length` pairs; every token but the first is learnt exactly once.

    Neighbouring samples share one token: it is the last target of one and the first input of the next.

    >>> [sample.tokens.tolist() for sample in split_document([1, 2, 3, 4, 5, 6], 2)]
    [[1, 2, 3], [3, 4, 5], [5, 6]]
    """
    tokens = np.asarray(tokens, np.int32)
    samples = []
    for start in range(0, len(tokens) - 1, max_length):
        piece = tokens[start : start + max_length + 1]
        learn = np.ones(len(piece), bool)
        learn[0] = False
        samples.append(Sample(piece, learn))
    return samples


def plan(widths: Sequence[int], length: int, packing: bool = True) -> list[list[int]]:
    """Which samples share a row: best fit in order of falling width. Deterministic.

    Args:
      widths: places that each sample takes, 1 <= width <= length.
      length: places of a row.
      packing: False gives each sample its own row.

    Returns:
      Sample indices of each row.
    """
    if not packing:
        return [[index] for index in range(len(widths))]
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (free places, row), sorted
    for index in sorted(range(len(widths)), key=lambda i: (-widths[i], i)):
        at = bisect.bisect_left(free, (widths[index], -1))
        if at < len(free):
            room, row = free.pop(at)
            rows[row].append(index)
        else:
            room, row = length, len(rows)
            rows.append([index])
        if room > widths[index]:
            bisect.insort(free, (room - widths[index], row))
    return rows


def fill(samples: Sequence[Sample], rows: Sequence[Sequence[int]], length: int) -> Rows:
    """Write samples into rows of `length` places, padded with segment id 0."""
    shape = (len(rows), length)
    out = Rows(
        tokens=np.zeros(shape, np.int32), targets=np.zeros(shape, np.int32), segment_ids=np.zeros(shape, np.int32),
        positions=np.zeros(shape, np.int32), loss_mask=np.zeros(shape, bool),
    )  # fmt: skip
    for row, members in enumerate(rows):
        start = 0
        for segment, index in enumerate(members, start=1):
            sample = samples[index]
            place = slice(start, start + sample.width)
            out.tokens[row, place] = sample.tokens[:-1]
            out.targets[row, place] = sample.tokens[1:]
            out.loss_mask[row, place] = sample.learn[1:]
            out.segment_ids[row, place] = segment
            out.positions[row, place] = np.arange(sample.width)
            start += sample.width
    return out
