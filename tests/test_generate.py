"""`thoth generate` and files: resumed, refused, never harmed."""

import json

import pytest

from thoth_jax.errors import InputError
from thoth_jax.generate import GenerateOptions, _answered, generate_file


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
        generate_file("model", file, file, GenerateOptions())
