"""The Sketch-and-Fill format: text <-> Sketch, in linear time, with a reason code for every refusal.

An answer has four blocks, <think>, <key>, <orc> and <note>. The key block is the sketch, one JSON object a step; the
orc block fills it, one sentence a step (paper section 3.2). What `parse` accepts is what the format gate of SCORE
accepts. Model text is hostile: nothing here raises on it, and nothing scans it more than a fixed number of times.
"""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

BLOCKS = ("think", "key", "orc", "note")


class Step(NamedTuple):
    """One step of a sketch: what is done, to what, and how (paper equation 1: a, O, P)."""

    action: str
    objects: tuple[str, ...]
    parameters: tuple[str, ...]


class Gold(NamedTuple):
    """A gold key block. `after[k]` holds the numbers from 0 of the steps that step k must follow (directly named ones);
    None: each step follows the one before it."""

    steps: tuple[Step, ...]
    after: tuple[tuple[int, ...], ...] | None = None


class Sketch(NamedTuple):
    """A parsed answer. `orc` holds the sentences without their `Step n:` headers."""

    think: str
    steps: tuple[Step, ...]
    orc: tuple[str, ...]
    note: str


class Parsed(NamedTuple):
    """What `parse` made of a text: a sketch, or None with a reason code and its explanation.

    Codes: missing_block:B, unclosed_block:B, repeated_block:B, block_order, outer_text:before, outer_text:after,
    text_between:B (before block B), blank_note, no_steps:B, bad_line:B:n (n counts the block's non-blank lines),
    bad_json:n, repeated_key:n, wrong_keys:n, wrong_type:n, blank_action:n, blank_step:n, numbering:B:n, step_count.
    """

    sketch: Sketch | None
    reason: str = ""
    detail: str = ""


class _Refused(Exception):
    """Leaves the parser from any depth; never leaves this module."""

    def __init__(self, reason: str, detail: str):
        self.reason, self.detail = reason, detail


_TAG = re.compile(r"<(/?(?:think|key|orc|note))>", re.IGNORECASE | re.ASCII)
_HEADER = re.compile(r"Step[ \t]+([0-9]+)[ \t]*:[ \t]*", re.ASCII)
HEADS = tuple(f"Step {number}: " for number in range(100))
_EXPECTED = [tag for block in BLOCKS for tag in (block, "/" + block)]
# The usual spelling of an answer; what is not spelled so is read tag by tag.
ANSWER = re.compile(r"\s*<think>([^<]*)</think>\s*<key>([^<]*)</key>\s*<orc>([^<]*)</orc>\s*<note>([^<]*)</note>\s*")
_KEYS = {"action", "objects", "parameters"}
# Objects arrive as tuples of pairs, so that repeated keys are seen and no dict is taken for a list. A number is refused
# whatever its value is, so none is ever built: that would take quadratic time in its digits.
_scan_json = json.JSONDecoder(object_pairs_hook=tuple, parse_int=len, parse_float=len).scan_once
# In golds the numbers of `after` are read; one of ten digits names no step.
_scan_gold = json.JSONDecoder(
    object_pairs_hook=tuple, parse_int=lambda digits: int(digits) if len(digits) < 10 else -1, parse_float=lambda _: -1
).scan_once


def parse(
    text: str,
    *,
    strict_numbering: bool = True,
    allow_outer_text: bool = False,
    require_note: bool = True,
    known: dict[str, Step] | None = None,
) -> Parsed:
    """Parse a model's answer.

    Accepted: each block once, in order, none inside another (tags in any case), only white space between them; key
    lines `Step n: {json}` with exactly action (a string that is not blank), objects and parameters (lists of strings);
    orc lines `Step n: text`; as many orc as key lines, at least one. Blank lines count nothing. CRLF is read as LF.

    Args:
      text: anything.
      strict_numbering: both blocks must be numbered 1..m.
      allow_outer_text: text before <think> and after </note> is let pass.
      require_note: the note block must be there and not blank.
      known: steps read before by their JSON text, for a caller that parses many answers; read and added to.

    Returns:
      Parsed; never raises on text.
    """
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
    try:
        think, key, orc, note = _split_blocks(text, allow_outer_text, require_note)
        steps = _key_steps(key, strict_numbering, {} if known is None else known)
        sentences = _orc_steps(orc, strict_numbering)
        if len(steps) != len(sentences):
            raise _Refused("step_count", f"{len(steps)} key steps, {len(sentences)} orc steps")
    except _Refused as refused:
        return Parsed(None, refused.reason, refused.detail)
    return Parsed(Sketch(think.strip(), steps, sentences, note.strip()))


