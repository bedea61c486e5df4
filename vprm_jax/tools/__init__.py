"""Decision procedures of risk-of-bias tools as data: signalling questions, their labels, and what each label decides.

A domain is a decision list: its steps are looked at in order, and the first label that carries a verdict decides.

    >>> load("rob1").domain("A").verdict({"Identify_randomization_report": "not_reported"})
    'moderate'
"""

import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Mapping

from thoth_jax.errors import InputError, nearest

TOOLS = ("rob1",)
VERDICTS = ("low", "moderate", "high")


@dataclasses.dataclass(frozen=True)
class Step:
    """A signalling question. `labels` maps each allowed answer to the verdict that it decides, or None to go on."""

    name: str
    question: str
    labels: Mapping[str, str | None]


@dataclasses.dataclass(frozen=True)
class Domain:
    """A domain of a tool. `otherwise` is the verdict where no step decides; `source` says where the list is from."""

    letter: str
    name: str
    bias: str
    source: str
    steps: tuple[Step, ...]
    otherwise: str

    def verdict(self, labels: Mapping[str, str]) -> str:
        """The verdict of step labels.

        Args:
          labels: step name -> label. Steps after the one that decides may be left out.

        Raises:
          InputError: a step or a label that the domain does not have, or a missing label that the decision needs.
        """
        names = [step.name for step in self.steps]
        for name in labels:
            if name not in names:
                raise InputError(f"domain {self.letter}: no step {name!r}{nearest(name, names)}")
        for step in self.steps:
            if step.name in labels and labels[step.name] not in step.labels:
                label = labels[step.name]
                raise InputError(f"domain {self.letter}: {step.name}: no label {label!r}{nearest(label, step.labels)}")
        for step in self.steps:
            if step.name not in labels:
                raise InputError(f"domain {self.letter}: the verdict needs a label of {step.name}")
            decided = step.labels[labels[step.name]]
            if decided is not None:
                return decided
        return self.otherwise


@dataclasses.dataclass(frozen=True)
class Tool:
    """A risk-of-bias tool: a name, a title and its domains in order."""

    name: str
    title: str
    domains: tuple[Domain, ...]

    def domain(self, letter: str) -> Domain:
        """The domain of a letter, in either case.

        Raises:
          InputError: the tool has no such domain.
        """
        for domain in self.domains:
            if domain.letter == letter.upper():
                return domain
        letters = ", ".join(domain.letter for domain in self.domains)
        raise InputError(f"tool {self.name}: no domain {letter!r}; its domains are {letters}")


@functools.cache
def load(name: str) -> Tool:
    """Read a tool by name.

    Raises:
      InputError: no such tool.
    """
    if name not in TOOLS:
        raise InputError(f"no tool {name!r}{nearest(name, TOOLS)}")
    text = (importlib.resources.files(__name__) / f"{name}.json").read_text(encoding="utf-8")
    record = json.loads(text)
    domains = [
        Domain(**{**domain, "steps": tuple(Step(**step) for step in domain["steps"])}) for domain in record["domains"]
    ]
    return Tool(record["name"], record["title"], tuple(domains))
