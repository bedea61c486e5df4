"""The source format: what is read, and what is refused with its file, protocol and step."""

import copy

import pytest
import yaml

from thoth_jax.data.builder.source import read_source, read_sources
from thoth_jax.errors import InputError


def step(number: int, **fields) -> dict:
    return {
        "id": f"s{number}",
        "action": "mix",
        "objects": [f"buffer {number}"],
        "parameters": ["5|8 min"],
        "say": "Mix the {o1} for {p1}.",
        "prose": "For {p1} the {o1} is mixed.",
        "why": "it must be even",
        **fields,
    }


def fix() -> list[dict]:
    return [{name: value for name, value in step(n).items() if name != "id"} for n in (1, 2)]


@pytest.fixture
def protocol():
    return {
        "name": "Mixing of buffers",
        "aim": "make an even solution",
        "subfield": "chemistry",
        "abstract": "Buffers are mixed.",
        "materials": ["buffer"],
        "equipments": ["tube"],
        "notes": ["Mix well."],
        "steps": [step(n) for n in range(1, 9)],
        "faults": [{"seen": "it is cloudy", "cause": "it was cold", "fix": fix()}] * 2,
        "limits": [{"given": "no tube is left", "idea": "a flask is used", "fix": fix()}],
        "safety": [{"asks": "mix acid", "why": "it burns", "note": "Wear gloves.", "fix": fix()}],
    }


@pytest.fixture
def read(tmp_path):
    def of(*rows):
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(list(rows)))
        return read_source(tmp_path / "own.yaml")

    return of


def test_a_protocol_is_read(read, protocol):
    protocol["steps"][3]["after"] = []
    protocol["steps"][4]["after"] = ["s2", "s4"]
    found = read(protocol)[0]
    assert len(found.steps) == 8 and found.steps[1].after == ("s1",) and found.steps[3].after == ()
    assert found.needs["s5"] == {"s1", "s2", "s4"} and found.needs["s4"] == set()
    assert found.steps[0].parameters[0].standard() == "5 min"
    assert found.steps[0].parameters[0].choices == ("5", "8")


def broken(protocol: dict, place: str, value) -> dict:
    changed = copy.deepcopy(protocol)
    target = changed
    *path, last = place.split("/")
    for name in path:
        target = target[int(name) if name.isdigit() else name]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return changed


@pytest.mark.parametrize(
    "place, value, expected",
    [
        ("aim", None, "own.yaml: protocol 1 (Mixing of buffers): no field 'aim'"),
        ("colour", "red", "unknown field 'colour'"),
        ("aim", "do Mixing of buffers", "aim: must not contain the name"),
        ("steps/2/say", "Mix the {o1}.", "step s3: say: slots ['{o1}'], expected ['{o1}', '{p1}']"),
        ("steps/2/say", "Now mix the {o1} for {p1}.", "step s3: say: must start with the action 'mix'"),
        ("steps/2/action", "shake", "step s3: say: must start with the action 'shake'"),
        ("steps/2/parameters", ["5|red min"], "step s3: parameters: '5|red min': alternatives are of one number"),
        ("steps/2/parameters", ["5|5 min"], "alternatives must be different"),
        ("steps/2/parameters", [5], "5 is not a text"),
        ("steps/2/after", ["s9"], "step s3: after: 's9' is no earlier step"),
        ("steps/2/id", "s1", "there is an earlier step 's1'"),
        ("steps/2/why", "", "step s3: no field 'why'"),
        ("swaps", [["lysate", "extract"]], "swaps"),
        ("mix", {"what": "mix", "step": "none", "parts": [["a", 1]] * 3}, "mix: step: 'none' is no step"),
        ("mix", {"what": "mix", "step": "s1", "parts": [["a", 0]] * 3}, "mix: parts"),
        ("safety/0/note", None, "safety[1]: no field 'note'"),
        ("faults/0/fix", [], "faults[1]: no field 'fix'"),
        ("faults/0/fix/1/prose", "x", "faults[1]: fix[2]: prose: slots"),
    ],
)
def test_faults_are_refused_where_they_are(read, protocol, place, value, expected):
    with pytest.raises(InputError) as error:
        read(broken(protocol, place, value))
    assert expected in str(error.value) and "own.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sentence_that_leaves_out_key_words_is_refused(read, protocol):
    protocol["steps"][2].update(action="mix gently", say="Mix the {o1} for {p1}.")
    with pytest.raises(InputError, match="step s3: say leaves out words of its key"):
        read(protocol)


def test_files_that_are_none(tmp_path, protocol):
    with pytest.raises(InputError, match="no .yaml file"):
        read_sources(tmp_path)
    (tmp_path / "own.yaml").write_text("- a: [")
    with pytest.raises(InputError, match=r"own.yaml:\d: broken YAML"):
        read_sources(tmp_path)
    (tmp_path / "own.yaml").write_text("a: 1")
    with pytest.raises(InputError, match="a file is a list of protocols"):
        read_sources(tmp_path)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump([protocol, protocol]))
    with pytest.raises(InputError, match="name as in own.yaml"):
        read_sources(tmp_path)
