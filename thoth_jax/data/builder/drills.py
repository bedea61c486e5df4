"""Copy drills for stage pretrain: prose to key lines, key lines to orc lines; the loss is on what is asked for only.

A small policy learns a fixed text by heart long before it learns to copy, so most lines of a drill carry objects and
settings of other steps. Such lines are exercises in wording, not statements about laboratory work.
"""

import dataclasses
import random
import re
from collections.abc import Sequence

from thoth_jax.data.builder.draw import Line, Variant
from thoth_jax.data.builder.sketcher import sketch_step
from thoth_jax.data.builder.source import Quantity, SourceProtocol, SourceStep
from thoth_jax.protocol.grammar import render_step

# How many lines a drill has.
_SIZES = (1, 1, 2, 2, 3, 4)


@dataclasses.dataclass(frozen=True)
class Pool:
    """What drills are made of: steps, and objects and settings to put into them."""

    steps: tuple[SourceStep, ...]
    objects: tuple[str, ...]
    words: tuple[str, ...]
    settings: dict[str, tuple[Quantity, ...]]
    variant: Variant


def pool_of(protocols: Sequence[SourceProtocol]) -> Pool:
    """The steps and remedies of some protocols, settings sorted by their unit."""
    steps: list[SourceStep] = []
    for protocol in protocols:
        remedies = [*protocol.faults, *protocol.limits, *protocol.safety]
        steps += [*protocol.steps, *(step for remedy in remedies for step in remedy.fix)]
    settings: dict[str, list[Quantity]] = {}
    for step in steps:
        for quantity in step.parameters:
            settings.setdefault(_unit(quantity), []).append(quantity)
    objects = sorted({object for step in steps for object in step.objects})
    frozen = {unit: tuple(dict.fromkeys(found)) for unit, found in settings.items()}
    words = sorted({word for object in objects for word in object.split() if word.isalpha()})
    return Pool(tuple(steps), tuple(objects), tuple(words), frozen, Variant(protocols[0]))


def _unit(quantity: Quantity) -> str:
    """The last word of a quantity with a number; "" for a setting in words."""
    text = quantity.standard()
    return text.split()[-1].lower() if text[:1].isdigit() else ""


def drill(pool: Pool, rng: random.Random, mixed: float = 0.75) -> tuple[str, str]:
    """(given, wanted): one of four exercises over one to four lines.

    Args:
      mixed: share of lines with foreign objects and settings.
    """
    lines = [_line(pool, rng, rng.random() < mixed) for _ in range(rng.choice(_SIZES))]
    key = "\n".join(render_step(number, line.step) for number, line in enumerate(lines, 1))
    orc = "\n".join(f"Step {number}: {line.say}" for number, line in enumerate(lines, 1))
    kind = rng.choice(("prose", "prose", "fill", "both", "lookup"))
    if kind == "fill":
        return f"<key>\n{key}\n</key>\n\n<orc>\n", f"{orc}\n</orc>"
    told = list(lines)
    head = ""
    if kind == "lookup" and len({line.step.action for line in lines}) == len(lines):
        rng.shuffle(told)
        head = f"Action order: {', '.join(line.step.action for line in lines)}.\n"
        text = "\n".join(f"- {line.told}" for line in told)
    else:
        text = " ".join(line.told for line in told)
    if kind == "both":
        return f"{text}\n\n<key>\n", f"{key}\n</key>\n\n<orc>\n{orc}\n</orc>"
    return f"{head}{text}\n\n<key>\n", f"{key}\n</key>"


def _line(pool: Pool, rng: random.Random, mixed: bool) -> Line:
    step = rng.choice(pool.steps)
    if mixed:
        step = dataclasses.replace(
            step,
            objects=tuple(_object(pool, rng) for _ in step.objects),
            parameters=tuple(_foreign(quantity, pool, rng) for quantity in step.parameters),
        )
    else:
        step = dataclasses.replace(step, parameters=tuple(_fixed(q, rng) for q in step.parameters))
    return Variant(pool.variant.protocol, told=rng).line(step)


def _object(pool: Pool, rng: random.Random) -> str:
    """An object of another step, or words that never stood together: a closed list would be learnt by heart."""
    if rng.random() < 0.5:
        return rng.choice(pool.objects)
    return " ".join(rng.sample(pool.words, rng.choice((1, 2, 2, 3))))


def _foreign(quantity: Quantity, pool: Pool, rng: random.Random) -> Quantity:
    """Another setting of the same unit, half of the time with a number of no meaning."""
    other = rng.choice(pool.settings[_unit(quantity)])
    if other.choices and rng.random() < 0.5:
        return Quantity(other.template.format(_any_number(rng)))
    return _fixed(other, rng)


def _fixed(quantity: Quantity, rng: random.Random) -> Quantity:
    return Quantity(quantity.draw(rng))


def _any_number(rng: random.Random) -> str:
    digits = rng.randint(1, 3)
    number = rng.randint(1, 10**digits - 1)
    return rng.choice((str(number), str(number * 10), str(number * 5), f"{number / 10:g}"))


def drills(protocols: Sequence[SourceProtocol], count: int, seed: int) -> list[tuple[str, str]]:
    """`count` drills; the same arguments give the same drills."""
    pool, rng = pool_of(protocols), random.Random(f"drills:{seed}")
    return [drill(pool, rng) for _ in range(count)]


_NUMBERED = re.compile(r"(?:^|: )\s*(?:Step\s+)?\d+\s*[:.)]\s+(\S.{10,160}?\.)(?=\s|$)", re.MULTILINE)


def sketched_drills(documents: Sequence[str], count: int, seed: int) -> list[tuple[str, str]]:
    """`count` drills from the numbered lines of any documents: their first sentences, and the sketcher's key lines.

    Returns:
      Fewer than `count` only where no document has a numbered line.
    """
    sentences = [sentence for document in documents for sentence in _NUMBERED.findall(document)]
    rng, made = random.Random(f"sketched:{seed}"), []
    for _ in range(count if sentences else 0):
        chosen = [rng.choice(sentences) for _ in range(rng.choice(_SIZES))]
        key = "\n".join(render_step(number, sketch_step(sentence)) for number, sentence in enumerate(chosen, 1))
        made.append((f"{' '.join(chosen)}\n\n<key>\n", f"{key}\n</key>"))
    return made