def salvage(text: str) -> Sketch | None:
    """The sketch of a text that `parse` refused, if it has exactly one key block and each of its lines is a step.

    Numbering is not looked at; orc is the lines of the only orc block, () without one. For scoring with the format
    gate switched off.
    """
    text = text.replace("\r\n", "\n")
    key = _only_block(text, "key")
    if key is None:
        return None
    try:
        steps = _key_steps(key, False, {})
    except _Refused:
        return None
    lines = [line.strip() for line in (_only_block(text, "orc") or "").split("\n")]
    orc = tuple(_HEADER.sub("", line, count=1) if _HEADER.match(line) else line for line in lines if line)
    return Sketch("", steps, orc, "")


def parse_key_block(text: str) -> tuple[Step, ...]:
    """The steps of a gold answer, or of the lines of a key block with or without its tags.

    Raises:
      ValueError: as `parse_gold`.
    """
    return parse_gold(text).steps


def parse_gold(text: str) -> Gold:
    """A gold answer, or the lines of a key block with or without its tags.

    A gold line may have `"after": [numbers]` beside the other keys: the steps (from 1) that it must follow. In a gold
    where any line has it, `[]` is a step that may stand anywhere and a line without it follows the line before.

    Raises:
      ValueError: no step; a line that is not `Step n: {json}` with action, objects and parameters; `after` names no
        other step, or steps wait for each other in a circle.
    """
    text = text.replace("\r\n", "\n")
    tags = [(match.group(1).lower(), match) for match in _TAG.finditer(text)]
    opened = [match.end() for name, match in tags if name == "key"]
    closed = [match.start() for name, match in tags if name == "/key"]
    if opened or closed:
        if not opened or not closed or opened[-1] > closed[-1]:
            raise ValueError("the key block is not closed")
        text = text[opened[-1] : closed[-1]]
    elif tags:
        raise ValueError("no key block")
    after: list = []
    try:
        steps = _key_steps(text, False, {}, after)
        return Gold(steps, _precedence(after))
    except _Refused as refused:
        raise ValueError(f"{refused.reason}: {refused.detail}") from None


def _precedence(after: list) -> tuple[tuple[int, ...], ...] | None:
    """`after` of each line (None: it has none) -> numbers from 0, checked."""
    if all(numbers is None for numbers in after):
        return None
    found = []
    for place, numbers in enumerate(after):
        if numbers is None:
            numbers = [place] if place else []
        good = isinstance(numbers, list) and all(type(n) is int and 1 <= n <= len(after) for n in numbers)
        if not good or place + 1 in numbers:
            raise _Refused(f"bad_after:{place + 1}", "after is a list of the numbers of other steps")
        found.append(tuple(sorted({number - 1 for number in numbers})))
    waiting, placed = set(range(len(found))), set()
    while waiting:
        ready = {place for place in waiting if placed.issuperset(found[place])}
        if not ready:
            steps = ", ".join(str(place + 1) for place in sorted(waiting))
            raise _Refused("circular_after", f"steps {steps} wait for each other")
        waiting -= ready
        placed |= ready
    return tuple(found)


def block_text(text: str, block: str) -> str | None:
    """The stripped text of a block that occurs exactly once, tags in any case; None otherwise."""
    found = _only_block(text.replace("\r\n", "\n"), block)
    return None if found is None else found.strip()


def render(sketch: Sketch) -> str:
    """The text of a sketch, a blank line between blocks; `parse` reads it back."""
    return join_blocks(
        sketch.think,
        "\n".join(render_step(number, step) for number, step in enumerate(sketch.steps, 1)),
        "\n".join(f"Step {number}: {sentence}" for number, sentence in enumerate(sketch.orc, 1)),
        sketch.note,
    )


def render_step(number: int, step: Step) -> str:
    """One key line."""
    fields = {"action": step.action, "objects": list(step.objects), "parameters": list(step.parameters)}
    return f"Step {number}: {json.dumps(fields, ensure_ascii=False)}"


def join_blocks(think: str, key: str, orc: str, note: str) -> str:
    """The four blocks, given as text, as one answer."""
    return "\n\n".join(
        f"<{name}>\n{body.strip()}\n</{name}>" for name, body in zip(BLOCKS, (think, key, orc, note), strict=True)
    )


def _split_blocks(text: str, allow_outer_text: bool, require_note: bool) -> Sequence[str]:
    usual = ANSWER.fullmatch(text)
    if usual is not None:
        bodies = usual.groups()
        if bodies[3].strip():
            return bodies
    tags = list(itertools.islice(_TAG.finditer(text), len(_EXPECTED) + 1))
    names = [tag.group(1).lower() for tag in tags]
    if names != _EXPECTED and (require_note or names != _EXPECTED[:6]):
        raise _tag_refusal(text, require_note)
    if not allow_outer_text:
        if text[: tags[0].start()].strip():
            raise _Refused("outer_text:before", "text before <think>")
        if text[tags[-1].end() :].strip():
            raise _Refused("outer_text:after", f"text after <{names[-1]}>")
    bodies = []
    for index in range(0, len(tags), 2):
        if index and text[tags[index - 1].end() : tags[index].start()].strip():
            raise _Refused(f"text_between:{names[index]}", f"text before <{names[index]}>")
        bodies.append(text[tags[index].end() : tags[index + 1].start()])
    if require_note and not bodies[3].strip():
        raise _Refused("blank_note", "the note block is blank")
    return bodies if len(bodies) == 4 else [*bodies, ""]


