"""Conditions of rules: tests of step labels joined by every, any and not, in three truth values.

A label may be missing, so a condition is false, unknown or true (0, 1, 2): `every` is the least of its parts, `any` the
most, `not` the mirror image (Kleene's logic). The same functions work on numbers and on arrays of them.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any as Truth

FALSE, UNKNOWN, TRUE = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Test:
    """The step's label is one of `labels`."""

    step: str
    labels: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.step} = {' or '.join(self.labels)}"


@dataclasses.dataclass(frozen=True)
class Every:
    """All parts hold."""

    parts: tuple["Condition", ...]

    def __str__(self) -> str:
        return " and ".join(_inner(part) for part in self.parts)


@dataclasses.dataclass(frozen=True)
class Any:
    """At least one part holds."""

    parts: tuple["Condition", ...]

    def __str__(self) -> str:
        return " or ".join(_inner(part) for part in self.parts)


@dataclasses.dataclass(frozen=True)
class Not:
    """The part does not hold."""

    part: "Condition"

    def __str__(self) -> str:
        return f"not ({self.part})"


Condition = Test | Every | Any | Not


def _inner(part: Condition) -> str:
    # A test of several labels reads "step = a or b", which needs brackets within a longer sentence.
    plain = isinstance(part, Not) or (isinstance(part, Test) and len(part.labels) == 1)
    return str(part) if plain else f"({part})"


def truth(
    condition: Condition,
    of_test: Callable[[Test], Truth],
    least: Callable[[Truth, Truth], Truth] = min,
    most: Callable[[Truth, Truth], Truth] = max,
) -> Truth:
    """FALSE, UNKNOWN or TRUE, given those of the tests.

    Args:
      of_test: the truth of one test; a number, or an array where `least` and `most` take arrays.
    """
    match condition:
        case Test():
            return of_test(condition)
        case Not():
            return TRUE - truth(condition.part, of_test, least, most)
        case Every():
            return functools.reduce(least, [truth(part, of_test, least, most) for part in condition.parts])
        case Any():
            return functools.reduce(most, [truth(part, of_test, least, most) for part in condition.parts])


def tests(condition: Condition) -> Iterator[Test]:
    """The tests of a condition, from left to right."""
    match condition:
        case Test():
            yield condition
        case Not():
            yield from tests(condition.part)
        case _:
            for part in condition.parts:
                yield from tests(part)
