"""The kernels equal the plain walk over the rules: on every tuple, with missing labels, for every tool."""

import importlib.resources
import itertools

import jax
import numpy as np
import pytest

from thoth_jax.errors import InputError
from thoth_jax.sharding import make_mesh, use_mesh
from vprm_jax import tools
from vprm_jax.decision import decide, step_scores

EXAMPLE = importlib.resources.files(tools) / "examples" / "reagent_release.yaml"
NAMES = ("rob1", "epoc", "rob2", str(EXAMPLE))


def codes_of(domain: tools.Domain, most: int = 4000) -> np.ndarray:
    """Label codes with -1 for a missing one: all of them, or a sample of `most`."""
    every = [range(-1, len(step.labels)) for step in domain.steps]
    if np.prod([len(codes) for codes in every]) <= most:
        return np.array(list(itertools.product(*every)))
    rng = np.random.default_rng(0)
    return np.stack([rng.integers(-1, len(step.labels), most) for step in domain.steps], axis=1)


def plain(domain: tools.Domain, row) -> int:
    labels = {s.name: s.labels[code] for s, code in zip(domain.steps, row, strict=True) if code >= 0}
    verdict = domain.verdict(labels)
    return -1 if verdict is None else tools.VERDICTS.index(verdict)


@pytest.mark.parametrize("name", NAMES)
def test_decide_equals_the_plain_walk(name):
    tool = tools.load(name)
    for place, domain in enumerate(tool.domains):
        rows = codes_of(domain)
        found = np.asarray(decide(tool, np.full(len(rows), place), rows))
        np.testing.assert_array_equal(found, [plain(domain, row) for row in rows], err_msg=domain.letter)
        assert {-1, 0, 2} <= set(found.tolist())


def test_codes_that_are_no_label_and_domains_that_are_not_there():
    tool = tools.load("rob1")
    assert (
        np.asarray(decide(tool, [0, 0, 99, -1], [[9, 0, 0, 0], [-7, 0, 0, 0], [0] * 4, [0] * 4])).tolist() == [-1] * 4
    )


def test_rows_over_eight_devices_equal_one():
    tool = tools.load("rob2")
    rng = np.random.default_rng(1)
    domain = rng.integers(0, len(tool.domains), 64)
    labels = rng.integers(-1, 4, (64, 7))
    one = np.asarray(decide(tool, domain, labels))
    with use_mesh(make_mesh()):
        spec = jax.sharding.NamedSharding(make_mesh(), jax.sharding.PartitionSpec(("data", "fsdp")))
        many = decide(tool, jax.device_put(domain, spec), jax.device_put(labels, spec))
    np.testing.assert_array_equal(one, np.asarray(many))


def longest(gold, names) -> int:
    """Length of the longest common subsequence, by trying all."""
    best = 0
    for size in range(len(gold), 0, -1):
        for chosen in itertools.combinations(gold, size):
            at = iter(names)
            if all(any(one == other for other in at) for one in chosen):
                return size
    return best


def test_step_scores_equal_a_plain_reference():
    rng = np.random.default_rng(2)
    gold = np.stack([rng.permutation(4) for _ in range(100)])
    names = np.stack([rng.permutation(5) for _ in range(100)])
    gold_labels, labels = rng.integers(0, 2, gold.shape), rng.integers(0, 2, names.shape)
    by_name, by_label = (np.asarray(found) for found in step_scores(gold, gold_labels, names, labels))
    for row in range(100):
        assert by_name[row].sum() == longest(gold[row].tolist(), names[row].tolist())
        said = dict(zip(names[row].tolist(), labels[row].tolist(), strict=True))
        right = [said.get(name) == label for name, label in zip(gold[row].tolist(), gold_labels[row], strict=True)]
        np.testing.assert_array_equal(by_label[row], by_name[row] * right)


def test_a_skipped_step_costs_itself_and_a_foreign_label_nothing_more():
    gold, labels = np.array([[0, 1, 2, 3]]), np.zeros((1, 4), np.int32)
    by_name, by_label = step_scores(gold, labels, np.array([[1, 2, 3]]), np.array([[0, 1, 0]]))
    assert np.asarray(by_name).tolist() == [[0, 1, 1, 1]] and np.asarray(by_label).tolist() == [[0, 1, 0, 1]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("then: hold", "then: holds", "holds"),
        ("Repeat_run: [no]", "Repeat_rum: [no]", "Repeat_rum"),
        ("Positive_control: no, Blank: no}", "Positive_control: no, Blank: maybe}", "maybe"),
        ("    otherwise: release\n\n", "\n", "otherwise"),
        ("- name: Blank", "- name: Positive_control", "Positive_control"),
        ("{complete: go on, with_gaps: hold, absent: reject}", "{complete: hold, absent: reject}", "Find_excursions"),
    ],
)
def test_a_faulty_table_is_refused_with_file_and_place(tmp_path, old, new, message):
    text = EXAMPLE.read_text(encoding="utf-8")
    assert old in text
    file = tmp_path / "table.yaml"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        tools.load(str(file))
    assert "table.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_a_users_table_speaks_its_own_words():
    domain = tools.load(str(EXAMPLE)).domain("ASSAY")
    assert domain.verdict({"Positive_control": "y", "Blank": "Y"}) == "low"
    assert domain.verdict({"Positive_control": "n", "Blank": "n"}) == "high"
    assert domain.verdict({"Positive_control": "n", "Blank": "y"}) is None, "a repeated run was asked for"
