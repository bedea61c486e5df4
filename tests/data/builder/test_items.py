"""Shipped and redrawn items: perfect under the reward, short, varied, and sound."""

import collections
import itertools
import json
import random
import re
from fractions import Fraction

import numpy as np
import pytest

from thoth_jax.data import bundled
from thoth_jax.data.builder import argue, redrawn_items, scaling, splits
from thoth_jax.data.builder.corpus import BUILDERS
from thoth_jax.data.builder.draw import Line, Variant, any_order, brief, dependent
from thoth_jax.data.builder.items import MAX_ANSWER
from thoth_jax.evaluation.structured import structured_metrics
from thoth_jax.models.tokenizer import load_tokenizer
from thoth_jax.protocol import grammar, schema
from thoth_jax.rewards.score import score_batch

FIELDS = {"id", "type", "level", "split", "subfield", "protocol", "named", "question", "think", "key", "orc", "note"}
FIELDS |= {"action", "action_new"}
TYPES = set(BUILDERS)


@pytest.fixture(scope="module")
def tokens():
    tokenizer = load_tokenizer(bundled.path("tokenizer.model"))
    return lambda text: len(tokenizer.encode_answer(text))


@pytest.fixture(scope="module")
def rows():
    return [row.data for row in schema.read_rows(bundled.path("items.jsonl")).rows]


@pytest.fixture(scope="module")
def items():
    return schema.read_items(bundled.path("items.jsonl")).items


@pytest.fixture(scope="module")
def redrawn(corpus, tokens):
    return list(itertools.islice(redrawn_items(corpus, splits.SPLITS, 7, tokens), 600))


def perfect(answers, keys) -> None:
    score = score_batch(answers, answers)
    assert score.total.tolist() == [2.5] * len(answers), [r for r in score.reasons if r][:3]
    metrics = structured_metrics(keys, keys)
    assert np.all(metrics["step_match"] == 1) and np.all(metrics["order_strict"] == 1)
    assert np.all(metrics["content_score"] == 1.5)


def test_every_shipped_item_is_perfect_against_itself(items):
    perfect([item.answer for item in items], [item.key for item in items])


def test_every_redrawn_item_is_perfect_against_itself(redrawn):
    perfect([item.answer for item in redrawn], [item.key for item in redrawn])


def test_enough_items(rows):
    assert len(rows) >= 1500


def test_shipped_rows(rows, items, corpus):
    assert len(rows) > 15.5 * len(corpus.protocols) and len({row["id"] for row in rows}) == len(rows)
    assert len({row["question"] for row in rows}) > 0.98 * len(rows)
    assert {row["type"] for row in rows} == TYPES
    for split in ("train", "rl", "validation", "test"):
        assert {row["type"] for row in rows if row["split"] == split} == TYPES
    for row, item in zip(rows, items, strict=True):
        assert set(row) == FIELDS
        steps = grammar.parse(item.answer).sketch.steps
        assert 2 <= len(steps) <= 6
        assert row["key"].replace("Step", "step").islower()
        assert row["action"] == list(dict.fromkeys(step.action for step in steps))
        assert row["action_new"] == [] or set(row["action"]) <= set(row["action_new"])
    lengths = [len(row["key"].split("\n")) for row in rows]
    assert np.mean([2 <= length <= 4 for length in lengths]) > 0.8


def test_answers_are_short(items, redrawn, tokens):
    assert max(tokens(item.answer) for item in [*items, *redrawn]) <= MAX_ANSWER == 160


def test_questions_are_self_contained(rows, redrawn):
    """Names and numbers of the answer stand in the question; only volumes are calculated."""
    answers = [(row["type"], row["question"], row["key"]) for row in rows]
    for kind, question, key in [*answers, *((item.type, item.question, item.key) for item in redrawn)]:
        known = set(re.findall(r"[^\W_]+", question.lower()))
        for step in grammar.parse_key_block(key) if kind != "scaling" else ():
            words = re.findall(r"[^\W_]+", " ".join((*step.objects, *step.parameters)))
            assert known.issuperset(words), (question, step)


