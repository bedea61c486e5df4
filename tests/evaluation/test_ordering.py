"""Order-Tau over matched steps: it can fall, and it does not reward what stands in the wrong order."""

import itertools

import numpy as np
import pytest

from thoth_jax.evaluation.structured import structured_metrics
from thoth_jax.protocol.grammar import Step, render_step


def key(*steps):
    return "\n".join(
        render_step(number, Step(action, tuple(objects), ())) for number, (action, *objects) in enumerate(steps, 1)
    )


def tau(predicted, gold):
    return float(structured_metrics([predicted], [gold])["order_tau_matched"][0])


A, B, C, D = ("add", "salt"), ("mix", "salt"), ("heat", "salt"), ("cool", "salt")


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_of_distinct_actions_it_is_kendalls_tau(order):
    steps = [A, B, C, D]
    rising = sum(1 if i < j else -1 for i, j in itertools.combinations(order, 2))
    found = structured_metrics([key(*[steps[i] for i in order])], [key(*steps)])
    assert found["order_tau_matched"][0] == pytest.approx(rising / 6)
    assert found["order_tau"][0] in (0, 1)  # the published one only counts aligned pairs


@pytest.mark.parametrize(
    ("predicted", "gold", "expected"),
    [
        (key(A), key(A), 1),  # one step each and equal
        (key(A), key(B), 0),
        (key(A, B), key(A), 0),  # one matched step says nothing about order
        (key(A, B, D), key(A, C, B), 1),
        (key(B, D, A), key(A, C, B), -1),
        ("nothing", key(A), 0),
        ("", "", 0),
        # Equal actions are matched by what they are done to, so a swap shows.
        (key(("add", "salt"), ("add", "water")), key(("add", "water"), ("add", "salt")), -1),
        # With equal content the nearest places are matched.
        (key(A, A, B), key(A, A, B), 1),
        # A step repeated many times takes each gold step once.
        (key(*[A] * 30, B), key(A, B), 1),
    ],
)
def test_cases(predicted, gold, expected):
    assert tau(predicted, gold) == pytest.approx(expected)


def test_as_many_steps_as_possible_are_matched():
    """A plain search over all one-to-one matchings agrees."""
    rng = np.random.default_rng(0)
    words = ["salt", "water", "dye"]
    for _ in range(40):
        sides = [
            [(("add", "mix")[rng.integers(2)], *rng.choice(words, rng.integers(1, 3), replace=False)) for _ in range(4)]
            for _ in range(2)
        ]
        best = None
        for order in itertools.permutations(range(4)):
            pairs = [(i, j) for i, j in enumerate(order) if sides[0][i][0] == sides[1][j][0]]
            content = sum(
                len({*sides[0][i][1:]} & {*sides[1][j][1:]}) / len({*sides[0][i][1:]} | {*sides[1][j][1:]})
                for i, j in pairs
            ) + 0.5 * sum(bool({*sides[0][i][1:]} & {*sides[1][j][1:]}) for i, j in pairs if _half(sides, i, j))
            rank = (len(pairs), round(content, 6), -sum(abs(i - j) for i, j in pairs))
            taus = sum(1 if a[1] < b[1] else -1 for a, b in itertools.combinations(pairs, 2))
            value = taus / (len(pairs) * (len(pairs) - 1) / 2) if len(pairs) > 1 else 0
            if best is None or rank > best[0]:
                best = (rank, {value})
            elif rank == best[0]:
                best[1].add(value)
        found = tau(key(*sides[0]), key(*sides[1]))
        assert min(abs(found - value) for value in best[1]) < 1e-6


def _half(sides, i, j):
    a, b = {*sides[0][i][1:]}, {*sides[1][j][1:]}
    return len(a & b) / len(a | b) >= 0.5
