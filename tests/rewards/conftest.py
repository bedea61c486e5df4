"""Answers made of a small vocabulary, so that actions repeat and sets overlap."""

import random

import pytest

from thoth_jax.protocol import Sketch, Step, render

ACTIONS = ["mix", "add", "rinse", "filter sterilize", "spin", "Heat"]
NOUNS = ["buffer", "lysis buffer", "cell pellet", "Ca²⁺ solution", "tube", "µl tips", "细胞", "10⁶ cells", " "]
SETTINGS = ["5 min", "3–5 min", "4 °C", "gently", "at 9700xg", "37 ℃", "0.5 ml", "twice", ""]


def make_steps(rng: random.Random, count: int) -> list[Step]:
    return [
        Step(
            rng.choice(ACTIONS),
            tuple(rng.sample(NOUNS, rng.choice([0, 1, 1, 2, 3]))),
            tuple(rng.sample(SETTINGS, rng.choice([0, 1, 2, 3]))),
        )
        for _ in range(count)
    ]


def perturb(rng: random.Random, steps: list[Step]) -> list[Step]:
    steps = list(steps)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(steps))
        kind = rng.randrange(5)
        if kind == 0 and len(steps) > 1:
            del steps[at]
        elif kind == 1:
            steps.insert(at, make_steps(rng, 1)[0])
        elif kind == 2:
            steps[at], steps[-1] = steps[-1], steps[at]
        elif kind == 3:
            steps[at] = steps[at]._replace(objects=make_steps(rng, 1)[0].objects)
        else:
            steps[at] = steps[at]._replace(parameters=make_steps(rng, 1)[0].parameters)
    return steps


def sentence(rng: random.Random, step: Step) -> str:
    parts = [step.action, *step.objects, *step.parameters]
    if rng.random() < 0.1:
        parts = parts[:1]
    if rng.random() < 0.1:
        parts += ["and then wait"] * rng.randrange(20)
    rng.shuffle(parts)
    return " the ".join(part.strip() or "it" for part in parts) + "."


def make_pair(rng: random.Random) -> tuple[str, str]:
    """(output, full gold answer)."""
    gold = make_steps(rng, rng.choice([1, 2, 3, 4, 5, 6, 9, 11]))
    steps = make_steps(rng, rng.randrange(1, 9)) if rng.random() < 0.2 else perturb(rng, gold)
    output = render(Sketch("why", tuple(steps), tuple(sentence(rng, step) for step in steps), "gloves"))
    if rng.random() < 0.05:
        output = output.replace("</key>", "")
    return output, render(Sketch("why", tuple(gold), tuple(sentence(rng, step) for step in gold), "gloves"))


@pytest.fixture(scope="session")
def pairs():
    """1,200 pairs (outputs, golds), the same in every run."""
    rng = random.Random(0)
    made = [make_pair(rng) for _ in range(1200)]
    return [output for output, _ in made], [gold for _, gold in made]
