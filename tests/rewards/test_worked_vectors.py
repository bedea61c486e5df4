"""The paper's figure 2 and the tables of f and m, by hand."""

import math

import numpy as np
import pytest

from thoth_jax.protocol import Sketch, Step, render
from thoth_jax.rewards import ScoreConfig, kernels, score_batch

GOLD = [
    ("harvest", "cell cultures", ["wash 3x", "pbs", "4 °c"]),
    ("lyse", "cell pellets", ["triton-citrate buffer", "ripa-citrate buffer", "4 °c"]),
    ("centrifuge", "lysate", [">16,000xg", "5 min", "4 °c"]),
    ("quantify", "protein extract", ["bradford assay"]),
]
FIRST = [
    ("harvest", "cell cultures", ["buffer", "cold"]),
    ("centrifuge", "lysate", ["clarify"]),
    ("lyse", "cell pellets", ["lysis buffer", "cold"]),
    ("stain", "cell pellets", ["dye"]),
    ("quantify", "protein extract", ["assay"]),
]
SECOND = [
    ("harvest", "pellets in water", ["resuspend"]),
    ("quantify", "cell pellets", ["stain"]),
    ("lyse", "cell pellets", ["boil", "dry"]),
    ("centrifuge", "lysate", ["resuspend"]),
]
THIRD = [
    ("harvest", "pellets in water", ["resuspend"]),
    ("lyse", "cell pellets", ["boil", "dry"]),
    ("quantify", "protein extract", ["stain"]),
]


def answer(rows) -> str:
    steps = tuple(Step(action, (thing,), tuple(settings)) for action, thing, settings in rows)
    return render(Sketch("", steps, tuple(" ".join([s.action, *s.objects, *s.parameters]) for s in steps), "Gloves."))


def scored(rows, **settings):
    score = score_batch([answer(rows)], [answer(GOLD)], ScoreConfig(**settings))
    assert score.reasons == [""]
    return {name: float(getattr(score, name)[0]) for name in ("total", "step_scale", "order", "content", "semantics")}


@pytest.mark.parametrize(
    ("rows", "scale", "order", "content", "total"),
    [
        (GOLD, 1, 1, 1.5, 2.5),
        (FIRST, math.cos(math.pi / 4), 0, 0.9896, 0.6997),
        (SECOND, 1, 0, 0, 0),
        (THIRD, math.cos(math.pi / 4), 1, 0.625, 1.1490),
    ],
)
def test_figure_2(rows, scale, order, content, total):
    found = scored(rows)
    assert found["step_scale"] == pytest.approx(scale, abs=1e-6)
    assert found["order"] == order
    assert found["content"] == pytest.approx(content, abs=1e-4)
    assert found["semantics"] == pytest.approx(order + content, abs=1e-4)
    assert found["total"] == pytest.approx(total, abs=1e-4)


def test_figure_2_by_the_evaluators_alignment():
    found = scored(FIRST, alignment="greedy_reference")
    assert found["content"] == pytest.approx(0.9375, abs=1e-6)
    assert found["total"] == pytest.approx(0.6629, abs=1e-4)


@pytest.mark.parametrize(
    ("rows", "alignment", "pairs"),
    [
        (FIRST, "greedy", [0, 2, -1, -1, 3]),
        (FIRST, "greedy_reference", [0, 2, -1, -1, -1]),
        (FIRST, "lcs", [0, -1, 1, -1, 3]),
        (SECOND, "greedy", [0, 3, -1, -1]),
        (SECOND, "lcs", [0, -1, 1, 2]),
    ],
)
def test_aligned_pairs(rows, alignment, pairs):
    names = [action for action, *_ in GOLD]
    predicted = np.array([names.index(action) if action in names else -1 for action, *_ in rows], np.int32)
    gold = np.arange(len(names), dtype=np.int32)
    if alignment == "lcs":
        found = kernels.align_lcs(predicted, gold, kernels.lcs_table(predicted, gold))
    else:
        found = kernels.align_greedy(predicted, gold, np.int32(4), exhaust=alignment == "greedy_reference")
    assert found.tolist() == pairs


@pytest.mark.parametrize(
    ("gold_count", "limit", "values"),
    [
        (1, 1, [1, 0]),
        (3, 1, [1, 0]),
        (4, 2, [1, 0.7071, 0]),
        (5, 3, [1, 0.8660, 0.5, 0]),
        (8, 4, [1, 0.9239, 0.7071, 0.3827, 0]),
        (9, 5, [1, 0.9511, 0.8090, 0.5878, 0.3090, 0]),
        (11, 6, [1, 0.9659, 0.8660, 0.7071, 0.5, 0.2588, 0]),
    ],
)
def test_step_scale(gold_count, limit, values):
    found = kernels.step_scale(np.arange(len(values)), limit)
    np.testing.assert_allclose(found, values, atol=5e-5)
    # The same through the whole: a gold of that many steps against one with d more.
    rows = [(f"do{index}", "thing", []) for index in range(gold_count + len(values))]
    outputs = [answer(rows[: gold_count + d]) for d in range(len(values))]
    score = score_batch(outputs, [answer(rows[:gold_count])] * len(values))
    np.testing.assert_allclose(score.step_scale, values, atol=5e-5)


@pytest.mark.parametrize(
    ("count", "values"),
    [
        (2, [1, 0.6464, 0]),
        (3, [1, 0.8075, 0.4557, 0]),
        (4, [1, 0.8750, 0.6464, 0.3505, 0]),
        (6, [1, 0.9320, 0.8075, 0.6464, 0.4557, 0.2393, 0]),
        (8, [1, 0.9558, 0.8750, 0.7704, 0.6464, 0.5059, 0.3505, 0.1815, 0]),
    ],
)
def test_position_decay(count, values):
    np.testing.assert_allclose(kernels.position_decay(np.arange(count + 1), np.int32(count), 1.5), values, atol=5e-5)


@pytest.mark.parametrize(("penalty", "expected"), [("proportional", 0.5), ("printed", 1 / 60), ("none", 1)])
def test_length_penalty(penalty, expected):
    steps = (Step("mix", ("buffer",), ()),)
    output = render(Sketch("", steps, ("mix buffer" + " slowly" * 58,), "Gloves."))
    score = score_batch([output], [output], ScoreConfig(length_penalty=penalty))
    assert score.step_scale[0] == pytest.approx(expected)
    assert score.total[0] == pytest.approx(2.5 * expected)
