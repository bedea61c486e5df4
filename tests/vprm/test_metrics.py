"""Metrics against plain counting, their bound, and paired runs."""

import json
import random

import pytest

from tests.vprm import hostile
from thoth_jax.errors import InputError
from vprm_jax import tools
from vprm_jax.files import evaluate_file
from vprm_jax.metrics import METRICS, Gold, check_bound, compare, judge, report
from vprm_jax.trace import TraceFormat, implied, path

FORM = TraceFormat(tools.load("rob1"), "A")
REPORT, METHOD, PREDICTABLE, BASELINE = (step.name for step in FORM.domain.steps)
STEPS = {REPORT: "reported", METHOD: "random", PREDICTABLE: "unpredictable", BASELINE: "none"}
HIGH = STEPS | {METHOD: "non_random"}
HUMAN = {"risk": "human", "steps": "silver"}


def gold(name="1", risk="low", steps=STEPS, cluster=None, provenance=HUMAN):
    return Gold(name, "rob1", "A", risk, steps, cluster or name, provenance)


def made(texts, golds=None):
    return [judge(FORM, text, golds[at] if golds else gold(str(at))) for at, text in enumerate(texts)]


def values(rows):
    return {name: triple[0] for name, triple in report(rows, samples=50)["overall"].items()}


def test_each_metric_of_five_answers():
    texts = [
        FORM.render(STEPS),  # right and coherent
        FORM.render(HIGH),  # coherent, wrong
        FORM.render(HIGH, "low"),  # right verdict, wrong steps
        FORM.render(STEPS, "high"),  # right steps, wrong verdict
        "no trace at all",
    ]
    assert values(made(texts)) == pytest.approx(
        {
            "accuracy": 2 / 5,
            # Low: 2 hits of 2 stated and 5 gold; high: 0 hits. Moderate is neither and does not count.
            "macro_f1": (2 * 2 / 7 + 0) / 2,
            "parse_rate": 4 / 5,
            "format_rate": 4 / 5,
            "coherence": 2 / 5,
            "ca_joint": 1 / 5,
            "ca_conditional": 1 / 2,
            "right_answer_wrong_steps": 1 / 5,
            "step_names": 4 / 5,
            "step_labels": (1 + 3 / 4 + 3 / 4 + 1) / 5,
            "gold_coherence": 1,
        },
        abs=1e-6,
    )


