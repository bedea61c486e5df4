"""Shipped and redrawn items: perfect under the reward, short, varied, and sound."""

import itertools
import random
import re
from fractions import Fraction

import numpy as np
import pytest

from thoth_jax.data.builder import redrawn_items, scaling, splits
from thoth_jax.data.builder.corpus import BUILDERS, shipped_items, subtask_rows
from thoth_jax.data.builder.corpus import slug as corpus_slug
from thoth_jax.data.builder.draw import Variant, any_order, dependent
from thoth_jax.evaluation.structured import structured_metrics
from thoth_jax.rewards.score import score_batch

FIELDS = {"id", "type", "level", "split", "subfield", "protocol", "named", "question", "think", "key", "orc", "note"}
FIELDS |= {"action", "action_new"}
TYPES = set(BUILDERS)


@pytest.fixture(scope="module")
def tokens():
    return lambda text: 0  # the tokenizer of this corpus is not trained yet


@pytest.fixture(scope="module")
def redrawn(corpus, tokens):
    return list(itertools.islice(redrawn_items(corpus, splits.SPLITS, 7, tokens), 600))


def perfect(answers, keys) -> None:
    score = score_batch(answers, answers)
    assert score.total.tolist() == [2.5] * len(answers), [r for r in score.reasons if r][:3]
    metrics = structured_metrics(keys, keys)
    assert np.all(metrics["step_match"] == 1) and np.all(metrics["order_strict"] == 1)
    assert np.all(metrics["content_score"] == 1.5)


def test_every_redrawn_item_is_perfect_against_itself(redrawn):
    perfect([item.answer for item in redrawn], [item.key for item in redrawn])


def test_the_fixed_items_and_the_smaller_tasks_are_sound(corpus, tokens):
    fixed = shipped_items(corpus, tokens)
    perfect([item.answer for item in fixed], [item.key for item in fixed])
    assert {item.type for item in fixed} == set(BUILDERS) and len({item.id for item in fixed}) == len(fixed) > 700
    rows = subtask_rows(corpus)
    assert len({row["id"] for row in rows}) == len(rows) > 100
    trained = {corpus_slug(protocol.name) for protocol in corpus.of(splits.SFT)}
    assert all(any(row["id"].startswith(name) for name in trained) for row in rows)
    assert all([turn["from"] for turn in row["conversations"]] == ["human", "gpt"] for row in rows)


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
