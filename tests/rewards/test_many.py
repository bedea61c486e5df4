"""The fuzz and hostile tests at full size (make test-slow): every mode on 20,000 pairs, 100,000 hostile strings."""

import dataclasses
import random
import re
import time

import numpy as np
import pytest

from tests.rewards import reference
from tests.rewards.conftest import make_pair
from tests.rewards.test_fuzz import BASE, CHANGES
from tests.rewards.test_hostile import IDEAL, STEPS, adversarial, answer, mutate
from thoth_jax.rewards import ScoreConfig, score_batch
from thoth_jax.rewards.score import COMPONENTS

pytestmark = pytest.mark.slow
_PAIRS = 20_000


@pytest.fixture(scope="module")
def many_pairs():
    rng = random.Random(20_000)
    made = [make_pair(rng) for _ in range(_PAIRS)]
    return [output for output, _ in made], [gold for _, gold in made]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_every_mode_equals_plain_python(number, many_pairs):
    config = dataclasses.replace(BASE, **CHANGES[number])
    outputs, golds = many_pairs
    score = score_batch(outputs, golds, config)
    keys = [re.search("<key>(.*)</key>", gold, re.S).group(1) for gold in golds]
    expected = [reference.score(output, key, config) for output, key in zip(outputs, keys, strict=True)]
    for name in COMPONENTS:
        wanted = np.array([row[name] for row in expected])
        np.testing.assert_allclose(getattr(score, name), wanted, rtol=0, atol=1e-6, err_msg=f"{name} {CHANGES[number]}")


def hostile(rng: random.Random, count: int, golds: list[str]):
    """60 % mutations of gold answers, 30 % random and truncated, 10 % adversarial of up to 1 MB; (output, gold)."""
    tricks = adversarial()
    alphabet = '<>/{}[]":,\\ \n\tStepkeyorcnotethink0123456789\0\x01\x02\x03éµ°\ud800\u2028'
    for number in range(count):
        gold = rng.choice(golds)
        kind = number % 10
        if kind < 6:
            yield mutate(rng, gold), gold
        elif kind < 8:
            yield "".join(rng.choices(alphabet, k=int(10 ** rng.uniform(0, 3.5)))), gold
        elif kind < 9:
            yield gold[: rng.randrange(len(gold))], gold
        else:
            trick = rng.choice(tricks)
            yield (trick if rng.random() < 0.02 else mutate(rng, trick[: int(10 ** rng.uniform(1, 4.5))])), IDEAL


@pytest.mark.parametrize("settings", [{}, {"use_format_gate": False, "coverage": "item", "require_numbers": True}])
def test_a_hundred_thousand_hostile_strings(settings):
    rng = random.Random(100_000)
    golds = [make_pair(rng)[1] for _ in range(200)]
    config = ScoreConfig(**settings)
    largest, rewarded = 0, 0
    for _ in range(100):
        outputs, rows = zip(*hostile(rng, 1000, golds), strict=True)
        score = score_batch(outputs, rows, config)
        for name in COMPONENTS:
            values = getattr(score, name)
            assert np.isfinite(values).all() and (values >= 0).all(), name
        assert (score.total <= 2.5).all()
        largest = max(largest, *map(len, outputs))
        rewarded += int((score.total > 0).sum())
    assert largest >= 1_000_000 and rewarded > 500


# Text -> answers of growing size, refused and accepted.
_GROWING = {
    "think": lambda n: answer(STEPS, think="a b " * n),
    "no note": lambda n: answer(STEPS, think="a b " * n).split("<note>")[0],
    "orc words": lambda n: answer(STEPS, [" ".join(["add buffer 5 min"] * n)] * 5),
    "steps": lambda n: answer([*STEPS] * (n // 10)),
    "objects": lambda n: answer([STEPS[0]._replace(objects=tuple(f"o{i}" for i in range(n)))]),
    "tags": lambda n: "<key>" * n,
    "open tags": lambda n: "<think>a</think>" * n,
    "brackets": lambda n: "<think>a</think><key>Step 1: " + "[" * n + "</key>",
    "quotes": lambda n: "<think>a</think>\n\n<key>\n" + '"' * n + "\n</key>\n\n<orc>\na\n</orc>\n\n<note>\nb\n</note>",
    "escapes": lambda n: answer([STEPS[0]._replace(objects=("\\" * n,))]),
    "marks": lambda n: answer([STEPS[0]._replace(objects=("\u0301\u0316" * n,))]),
}


@pytest.mark.parametrize("kind", _GROWING)
def test_ten_times_the_text_costs_at_most_fifteen_times(kind):
    def seconds(size):
        text = _GROWING[kind](size)
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            score_batch([text], [IDEAL])
            best = min(best, time.perf_counter() - start)
        return best

    small = 10_000
    seconds(small), seconds(10 * small)  # compile
    for _ in range(3):  # other work on the machine must not decide
        fixed = seconds(0)
        if seconds(10 * small) - fixed < 15 * max(seconds(small) - fixed, 0.0005) + 0.005:
            return
    raise AssertionError(f"{kind}: {seconds(small):.4f} s, ten times the text {seconds(10 * small):.4f} s")
