"""What the user gave us is wrong: the one exception for it, and the hint that goes with it."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input or configuration.

    The message is one line that says what is wrong, where (file:line, field or key) and what would be right.
    Command-line entry points print it to stderr and exit with code 2.
    """


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, its type's name where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint to append to a message about an unknown name: the closest valid one, else all of them."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; valid: {', '.join(valid)}" if valid else "; there are none"
