"""All verdicts of a domain at once: every combination of labels, missing ones included, as arrays.

Codes: a label is its place among the step's labels, -1 where it is missing; a verdict is its place in VERDICTS, -1
where the labels at hand do not decide.
"""

import dataclasses
import math

import numpy as np

from vprm_jax.tools.conditions import FALSE, TRUE, UNKNOWN, Condition, Test, truth
from vprm_jax.tools.model import VERDICTS, Domain

# More combinations than this are not laid out; ten steps of three labels fit.
LIMIT = 2**20
# What a rule index means where no rule decided.
OTHERWISE, UNDECIDED = -1, -2


def shape(domain: Domain) -> tuple[int, ...]:
    """Number of codes of each step: its labels and "missing"."""
    return tuple(len(step.labels) + 1 for step in domain.steps)


def combinations(domain: Domain) -> int:
    """How many combinations `enumerate_domain` lays out."""
    return math.prod(shape(domain))


def is_decision_list(domain: Domain) -> bool:
    """Whether each rule tests one step and rules follow the order of the steps, so that one small table says it all."""
    if len(domain.parts) > 1 or any(step.asked_if is not None for step in domain.steps):
        return False
    conditions = [rule.condition for rule in domain.parts[0].rules]
    if not all(isinstance(condition, Test) for condition in conditions):
        return False
    order = [step.name for step in domain.steps]
    places = [order.index(condition.step) for condition in conditions]
    return places == sorted(places)


@dataclasses.dataclass(frozen=True)
class Enumeration:
    """Every combination of N = product of `shape(domain)`; the first step varies slowest.

    Attributes:
      codes: int8 [N, S] label codes.
      verdicts: int8 [N] verdict codes.
      fired: for each part int16 [N], the rule that decided, OTHERWISE or UNDECIDED.
      asked: int8 [N, S], whether each question is asked: FALSE, UNKNOWN or TRUE.
      complete: bool [N], whether every question that is asked has an answer.
    """

    codes: np.ndarray
    verdicts: np.ndarray
    fired: tuple[np.ndarray, ...]
    asked: np.ndarray
    complete: np.ndarray


def enumerate_domain(domain: Domain) -> Enumeration:
    """Walk the rules over all combinations of labels.

    Raises:
      ValueError: more than LIMIT combinations.
    """
    if combinations(domain) > LIMIT:
        raise ValueError(f"domain {domain.letter}: {combinations(domain)} combinations of labels, at most {LIMIT}")
    count = combinations(domain)
    codes = np.stack(np.unravel_index(np.arange(count), shape(domain)), axis=1).astype(np.int8) - 1
    missing, asked = np.empty(codes.shape, bool), np.full(codes.shape, TRUE, np.int8)
    for place, step in enumerate(domain.steps):
        skipped = -1 if step.skip is None else step.labels.index(step.skip)
        missing[:, place] = (codes[:, place] == -1) | (codes[:, place] == skipped)

    def of_test(test: Test) -> np.ndarray:
        place = next(number for number, step in enumerate(domain.steps) if step.name == test.step)
        wanted = [domain.steps[place].labels.index(label) for label in test.labels]
        inside = np.where(np.isin(codes[:, place], wanted), TRUE, FALSE).astype(np.int8)
        inside[missing[:, place]] = UNKNOWN
        return np.minimum(asked[:, place], inside)

    def evaluate(condition: Condition) -> np.ndarray:
        return truth(condition, of_test, np.minimum, np.maximum)

    for place, step in enumerate(domain.steps):  # a question hangs on earlier ones only
        if step.asked_if is not None:
            asked[:, place] = evaluate(step.asked_if)
    complete = ((asked == FALSE) | ((asked == TRUE) & ~missing)).all(axis=1)

    worst, decided, fired = np.zeros(count, np.int8), np.ones(count, bool), []
    for part in domain.parts:
        rule_of = np.full(count, OTHERWISE, np.int16)
        verdict = np.full(count, -1 if part.otherwise is None else VERDICTS.index(part.otherwise), np.int8)
        walking = np.ones(count, bool)
        for number, rule in enumerate(part.rules):
            holds = evaluate(rule.condition)
            rule_of[walking & (holds == TRUE)] = number
            verdict[walking & (holds == TRUE)] = VERDICTS.index(rule.verdict)
            rule_of[walking & (holds == UNKNOWN)] = UNDECIDED
            verdict[walking & (holds == UNKNOWN)] = -1
            walking &= holds == FALSE
        if part.otherwise is None:
            rule_of[walking] = UNDECIDED
        fired.append(rule_of)
        worst = np.maximum(worst, verdict)
        decided &= verdict >= 0
    return Enumeration(codes, np.where(decided, worst, -1).astype(np.int8), tuple(fired), asked, complete)
