"""Prediction files against gold files: means, reasons, and one clear line for every fault."""

import json

import pytest

from thoth_jax.errors import InputError
from thoth_jax.evaluation import evaluate_file, score_file, table, write_jsonl
from thoth_jax.protocol import Sketch, Step, render
from thoth_jax.rewards import ScoreConfig


def answer(*actions, note="Gloves."):
    steps = tuple(Step(action, ("buffer",), ("5 min",)) for action in actions)
    return render(Sketch("why", steps, tuple(f"Now {action} buffer for 5 min." for action in actions), note))


def key_of(text, block="key"):
    return text.split(f"<{block}>\n")[1].split(f"\n</{block}>")[0]


FULL = [
    {"query": "How?", "response": answer("add", "mix", "spin", "dry")},
    {"query": "So?", "response": answer("wash")},
]
BARE = [
    {"id": f"q{index}", "type": "scaling" if index else "safety", "level": index, "question": row["query"]}
    | {name: key_of(row["response"], name) for name in ("key", "orc")}
    for index, row in enumerate(FULL)
]


@pytest.fixture
def write(tmp_path):
    def write_rows(name, rows):
        write_jsonl(tmp_path / name, rows)
        return tmp_path / name

    return write_rows


@pytest.mark.parametrize("golds", [FULL, BARE])
def test_golds_against_themselves(write, golds):
    path = write("gold.jsonl", golds)
    rows, summary = score_file(path)
    assert [row["id"] for row in rows] == (["0", "1"] if golds is FULL else ["q0", "q1"])
    assert all(row["total"] == 2.5 and row["reason"] == "" for row in rows)
    assert (
        summary["count"] == 2 and summary["mean"]["total"] == 2.5 and summary["reasons"] == {} == {**summary["reasons"]}
    )
    rows, summary = evaluate_file(path)
    assert summary["overall"]["content_score"] == 1.5 and rows[0]["order_strict"] == 1
    assert sorted(summary["by_type"]) == (["unknown"] if golds is FULL else ["safety", "scaling"])
    assert "Sem-A" in table(summary)


def test_predictions(write):
    gold = write("gold.jsonl", BARE)
    outputs = [
        {"id": "q1", "output": answer("wash", note="")},
        {"id": "q0", "output": answer("add", "spin", "mix", "dry")},
    ]
    predictions = write("predictions.jsonl", outputs)
    rows, summary = score_file(gold, predictions)
    assert rows[0]["id"] == "q0" and rows[0]["reason"] == "" and 0 < rows[0]["total"] < 2.5
    assert rows[1]["total"] == 0 and rows[1]["reason"] == "blank_note" and summary["reasons"] == {"blank_note": 1}
    assert summary["mean"]["total"] == pytest.approx(rows[0]["total"] / 2, abs=1e-6)
    text = table(summary)
    assert "blank_note" in text and all(len(line) <= 100 for line in text.splitlines())
    assert score_file(gold, predictions, ScoreConfig(require_note=False))[0][1]["total"] == 2.5

    rows, summary = evaluate_file(gold, predictions)
    assert rows[0]["order_lcs"] == 0.75 and rows[1]["content_score"] == 1.5
    assert summary["by_level"]["0"]["order_lcs"] == 0.75 and summary["by_type"]["scaling"]["order_lcs"] == 1
    assert summary["overall"]["order_lcs"] == 0.875
    assert all(len(line) <= 100 for line in table(summary).splitlines())


def test_rows_are_written_as_they_are(tmp_path):
    rows = [{"id": "µ\ud800", "total": 0.5}]
    write_jsonl(tmp_path / "out.jsonl", rows)
    assert json.loads((tmp_path / "out.jsonl").read_text()) == rows[0]


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ([{"id": "q0", "output": "a"}], "predictions.jsonl: no prediction for the id 'q1' of "),
        ([{"id": "q0", "output": "a"}, {"id": "q1", "output": "a"}, {"id": "z", "output": ""}], "'z' is the id of no"),
        (
            [{"id": "q0", "output": "a"}, {"id": "q0", "output": "a"}],
            "predictions.jsonl:2: field 'id': 'q0' occurs twice",
        ),
        ([{"id": "q0"}], "predictions.jsonl:1: no field 'output'"),
        ([{"output": "a"}], "predictions.jsonl:1: no field 'id'"),
        ([{"id": "q0", "output": None}], "predictions.jsonl:1: field 'output' must be a text"),
        ([{"id": [1], "output": "a"}], "predictions.jsonl:1: field 'id' must be"),
    ],
)
@pytest.mark.parametrize("run", [score_file, evaluate_file])
def test_faults_of_predictions(write, run, predictions, message):
    with pytest.raises(InputError) as caught:
        run(write("gold.jsonl", BARE), write("predictions.jsonl", predictions))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("run", [score_file, evaluate_file])
def test_faults_of_golds(write, run):
    with pytest.raises(InputError, match=r"gold.jsonl:2: field 'id': 'q0' is also the id of .*gold.jsonl:1"):
        run(write("gold.jsonl", [BARE[0], BARE[0]]))
    with pytest.raises(InputError, match=r"gold.jsonl:2: field 'key' has no key block"):
        run(write("gold.jsonl", [BARE[0], BARE[1] | {"key": "prose"}]))
    with pytest.raises(InputError, match=r"gold.jsonl:1: field 'answer' has no key block"):
        run(write("gold.jsonl", [{"query": "A or B?", "response": "B"}]))


@pytest.mark.parametrize("run", [score_file, evaluate_file])
def test_bad_rows_are_skipped_and_listed(write, run):
    gold = write("gold.jsonl", [*BARE, BARE[1] | {"id": "q2", "key": "prose"}, {"id": "q3"}])
    predictions = write(
        "predictions.jsonl", [{"id": "q0", "output": answer("add")}, {"id": "q1"}, {"id": "q2", "output": ""}]
    )
    rows, summary = run(gold, predictions, skip_bad=True)
    assert [row["id"] for row in rows] == ["q0"] and summary["count"] == 1
    assert len(summary["bad"]) == 5
    assert table(summary).count("skipped: ") == 5
    with pytest.raises(InputError, match="no usable gold row"):
        run(gold, write("other.jsonl", [{"id": "x", "output": ""}]), skip_bad=True)


def test_published_samples_against_themselves(shared):
    for name in ("demo_sft.json", "demo_rl.jsonl"):
        path = shared / "data" / "thoth_demo" / name
        rows, summary = score_file(path)
        assert sum(row["total"] == 2.5 for row in rows) >= len(rows) - 1
        assert evaluate_file(path)[1]["overall"]["content_score"] == 1.5
