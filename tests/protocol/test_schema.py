"""Rows of files: every format, and one clear line for every fault."""

import json

import pytest

from thoth_jax.errors import InputError
from thoth_jax.protocol import (
    SYSTEM_PROMPT,
    Sketch,
    Step,
    messages,
    parse,
    read_documents,
    read_items,
    read_rows,
    render,
)
from thoth_jax.protocol.prompts import user_prompt

ANSWER = render(Sketch("why", (Step("add", ("buffer",), ()),), ("Add buffer.",), "Gloves."))
KEY = 'Step 1: {"action": "add", "objects": ["buffer"], "parameters": []}'
SFT = {"conversations": [{"from": "human", "value": "How?"}, {"from": "gpt", "value": ANSWER}], "system": "Be brief."}
RL = {"system": "Be brief.", "query": "How?\nUse only: add.", "response": ANSWER}
EVAL = {"id": 7, "type": "scaling", "level": "2", "question": "How?", "key": KEY, "orc": "Step 1: Add buffer."}


def write(path, rows, array=False):
    path.write_text(json.dumps(rows, indent=1) if array else "".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("array", [False, True])
def test_sft_and_rl_rows(tmp_path, array):
    items, bad = read_items(write(tmp_path / "rows.json", [SFT, RL], array))
    assert not bad and [item.id for item in items] == ["0", "1"]
    assert items[0].question == "How?" and items[1].question == "How?\nUse only: add."
    for item in items:
        assert (item.system, item.answer, item.key, item.orc) == ("Be brief.", ANSWER, KEY, "Step 1: Add buffer.")
        assert item.actions is None and item.type == item.level == "unknown"
        assert messages(item)[1]["content"] == item.question  # the file gives the whole turn
    assert items[1].where == f"{tmp_path / 'rows.json'}:{15 if array else 2}"


def test_evaluation_rows(tmp_path):
    rows = [EVAL, EVAL | {"id": "b", "action": ["Mix", "add"]}, EVAL | {"action": ["x"], "action_new": ["b", "a"]}]
    rows.append(EVAL | {"key": f"<key>\n{KEY}\n</key>", "think": "why", "note": "Gloves."})
    items = read_items(write(tmp_path / "rows.jsonl", rows)).items
    assert [item.id for item in items] == ["7", "b", "7", "7"]
    assert (items[0].type, items[0].level, items[0].actions, items[0].answer) == ("scaling", "2", None, "")
    # `action` is shuffled as the published evaluator does, `action_new` is in the order to show.
    assert items[1].actions == ("add", "Mix") and items[2].actions == ("b", "a")
    assert items[3].key == KEY and items[3].answer == ANSWER
    system, user = messages(items[1])
    assert system == {"role": "system", "content": SYSTEM_PROMPT} and user["content"] == user_prompt(
        "How?", ["add", "Mix"]
    )
    assert user["content"].endswith('"add", "mix".') and "\n" not in messages(items[0])[1]["content"]


def test_parquet_rows(tmp_path):
    datasets = pytest.importorskip("datasets")
    row = {"exp_goal": "How?", "think": "why", "key": KEY, "orc": "Step 1: Add buffer.", "note": "Gloves."}
    datasets.Dataset.from_list([row, row | {"note": None}]).to_parquet(tmp_path / "rows.parquet")
    items = read_items(tmp_path / "rows.parquet").items
    assert items[0].answer == ANSWER and items[0].question == "How?" and items[1].answer == ""
    (tmp_path / "bad.parquet").write_text("no table")
    with pytest.raises(InputError, match="bad.parquet: not a readable Parquet table"):
        read_items(tmp_path / "bad.parquet")


def test_an_answer_without_blocks_is_read(tmp_path):
    turns = [{"role": "user", "content": "A or B?"}, {"role": "assistant", "content": "B"}]
    item = read_items(write(tmp_path / "rows.jsonl", [{"conversations": turns}])).items[0]
    assert (item.question, item.answer, item.key, item.orc) == ("A or B?", "B", "", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        (" \n\n", "the file is empty"),
        ("[]", "the file has no rows"),
        ('{"question": "a"}\n{"question"\n', ":2: malformed JSON"),
        ("\n[1]\n", ":2: row 0 must be a JSON object"),
        ("5\n", ":1: a row must be a JSON object"),
        ('[\n{"a": 1},\n{"a" 1}]', ":3: malformed JSON in row 1"),
        ('[\n{"a": 1}\n{"a": 1}]', ":3: malformed JSON after row 0"),
        ('[{"a": 1}', ":1: malformed JSON after row 0"),
        ('[{"a": 1}] x', ":1: malformed JSON after row 0"),
        ("[" + "[" * 100_000, ":1: malformed JSON in row 0"),
        ('{"a": 1}\n\n{"b": ' + "9" * 5000 + "}\n", ":3: malformed JSON: nested too deep or a number too long"),
    ],
)
def test_malformed_files(tmp_path, text, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_rows(path)
    assert str(path) in str(caught.value) and message in str(caught.value) and "\n" not in str(caught.value)


def test_no_file_and_no_text(tmp_path):
    for path, message in ((tmp_path / "absent.jsonl", "no such file"), (tmp_path, "it is a directory")):
        with pytest.raises(InputError, match=message):
            read_rows(path)
    (tmp_path / "latin.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xb5"}\n')
    with pytest.raises(InputError, match="latin.jsonl:2: not UTF-8"):
        read_rows(tmp_path / "latin.jsonl")


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({}, "question"),
        ({"text": "a"}, "question"),
        ({"question": " ", "key": KEY, "orc": "x"}, "question"),
        ({"question": "a", "orc": "x"}, "key"),
        ({"question": "a", "key": KEY}, "orc"),
        ({"question": "a", "key": [KEY], "orc": "x"}, "key"),
        (EVAL | {"action": "add"}, "action"),
        (EVAL | {"action": ["add", 1]}, "action"),
        (EVAL | {"action_new": [""]}, "action_new"),
        (EVAL | {"id": None}, "id"),
        (EVAL | {"level": ["1"]}, "level"),
        ({"query": "a"}, "response"),
        ({"response": "a"}, "query"),
        (RL | {"system": 5}, "system"),
        ({"conversations": "a"}, "conversations"),
        ({"conversations": []}, "conversations"),
        ({"conversations": SFT["conversations"][:1]}, "conversations"),
        ({"conversations": [{"from": "tool", "value": "a"}]}, "conversations[0].from"),
        ({"conversations": [SFT["conversations"][0], {"from": "gpt"}]}, "conversations[1].value"),
    ],
)
def test_missing_and_wrong_fields(tmp_path, row, field):
    path = write(tmp_path / "rows.jsonl", [SFT, row])
    with pytest.raises(InputError) as caught:
        read_items(path)
    assert f"{path}:2: " in str(caught.value) and repr(field) in str(caught.value)
    items, bad = read_items(path, skip_bad=True)
    assert len(items) == 1 and bad == [str(caught.value)]


