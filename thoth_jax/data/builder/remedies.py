"""Troubleshooting, constraint, safety: something is wrong, missing or dangerous; the answer is no standard plan."""

import random
from collections.abc import Sequence

from thoth_jax.data.builder.draw import Line, Variant, capital, window
from thoth_jax.data.builder.items import Draft, bullets, goal, in_order, passage


def troubleshooting(variant: Variant, rng: random.Random) -> Draft | None:
    """A symptom, its cause, and the correction; often among the corrections of another fault."""
    faults = variant.protocol.faults
    fault = rng.choice(faults)
    lines = variant.lines(fault.fix)
    seen, cause = variant.text(fault.situation), variant.text(fault.reason)
    symptom = rng.choice((f"In one run {seen}.", f"We find that {seen}.", f"The trouble: {seen}."))
    if rng.random() < 0.5:
        other = rng.choice([entry for entry in faults if entry is not fault])
        table = [(cause, lines), (variant.text(other.reason), variant.lines(other.fix))]
        rng.shuffle(table)
        rows = "\n".join(f"- If {reason}: {passage(fix)}" for reason, fix in table)
        ask = rng.choice((f"It was found that {cause}.", f"The check shows that {cause}."))
        question = f"{symptom} {ask} How is it put right? The manual says:\n{rows}"
    else:
        mixed, order = _mixed(lines, rng)
        question = rng.choice(
            (
                f"{symptom} The cause: {cause}. How is it put right? Measures:\n{mixed}{order}",
                f"{symptom} Probably {cause}. Plan the correction from these measures:\n{mixed}{order}",
            )
        )
    why = rng.choice((f"The fault arose because {cause}.", f"Cause: {cause}.", f"What went wrong: {cause}."))
    return Draft(question, lines, why=why, listed=True)


def constraint(variant: Variant, rng: random.Random) -> Draft | None:
    """Something is missing or forbidden, so another way is planned."""
    limit = rng.choice(variant.protocol.limits)
    lines = variant.lines(limit.fix)
    given, idea = variant.text(limit.situation), variant.text(limit.reason)
    usual = variant.lines(window(variant.protocol, rng.choice((1, 2)), rng))
    if rng.random() < 0.5:
        question = rng.choice(
            (
                f"The usual way: {passage(usual)} Now {given}. Then {idea}: {passage(lines)} What is the new plan?",
                f"Normally it goes: {passage(usual)} But {given}, so {idea}. {passage(lines)} Plan only the other way.",
            )
        )
    else:
        mixed, order = _mixed(lines, rng)
        question = (
            rng.choice(
                (
                    f"{goal(variant, rng)}Suppose {given}. The way out: {idea}. How is that done?",
                    f"{goal(variant, rng)}Today {given}, so {idea}. Plan it.",
                )
            )
            + f" Notes:\n{mixed}{order}"
        )
    why = rng.choice((f"{capital(given)}, so {idea}.", f"The standard way is closed: {given}.", f"{capital(idea)}."))
    return Draft(question, lines, why=why, listed=True)


def safety(variant: Variant, rng: random.Random) -> Draft | None:
    """How to do a dangerous part: protection, waste, spills."""
    entry = rng.choice(variant.protocol.safety)
    lines = variant.lines(entry.fix)
    asks, why = variant.text(entry.situation), variant.text(entry.reason)
    if rng.random() < 0.5:
        usual = variant.lines(window(variant.protocol, 1, rng))
        question = rng.choice(
            (
                f"The protocol says: {passage(usual)} The safety sheet says: {passage(lines)} "
                f"How do you safely {asks}?",
                f"How do you {asks} without harm? Sheet: {passage(lines)} The work itself: {passage(usual)}",
            )
        )
    else:
        mixed, order = _mixed(lines, rng)
        question = rng.choice(
            (
                f"How do you safely {asks}? Rules:\n{mixed}{order}",
                f"We must {asks}. What protects us, in which order? The rules:\n{mixed}{order}",
            )
        )
    danger = rng.choice(
        (
            f"The danger: {why}.",
            f"{capital(why)}.",
            f"Care is needed because {why}.",
            f"First the danger: {why}.",
            f"What may do harm: {why}.",
        )
    )
    return Draft(question, lines, why=danger, note=variant.text(entry.note), listed=True)


def _mixed(lines: Sequence[Line], rng: random.Random) -> tuple[str, str]:
    """The lines as a list out of order with a sentence that gives the order, or in order with none."""
    distinct = len({line.step.action for line in lines}) == len(lines)
    if distinct and rng.random() < 0.5:
        return bullets(rng.sample(lines, len(lines))), f"\nAction order: {in_order(lines)}."
    return bullets(lines), ""
