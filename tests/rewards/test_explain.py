"""The explanation says what SCORE did: its numbers are the reward's, its steps those that were compared."""

import json

import numpy as np
import pytest

from thoth_jax.protocol import Sketch, Step, render
from thoth_jax.rewards.explain import STATUSES, explain_batch, explained_text
from thoth_jax.rewards.score import COMPONENTS, ScoreConfig, score_batch

HARVEST = Step("harvest", ("cell cultures",), ("wash 3x", "pbs"))
LYSE = Step("lyse", ("cell pellets",), ("triton",))
SPIN = Step("spin", ("lysate",), ("5 min",))
STAIN = Step("stain", ("gel",), ())


def answer(*steps, orc=None):
    said = orc or [" ".join((step.action, *step.objects, *step.parameters)) for step in steps]
    return render(Sketch("why", tuple(steps), tuple(said), "gloves"))


GOLD = answer(HARVEST, LYSE, SPIN)


def steps_of(output, **settings):
    [found] = explain_batch([output], [GOLD], ScoreConfig(**settings))
    return [(one.status, one.number, one.gold_number) for one in found.steps]


def test_each_kind_of_step():
    other = SPIN._replace(objects=("lysate", "tube"))
    assert steps_of(GOLD) == [("matched", n, n) for n in (1, 2, 3)]
    assert steps_of(answer(HARVEST, other, STAIN)) == [
        ("matched", 1, 1),
        ("missing", 0, 2),
        ("mismatched", 2, 3),
        ("added", 3, 0),
    ]
    assert steps_of("no answer") == [("missing", 0, n) for n in (1, 2, 3)]


def test_numbers_of_a_pair():
    [found] = explain_batch([answer(HARVEST, SPIN._replace(objects=("lysate", "tube")))], [GOLD], ScoreConfig())
    pair = found.steps[-1]
    # One place off among three gold steps: m = 1 - (1/3)^1.5.
    assert (pair.obj, pair.par, pair.decay) == pytest.approx((0.5, 1.0, 1 - (1 / 3) ** 1.5))
    assert found.to_json()["steps"][-1]["note"] == "objects 0.5, parameters 1; step 3 of the gold: x 0.81"


def test_the_numbers_are_the_rewards(pairs):
    outputs, golds = pairs[0][:200], pairs[1][:200]
    for config in (
        ScoreConfig(),
        ScoreConfig(combine="product", final_combine="sum", alignment="lcs", use_decay=False),
    ):
        score = score_batch(outputs, golds, config)
        found = explain_batch(outputs, golds, config)
        for name in COMPONENTS:
            np.testing.assert_array_equal([one.components[name] for one in found], getattr(score, name))
        assert [one.reason for one in found] == score.reasons
        # Content is what the explained pairs earn, averaged over them.
        for one in found:
            earned = [s.decay * (s.obj + config.parameter_weight * s.par) for s in one.steps if s.step and s.gold]
            assert one.components["content"] == pytest.approx(np.mean(earned) if earned else 0, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "end"),
    [
        ({}, "x step scale 1 x (order 1 + content 1.5)"),
        ({"combine": "product"}, "x step scale 1 x order 1 x content 1.5"),
        ({"use_order": False}, "x step scale 1 x content 1.5"),
        ({"final_combine": "sum"}, "x (step scale 1 + (order 1 + content 1.5))"),
    ],
)
def test_the_formula_is_that_of_the_configuration(settings, end):
    [found] = explain_batch([GOLD], [GOLD], ScoreConfig(**settings))
    assert found.formula.startswith(f"SCORE {found.total:g} = format 1 x consistency 1") and found.formula.endswith(end)


def test_why_the_consistency_gate_refused():
    [found] = explain_batch(
        [answer(HARVEST, LYSE, SPIN, orc=["Harvest", "lysed pellets cells tritons", "spin"])], [GOLD]
    )
    assert found.reason == "low_coverage" and found.total == 0
    assert [one.unsaid for one in found.steps] == [
        ("cell", "cultures", "wash", "3x", "pbs"),
        (),
        ("lysate", "5", "min"),
    ]
    assert "not said in its sentence: lysate, 5, min" in str(found)


def test_a_partial_order_is_followed():
    gold = "\n".join(
        f'Step {n}: {{"action": "{a}", "objects": [], "parameters": []{after}}}'
        for n, (a, after) in enumerate((("a", ""), ("b", ', "after": []')), 1)
    )
    [found] = explain_batch([answer(Step("b", (), ()), Step("a", (), ()))], [gold])
    assert [(one.status, one.gold_number) for one in found.steps] == [("matched", 2), ("matched", 1)]


def test_hostile_text_is_cut_and_shown_without_control_characters():
    long = answer(*[Step("mix\x1b[31m\u202e", ("x" * 5000,), ())] * 300)
    for output in (long, "\ud800", "<key>" * 1000, ""):
        [found] = explain_batch([output], [GOLD])
        said = found.to_json()
        assert len(said["steps"]) <= 43 and all(len(one["text"]) <= 400 for one in said["steps"])
        assert {one["status"] for one in said["steps"]} <= set(STATUSES)
        text = explained_text(json.loads(json.dumps(said)))
        assert all(letter.isprintable() or letter == "\n" for letter in text) and str(found) == text
    assert explain_batch([], []) == []