def test_skipped_rows_keep_the_numbers_of_the_others(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(SFT), "{", "3", json.dumps(SFT)]))
    items, bad = read_items(path, skip_bad=True)
    assert [item.id for item in items] == ["0", "3"] and len(bad) == 2 and ":2: " in bad[0] and ":3: " in bad[1]
    path.write_text(json.dumps([SFT, 3, SFT])[:-1])
    items, bad = read_items(path, skip_bad=True)
    assert [item.id for item in items] == ["0", "2"] and len(bad) == 2


def test_documents(tmp_path):
    flat = {
        "exp_name": "Staining",
        "abstract": "Cells.",
        "materials": "",
        "equipments": "Hood",
        "procedures": "1. Fix.",
    }
    tree = {"1": {"title": "Fixing"}, "1.1": "Add fixative."}
    nested = {"title": "Staining", "abstract": "Cells.", "input": "Dye", "hierarchical_protocol": tree, "method": "x"}
    documents, bad = read_documents(write(tmp_path / "rows.json", [{"text": "plain"}, flat, nested], array=True))
    assert not bad and documents[0] == "plain"
    assert documents[1] == (
        "Experiment Name: Staining\nBackground: Cells.\nMaterials & Reagents: None\nEquipments: Hood\n"
        "Procedures: 1. Fix.\nNotes: None"
    )
    assert "Materials & Reagents: Dye" in documents[2] and "Procedures: 1 Fixing\n1.1 Add fixative." in documents[2]
    faults = ({"text": ""}, {"exp_name": 1}, flat | {"notes": []}, {"title": "a", "hierarchical_protocol": {}})
    for row in (*faults, nested | {"hierarchical_protocol": {"1": 5}}):
        with pytest.raises(InputError, match="rows.json:1: field"):
            read_documents(write(tmp_path / "rows.json", [row]))


def test_published_samples(shared):
    folder = shared / "data" / "thoth_demo"
    items = [item for name in ("demo_sft.json", "demo_rl.jsonl") for item in read_items(folder / name).items]
    assert len(items) == 30 and all(parse(item.answer).sketch for item in items)
    assert all(render(parse(item.answer).sketch).split() == item.answer.split() for item in items)
    published = set(read_documents(folder / "demo_pretrain.json")[0])
    records = read_documents(folder / "Problem-Solving.jsonl")[0]
    assert len(published) == len(records) == 30 and len(published & set(records)) == 20
    assert len(read_documents(folder / "Protocol-Comprehension.json")[0]) == 30