def _tag_refusal(text: str, require_note: bool) -> _Refused:
    """Which rule the tags break; looks at every tag once."""
    counts = dict.fromkeys(_EXPECTED, 0)
    for tag in _TAG.finditer(text):
        counts[tag.group(1).lower()] += 1
    for block in BLOCKS:
        opened, closed = counts[block], counts["/" + block]
        if block == "note" and not require_note and not opened and not closed:
            continue
        if not opened:
            return _Refused(f"missing_block:{block}", f"no <{block}>")
        if not closed:
            return _Refused(f"unclosed_block:{block}", f"no </{block}>")
        if opened > 1 or closed > 1:
            return _Refused(f"repeated_block:{block}", f"<{block}> {opened} times, </{block}> {closed} times")
    return _Refused("block_order", "the blocks are not think, key, orc, note one after the other")


def _only_block(text: str, block: str) -> str | None:
    start = end = None
    for tag in _TAG.finditer(text):
        name = tag.group(1).lower()
        if name == block:
            if start is not None:
                return None
            start = tag.end()
        elif name == "/" + block:
            if start is None or end is not None:
                return None
            end = tag.start()
    return None if start is None or end is None else text[start:end]


def _numbered(block: str, name: str, strict_numbering: bool) -> Iterator[tuple[int, str]]:
    """(n, the text after `Step n:`) of the lines that are not blank."""
    number = 0
    for line in block.split("\n"):
        line = line.strip()
        if line:
            number += 1
            yield number, _after_header(line, number, name, strict_numbering)


def _after_header(line: str, number: int, block: str, strict_numbering: bool) -> str:
    """The text after `Step n:`."""
    if number < len(HEADS):
        usual = HEADS[number]
        if line.startswith(usual):  # without a regex
            return line[len(usual) :]
    header = _HEADER.match(line)
    if header is None:
        raise _Refused(f"bad_line:{block}:{number}", f"line {number} of {block} does not begin with 'Step {number}:'")
    if strict_numbering and header.group(1) != str(number):
        raise _Refused(f"numbering:{block}:{number}", f"line {number} of {block} is numbered {header.group(1)[:12]}")
    return line[header.end() :]


def _key_steps(
    block: str, strict_numbering: bool, known: dict[str, Step], after: list | None = None
) -> tuple[Step, ...]:
    """The steps of a key block; in a gold, `after` takes what each line says of its predecessors."""
    steps = []
    for number, text in _numbered(block, "key", strict_numbering):
        step = known.get(text)
        if step is None or after is not None:
            step = known[text] = _step(text, number, after)
        steps.append(step)
    if not steps:
        raise _Refused("no_steps:key", "the key block has no step")
    return tuple(steps)


def _step(text: str, number: int, after: list | None) -> Step:
    try:
        pairs, end = (_scan_json if after is None else _scan_gold)(text, 0)
    except (ValueError, StopIteration, RecursionError):
        raise _Refused(f"bad_json:{number}", f"key step {number} is not one JSON object") from None
    if end != len(text) or type(pairs) is not tuple:
        raise _Refused(f"bad_json:{number}", f"key step {number} is not one JSON object alone on its line")
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _Refused(f"repeated_key:{number}", f"key step {number} repeats a JSON key")
    if after is not None:
        after.append(fields.pop("after", None))
    if fields.keys() != _KEYS:
        raise _Refused(f"wrong_keys:{number}", f"key step {number} needs exactly action, objects, parameters")
    action, objects, parameters = fields["action"], fields["objects"], fields["parameters"]
    if type(action) is not str or type(objects) is not list or type(parameters) is not list:
        raise _Refused(f"wrong_type:{number}", f"key step {number}: action is a string, the others are lists")
    try:
        "".join(objects), "".join(parameters)  # the fastest test that all are strings
    except TypeError:
        raise _Refused(f"wrong_type:{number}", f"key step {number}: objects and parameters hold strings") from None
    if not action or action.isspace():
        raise _Refused(f"blank_action:{number}", f"key step {number} has a blank action")
    return Step(action, tuple(objects), tuple(parameters))


def _orc_steps(block: str, strict_numbering: bool) -> tuple[str, ...]:
    sentences = []
    for number, sentence in _numbered(block, "orc", strict_numbering):
        if not sentence or sentence.isspace():
            raise _Refused(f"blank_step:{number}", f"orc step {number} is blank")
        sentences.append(sentence)
    if not sentences:
        raise _Refused("no_steps:orc", "the orc block has no step")
    return tuple(sentences)
