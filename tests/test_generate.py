"""`thoth generate` and files: resumed, refused, never harmed."""

import json
import logging

import jax
import pytest

from thoth_jax.data import bundled
from thoth_jax.errors import InputError
from thoth_jax.generate import GenerateOptions, Policy, _answered, generate_file, generate_one
from thoth_jax.models import QwenConfig, hf, init_params
from thoth_jax.models.tokenizer import load_tokenizer
from thoth_jax.rollout import Answer


def test_an_answered_file_is_read_and_its_cut_line_removed(tmp_path):
    file = tmp_path / "out.jsonl"
    row = json.dumps({"id": "1", "output": "a"})
    file.write_bytes(f'{row}\n{{"id": "2", "output": "'.encode() + b"\xc2")
    assert _answered(str(file)) == {"1"}
    assert file.read_text() == row + "\n"
    file.write_text(row)  # whole, only the line feed is missing
    assert _answered(str(file)) == {"1"} and file.read_text() == row + "\n"
    file.write_text("\n\n")
    assert _answered(str(file)) == set()
    assert _answered(str(tmp_path / "new" / "out.jsonl")) == set()


@pytest.mark.parametrize("text", ["notes of mine", '[{"a": 1}]', '{"id": 1}\n', "notes\n"])
def test_another_kind_of_file_is_refused_and_left_alone(tmp_path, text):
    file = tmp_path / "other"
    file.write_text(text)
    with pytest.raises(InputError, match="other:1: not a row"):
        _answered(str(file))
    assert file.read_text() == text


def test_the_input_is_not_an_output(tmp_path):
    file = str(tmp_path / "rows.jsonl")
    with pytest.raises(InputError, match="it is the input file"):
        generate_file(None, file, file, GenerateOptions())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random policy of some thousand parameters with the bundled tokenizer."""
    directory = str(tmp_path_factory.mktemp("model"))
    tokenizer = load_tokenizer(str(bundled.path("tokenizer.model")))
    config = QwenConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        initializer_range=0.3,
    )
    hf.save(directory, config, init_params(config, jax.random.key(0)), tokenizer)
    return directory


def rows_in(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_resumed_file_gets_the_answers_of_an_uninterrupted_one(model, tmp_path):
    source, whole, cut = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "cut.jsonl"))
    source.write_text("".join(json.dumps({"id": n, "prompt": "mix " * (1 + n % 3)}) + "\n" for n in range(5)))
    options = GenerateOptions(temperature=1.0, max_tokens=8, system_prompt="")
    assert generate_file(lambda: Policy(model, options), str(source), str(whole), options) == 5
    cut.write_text("".join(json.dumps(row) + "\n" for row in rows_in(whole)[:2]) + '{"id": "2", "outp')
    assert generate_file(lambda: Policy(model, options), str(source), str(cut), options) == 3
    by_id = [sorted(rows_in(file), key=lambda row: row["id"]) for file in (cut, whole)]
    assert by_id[0] == by_id[1] and len({row["output"] for row in by_id[0]}) == 5


def test_rows_are_written_as_they_are_answered(tmp_path):
    """What a killed run loses is what was under way, whatever the number of rows."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"id": n, "prompt": "mix"}) + "\n" for n in range(9)))

    class Dies:
        def prepare(self, messages, where):
            return where

        def answers(self, prepared, numbers, watch=None):
            for index in (3, 0, 7):
                yield index, Answer(f"answer {numbers[index]}", "stop")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_file(Dies, str(source), str(output), GenerateOptions())
    assert rows_in(output) == [{"id": str(n), "output": f"answer {n}"} for n in (3, 0, 7)]


def test_one_answer_is_shown_as_it_grows(model):
    options = GenerateOptions(temperature=1.0, max_tokens=40, system_prompt="")
    pieces = []
    text = generate_one(Policy(model, options), "mix", options, pieces.append)
    assert "".join(pieces) == text and sum(map(bool, pieces)) > 2


def test_pieces_never_end_in_half_a_character():
    class Halves:
        def prepare(self, messages, where):
            return where

        def answers(self, prepared, numbers, watch=None):
            for text in ("5 \ufffd", "5 µ", "5 µL \ufffd\ufffd"):
                watch(0, text)
            yield 0, Answer("5 µL °C", "stop")

    pieces = []
    assert generate_one(Halves(), "mix", GenerateOptions(), pieces.append) == "5 µL °C"
    assert pieces == ["5 ", "µ", "L ", "°C"]


def test_bad_rows_are_refused_or_skipped_and_listed(model, tmp_path, caplog):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bad = {
        '{"id": "a", "prompt": "again"}': "in.jsonl:3: field 'id': 'a' is also the id of line 1",
        '{"id": ["a"], "prompt": "x"}': "in.jsonl:3: field 'id' must be a text or a whole number",
        '{"id": null, "prompt": "x"}': "in.jsonl:3: field 'id' must be a text or a whole number",
        '{"id": true, "prompt": "x"}': "in.jsonl:3: field 'id' must be a text or a whole number",
        '{"id": "c", "prompt": " "}': "in.jsonl:3: field 'prompt' must be a text that is not blank",
        '{"id": "c", "prompt": "%s"}' % ("long " * 99): "in.jsonl:3: the prompt has",
        '{"id": "c", "prompt": "x': "in.jsonl:3: malformed JSON",
    }
    options = GenerateOptions(max_tokens=2, max_prompt_length=64, system_prompt="")
    good = '{"id": "a", "prompt": "x"}\n{"id": "\\ud800", "prompt": "y"}\n'  # an id may be a lone surrogate
    for row, message in bad.items():
        source.write_text(f"{good}{row}\n")
        with pytest.raises(InputError) as caught:
            generate_file(lambda: Policy(model, options), str(source), str(output), options)
        assert message in str(caught.value) and "\n" not in str(caught.value)
    source.write_bytes((good + "".join(f"{row}\n" for row in bad)).encode() + b'{"id": "\xff", "prompt": "x"}\n')
    with caplog.at_level(logging.WARNING):
        assert generate_file(lambda: Policy(model, options), str(source), str(output), options, skip_bad=True) == 2
    assert "in.jsonl:10: not UTF-8 text" in caplog.text and "is also the id of line 1" in caplog.text
    assert [row["id"] for row in rows_in(output)] == ["a", "\ud800"]
