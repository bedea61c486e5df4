"""Golds whose steps may stand in several orders: `after` in gold lines."""

import itertools
import json
import random

import numpy as np
import pytest

from thoth_jax.protocol.grammar import Sketch, Step, parse_gold, render
from thoth_jax.rewards import ScoreConfig, score_batch

# Two branches that meet: 1 -> 2, 3 -> 4, and 5 needs both. Steps 1 and 3 share their action.
STEPS = [
    Step("add", ("buffer",), ("5 ml",)),
    Step("mix", ("buffer",), ("10 s",)),
    Step("add", ("dye",), ("1 ml",)),
    Step("heat", ("dye",), ("60 °C",)),
    Step("combine", ("buffer", "dye"), ()),
]
AFTER = [[], [1], [], [3], [2, 4]]


def gold(steps=STEPS, after=AFTER):
    lines = []
    for number, (step, sooner) in enumerate(zip(steps, after, strict=True), 1):
        fields = {"action": step.action, "objects": step.objects, "parameters": step.parameters}
        lines.append(f"Step {number}: {json.dumps(fields | ({} if sooner is None else {'after': sooner}))}")
    return "\n".join(lines)


def answer(steps):
    orc = tuple(" ".join((step.action, *step.objects, *step.parameters)) for step in steps)
    return render(Sketch("t", tuple(steps), orc, "n"))


def orders(after):
    """All topological orders, places from 0."""
    for order in itertools.permutations(range(len(after))):
        place = {step: number for number, step in enumerate(order)}
        if all(place[sooner - 1] < place[step] for step, before in enumerate(after) for sooner in before):
            yield order


def test_every_topological_order_is_in_order_and_no_other_is():
    right = list(orders(AFTER))
    every = list(itertools.permutations(range(5)))
    score = score_batch([answer([STEPS[i] for i in order]) for order in every], [gold()] * len(every))
    assert len(right) == 6
    actions = {tuple(STEPS[i].action for i in order) for order in right}
    for order, in_order in zip(every, score.order, strict=True):
        assert in_order or order not in right, order
        assert not in_order or tuple(STEPS[i].action for i in order) in actions, order
    assert score.order.sum() < 12
    # Content: position decay still compares places, so only the written order reaches the ideal.
    ideal = every.index((0, 1, 2, 3, 4))
    assert score.total[ideal] == 2.5 and (np.delete(score.total, ideal) < 2.5).all()
    assert score_batch([answer(STEPS)], [gold()], ScoreConfig(use_decay=False)).total[0] == 2.5
    free = score_batch([answer([STEPS[i] for i in (2, 3, 0, 1, 4)])], [gold()], ScoreConfig(use_decay=False))
    assert free.total[0] == 2.5


def test_a_total_order_gives_what_no_after_gives(pairs):
    outputs, golds = pairs[0][:300], pairs[1][:300]
    chained = []
    for text in golds:
        steps = parse_gold(text).steps
        chained.append(gold(steps, [[], *([number] for number in range(1, len(steps)))]))
    left = score_batch(outputs, golds, ScoreConfig(alignment="greedy"))
    mixed = score_batch(outputs + outputs, golds + chained)
    names = ("format_gate", "coverage", "step_scale")
    for name in names:
        assert np.array_equal(getattr(mixed, name)[300:], getattr(left, name))
    for name in (*names, "total", "order", "content"):
        assert np.array_equal(getattr(mixed, name)[:300], getattr(left, name))  # beside partial golds, nothing changes
    # Of equal actions the better pair may be taken instead of the first; distinct actions give the same numbers.
    distinct = [
        len({s.action.lower() for s in parse_gold(text).steps}) == len(parse_gold(text).steps) for text in golds
    ]
    assert sum(distinct) > 20
    assert np.allclose(mixed.content[300:][distinct], left.content[distinct])


def test_subsequences_of_some_order_are_in_order():
    for chosen, expected in (((2, 3), 1), ((4, 3), 0), ((0, 2, 4), 1), ((4, 0), 0), ((2, 0, 3, 1), 1)):
        output = answer([STEPS[i] for i in chosen])
        assert score_batch([output], [gold()]).order[0] == expected, chosen
    extra = [STEPS[4], *STEPS]  # all gold steps are there in order, after one too early
    assert score_batch([answer(extra)], [gold()]).order[0] == 1
    lcs = score_batch([answer([STEPS[i] for i in (2, 0, 3)])], [gold()], ScoreConfig(order_mode="lcs"))
    assert lcs.order[0] == pytest.approx(2 * 3 / 8)
    exact = ScoreConfig(order_mode="exact")
    swapped = answer([STEPS[i] for i in (2, 3, 0, 1, 4)])
    assert score_batch([swapped, answer(extra)], [gold()] * 2, exact).order.tolist() == [1, 0]


def test_random_orders_of_random_graphs_are_in_order():
    rng = random.Random(0)
    outputs, golds = [], []
    for _ in range(60):
        size = rng.randint(2, 9)
        after = [sorted(rng.sample(range(1, place + 1), rng.randint(0, min(place, 2)))) for place in range(size)]
        steps = [
            Step(rng.choice(("add", "mix", "heat")), (f"thing {place}",), (f"{place} ml",)) for place in range(size)
        ]
        order, left = [], list(range(size))
        while left:
            ready = [place for place in left if all(sooner - 1 in order for sooner in after[place])]
            order.append(rng.choice(ready))
            left.remove(order[-1])
        outputs.append(answer([steps[place] for place in order]))
        golds.append(gold(steps, after))
    for alignment in ("greedy", "lcs"):
        score = score_batch(outputs, golds, ScoreConfig(alignment=alignment, use_decay=False))
        assert (score.order == 1).all() and np.allclose(score.total, 2.5)


def test_a_line_without_after_follows_the_line_before():
    block = gold(after=[[], None, [], None, [2, 4]])
    assert parse_gold(block) == parse_gold(gold()) and parse_gold(gold()).after == ((), (0,), (), (2,), (1, 3))
    assert parse_gold(gold(after=[None] * 5)).after is None


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ([[2], [1], [], [], []], "circular_after: steps 1, 2 wait for each other"),
        ([[1], [], [], [], []], "bad_after:1"),
        ([[6], [], [], [], []], "bad_after:1"),
        ([[], [0], [], [], []], "bad_after:2"),
        ([[], [True], [], [], []], "bad_after:2"),
        ([[], {"a": 1}, [], [], []], "bad_after:2"),
        ([[], "1", [], [], []], "bad_after:2"),
        ([[], [1.5], [], [], []], "bad_after:2"),
        ([[], [10**400], [], [], []], "bad_after:2"),
    ],
)
def test_a_gold_that_contradicts_itself_is_refused(after, message):
    with pytest.raises(ValueError, match=r"golds\[1\]: " + message):
        score_batch([answer(STEPS)] * 2, [gold(), gold(after=after)])


def test_an_output_that_says_after_fails_the_format_gate():
    block = gold()
    orc = "\n".join(f"Step {n}: {' '.join((s.action, *s.objects, *s.parameters))}" for n, s in enumerate(STEPS, 1))
    text = f"<think>t</think>\n<key>\n{block}\n</key>\n<orc>\n{orc}\n</orc>\n<note>n</note>"
    score = score_batch([text], [block])
    assert score.total[0] == 0 and score.reasons == ["wrong_keys:1"]