def test_half_of_the_questions_do_not_name_their_protocol(rows, redrawn):
    named = [row["protocol"].lower() in row["question"].lower() for row in rows]
    assert [row["named"] for row in rows] == named and 0.45 < np.mean(named) < 0.55
    assert 0.4 < np.mean([item.protocol.lower() in item.question.lower() for item in redrawn]) < 0.6


def test_action_lists_by_level(rows):
    extra = collections.defaultdict(set)
    for row in rows:
        if row["action_new"]:
            extra[row["level"]].add(len(row["action_new"]) - len(row["action"]))
            assert len(set(row["action_new"])) == len(row["action_new"])
        else:
            assert row["level"] == "0"
    assert dict(extra) == {"0": {0}, "1": {2}, "2": {5}}
    listed = [row for row in rows if row["level"] == "0" and len(row["action_new"]) >= 3]
    assert 0.1 < np.mean([row["action_new"] == row["action"] for row in listed]) < 0.5


def test_questions_and_think_blocks_vary(rows):
    for kind in TYPES:
        own = [row for row in rows if row["type"] == kind]
        shapes = {re.sub(r"[^.?:]{12,}", "*", row["question"]) for row in own}
        assert len(shapes) >= 4, kind
        assert len({row["think"] for row in own}) > 0.9 * len(own)
        assert np.mean([len(row["think"].split()) for row in own]) >= 8
    for row in rows:
        assert not re.search(r"[{}]|\bNone\b|  |\.\.", row["question"] + row["think"] + row["orc"] + row["note"]), row


def _line(say: str, hazard: str = "") -> Line:
    return Line(grammar.Step(say.split()[0].lower(), (), ()), say, say, "", "", hazard=hazard)


@pytest.mark.parametrize(
    "say, advice, expected",
    [
        ("Shake the lysate with phenol.", (), "solvent"),
        ("Add 5 µl phenol red.", ("Label every tube.",), "gloves"),
        ("Load the nitrophenol standards.", (), "gloves"),
        ("Pour the acrylamide between the plates.", (), "acrylamide"),
        ("Run the acrylamide gel.", ("Stop the acrylamide run at the blue front.",), "blue front"),
        ("Collect the fresh fish eggs.", ("Discard unfertilized eggs in time.", "Score after 24 h."), "gloves"),
        ("Rinse the sections.", ("Thin sections tear easily.",), "tear"),
    ],
)
def test_notes_fit_the_steps(say, advice, expected):
    assert expected in argue.note([_line(say)], advice, random.Random(0))


def test_the_hazard_of_a_step_comes_first():
    lines = [_line("Shake the lysate with phenol."), _line("Open the vial.", hazard="Vials burst.")]
    assert argue.note(lines, ("Vials of lysate keep for months.",), random.Random(0)) == "Vials burst."


def test_a_warning_has_no_short_form():
    assert brief("Keep {o1} away from {p1}.", ["acid"]) == ""
    assert brief("Add {p1} {o1} to the suspension.", ["lysis buffer"]) == "add lysis buffer"


def test_no_think_block_turns_a_warning_around(rows):
    kept = [row for row in rows if '"keep away"' in row["key"]]
    assert kept
    for row in kept:
        assert not re.search(r"\bkeep (acid|bleach)\b(?! away)", row["think"].lower()), row["think"]


def test_the_same_seed_gives_the_same_items(corpus, tokens):
    def first(seed):
        return [item.question for item in itertools.islice(redrawn_items(corpus, ("train",), seed, tokens), 20)]

    assert first(3) == first(3) != first(4)


def test_redraw_changes_numbers_names_and_order(corpus):
    protocol = next(protocol for protocol in corpus.protocols if protocol.swaps)
    drawn = [Variant(protocol, random.Random(seed)) for seed in range(20)]
    texts = {tuple(line.say for line in variant.lines(protocol.steps)) for variant in drawn}
    assert len(texts) > 5
    orders = {
        tuple(step.id for step in any_order(other, random.Random(seed)))
        for other in corpus.protocols[:20]
        for seed in range(6)
    }
    assert len(orders) > 30


