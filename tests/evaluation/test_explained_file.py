"""`thoth score --explain`: the breakdown of single answers below the table."""

import json

import pytest

from thoth_jax import cli

LINE = 'Step {}: {{"action": "{}", "objects": ["salt"], "parameters": []}}'


@pytest.fixture
def files(tmp_path):
    key, orc = f"{LINE.format(1, 'add')}\n{LINE.format(2, 'mix')}", "Step 1: Add salt.\nStep 2: Mix salt."
    gold, answers = tmp_path / "gold.jsonl", tmp_path / "answers.jsonl"
    gold.write_text("".join(json.dumps({"id": i, "question": "q", "key": key, "orc": orc}) + "\n" for i in "ab"))
    output = f"<think>t</think><key>{key.replace('mix', 'heat')}</key><orc>{orc}</orc><note>n</note>"
    answers.write_text("".join(json.dumps({"id": i, "output": output}) + "\n" for i in "ab"))
    return ["--gold", str(gold), "--input", str(answers)]


def test_the_first_answers_are_explained(files, capsys):
    assert cli.main(["score", *files, "--explain", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("refused: low_coverage") == 1 and shown.count("matched    Step 1") == 1
    assert 'missing    Step 2: {"action": "mix"' in shown and "[not said in its sentence: heat]" in shown
    assert cli.main(["score", *files, "--explain"]) == 0  # three, or all
    assert capsys.readouterr().out.count("refused: low_coverage") == 2
    assert cli.main(["score", *files]) == 0
    assert "missing" not in capsys.readouterr().out


def test_as_json(files, capsys):
    assert cli.main(["score", *files, "--explain", "1", "--json"]) == 0
    [explained] = json.loads(capsys.readouterr().out)["explained"]
    assert explained["id"] == "a" and [step["status"] for step in explained["steps"]] == ["matched", "missing", "added"]
