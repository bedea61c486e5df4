"""What makes rules a decision procedure: every case has a verdict, and every rule decides some case."""

import numpy as np

from thoth_jax.errors import InputError
from vprm_jax.tools import tables
from vprm_jax.tools.conditions import FALSE
from vprm_jax.tools.model import Domain, Part


def check_domain(domain: Domain, where: str) -> None:
    """Check that a domain is total and that each of its rules and questions is reached.

    Args:
      where: file, line and domain, for messages.

    Raises:
      InputError: labels without a verdict (an example is named), a rule that never decides, a question that is never
        asked, or more combinations of labels than can be checked.
    """
    if tables.is_decision_list(domain):
        _check_list(domain, where)
    elif tables.combinations(domain) > tables.LIMIT:
        raise InputError(
            f"{where}: {tables.combinations(domain)} combinations of labels are more than {tables.LIMIT}; write rules "
            "that each test one step, in the order of the steps, or split the domain"
        )
    else:
        _check_all(domain, where)


def _check_list(domain: Domain, where: str) -> None:
    """A rule of a decision list is reached if it names a new label of its step and the steps before can be passed."""
    part = domain.parts[0]
    labels = {step.name: set(step.labels) for step in domain.steps}
    taken: dict[str, set[str]] = {step.name: set() for step in domain.steps}
    closed_by = None
    for number, rule in enumerate(part.rules, 1):
        test = rule.condition
        if closed_by is not None or set(test.labels) <= taken[test.step]:
            raise InputError(_shadowed(rule.where or where, number))
        taken[test.step] |= set(test.labels)
        if taken[test.step] == labels[test.step]:
            closed_by = test.step
    if part.otherwise is None and closed_by is None:
        free = [f"{step.name} = {next(label for label in step.labels if label not in taken[step.name])}"
                for step in domain.steps]  # fmt: skip
        raise InputError(_undecided(where, free))
    if part.otherwise is not None and closed_by is not None:
        raise InputError(_never_otherwise(where))


def _check_all(domain: Domain, where: str) -> None:
    found = tables.enumerate_domain(domain)
    for place, step in enumerate(domain.steps):
        if (found.asked[found.complete, place] == FALSE).all():
            raise InputError(f"{where}: step {step.name}: is never asked, no answers make its asked_if true")
    for number, part in enumerate(domain.parts):
        fired = found.fired[number][found.complete]
        _check_reached(part, fired, where)
        if (open_cases := np.flatnonzero(fired == tables.UNDECIDED)).size:
            codes, asked = (array[found.complete][open_cases[0]] for array in (found.codes, found.asked))
            case = [
                f"{step.name} = {step.labels[code]}"
                for step, code, state in zip(domain.steps, codes, asked, strict=True)
                if state != FALSE
            ]
            raise InputError(_undecided(where, case))


def _check_reached(part: Part, fired: np.ndarray, where: str) -> None:
    for number, rule in enumerate(part.rules, 1):
        if not (fired == number - 1).any():
            raise InputError(_shadowed(rule.where or where, number))
    if part.otherwise is not None and not (fired == tables.OTHERWISE).any():
        raise InputError(_never_otherwise(where))


def _shadowed(where: str, number: int) -> str:
    return f"{where}: rule {number} never decides: rules before it take all of its cases, or it has none"


def _undecided(where: str, case: list[str]) -> str:
    return f"{where}: no rule decides {', '.join(case)}; add a rule or an 'otherwise'"


def _never_otherwise(where: str) -> str:
    return f"{where}: otherwise: is never reached, the rules decide every case; leave it out"
