"""The format: what is read, what is refused and why, and the way back to text."""

import pytest

from thoth_jax.protocol import Sketch, Step, parse, parse_key_block, render
from thoth_jax.protocol.grammar import salvage

STEPS = (Step("add", ("buffer",), ("5 ml", "4 °c")), Step("filter sterilize", (), ()))
SKETCH = Sketch("Because\n\nof this.", STEPS, ("Add 5 ml of buffer at 4 °C.", "Filter it."), "Wear gloves.")
TEXT = render(SKETCH)
KEY_1 = '{"action": "add", "objects": ["buffer"], "parameters": ["5 ml", "4 °c"]}'


def test_render_and_parse_are_inverse():
    assert parse(TEXT) == (SKETCH, "", "")
    assert TEXT.count("\n\n<") == 3 and TEXT.startswith("<think>") and TEXT.endswith("</note>")


@pytest.mark.parametrize(
    "text",
    [
        "\n \n" + TEXT + "\n",
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("<key>", "<KEY>").replace("</orc>", "</Orc>"),
        TEXT.replace("\n\n<", "<"),
        TEXT.replace("C.\n", "C.  \n\n \n"),
        TEXT.replace("Step 1: ", "  Step  1 :"),
        TEXT.replace('"action": "add", "objects": ["buffer"]', '"objects":["buffer"],"action":"add"'),
        TEXT.replace("°c", "\\u00b0c"),
    ],
)
def test_what_is_let_pass(text):
    assert parse(text).sketch == SKETCH


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("<think>", ""), "missing_block:think"),
        (("</note>", ""), "unclosed_block:note"),
        (("<key>", "<key><key>"), "repeated_block:key"),
        (("Because", "Because <orc>"), "repeated_block:orc"),
        (("<think>", "Sure. <think>"), "outer_text:before"),
        (("</note>", "</note> Done."), "outer_text:after"),
        (("<orc>", "and <orc>"), "text_between:orc"),
        (("Wear gloves.", " "), "blank_note"),
        (("Step 1: {", "- Step 1: {"), "bad_line:key:1"),
        (("Step 2: {", "step 2: {"), "bad_line:key:2"),
        (("Step 2: {", "Step ٢: {"), "bad_line:key:2"),
        (("Step 2: {", "Step 1: {"), "numbering:key:2"),
        (("Step 2: F", "Step 02: F"), "numbering:orc:2"),
        (("Step 2: F", "Then f"), "bad_line:orc:2"),
        (("Step 2: Filter it.", "Step 2: "), "blank_step:2"),
        (("\nStep 2: Filter it.", ""), "step_count"),
        (("{", "["), "bad_json:1"),
        (("]}\n", "]} // ok\n"), "bad_json:1"),
        ((KEY_1, "[1]"), "bad_json:1"),
        ((KEY_1, '"add"'), "bad_json:1"),
        ((KEY_1, "{'action': 'add'}"), "bad_json:1"),
        ((KEY_1, ""), "bad_json:1"),
        (("buffer", "a\tb"), "bad_json:1"),
        ((KEY_1, "[" * 100_000), "bad_json:1"),
        (('"action": "add"', '"action": "add", "action": "add"'), "repeated_key:1"),
        (('"action"', '"verb"'), "wrong_keys:1"),
        (('"action"', '"after": [1], "action"'), "wrong_keys:1"),
        ((KEY_1, "{}"), "wrong_keys:1"),
        (('"add"', "null"), "wrong_type:1"),
        (('["buffer"]', '"buffer"'), "wrong_type:1"),
        (('["buffer"]', '{"buffer": 1}'), "wrong_type:1"),
        (('["buffer"]', "null"), "wrong_type:1"),
        (('"buffer"', '"buffer", 5'), "wrong_type:1"),
        (('"buffer"', '["buffer"]'), "wrong_type:1"),
        (('"add"', '" "'), "blank_action:1"),
    ],
)
def test_what_is_refused(change, reason):
    text = TEXT.replace(*change, 1)
    assert text != TEXT
    parsed = parse(text)
    assert parsed.sketch is None and parsed.reason == reason and parsed.detail


def test_empty_blocks_and_order():
    assert parse("").reason == "missing_block:think"
    assert parse("<think></think><key> \n</key><orc></orc><note>n</note>").reason == "no_steps:key"
    assert parse(f"<think></think><key>Step 1: {KEY_1}</key><orc></orc><note>n</note>").reason == "no_steps:orc"
    assert parse("<key></key><think></think><orc></orc><note></note>").reason == "block_order"
    assert parse("<think><key></think></key><orc></orc><note></note>").reason == "block_order"


def test_flags():
    assert parse("Sure. " + TEXT + " Done.", allow_outer_text=True).sketch == SKETCH
    bare = TEXT.split("\n\n<note>")[0]
    assert parse(bare).reason == "missing_block:note"
    assert parse(bare, require_note=False).sketch == SKETCH._replace(note="")
    assert parse(TEXT.replace("Wear gloves.", ""), require_note=False).sketch is not None
    assert parse(bare + "<note>", require_note=False).reason == "unclosed_block:note"
    assert parse(TEXT.replace("Step 2", "Step 7"), strict_numbering=False).sketch == SKETCH


def test_gold_key_blocks():
    lines = TEXT.split("<key>\n")[1].split("\n</key>")[0]
    for text in (TEXT, lines, f"<key>{lines}</key>", lines.replace("Step 2", "Step 9"), "<key>\n" + lines + "\n</KEY>"):
        assert parse_key_block(text) == STEPS
    for text in ("", "<key>", "</key>x<key>", "<think></think>", "Step 1: {}", lines + "\nprose"):
        with pytest.raises(ValueError):
            parse_key_block(text)


def test_salvage():
    key = TEXT.split("\n\n")[2]
    assert salvage(key) == Sketch("", STEPS, (), "")
    assert salvage("prose " + TEXT.replace("</note>", "")).orc == SKETCH.orc
    assert salvage(TEXT + TEXT) is None and salvage("") is None and salvage("</key><key>") is None
    assert salvage(TEXT.replace('"add"', "5")) is None
