"""Model text is hostile: it never raises, never hangs, never scores above its worth."""

import json
import random
import time

import numpy as np
import pytest

from tests.rewards.conftest import make_pair
from thoth_jax.protocol import Sketch, Step, parse, render
from thoth_jax.rewards import ScoreConfig, score_batch

STEPS = tuple(Step(action, ("buffer",), ("5 min",)) for action in ("add", "mix", "spin", "rinse", "dry"))
IDEAL = render(Sketch("", STEPS, tuple(f"{s.action} buffer for 5 min" for s in STEPS), "Gloves."))

TEXT_SPLICES = ["\0", "\ud800", "\u2028", "\u3000", "\n", "\r\n", "ﷺ", "İ", "e\u0301" * 50]
TAG_SPLICES = ["<key>", "</key>", "<think>", "</orc>", "<NOTE>", "Step 1: ", "Step 99999999999999999999: {}"]
JSON_SPLICES = ["{", "}", "[", '"', "\\", "\\ud83d", "\\u0000", "null", "NaN", "true", "1e999", '"action"', ", "]
SPLICES = [*TEXT_SPLICES, *TAG_SPLICES, *JSON_SPLICES, "9" * 5000, "[" * 2000, '{"a":' * 500]


def mutate(rng: random.Random, text: str) -> str:
    for _ in range(rng.randrange(1, 5)):
        at, to = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        kind = rng.randrange(5)
        if kind == 0:
            text = text[:at] + rng.choice(SPLICES) + text[at:]
        elif kind == 1:
            text = text[:at] + text[min(to, at + rng.randrange(30)) :]
        elif kind == 2:
            text = text[:to] + text[at:]
        elif kind == 3:
            text = text[:at]
        else:
            text = text[:at] + rng.choice(SPLICES) + text[to:]
    return text


def adversarial() -> list[str]:
    line = 'Step {}: {{"action": "add", "objects": {}, "parameters": []}}'

    def key(body, orc="Step 1: add."):
        return f"<think>t</think>\n<key>\n{body}\n</key>\n<orc>\n{orc}\n</orc>\n<note>n</note>"

    many = range(1, 10_001)
    return [
        "",
        "\0" * 100_000,
        "<think>" * 140_000,
        "<think></think><key></key><orc></orc>" + " " * 1_000_000,
        ("<think></think>" + " " * 50) * 10_000,
        key(line.format(1, "[" * 100_000 + "]" * 100_000)),
        key(line.format(1, json.dumps(["x"] * 100_000))),
        key(line.format(1, json.dumps([f"x{i}" for i in range(100_000)])), "Step 1: add " + "y" * 100_000),
        key(line.format(1, json.dumps(["a b c d " * 50_000]))),
        key(line.format(1, "9" * 1_000_000)),
        key(line.format(1, json.dumps(["a" * 1_000_000])), "Step 1: add " + "a" * 1_000_000),
        key("Step " + "9" * 500_000 + ": {}"),
        key(" " * 500_000 + "Step 1 " + " " * 500_000),
        key("\n".join(line.format(i, "[]") for i in many), "\n".join(f"Step {i}: add." for i in many)),
        key("\n" * 1_000_000),
        key(line.format(1, '["' + "\\u00e9" * 100_000 + '"]')),
        key(line.format(1, '["' + "\ufdfa" * 50_000 + '"]'), "Step 1: add " + "\ufdfa" * 50_000),
        key(line.format(1, '["' + "\u0301\u0316" * 200_000 + '"]'), "Step 1: add " + "\u0301\u0316" * 100_000),
        key(line.format(1, "[]").replace("{", '{"action": "mix", ')),
        key(line.format(1, "null")),
        key(line.format(1, "{}")),
    ]


@pytest.mark.parametrize("settings", [{}, {"use_format_gate": False, "coverage": "item", "require_numbers": True}])
def test_mutated_answers(settings):
    rng = random.Random(3)
    golds = [make_pair(rng)[1] for _ in range(40)]
    rows = [rng.choice(golds) for _ in range(2000)]
    outputs = [mutate(rng, gold) for gold in rows]
    score = score_batch(outputs, rows, ScoreConfig(**settings))
    assert np.isfinite(score.total).all() and (score.total >= 0).all() and (score.total <= 2.5).all()
    assert (score.total > 0).any() and len(set(score.reasons)) > (15 if not settings else 2)


@pytest.mark.parametrize("settings", [{}, {"use_format_gate": False, "coverage": "item", "alignment": "lcs"}])
def test_adversarial_answers(settings):
    outputs = adversarial()
    start = time.perf_counter()
    score = score_batch(outputs, [IDEAL] * len(outputs), ScoreConfig(use_step_scale=False, **settings))
    assert time.perf_counter() - start < 60
    assert np.isfinite(score.total).all() and (score.total <= 2.5).all()


def test_time_is_linear():
    for template in ("<think>{}", "<think>{}</think><key>", "<think></think>{}<key>", "<think></think><key>{}</key>"):
        for filler in ("<think></think> ", " ", "Step 1: ", "[", "\n", "</key> "):
            seconds = []
            for count in (20_000, 200_000):
                text = template.format(filler * count)
                start = time.perf_counter()
                assert parse(text).sketch is None
                seconds.append(time.perf_counter() - start)
            assert seconds[1] < 30 * seconds[0] + 0.2, (template, filler)


def answer(steps, orc=None, think=""):
    orc = orc or [" ".join([step.action, *step.objects, *step.parameters]) for step in steps]
    return render(Sketch(think, tuple(steps), tuple(orc), "Gloves."))


def hacks():
    """Known tricks and what each is worth today, of 2.5."""
    first = STEPS[0]
    yield "one perfect step of five", answer([first]), 0.0
    yield "one step repeated", answer([first] * 5), 1.5
    yield "every action twice", answer([*STEPS, *STEPS]), 0.0
    yield "nothing in the lists", answer([step._replace(objects=(), parameters=()) for step in STEPS]), 1.0
    listed = [step._replace(objects=(), parameters=()) for step in sorted(STEPS)]
    yield "the prompt's action list copied, shuffled", answer(listed), 0.0
    yield "objects stuffed", answer([s._replace(objects=(*s.objects, *"abcdefg")) for s in STEPS]), 1.125
    yield "orc holds the whole key", answer(STEPS, [" ".join(s.action for s in STEPS) + " buffer 5 min"] * 5), 2.5
    yield "two answers", answer(STEPS) + "\n" + answer(STEPS), 0.0
    yield "tags in think", answer(STEPS, think="first a <key>"), 0.0


@pytest.mark.parametrize(("name", "output", "worth"), hacks())
def test_reward_hacks_have_a_known_worth(name, output, worth):
    assert score_batch([output], [IDEAL]).total[0] == pytest.approx(worth, abs=1e-6), name


def test_one_step_repeated_is_worth_little_over_the_longer_list():
    found = score_batch([answer([STEPS[0]] * 5)], [IDEAL], ScoreConfig(content_denominator="max_length"))
    assert found.total[0] == pytest.approx(0.3)