def test_random_rows_against_plain_counting():
    rng = random.Random(0)
    rows, form = [], hostile.FORMATS["C"]
    for number in range(300):
        steps, risk, text = hostile.gold_of(rng, form)
        text = hostile.mutate(rng, text) if rng.random() < 0.5 else hostile.gold_of(rng, form)[2]
        item = Gold(str(number), "rob1", "C", risk, steps, str(number), HUMAN)
        rows.append((judge(form, text, item), form.parse(text), steps, risk))
    found = values([row for row, *_ in rows])
    right = [trace.verdict == risk for _, trace, _, risk in rows]
    coherent = [
        trace.verdict is not None and implied(form.domain, trace.steps) == trace.verdict for _, trace, *_ in rows
    ]
    joint = sum(r and c for r, c in zip(right, coherent, strict=True))
    lucky = [
        r and any(dict(trace.steps).get(name) != label for name, label in path(form.domain, steps).items())
        for r, (_, trace, steps, _) in zip(right, rows, strict=True)
    ]
    scores = []
    for verdict in tools.VERDICTS:
        hits = sum(trace.verdict == risk == verdict for _, trace, _, risk in rows)
        stated = sum(trace.verdict == verdict for _, trace, *_ in rows)
        true = sum(risk == verdict for *_, risk in rows)
        scores.append(2 * hits / (stated + true))
    expected = {
        "accuracy": sum(right) / 300,
        "coherence": sum(coherent) / 300,
        "ca_joint": joint / 300,
        "ca_conditional": joint / sum(coherent),
        "right_answer_wrong_steps": sum(lucky) / 300,
        "macro_f1": sum(scores) / 3,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert 0 < joint < min(sum(right), sum(coherent))


def test_what_nothing_defines_is_none():
    found = report(made([FORM.render(STEPS, "high")] * 3), samples=20)["overall"]
    assert found["coherence"] == [0, 0, 0] and found["ca_conditional"] == [None, None, None]
    without = report([judge(FORM, FORM.render(STEPS), gold(str(at), steps=None)) for at in range(3)], samples=20)
    for name in ("step_names", "step_labels", "gold_coherence", "right_answer_wrong_steps"):
        assert without["overall"][name] == [None, None, None]
    assert without["overall"]["accuracy"] == [1, 1, 1]
    assert report(made([FORM.render(STEPS)]), samples=20)["overall"]["accuracy"] == [1, None, None]


def test_stopping_where_the_verdict_is_settled_is_not_wrong():
    stopped = FORM.render(HIGH, trace_mode="path")
    row = judge(FORM, stopped, gold(risk="high", steps=HIGH))
    assert row["steps_right"] and row["step_names"] == 0.5
    row = judge(FORM, FORM.render(HIGH), gold(risk="high", steps=path(FORM.domain, HIGH)))
    assert row["steps_right"] and row["step_names"] == 1


def test_gold_that_contradicts_itself_shows():
    golds = [gold("0"), gold("1", risk="high")]
    assert values(made([FORM.render(STEPS)] * 2, golds))["gold_coherence"] == 0.5


def test_bound_of_coherent_accuracy():
    check_bound(0.5, 0.5, 0.0)
    check_bound(0.5, 0.5, 0.5)
    for numbers in ((0.5, 0.6, 0.09), (0.5, 0.6, 0.51)):
        with pytest.raises(ValueError, match="ca_joint"):
            check_bound(*numbers)
    with pytest.raises(ValueError, match=r"\[0.7740, 0.8790\]"):
        check_bound(0.895, 0.879, 0.750)  # the paper's tables 5 and 2 for its best model


def test_groups_provenance_and_clusters():
    golds = [gold(str(at), cluster="ab"[at % 2]) for at in range(4)]
    golds.append(gold("4", cluster="b", provenance={"risk": "synthetic"}, steps=None)._replace(domain="B"))
    found = report(made([FORM.render(STEPS)] * 4 + [""], golds), samples=20)
    assert found["clusters"] == 2 and found["provenance"] == {
        "risk": {"human": 4, "synthetic": 1},
        "steps": {"silver": 4},
    }
    assert set(found["by_domain"]) == {"rob1 A", "rob1 B"} and set(found["by_tool"]) == {"rob1"}
    assert found["by_provenance"]["human"]["accuracy"][0] == 1
    assert found["by_provenance"]["synthetic"]["accuracy"][0] == 0
    assert found["problems"] == {"no_think": 1}


def test_paired_runs():
    better, worse = made([FORM.render(STEPS)] * 40), made([FORM.render(STEPS)] * 20 + [FORM.render(HIGH, "low")] * 20)
    found = compare(better, list(reversed(worse)), samples=500)
    assert set(found) == set(METRICS)
    difference, low, high, p = found["coherence"]
    assert difference == 0.5 and 0 < low < 0.5 < high and p < 0.01
    assert found["accuracy"] == [0, 0, 0, 1]
    assert compare(worse, better, samples=500)["coherence"][0] == -0.5
    with pytest.raises(ValueError, match="the same ids"):
        compare(better, worse[:-1])
    with pytest.raises(ValueError, match="differ in the gold of '0'"):
        compare(better, [row | {"gold": "high"} for row in worse])


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def files(tmp_path):
    rng, rows, answers, others = random.Random(1), [], [], []
    for number in range(60):
        letter = "ABCDEF"[number % 6]
        steps, risk, text = hostile.gold_of(rng, hostile.FORMATS[letter])
        row = {"id": number, "tool": "rob1", "domain": letter, "gold_steps": list(steps.items()), "gold_risk": risk}
        rows.append(row | {"provenance": "synthetic", "family": f"f{number % 10}"})
        answers.append({"id": number, "output": text})
        others.append({"id": number, "output": hostile.gold_of(rng, hostile.FORMATS[letter])[2]})
    names = ("gold", "answers", "others")
    return {n: write(tmp_path / f"{n}.jsonl", r) for n, r in zip(names, (rows, answers, others), strict=True)}


def test_files_of_answers(files):
    rows, found = evaluate_file(files["gold"], files["answers"], files["others"], samples=100)
    assert found["count"] == 60 and found["clusters"] == 10 and found["cluster"] == "family" and found["bad"] == []
    assert found["overall"]["accuracy"] == [1, 1, 1] and found["overall"]["gold_coherence"] == [1, 1, 1]
    assert found["difference"]["accuracy"][0] > 0 and found["difference"]["coherence"][0] == 0
    assert len(found["by_domain"]) == 6 and found["provenance"]["steps"] == {"synthetic": 60}
    assert all(row["provenance"] == {"risk": "synthetic", "steps": "synthetic"} for row in rows)


def test_golds_alone_and_the_options(files):
    _, alone = evaluate_file(files["gold"], samples=50)
    assert alone["overall"]["accuracy"][0] == alone["overall"]["step_labels"][0] == 1 and "difference" not in alone
    other = [evaluate_file(files["gold"], files["others"], cluster=field, samples=50)[1] for field in (None, "id")]
    assert other[0]["clusters"] == 10 and other[1]["clusters"] == 60
    assert other[0]["overall"]["accuracy"][1:] != other[1]["overall"]["accuracy"][1:]
    seeds = [evaluate_file(files["gold"], files["others"], seed=seed, samples=50)[1] for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]
    few = evaluate_file(files["gold"], files["others"], samples=3)[1]
    assert few["overall"]["accuracy"][1:] != seeds[0]["overall"]["accuracy"][1:]


GOLD_ROW = {"id": "a", "tool": "rob1", "domain": "A", "gold_risk": "low", "gold_steps": STEPS}
ANSWER = {"id": "a", "output": FORM.render(STEPS)}


@pytest.mark.parametrize(
    ("row", "answer", "arguments", "message"),
    [
        ({"gold_risk": None}, {}, {}, "gold.jsonl:2: no field 'gold_risk'"),
        ({"gold_risk": "lo"}, {}, {}, "gold.jsonl:2: tool rob1: no verdict 'lo'"),
        ({"gold_steps": {REPORT: "maybe"}}, {}, {}, "gold.jsonl:2: domain A: Identify.*no label 'maybe'"),
        ({"gold_steps": "reported"}, {}, {}, "gold.jsonl:2: field 'gold_steps' must be pairs"),
        ({"gold_steps": [[REPORT, 1]]}, {}, {}, "gold.jsonl:2: field 'gold_steps' must be pairs"),
        ({"domain": "Z"}, {}, {}, "gold.jsonl:2: tool rob1: no domain 'Z'"),
        ({"domain": 1}, {}, {}, "gold.jsonl:2: field 'domain' must be"),
        ({"tool": "rob9"}, {}, {}, "gold.jsonl:2: no tool 'rob9'"),
        ({"tool": None}, {}, {}, "gold.jsonl:2: field 'tool' must name"),
        ({"tool": "other"}, {}, {"tool": "rob1"}, "gold.jsonl:2: field 'tool': the row is for 'other', not for 'rob1'"),
        ({"provenance": "humans"}, {}, {}, "gold.jsonl:2: field 'provenance': 'humans'.*'human'"),
        ({"provenance": {"risks": "human"}}, {}, {}, "gold.jsonl:2: field 'provenance': no part 'risks'"),
        ({"provenance": {"risk": ["human"]}}, {}, {}, "gold.jsonl:2: field 'provenance'"),
        ({"id": "first"}, {}, {}, "gold.jsonl:2: field 'id': 'first' is also the id of .*gold.jsonl:1"),
        ({}, {"output": 1}, {}, "answers.jsonl:2: expected an answer row"),
        ({}, {"id": "first"}, {}, "answers.jsonl:2: field 'id': 'first' occurs twice"),
        ({}, {"id": "z"}, {}, "answers.jsonl: no answer to the id 'a' of .*gold.jsonl:2"),
        ({}, {}, {"cluster": "family"}, "gold.jsonl:1: field 'family', of the clusters"),
        ({}, {}, {"samples": 0}, "samples 0"),
    ],
)
def test_bad_files_are_one_line(tmp_path, row, answer, arguments, message):
    gold_path = write(tmp_path / "gold.jsonl", [GOLD_ROW | {"id": "first"}, GOLD_ROW | row])
    answers = write(tmp_path / "answers.jsonl", [ANSWER | {"id": "first"}, ANSWER | answer])
    with pytest.raises(InputError, match=message) as caught:
        evaluate_file(gold_path, answers, **arguments)
    assert "\n" not in str(caught.value)
    if arguments.get("cluster") or arguments.get("samples") == 0:
        return
    _, found = evaluate_file(gold_path, answers, skip_bad=True, samples=20, **arguments)
    assert found["count"] == 1 and found["bad"]


def test_golds_alone_need_steps(tmp_path):
    row = {name: value for name, value in GOLD_ROW.items() if name != "gold_steps"}
    with pytest.raises(InputError, match="gold.jsonl:1: no field 'gold_steps'; without answers"):
        evaluate_file(write(tmp_path / "gold.jsonl", [row]))
