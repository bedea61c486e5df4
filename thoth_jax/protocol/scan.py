"""Many answers at once: the steps and orc words of a batch as flat arrays, and why an answer was refused.

`grammar.parse` says what an answer is. Most answers are spelled exactly as `grammar.render` spells them; their key
blocks are cut at the quotation marks, and what stands between the strings is checked for the whole batch in a few array
operations, since reading line by line costs more than all of the reward. What is not spelled so goes to `parse`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from thoth_jax.protocol import grammar
from thoth_jax.protocol.columns import Columns, Numbering, columns_of, joined, places, ranges, renumbered


class Answers(NamedTuple):
    """What B answers hold.

    orc_step says which of the steps a word belongs to; words of orc lines that no key line goes with are only counted.
    """

    columns: Columns  # of all B rows; a refused answer has no steps
    words: list[str]  # white-space words of the orc lines, without `Step n:`
    orc_step: np.ndarray  # [words] int64
    orc_words: np.ndarray  # [B] int64
    orc_lines: np.ndarray  # [B] int64
    parsed: np.ndarray  # [B] bool
    reasons: list[str]  # [B] as in `grammar.Parsed`, "" where there is none
    sketches: list[grammar.Sketch | None]  # [B] of the answers that were read one by one


def read_answers(texts: Sequence[str], *, salvage: bool = False, one_by_one: bool = False, **flags: bool) -> Answers:
    """Read B answers.

    Args:
      texts: anything.
      salvage: an answer that is refused is read with `grammar.salvage`; its reason is kept only if that fails.
      one_by_one: read all with `grammar.parse`, so that there are sketches.
      flags: of `grammar.parse`.
    """
    size = len(texts)
    usual, rest = (None, range(size)) if one_by_one else _read_usual(texts)
    sketches: list[grammar.Sketch | None] = [None] * size
    reasons = [""] * size
    known: dict[str, grammar.Step] = {}  # samples of one prompt share many lines
    words, word_count, read = [], [], []
    for row in rest:
        sketch, reason, _ = grammar.parse(texts[row], known=known, **flags)
        if sketch is None and salvage:
            sketch = grammar.salvage(texts[row])
        if sketch is None:
            reasons[row] = reason
            continue
        sketches[row] = sketch
        read.append(row)
        for sentence in sketch.orc:
            own = sentence.split()
            words += own
            word_count.append(len(own))
    slow = _sketched([sketches[row] for row in read], np.array(read, np.int64), words, word_count, size, sketches)
    slow = slow._replace(reasons=reasons)
    return slow if usual is None else _both(usual, slow)


def _sketched(sketches, rows: np.ndarray, words: list[str], word_count: list[int], size: int, kept) -> Answers:
    columns = columns_of([sketch.steps for sketch in sketches])
    lines = np.fromiter((len(sketch.orc) for sketch in sketches), np.int64, len(sketches))
    count = np.array(word_count, np.int64)
    line_row, line = np.repeat(np.arange(lines.shape[0]), lines), places(lines)
    step = np.where(line < columns.count[line_row], (np.cumsum(columns.count) - columns.count)[line_row] + line, -1)
    return Answers(
        renumbered(columns, rows, size),
        words,
        np.repeat(step, count),
        _spread(rows, np.bincount(line_row, count, lines.shape[0]).astype(np.int64), size),
        _spread(rows, lines, size),
        _spread(rows, np.ones(rows.shape[0], bool), size),
        [],
        kept,
    )


def _spread(rows: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    found = np.zeros(size, values.dtype)
    found[rows] = values
    return found


def _both(one: Answers, other: Answers) -> Answers:
    """Two readings of different rows of the same batch."""
    shifted = np.where(other.orc_step < 0, -1, other.orc_step + one.columns.row.shape[0])
    return Answers(
        _merged(one.columns, other.columns),
        one.words + other.words,
        np.concatenate([one.orc_step, shifted]),
        one.orc_words + other.orc_words,
        one.orc_lines + other.orc_lines,
        one.parsed | other.parsed,
        other.reasons,
        other.sketches,
    )


# The JSON keys while a block is cut: characters that no string is accepted with.
_ACTION, _OBJECTS, _PARAMETERS = "\x01", "\x02", "\x03"
# What stands between the strings of a key block: before a further string of a list, before the first object, before the
# first parameter after objects and after none.
_FURTHER, _OBJECT, _PARAMETER, _PARAMETER_ONLY = 1, 2, 3, 4
# A boundary: 100 times how the step before ends, plus the number of the step that begins, 0 at the end of the block.
_WITH_PARAMETERS, _OBJECTS_ONLY, _ACTION_ONLY = 1, 2, 3
_BOUNDARY = 100
_MOST = 99


class _Glue(dict):
    def __missing__(self, text: str) -> int:
        return 0


def _glue() -> _Glue:
    codes = _Glue()
    codes[", "] = _FURTHER
    codes[f", {_OBJECTS}["] = _OBJECT
    codes[f"], {_PARAMETERS}["] = _PARAMETER
    codes[f", {_OBJECTS}[], {_PARAMETERS}["] = _PARAMETER_ONLY
    codes[f"Step 1: {{{_ACTION}"] = codes[f"\nStep 1: {{{_ACTION}"] = _BOUNDARY + 1
    for kind, close in (
        (_WITH_PARAMETERS, "]"),
        (_OBJECTS_ONLY, f"], {_PARAMETERS}[]"),
        (_ACTION_ONLY, f", {_OBJECTS}[], {_PARAMETERS}[]"),
    ):
        codes[f"{close}}}"] = codes[f"{close}}}\n"] = kind * _BOUNDARY
        for number in range(2, _MOST + 1):
            codes[f"{close}}}\nStep {number}: {{{_ACTION}"] = kind * _BOUNDARY + number
    return codes


_GLUE = _glue()


class _Blocks:
    """Key blocks cut at their quotation marks, many end to end."""

    def __init__(self):
        self._glue: list[str] = []
        self._strings: list[str] = []
        self._string_count: list[int] = []

    def cut(self, key: str) -> bool:
        """Take a block; False: it cannot be spelled as usual and was not taken."""
        if _ACTION in key or _OBJECTS in key or _PARAMETERS in key or "\\" in key:
            return False
        key = key.replace('"action": ', _ACTION).replace('"objects": ', _OBJECTS)
        pieces = key.replace('"parameters": ', _PARAMETERS).split('"')
        if len(pieces) % 2 == 0:
            return False
        self._glue += pieces[0::2]
        self._strings += pieces[1::2]
        self._string_count.append(len(pieces) // 2)
        return True

    def steps(self, line_count: Sequence[int] | None = None) -> tuple[Columns, np.ndarray]:
        """The steps of the blocks taken, and which of them are as usual (and have so many steps)."""
        numbers = Numbering()
        strings = np.fromiter(map(numbers.__getitem__, self._strings), np.int64, len(self._strings))
        codes = np.fromiter(map(_GLUE.__getitem__, self._glue), np.int64, len(self._glue))
        expected = None if line_count is None else np.array(line_count, np.int64)
        return _steps_of(codes, strings, np.array(self._string_count, np.int64), expected, list(numbers))


class GoldError(ValueError):
    """A gold that cannot be parsed, and its number among the golds."""

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.number = number


def read_golds(texts: Sequence[str]) -> tuple[Columns, list[tuple[tuple[int, ...], ...] | None]]:
    """The steps of G golds, and what each step follows (see `grammar.Gold`).

    Raises:
      GoldError: a text that `grammar.parse_gold` refuses.
    """
    blocks, taken = _Blocks(), []
    for number, text in enumerate(texts):
        usual = grammar.ANSWER.fullmatch(text)
        if (usual is not None or "<" not in text) and blocks.cut(text if usual is None else usual.group(2)):
            taken.append(number)
    columns, _ = blocks.steps()
    columns = renumbered(columns, np.array(taken, np.int64), len(texts))
    after: list = [None] * len(texts)
    steps: list = [()] * len(texts)
    for number in np.nonzero(columns.count == 0)[0].tolist():
        try:
            steps[number], after[number] = grammar.parse_gold(texts[number])
        except ValueError as error:
            raise GoldError(number, str(error)) from None
    return _merged(columns, columns_of(steps)), after


def _merged(one: Columns, other: Columns) -> Columns:
    """The steps of different rows of one table."""
    both = joined(one, other)
    return both._replace(count=one.count + other.count, row=both.row % max(one.count.shape[0], 1))


def _read_usual(texts: Sequence[str]) -> tuple[Answers, list[int]]:
    """The answers that are spelled as usual, and the numbers of the others."""
    blocks = _Blocks()
    rows, words, word_count, line_count = [], [], [], []
    heads = [(head, len(head)) for head in grammar.HEADS[1:]]
    for row, text in enumerate(texts):
        usual = grammar.ANSWER.fullmatch(text)
        if usual is None:
            continue
        _, key, orc, note = usual.groups()
        lines = orc.strip("\n").split("\n")
        if len(lines) > _MOST or not note or note.isspace():
            continue
        said, counts = [], []
        for line, (head, length) in zip(lines, heads, strict=False):
            sentence = line[length:].split() if line.startswith(head) else ()
            if not sentence:
                break
            said += sentence
            counts.append(len(sentence))
        else:
            if blocks.cut(key):
                rows.append(row)
                words += said
                word_count += counts
                line_count.append(len(lines))
    columns, good = blocks.steps(line_count)
    return _usual(columns, good, np.array(rows, np.int64), words, word_count, line_count, len(texts))


def _usual(columns, good, rows, words, word_count, line_count, size: int) -> tuple[Answers, list[int]]:
    lines, count = np.array(line_count, np.int64), np.array(word_count, np.int64)
    line_row = np.repeat(np.arange(lines.shape[0]), lines)
    # Orc lines and steps go one to one in good rows.
    step = np.full(line_row.shape[0], -1, np.int64)
    step[good[line_row]] = np.arange(columns.row.shape[0])
    if not good.all():
        kept = np.repeat(good[line_row], count).tolist()
        words = [word for word, keep in zip(words, kept, strict=True) if keep]
        count, step = count[good[line_row]], step[good[line_row]]
        line_row = line_row[good[line_row]]
    chosen = rows[good]
    in_rows = np.bincount(line_row, count, lines.shape[0]).astype(np.int64)
    parsed = _spread(chosen, np.ones(chosen.shape[0], bool), size)
    answers = Answers(
        renumbered(columns, rows, size),
        words,
        np.repeat(step, count),
        _spread(chosen, in_rows[good], size),
        _spread(chosen, lines[good], size),
        parsed,
        [],
        [],
    )
    return answers, np.nonzero(~parsed)[0].tolist()


def _steps_of(glue, strings, string_count, line_count, texts: list[str]) -> tuple[Columns, np.ndarray]:
    """The steps of C candidate key blocks, and which of the blocks are as usual; the others have no steps.

    Block c has string_count[c] strings and one piece of glue more; its string s stands between its pieces s and s + 1.
    """
    blocks = string_count.shape[0]
    block = np.repeat(np.arange(blocks), string_count + 1)
    last = np.cumsum(string_count + 1) - 1
    bounds = np.nonzero(glue >= _BOUNDARY)[0]
    # From boundary to boundary of one block is a step, and number n begins with n.
    inner = np.nonzero(block[bounds[1:]] == block[bounds[:-1]])[0]
    begin, end = bounds[inner], bounds[inner + 1]
    owner = block[begin]
    count = np.bincount(owner, minlength=blocks)
    position = places(count)
    good = (count > 0) & (glue[last] % _BOUNDARY == 0) & (glue[last] >= _BOUNDARY)
    if line_count is not None:
        good &= count == line_count
    good &= glue[last - string_count] == _BOUNDARY + 1
    good[owner[glue[begin] % _BOUNDARY != position + 1]] = False

    step_of = np.cumsum(_marked(begin, glue.shape[0])) - 1
    kind, second = glue[end] // _BOUNDARY, glue[begin + 1]
    split = np.where(second == _PARAMETER_ONLY, begin + 1, end)
    parting = np.nonzero(glue == _PARAMETER)[0]
    parting = parting[step_of[parting] >= 0]
    parting = parting[parting < end[step_of[parting]]]  # behind the last step there may be more, up to the next block's
    split[step_of[parting]] = parting
    partings = np.bincount(step_of[parting], minlength=begin.shape[0])
    further = np.concatenate([[0], np.cumsum(glue == _FURTHER)])
    opens = (second == _OBJECT) | (second == _PARAMETER_ONLY)
    fine = (
        np.where(kind == _ACTION_ONLY, end == begin + 1, opens)
        & (partings == ((second == _OBJECT) & (kind == _WITH_PARAMETERS)))
        & ((kind == _WITH_PARAMETERS) | (second != _PARAMETER_ONLY))
        & (further[end] - further[begin] == end - begin - 1 - opens - partings)
    )
    objects, parameters = split - begin - 1, end - split
    shift = owner  # a block before has one string less than pieces
    blank = np.fromiter((not text or text.isspace() for text in texts), bool, len(texts))
    good[owner[~fine | blank[strings[begin - shift]]]] = False
    # Control characters, which JSON refuses, and the marks are not printable.
    odd = np.fromiter((not text.isprintable() for text in texts), bool, len(texts))
    if odd.any():
        good[np.repeat(np.arange(blocks), string_count)[odd[strings]]] = False

    keep = good[owner]
    begin, split, shift, objects, parameters = (each[keep] for each in (begin, split, shift, objects, parameters))
    number = np.arange(begin.shape[0])
    columns = Columns(
        texts,
        np.where(good, count, 0),
        shift,
        position[keep],
        strings[begin - shift],
        np.repeat(number, objects),
        strings[ranges(begin + 1 - shift, objects)],
        np.repeat(number, parameters),
        strings[ranges(split - shift, parameters)],
    )
    return columns, good


def _marked(places: np.ndarray, size: int) -> np.ndarray:
    marked = np.zeros(size, np.int64)
    marked[places] = 1
    return marked
