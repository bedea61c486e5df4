"""SciRecipe-Eval against the published evaluator's own outputs, and what we return where it gave up."""

import json
import time

import numpy as np
import pytest

from thoth_jax.evaluation.structured import OURS, PUBLISHED, evaluator_blocks, structured_metrics

STEP = 'Step {}: {{"action": "{}", "objects": ["buffer"], "parameters": ["5 min"]}}'


def key(*actions):
    return "\n".join(STEP.format(number, action) for number, action in enumerate(actions, 1))


def one(predicted, gold):
    return {name: float(values[0]) for name, values in structured_metrics([predicted], [gold]).items()}


@pytest.fixture(scope="module")
def cases(shared):
    text = (shared / "golden" / "score_cases.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def test_equals_the_published_evaluator(cases):
    assert len(cases) == 170
    found = structured_metrics([case["pred_key"] for case in cases], [case["gold_key"] for case in cases])
    compared = 0
    for row, case in enumerate(cases):
        if case["reference_errors"] or case["python_dependent"]:
            continue
        compared += 1
        for name in PUBLISHED:
            assert found[name][row] == pytest.approx(case["metrics"][name], abs=1e-6), (case["id"], name)
    assert compared >= 160


def test_finds_the_blocks_that_the_evaluator_finds(cases):
    for case in cases:
        assert evaluator_blocks(case["pred_text"]) == (case["pred_key"], case["pred_orc"]), case["id"]


@pytest.mark.parametrize(
    ("field", "value", "content"),
    [("objects", "null", 0.75), ("parameters", "null", 1.25), ("parameters", "7", 1.25), ("action", "null", 1.5)],
)
def test_a_bad_field_spoils_only_its_own_step(field, value, content):
    """The published evaluator gives such an answer 0 everywhere."""
    whole = {"action": '"mix"', "objects": '["buffer"]', "parameters": '["5 min"]'}
    line = ", ".join(f'"{name}": {text}' for name, text in (whole | {field: value}).items())
    found = one(f"{key('add')}\nStep 2: {{{line}}}", key("add", "mix"))
    assert found["step_match"] == 1 and found["content_score"] == pytest.approx(content)
    assert found["order_strict"] == (field != "action")


def test_our_own_columns():
    gold = key("add", "mix", "spin", "dry")
    assert one(gold, gold) == dict.fromkeys((*PUBLISHED, *OURS), 1.0) | {"content_score": 1.5, "content_per_gold": 1.5}
    shorter = one(key("add", "mix"), gold)
    assert shorter["order_subsequence"] == 1 and shorter["order_strict"] == 0
    assert shorter["content_score"] == 1.5 and shorter["content_per_gold"] == 0.75
    assert one(key("mix", "add"), gold)["order_subsequence"] == 0
    for empty in ("", "prose", "{}"):
        assert one(empty, gold)["order_subsequence"] == 0 and one(empty, gold)["content_per_gold"] == 0
    assert one("", "")["order_subsequence"] == 1


def test_equal_lengths_and_empty_batches():
    assert all(values.shape == (0,) for values in structured_metrics([], []).values())
    with pytest.raises(ValueError, match="1 predicted keys but 0 gold keys"):
        structured_metrics([""], [])


def test_hostile_text():
    gold = key("add", "mix")
    hostile = ["\0" * 10_000, "\ud800", "<think>" * 50_000, "Step 1: " + "[" * 50_000, 'Step 1: {"a":' * 5000]
    hostile += [key(*["add"] * 3000), "Step 1: {" + "9" * 100_000, 'Step 1: {"action": ' + "9" * 100_000 + "}"]
    hostile += ["<think></think>" + " " * 200_000, "<think>" + "</think> " * 50_000 + "<key>" * 1000, "\n" * 200_000]
    start = time.perf_counter()
    found = structured_metrics([evaluator_blocks(text)[0] for text in hostile], [gold] * len(hostile))
    assert time.perf_counter() - start < 30
    for name, values in found.items():
        assert np.isfinite(values).all() and (values <= 1.5).all(), name
