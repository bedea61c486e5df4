"""Scaling: the volumes of a mixture for many samples or for less of each, with what a pipette can measure."""

import random
import re
from collections.abc import Sequence
from fractions import Fraction

from thoth_jax.data.builder.draw import Variant, capital
from thoth_jax.data.builder.items import Draft, made_step

# Below this a pipette is not accurate: the stock is diluted first.
MIN_VOLUME = Fraction(1, 2)
_MAX_VOLUME = Fraction(20000)
_TIMES = 10
_SPARES = (Fraction(1), Fraction(1), Fraction(11, 10))
_SHARES = {"half": Fraction(1, 2), "a quarter of": Fraction(1, 4), "a fifth of": Fraction(1, 5)}
# Diluting these in water would harm them.
_DELICATE = re.compile(
    r"ase\b|ases\b|enzyme|Tn5|blend|inhibitor|antibod|cell|chromatin|suspension|culture", re.IGNORECASE
)
# What differs from tube to tube and so stays out of a common mix.
_OWN = re.compile(
    r"DNA|RNA\b|template|sample|insert|vector|culture|chromatin|cell|dilution|lysate|extract", re.IGNORECASE
)


def scaling(variant: Variant, rng: random.Random) -> Draft | None:
    """Volumes for many, for a smaller one, or for a common mix that leaves out what differs from tube to tube."""
    if variant.protocol.mix is None:
        return None
    parts = [(variant.text(name), Fraction(volume)) for name, volume in variant.protocol.mix.parts]
    form = rng.choice((_many, _many, _smaller, _common_mix))
    return form(variant.text(variant.protocol.mix.what), parts, rng)


def shown(volume: Fraction) -> str | None:
    """A volume with its unit, or None where it is finer than a pipette can be set: 0.01 µl below 10 µl, else 0.1 µl.

    >>> shown(Fraction(277, 100)), shown(Fraction(277, 10)), shown(Fraction(2500)), shown(Fraction(1201, 100))
    ('2.77 µl', '27.7 µl', '2.5 ml', None)
    """
    unit = "µl"
    steps = volume * (100 if volume < 10 else 10)
    if volume >= 1000:
        volume, unit = volume / 1000, "ml"
        steps = volume * 100
    return f"{float(volume):g} {unit}" if steps.denominator == 1 else None


def _recipe(what: str, parts: Sequence[tuple[str, Fraction]]) -> str:
    between = "; " if any("," in name for name, _ in parts) else ", "
    return f"One {what} holds {between.join(f'{_written(volume)} {name}' for name, volume in parts)}."


def _written(volume: Fraction) -> str:
    """A volume as a recipe has it, however fine."""
    return f"{float(volume):g} µl" if volume < 1000 else f"{float(volume / 1000):g} ml"


def _many(what: str, parts, rng: random.Random) -> Draft | None:
    count, spare = rng.randint(2, 24), rng.choice(_SPARES)
    factor = count * spare
    extra = " with 10 % spare" if spare != 1 else ""
    ask = rng.choice(
        (
            f"How do you make the mix for {count} of them{extra}?",
            f"Prepare {count} at once{extra}. Which volumes?",
            f"Scale it to {count}{extra}.",
        )
    )
    steps = _additions(parts, factor)
    if steps is None:
        return None
    why = f"{count} with 10 % spare take {_number(factor)} times one." if extra else f"All is taken {count} times."
    return Draft(f"{_recipe(what, parts)} {ask}", steps, why=f"{why} {_sum(parts, factor, rng)}", note=_note(rng))


