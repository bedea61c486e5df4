"""The steps of many answers as flat arrays: every string once, and numbers that say which step and row holds it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from thoth_jax.protocol.grammar import Step


class Numbering(dict):
    """Text -> a number of its own, given when the text is first asked for."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number


class Columns(NamedTuple):
    """The steps of R rows, N in all; their order says nothing, `row` and `position` do.

    Strings are numbers into `texts`, which may hold one text twice. int64 throughout.
    """

    texts: list[str]
    count: np.ndarray  # [R] steps of each row
    row: np.ndarray  # [N]
    position: np.ndarray  # [N] from 0, in the row
    action: np.ndarray  # [N]
    object_step: np.ndarray  # [objects] which of the N steps
    object: np.ndarray  # [objects]
    parameter_step: np.ndarray  # [parameters]
    parameter: np.ndarray  # [parameters]


def columns_of(rows: Sequence[Sequence[Step]]) -> Columns:
    """The steps of R rows.

    >>> columns = columns_of([[Step("mix", ("agar", "water"), ("1 min",))], []])
    >>> columns.count.tolist(), columns.object.tolist(), columns.texts
    ([1, 0], [1, 2], ['mix', 'agar', 'water', '1 min'])
    """
    numbers: dict[str, int] = {}
    number = numbers.setdefault
    action, objects, parameters, object_step, parameter_step = [], [], [], [], []
    for step in (step for row in rows for step in row):
        at = len(action)
        action.append(number(step[0], len(numbers)))
        for text in step[1]:
            objects.append(number(text, len(numbers)))
            object_step.append(at)
        for text in step[2]:
            parameters.append(number(text, len(numbers)))
            parameter_step.append(at)
    count = np.fromiter(map(len, rows), np.int64, len(rows))
    row = np.repeat(np.arange(count.shape[0]), count)
    return Columns(
        list(numbers),
        count,
        row,
        places(count),
        *(np.array(values, np.int64) for values in (action, object_step, objects, parameter_step, parameters)),
    )


def joined(one: Columns, other: Columns) -> Columns:
    """The rows of both, those of `other` numbered after those of `one`."""
    texts, steps, rows = len(one.texts), one.row.shape[0], one.count.shape[0]
    return Columns(
        [*one.texts, *other.texts],
        *(
            np.concatenate([first, second + shift])
            for first, second, shift in zip(
                one[1:], other[1:], (0, rows, 0, texts, steps, texts, steps, texts), strict=True
            )
        ),
    )


def renumbered(columns: Columns, rows: np.ndarray, total: int) -> Columns:
    """The same steps in a table of `total` rows: row r becomes rows[r]."""
    count = np.zeros(total, np.int64)
    count[rows] = columns.count
    return columns._replace(count=count, row=rows[columns.row])


def places(count: np.ndarray) -> np.ndarray:
    """0, 1, ... within each owner, for owners of `count` things each, end to end."""
    return ranges(np.zeros(count.shape, np.int64), count)


def ranges(start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """start[0], start[0] + 1, ... (count[0] of them), start[1], ... end to end."""
    first = np.cumsum(count) - count
    return np.repeat(start - first, count) + np.arange(int(count.sum()))
