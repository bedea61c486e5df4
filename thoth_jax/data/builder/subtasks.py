"""The smaller SFT tasks of the paper: fill in a parameter, order steps, correct an error. Answers are plain text."""

import random
import re

from thoth_jax.data.builder.draw import Line, Variant, chain, window
from thoth_jax.data.builder.source import SourceProtocol

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def parameter_filling(variant: Variant, rng: random.Random) -> tuple[str, str, str] | None:
    """A step with a gap and notes that hold what is missing -> the missing words."""
    lines = variant.lines(window(variant.protocol, rng.choice((1, 2, 3)), rng))
    able = [(line, text) for line in lines for text in _settings(line)]
    if not able:
        return None
    line, text = rng.choice(able)
    gapped = line.say.replace(text, "____", 1)
    notes = " ".join(line.prose for line in lines)
    question = rng.choice(
        (
            f"{notes} Fill the gap: {gapped}",
            f"What belongs into the gap? {gapped} The notes: {notes}",
            f"Complete the step from the notes. Step: {gapped} Notes: {notes}",
        )
    )
    return question, text, "Answer with the missing words only."


def step_ordering(variant: Variant, rng: random.Random) -> tuple[str, str, str] | None:
    """Numbered steps of which each needs another -> their numbers in the only sound order."""
    steps = chain(variant.protocol, rng.choice((3, 4, 5)), rng)
    if steps is None:
        return None
    lines = variant.lines(steps)
    mixed = rng.sample(lines, len(lines))
    shown = "\n".join(f"{number}. {line.say}" for number, line in enumerate(mixed, 1))
    aim = variant.text(variant.protocol.aim)
    question = rng.choice(
        (
            f"The aim is to {aim}. Order these steps:\n{shown}",
            f"In which order do these steps work? The aim: {aim}.\n{shown}",
            f"These steps to {aim} were mixed up:\n{shown}",
        )
    )
    return question, str([mixed.index(line) + 1 for line in lines]), "Answer with a list of the numbers in order."


def error_correction(variant: Variant, rng: random.Random) -> tuple[str, str, str] | None:
    """A step that may hold a wrong number and notes that have the right one -> "true", or the corrected step."""
    lines = variant.lines(window(variant.protocol, rng.choice((1, 2, 3)), rng))
    able = [(line, text) for line in lines for text in _settings(line) if _NUMBER.search(text)]
    if not able:
        return None
    line, text = rng.choice(able)
    factor = rng.choice((0.1, 0.5, 2, 10))
    changed = _NUMBER.sub(lambda match: f"{float(match.group()) * factor:g}", text, count=1)
    wrong = rng.random() < 0.5 and changed != text  # 0 times anything is no error
    shown = line.say.replace(text, changed, 1) if wrong else line.say
    notes = " ".join(line.prose for line in lines)
    question = rng.choice(
        (
            f"The notes: {notes} Is this step right? {shown}",
            f"Check this step against the notes. Step: {shown} Notes: {notes}",
            f"{shown} Does this agree with the notes? {notes}",
        )
    )
    return question, f"false: {line.say}" if wrong else "true", 'Answer "true", or "false:" and the corrected step.'


def _settings(line: Line) -> list[str]:
    """The settings that stand in both sentences once."""
    texts = re.findall(r"\d[^,.;]*?(?= (?:and|at|for|in|into|on|per|to|with|of|by|from|until)\b|[,.;]|$)", line.say)
    return [text for text in texts if line.say.count(text) == 1 and text in line.prose]


KINDS = {
    "parameter_filling": parameter_filling,
    "step_ordering": step_ordering,
    "error_correction": error_correction,
}


def row(kind: str, protocol: SourceProtocol, id: str, rng: random.Random) -> dict | None:
    """One training row in the chat layout, or None where the protocol has none of this kind."""
    for _ in range(20):
        found = KINDS[kind](Variant(protocol, rng), rng)
        if found:
            question, answer, system = found
            turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
            return {"id": id, "type": kind, "protocol": protocol.name, "conversations": turns, "system": system}
    return None
