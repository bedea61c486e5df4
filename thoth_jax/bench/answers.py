"""Answers for the SCORE benchmark: lengths and overlaps like those of real ones, no line twice."""

import random
from typing import NamedTuple

from thoth_jax.protocol.grammar import Sketch, Step, render, render_step

_ACTIONS = "add mix heat cool centrifuge incubate wash resuspend transfer pipette dilute filter collect discard".split()
_THINGS = "cells lysate buffer supernatant pellet membrane antibody plasmid primers medium beads column ethanol".split()
_QUALITIES = "cold sterile fresh labelled remaining upper lower clear diluted concentrated pooled second final".split()
_AMOUNTS = (
    *range(1, 21),
    25,
    30,
    37,
    42,
    45,
    50,
    60,
    75,
    80,
    90,
    95,
    100,
    120,
    150,
    200,
    250,
    300,
    400,
    500,
    800,
    1000,
)
_UNITS = ("µl", "ml", "min", "°C", "x g", "rpm", "mM", "ng/µl", "h", "%")
_ENDS = "slowly gently quickly carefully twice again overnight briefly evenly completely on ice, at the bench".split(
    " "
)


class Batch(NamedTuple):
    """B answers and the gold of each; `keys` are the key blocks alone, which is all that the evaluator is given."""

    outputs: list[str]
    golds: list[str]
    output_keys: list[str]
    gold_keys: list[str]


def make_batch(seed: int, prompts: int, group_size: int, words: int = 0) -> Batch:
    """prompts x group_size answers, perturbed golds: steps dropped, swapped, inserted, objects and numbers changed.

    Golds have 2 to 14 steps, about 5 on average, as the published RL samples. All texts are drawn anew for each seed.
    About half of the key lines of an answer are also in another answer of its group, as among samples of one prompt;
    orc sentences are not.

    Args:
      words: the think block is filled up to about so many white-space words an answer; 0: a short one.
    """
    rng = random.Random(seed)
    batch = Batch([], [], [], [])
    for _ in range(prompts):
        gold = [_step(rng) for _ in range(min(14, 2 + int(rng.expovariate(1 / 3.7))))]
        gold_text, gold_key = _answer(rng, gold, 0)
        for _ in range(group_size):
            text, key = _answer(rng, _perturbed(rng, gold), words)
            for column, value in zip(batch, (text, gold_text, key, gold_key), strict=True):
                column.append(value)
    return batch


def _step(rng: random.Random) -> Step:
    objects = tuple(f"{rng.choice(_QUALITIES)} {rng.choice(_THINGS)}" for _ in range(rng.choice((1, 1, 2))))
    parameters = tuple(
        f"{rng.choice(_AMOUNTS) / rng.choice((1, 1, 10)):g} {rng.choice(_UNITS)}"
        for _ in range(rng.choice((1, 2, 2, 3)))
    )
    return Step(rng.choice(_ACTIONS), objects, parameters)


def _perturbed(rng: random.Random, steps: list[Step]) -> list[Step]:
    steps = [step._replace(parameters=_step(rng).parameters) if rng.random() < 0.4 else step for step in steps]
    for _ in range(rng.choice((0, 1, 1, 2))):
        at, change = rng.randrange(len(steps)), rng.randrange(4)
        if change == 0 and len(steps) > 1:
            del steps[at]
        elif change == 1 and at:
            steps[at - 1], steps[at] = steps[at], steps[at - 1]
        elif change == 2:
            steps.insert(at, _step(rng))
        else:
            steps[at] = steps[at]._replace(objects=_step(rng).objects)
    return steps


def _sentence(rng: random.Random, step: Step) -> str:
    parameters = f" with {', '.join(step.parameters)}" if step.parameters else ""
    ending = f"{rng.choice(_ENDS)} and {rng.choice(_ENDS)}"
    return f"{step.action.capitalize()} the {' and the '.join(step.objects)}{parameters} {ending}."


def _answer(rng: random.Random, steps: list[Step], words: int) -> tuple[str, str]:
    sentences = tuple(_sentence(rng, step) for step in steps)
    key = "\n".join(render_step(number, step) for number, step in enumerate(steps, 1))
    think = f"The {rng.choice(_THINGS)} come first, because the {rng.choice(_THINGS)} need them."
    spare = words - len(key.split()) - sum(len(sentence.split()) + 2 for sentence in sentences) - 20
    if spare > 0:
        think += " " + " ".join(rng.choices(_THINGS + _QUALITIES + _ACTIONS, k=spare))
    return render(Sketch(think, tuple(steps), sentences, f"Wear gloves with {rng.choice(_THINGS)}.")), key
