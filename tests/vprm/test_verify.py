"""The commands verify and evaluate."""

import io
import json
import random
import sys
import time

import pytest

from tests.vprm import hostile
from tests.vprm.test_metrics import ANSWER, FORM, GOLD_ROW, HIGH, METHOD, STEPS, write
from vprm_jax import cli
from vprm_jax.files import verify_file

ROWS = [
    {"id": "good", "domain": "A", "text": FORM.render(STEPS), "gold_steps": STEPS, "gold_risk": "low"},
    {"id": "split", "domain": "a", "text": FORM.render(HIGH, "low"), "gold_steps": STEPS, "gold_risk": "low"},
    {"id": "verdict", "domain": "A", "text": FORM.render(STEPS, "high"), "gold_risk": "low", "tool": "rob1"},
    {"id": "none", "domain": "A", "text": "\x1b[31m\ud800"},
]


def test_rows_and_summary(tmp_path):
    rows, summary = verify_file(write(tmp_path / "t.jsonl", ROWS), "rob1")
    assert [(row["implied"], row["stated"], row["coherent"]) for row in rows] == [
        ("low", "low", True),
        ("high", "low", False),
        ("low", "high", False),
        (None, None, False),
    ]
    assert [row["parts"] for row in rows] == [
        "",
        f"{METHOD} = non_random settles high",
        "Baseline_imbalance = none settles low",
        "no_think",
    ]
    assert [row["gold_parts"] for row in rows] == [
        "",
        f"{METHOD} = non_random, gold random",
        "risk = high, gold low",
        "",
    ]
    assert rows[0]["provenance"] == {"risk": "unknown", "steps": "unknown"} and rows[3]["provenance"] == {}
    assert rows[1]["domain"] == "A" and rows[0]["steps"] == STEPS
    assert summary == {
        "tool": "rob1",
        "count": 4,
        "parsed": 0.75,
        "format": 0.75,
        "coherence": 0.25,
        "accuracy": pytest.approx(2 / 3),
        "problems": {"no_think": 1},
        "provenance": {"risk": {"unknown": 3}, "steps": {"unknown": 2}},
        "bad": [],
    }


def test_verify_prints_a_line_for_each_trace(tmp_path, capsys):
    path, output = write(tmp_path / "t.jsonl", ROWS), tmp_path / "out.jsonl"
    assert cli.main(["verify", "--tool", "rob1", "--input", path, "--output", str(output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["good", "A", "low", "low", "yes"]
    assert lines[2].split()[:5] == ["split", "A", "high", "low", "no"]
    assert lines[2].endswith(f"{METHOD} = non_random settles high; from gold: {METHOD} = non_random, gold random")
    assert lines[4].split() == ["none", "A", "-", "-", "no", "no_think"]
    assert lines[5].startswith("4 traces of rob1: coherence 0.2500, parsed 0.7500, format 0.7500, accuracy 0.6667")
    assert cli.main(["verify", "--tool", "rob1", "--input", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["coherence"] == 0.25
    assert found["traces"] == [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def test_nothing_of_the_text_reaches_the_terminal_raw(tmp_path, capsys):
    text = FORM.render(STEPS).replace("Answer: none", "Answer: \x1b[2J\ud800")
    row = {"id": "\x1b]0;x\x07", "domain": "A", "text": text}
    assert cli.main(["verify", "--tool", "rob1", "--input", write(tmp_path / "t.jsonl", [row])]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": None}, "t.jsonl:2: field 'text' must be a text"),
        ({"domain": "Q"}, "t.jsonl:2: tool rob1: no domain 'Q'"),
        ({"tool": "rob2"}, "t.jsonl:2: field 'tool': the row is for 'rob2', not for 'rob1'"),
        ({"gold_risk": 3}, "t.jsonl:2: field 'gold_risk' must be a verdict"),
        ({"gold_steps": {"x": "y"}}, "t.jsonl:2: domain A: no step 'x'"),
        ({"id": []}, "t.jsonl:2: field 'id'"),
    ],
)
def test_bad_rows_are_one_line_and_code_2(tmp_path, capsys, change, message):
    path = write(tmp_path / "t.jsonl", [ROWS[0], ROWS[0] | change])
    assert cli.main(["verify", "--tool", "rob1", "--input", path]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err and captured.err.count("\n") == 1
    assert cli.main(["verify", "--tool", "rob1", "--input", path, "--skip-bad"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1 traces of rob1" in out and "skipped:" in out


def test_other_faults_are_one_line_and_code_2(tmp_path, capsys):
    path = write(tmp_path / "t.jsonl", ROWS)
    (tmp_path / "broken.jsonl").write_text('{"id": 1\n', encoding="utf-8")
    for arguments in (
        ["verify", "--tool", "rob9", "--input", path],
        ["verify", "--tool", "rob1", "--input", str(tmp_path / "none.jsonl")],
        ["verify", "--tool", "rob1", "--input", str(tmp_path / "broken.jsonl")],
        ["verify", "--tool", "rob1", "--input", str(tmp_path / "broken.jsonl"), "--skip-bad"],
        ["verify", "--tool", "rob1", "--input", path, "--output", str(tmp_path / "no" / "out.jsonl")],
        ["evaluate", "--gold", path, "--against", path],
    ):
        assert cli.main(arguments) == 2, arguments
        err = capsys.readouterr().err
        assert err.startswith("vprm: ") and err.count("\n") == 1


def test_a_reader_that_leaves_is_no_fault(tmp_path, monkeypatch):
    class Closed(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

        def fileno(self):
            return self.file.fileno()

    with open(tmp_path / "spare", "w", encoding="utf-8") as file:
        out = Closed()
        out.file = file
        monkeypatch.setattr(sys, "stdout", out)
        assert cli.main(["verify", "--tool", "rob1", "--input", write(tmp_path / "t.jsonl", ROWS)]) == 0


def test_evaluate_prints_and_writes(tmp_path, capsys):
    gold = write(tmp_path / "gold.jsonl", [GOLD_ROW | {"provenance": HUMAN_SILVER}, GOLD_ROW | {"id": "b"}])
    answers = write(tmp_path / "answers.jsonl", [ANSWER, ANSWER | {"id": "b", "output": ""}])
    arguments = ["evaluate", "--gold", gold, "--answers", answers, "--samples", "50"]
    assert cli.main([*arguments, "--against", answers, "--output", str(tmp_path / "rows.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "overall (rob1)" in out and "difference from the other run" in out and "2 clusters by id" in out
    assert "gold verdicts: 1 human, 1 unknown" in out and "gold steps: 1 silver, 1 unknown" in out
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["right"] for row in rows] == [True, False] and rows[0]["provenance"] == HUMAN_SILVER
    assert cli.main([*arguments, "--seed", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["overall"]["accuracy"] == [0.5, 0.0, 1.0] and found["overall"]["ca_conditional"][0] == 1


HUMAN_SILVER = {"risk": "human", "steps": "silver"}


def test_ten_thousand_traces_in_little_time(tmp_path, capsys):
    rng = random.Random(4)
    rows = []
    for number in range(10_000):
        letter = rng.choice("ABCDEF")
        rows.append({"id": f"t{number}", "domain": letter, "text": hostile.gold_of(rng, hostile.FORMATS[letter])[2]})
    path = write(tmp_path / "t.jsonl", rows)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        assert cli.main(["verify", "--tool", "rob1", "--input", path]) == 0
        best = min(best, time.perf_counter() - start)
        assert capsys.readouterr().out.count(" yes") == 10_000
        if best < 1:
            break
    # The goal is 1 s on an idle machine; this bound is for one that also runs other tests.
    assert best < 3, best