def test_any_order_respects_what_steps_need(corpus):
    for protocol in corpus.protocols:
        for seed in range(5):
            rng = random.Random(seed)
            for steps in (any_order(protocol, rng), dependent(protocol, 4, rng)):
                ids = [step.id for step in steps]
                for place, id in enumerate(ids):
                    assert not protocol.needs[id] & set(ids[place + 1 :]), (protocol.name, ids)


def volumes(text: str) -> list[Fraction]:
    found = re.findall(r"(\d+(?:\.\d+)?) (µl|ml)\b", text)
    return [Fraction(value) * (1000 if unit == "ml" else 1) for value, unit in found]


def drawn_scaling(corpus, form, count=300):
    """(recipe parts, draft) of many seeds of one form."""
    found = []
    for seed in range(count):
        for protocol in corpus.protocols:
            if protocol.mix and seed % 10 == len(protocol.name) % 10:
                parts = [(name, Fraction(volume)) for name, volume in protocol.mix.parts]
                draft = form(protocol.mix.what, parts, random.Random(seed))
                if draft:
                    found.append((parts, draft))
    assert len(found) > 100
    return found


def test_volumes_for_many_add_up(corpus):
    for parts, draft in drawn_scaling(corpus, scaling._many):
        count = int(re.search(r"(?:for|Prepare|to) (\d+)", draft.question[draft.question.index(". ") :]).group(1))
        factor = count * (Fraction(11, 10) if "10 % spare" in draft.question else 1)
        made = [volumes(line.say)[0] for line in draft.lines]
        assert made == [volume * factor for _, volume in parts]
        assert [volumes(line.step.parameters[0])[0] for line in draft.lines] == made
        total = re.search(r"In all (.+)\.$", draft.why)
        assert total is None or volumes(total.group(1))[0] == sum(volume for _, volume in parts) * factor


def test_what_cannot_be_pipetted_is_diluted_first(corpus):
    diluted = 0
    for parts, draft in drawn_scaling(corpus, scaling._smaller):
        factor = {"half": 2, "a quarter of": 4, "a fifth of": 5}
        share = next(Fraction(1, n) for name, n in factor.items() if f"at {name} the volume" in draft.question)
        stocks = {line.step.objects[0] for line in draft.lines if line.step.action == "dilute"}
        assert stocks == {name.lower() for name, volume in parts if volume * share < Fraction(1, 2)}
        diluted += len(stocks)
        measured = {line.step.objects[0]: volumes(line.say)[0] for line in draft.lines if line.step.action != "dilute"}
        assert min(measured.values()) >= Fraction(1, 2)
        assert sum(measured.values()) == sum(volume for _, volume in parts) * share
        for name, volume in parts:
            if name.lower() in stocks:
                assert measured[f"diluted {name.lower()}"] == volume * share * 10
    assert diluted > 5


def test_a_common_mix_is_shared_out(corpus):
    for parts, draft in drawn_scaling(corpus, scaling._common_mix):
        *added, last = draft.lines
        each, tubes = volumes(last.say)[0], int(last.step.parameters[1].split()[0])
        left = re.search(r"The (.+) comes into each tube later", draft.question).group(1)
        assert each == sum(volume for name, volume in parts if name != left)
        spare = Fraction(11, 10) if "spare" in draft.question else 1
        assert sum(volumes(line.say)[0] for line in added) == each * tubes * spare


def test_subtask_rows(corpus):
    rows = [row.data for row in schema.read_rows(bundled.path("subtasks.jsonl")).rows]
    assert {row["type"] for row in rows} == {"parameter_filling", "step_ordering", "error_correction"}
    assert {corpus.split[row["protocol"]] for row in rows} == {"train"}
    for row in rows:
        question, answer = (turn["value"] for turn in row["conversations"])
        if row["type"] == "parameter_filling":
            assert "____" in question and answer in question
        elif row["type"] == "step_ordering":
            assert sorted(json.loads(answer)) == list(range(1, question.count("\n") + 1))
        else:
            assert (answer == "true") == (answer.removeprefix("false: ") == "true")
            assert answer == "true" or answer.removeprefix("false: ") not in question
    wrong = [r["conversations"][1]["value"] != "true" for r in rows if r["type"] == "error_correction"]
    assert 0.3 < np.mean(wrong) < 0.7
