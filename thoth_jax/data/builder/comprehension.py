"""Overview, specific and retrieval: the source text stands in the question and is read, condensed or searched."""

import random

from thoth_jax.data.builder import argue
from thoth_jax.data.builder.draw import Variant, window
from thoth_jax.data.builder.items import Draft, goal, passage


def overview(variant: Variant, rng: random.Random) -> Draft | None:
    """The main stages of a longer passage, without settings."""
    steps = window(variant.protocol, rng.choice((3, 3, 4, 4, 5, 6)), rng)
    lines = variant.lines(steps)
    if not all(line.brief for line in lines):
        return None
    number = argue.count_word(len(lines))
    question = rng.choice(
        (
            f"Give an overview in {number} stages, without settings: {passage(lines)}",
            f"{passage(lines)} What are the {number} stages of this, in order and without numbers?",
            f"Outline this work in {number} steps and leave every setting out. {passage(lines)}",
            f"A newcomer asks for the {number} stages, not for the details. The notes read: {passage(lines)}",
        )
    )
    return Draft(
        question=goal(variant, rng) + question,
        lines=[line.outline() for line in lines],
        order=argue.order(lines, variant.protocol.needs, rng),
    )


def specific(variant: Variant, rng: random.Random) -> Draft | None:
    """The exact steps of a short stage, with all settings."""
    lines = variant.lines(window(variant.protocol, rng.choice((2, 2, 3, 3, 4)), rng))
    question = rng.choice(
        (
            f"Write the exact steps with all settings: {passage(lines)}",
            f"{passage(lines)} How is this done, step by step?",
            f"Turn these bench notes into steps. {passage(lines)}",
            f"What are the precise steps here? {passage(lines)}",
            f"From my notebook: {passage(lines)} List each step with its numbers.",
        )
    )
    return Draft(goal(variant, rng) + question, lines, order=argue.order(lines, variant.protocol.needs, rng))


def retrieval(variant: Variant, rng: random.Random) -> Draft | None:
    """A few steps of a longer passage, found by where they begin and end."""
    size = rng.choice((2, 2, 3))
    before, after = rng.choice(((1, 1), (1, 0), (0, 1), (2, 0), (0, 2)))
    text = variant.lines(window(variant.protocol, size + before + after, rng))
    lines = text[before : before + size]
    first, last = lines[0], lines[-1]
    outside = text[:before] + text[before + size :]
    if not first.brief or not last.brief or len({line.brief for line in text}) < len(text):
        return None
    if before and after:
        part = f'the part from "{first.brief}" to "{last.brief}"'
    elif before:
        part = rng.choice((f'the part from "{first.brief}" on', f"the last {argue.count_word(size)} steps"))
    else:
        part = rng.choice((f'the part up to "{last.brief}"', f"the first {argue.count_word(size)} steps"))
    question = rng.choice(
        (
            f"Which settings belong to {part}? {passage(text)}",
            f"{passage(text)} Give only {part}.",
            f"Look up {part} in these notes: {passage(text)}",
            f"I need the exact values of {part}. The record says: {passage(text)}",
        )
    )
    why = _left_out(len(outside), rng)
    return Draft(goal(variant, rng) + question, lines, why=why, order=argue.order(lines, variant.protocol.needs, rng))


def _left_out(count: int, rng: random.Random) -> str:
    number = "one step" if count == 1 else f"{argue.count_word(count)} steps"
    return rng.choice((f"The text has {number} more than asked.", f"Outside the part asked for: {number}."))