def _smaller(what: str, parts, rng: random.Random) -> Draft | None:
    """One at a fraction of its size: what falls below the least volume is diluted first, and water makes room."""
    share = rng.choice(list(_SHARES))
    factor = _SHARES[share]
    small = [(name, volume) for name, volume in parts if volume * factor < MIN_VOLUME]
    water = dict(parts).get("water", Fraction(0))
    if any(_DELICATE.search(name) or name == "water" for name, _ in small):
        return None
    room = water * factor - sum((_TIMES - 1) * volume * factor for _, volume in small)
    if small and room < MIN_VOLUME:
        return None
    dilutions = [
        made_step(
            "dilute", name, ["10-fold", "in water"], f"Dilute the {name} 10-fold in water."
        )
        for name, _ in small
    ]  # fmt: skip
    changed = []
    for name, volume in parts:
        if (name, volume) in small:
            changed.append((f"diluted {name}", volume * factor * _TIMES))
        elif name == "water" and small:
            changed.append((name, room))
        else:
            changed.append((name, volume * factor))
    steps = _additions(changed, Fraction(1))
    if steps is None or len(dilutions) + len(steps) > 6:
        return None
    rule = "Less than 0.5 µl cannot be pipetted: dilute such a stock 10-fold in water and take that much less water."
    question = f"{_recipe(what, parts)} Make one at {share} the volume."
    if water:
        question = f"{question} {rule}"
    if small:
        name, volume = small[0]
        why = f"The {name} would be {_number(volume * factor)} µl, too little to pipette, so it is diluted first."
    else:
        why = f"Every volume is taken times {_number(factor)} and stays at 0.5 µl or more."
    return Draft(question, [*dilutions, *steps], why=f"{why} {_sum(parts, factor, rng)}", note=_note(rng))


def _common_mix(what: str, parts, rng: random.Random) -> Draft | None:
    """Everything but one part, shared out between the tubes."""
    own = [part for part in parts if _OWN.search(part[0])]
    if not own:
        return None
    left = rng.choice(own)
    shared = [part for part in parts if part is not left]
    count = rng.randint(2, 16)
    spare = rng.choice(_SPARES)
    steps = _additions(shared, count * spare)
    each = shown(sum(volume for _, volume in shared))
    if steps is None or each is None:
        return None
    extra = " with 10 % spare" if spare != 1 else ""
    question = (
        f"{_recipe(what, parts)} The {left[0]} comes into each tube later. "
        f"Make a common mix of the rest for {count} tubes{extra} and share it out."
    )
    share_out = made_step(
        "aliquot", "mix", [each, f"{count} tubes"], f"Aliquot {each} of the mix into each of {count} tubes."
    )
    why = f"The {left[0]} stays out. The rest is {each} a tube, taken {_number(count * spare)} times."
    return Draft(question, [*steps, share_out], why=why, note=_note(rng))


def _additions(parts: Sequence[tuple[str, Fraction]], factor: Fraction):
    """One step for each part, or None where a volume cannot be pipetted or written."""
    steps = []
    vessel = _vessel(sum(volume for _, volume in parts) * factor)
    for name, volume in parts:
        text = shown(volume * factor)
        if text is None or not MIN_VOLUME <= volume * factor <= _MAX_VOLUME:
            return None
        if steps:
            steps.append(made_step("add", name, [text], f"Add {text} {name}."))
        else:
            steps.append(made_step("pipette", name, [text, vessel], f"Pipette {text} {name} into a {vessel}."))
    return steps


def _vessel(total: Fraction) -> str:
    for name, holds in (("tube", 2000), ("15 ml tube", 15000), ("50 ml tube", 50000)):
        if total <= holds:
            return name
    return "bottle"


def _sum(parts, factor: Fraction, rng: random.Random) -> str:
    """One product worked out, and the total."""
    name, volume = rng.choice(parts)
    total = shown(sum(volume for _, volume in parts) * factor)
    worked = f"{capital(name)}: {_number(volume)} x {_number(factor)} = {_number(volume * factor)} µl."
    return f"{worked} In all {total}." if total else worked


def _number(value: Fraction) -> str:
    return f"{float(value):g}"


def _note(rng: random.Random) -> str:
    return rng.choice(
        (
            "Wear gloves and change the tip for each stock.",
            "Keep the stocks on ice and change tips.",
            "Use a fresh tip for each part.",
            "Mix gently and spin the drops down before use.",
        )
    )
