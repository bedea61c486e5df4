"""Planning: a goal, what is at hand, and a plan whose order has to be found."""

import random

from thoth_jax.data.builder import argue
from thoth_jax.data.builder.draw import Variant, chain, dependent
from thoth_jax.data.builder.items import Draft, bullets, in_order


def planning(variant: Variant, rng: random.Random) -> Draft | None:
    """Notes out of order, to be sorted by what needs what or by a given order; or materials and settings to combine."""
    form = rng.choice((_by_need, _by_order, _by_order, _from_stock))
    return form(variant, rng)


def _aim(variant: Variant, rng: random.Random) -> str:
    aim = variant.text(variant.protocol.aim)
    return rng.choice((f"Plan part of the work to {aim}.", f"We want to {aim}.", f"Our goal: {aim}."))


def _by_need(variant: Variant, rng: random.Random) -> Draft | None:
    steps = chain(variant.protocol, rng.choice((2, 3, 3)), rng)
    if steps is None:
        return None
    lines = variant.lines(steps)
    mixed = rng.sample(lines, len(lines))
    question = rng.choice(
        (
            f"{_aim(variant, rng)} Sort these tasks by what each one needs:\n{bullets(mixed)}",
            f"{_aim(variant, rng)} Each task but one uses the result of another. Tasks:\n{bullets(mixed)}",
        )
    )
    return Draft(question, lines, order=argue.order(lines, variant.protocol.needs, rng), listed=True)


def _by_order(variant: Variant, rng: random.Random) -> Draft | None:
    lines = variant.lines(dependent(variant.protocol, rng.choice((2, 3, 3, 4)), rng))
    mixed = rng.sample(lines, len(lines))
    if len({line.step.action for line in lines}) < len(lines):
        return None
    question = rng.choice(
        (
            f"{_aim(variant, rng)} The tasks, out of order:\n{bullets(mixed)}\nAction order: {in_order(lines)}.",
            f"{_aim(variant, rng)} Do it in the order {in_order(lines)}. The notes:\n{bullets(mixed)}",
            f"{_aim(variant, rng)} The day begins with these actions: {in_order(lines)}. Tasks:\n{bullets(mixed)}",
        )
    )
    return Draft(question, lines, order=argue.order(lines, variant.protocol.needs, rng))


def _from_stock(variant: Variant, rng: random.Random) -> Draft | None:
    """Which object and which setting belong to which action is for the planner to see."""
    lines = variant.lines(dependent(variant.protocol, rng.choice((2, 2, 3)), rng))
    objects = [text for line in lines for text in line.step.objects]
    settings = [text for line in lines for text in line.step.parameters]
    actions = {line.step.action for line in lines}
    if len(actions) < len(lines) or len(set(objects)) < len(objects) or len(set(settings)) < max(2, len(settings)):
        return None
    rng.shuffle(objects), rng.shuffle(settings)
    at_hand = f"At hand: {', '.join(objects)}. Settings: {', '.join(settings)}."
    question = rng.choice(
        (
            f"{_aim(variant, rng)} {at_hand} The plan: {in_order(lines)}.",
            f"{_aim(variant, rng)} Use the actions {in_order(lines)}, in this order. {at_hand}",
        )
    )
    return Draft(question, lines, order=argue.order(lines, variant.protocol.needs, rng))
