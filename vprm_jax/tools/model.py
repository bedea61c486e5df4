"""What a decision tool consists of, and the plain walk over its rules that everything else must equal."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

from thoth_jax.errors import InputError, nearest
from vprm_jax.tools.conditions import FALSE, TRUE, UNKNOWN, Condition, Test, tests, truth

# From best to worst. Other words for them (unclear, some concerns) belong to a tool, see `Tool.read_verdict`.
VERDICTS = ("low", "moderate", "high")
# Where the rules of a domain are from: the paper, the tool's own publication, or worked out by us or by you.
SOURCES = ("paper", "official", "derived")


def fold(text: object) -> str:
    """The form in which names and labels are compared: without outer blanks and case. Not a text: empty."""
    return text.strip().casefold() if isinstance(text, str) else ""


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A signalling question.

    Attributes:
      name: its identifier in traces, such as Assess_missing_extent or 3.1.
      labels: the allowed answers.
      asked_if: a condition on earlier steps without which the question is not asked; None: always asked.
      skip: the label that says "not asked"; where the question is asked it counts as a missing label.
      answers: other words for labels, case-folded.
    """

    name: str
    question: str
    labels: tuple[str, ...]
    asked_if: Condition | None = None
    skip: str | None = None
    answers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def read(self, answer: object) -> str | None:
        """The label that an answer stands for, or None."""
        return self._words.get(fold(answer))

    @functools.cached_property
    def _words(self) -> dict[str, str]:
        return {**{fold(word): label for word, label in self.answers.items()}, **{fold(w): w for w in self.labels}}


@dataclasses.dataclass(frozen=True)
class Rule:
    """Gives `verdict` where `condition` holds and no rule before it has decided. `where`: its place in the file."""

    condition: Condition
    verdict: str
    where: str = ""


@dataclasses.dataclass(frozen=True)
class Part:
    """Ordered rules; the first whose condition holds decides, `otherwise` where none does."""

    rules: tuple[Rule, ...]
    otherwise: str | None


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a walk came to: its verdict, the rule of each part (None: otherwise, or undecided), the labels it lacks."""

    verdict: str | None
    rules: tuple[Rule | None, ...]
    needs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Domain:
    """A domain of a tool: its steps, and one or more parts whose worst verdict is the domain's.

    Attributes:
      letter: what configs, rows and prompts call it: A, D1, D2a.
      group: the domain that this one is a variant of (D2), else the letter.
      effect: which variant: assignment or adhering for D2a and D2b, else empty.
      source: paper, official or derived; `note` says more.
    """

    letter: str
    name: str
    bias: str
    source: str
    note: str
    steps: tuple[Step, ...]
    parts: tuple[Part, ...]
    group: str = ""
    effect: str = ""

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """Case-folded step name -> place in `steps`."""
        return {fold(step.name): number for number, step in enumerate(self.steps)}

    def step(self, name: object) -> Step | None:
        """The step of a name in any case, or None."""
        number = self.index.get(fold(name))
        return None if number is None else self.steps[number]

    def verdict(self, labels: Mapping[str, str]) -> str | None:
        """The verdict that step labels imply.

        Args:
          labels: step name -> label, from a model's trace or anywhere else. Names and labels that the domain does not
            have count as missing; of a name given twice in different case the first counts.

        Returns:
          low, moderate or high; None where a rule needs a missing label before any rule has decided.
        """
        return self.decide(labels).verdict

    def decide(self, labels: Mapping[str, str]) -> Decision:
        """`verdict` with the rules that gave it, or the labels that it lacks."""
        answers = _Answers(self, labels)
        verdicts, fired = [], []
        for part in self.parts:
            verdict, rule = part.otherwise, None
            for candidate in part.rules:
                holds = truth(candidate.condition, answers.test)
                if holds == TRUE:
                    verdict, rule = candidate.verdict, candidate
                    break
                if holds == UNKNOWN:
                    return Decision(None, (*fired, None), answers.lacking(candidate.condition))
            if verdict is None:
                return Decision(None, (*fired, None))
            verdicts.append(verdict)
            fired.append(rule)
        return Decision(max(verdicts, key=VERDICTS.index), tuple(fired))

    def check(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Labels of rows that must be right, such as gold steps, in the domain's own words.

        Raises:
          InputError: a step or a label that the domain does not have.
        """
        checked = {}
        for name, label in labels.items():
            step = self.step(name)
            if step is None:
                raise InputError(
                    f"domain {self.letter}: no step {name!r}{nearest(str(name), [step.name for step in self.steps])}"
                )
            if step.read(label) is None:
                raise InputError(
                    f"domain {self.letter}: {step.name}: no label {label!r}{nearest(str(label), step.labels)}"
                )
            if step.name in checked:
                raise InputError(f"domain {self.letter}: {step.name} has two labels")
            checked[step.name] = step.read(label)
        return checked

    def asked(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Names of the steps that are asked given these labels: what a full trace answers."""
        answers = _Answers(self, labels)
        return tuple(step.name for step in self.steps if answers.asked(step) == TRUE)

    def path(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Names of the asked steps up to the first at which the verdict is decided: what a path trace answers."""
        given: dict[str, str] = {}
        for name, label in labels.items():
            given.setdefault(fold(name), label)
        taken: dict[str, str] = {}
        for name in self.asked(labels):
            taken[name] = given.get(fold(name), "")
            if self.verdict(taken) is not None:
                break
        return tuple(taken)


class _Answers:
    """The labels of one trace, and what they make of tests."""

    def __init__(self, domain: Domain, labels: Mapping[str, str]):
        self._domain = domain
        self._asked: dict[str, int] = {}
        self._labels: dict[str, str | None] = {}
        for name, label in labels.items():
            step = domain.step(name)
            if step is not None:
                self._labels.setdefault(step.name, step.read(label))

    def _missing(self, step: Step) -> bool:
        label = self._labels.get(step.name)
        return label is None or label == step.skip

    def asked(self, step: Step) -> int:
        """Whether a question is asked, in three values."""
        if step.name not in self._asked:
            self._asked[step.name] = TRUE if step.asked_if is None else truth(step.asked_if, self.test)
        return self._asked[step.name]

    def test(self, test: Test) -> int:
        """A test holds where the question is asked and its label is one of those named."""
        step = self._domain.step(test.step)
        if self._missing(step):
            inside = UNKNOWN
        else:
            inside = TRUE if self._labels[step.name] in test.labels else FALSE
        return min(self.asked(step), inside)

    def lacking(self, condition: Condition) -> tuple[str, ...]:
        """Steps without a label on which a condition hangs, in the domain's order."""
        seen: set[str] = set()
        names = {test.step for test in tests(condition)}
        while names - seen:
            seen |= names
            asked_if = [step.asked_if for step in self._domain.steps if step.name in names and step.asked_if]
            names = {test.step for condition in asked_if for test in tests(condition)}
        steps = [step for step in self._domain.steps if step.name in seen]
        return tuple(step.name for step in steps if self._missing(step) and self.asked(step) != FALSE)


def verdict_word(text: object) -> str:
    """The form in which words for verdicts are compared: case, `_` and `-` do not matter."""
    return re.sub(r"[\s_-]+", " ", text).strip().casefold() if isinstance(text, str) else ""


@dataclasses.dataclass(frozen=True, eq=False)
class Tool:
    """A decision tool: a name, a title, its domains in order, and its own words for the verdicts.

    Attributes:
      words: verdict -> the word that the tool shows for it (moderate -> Some concerns).
      aliases: further words that are read as verdicts, as `verdict_word` writes them.
      has_overall: whether the worst domain is the judgement of the whole.
    """

    name: str
    title: str
    domains: tuple[Domain, ...]
    words: Mapping[str, str]
    aliases: Mapping[str, str]
    has_overall: bool = False

    @functools.cached_property
    def verdicts(self) -> tuple[str, ...]:
        """The verdicts that some rule of the tool gives, from best to worst."""
        parts = [part for domain in self.domains for part in domain.parts]
        given = {part.otherwise for part in parts} | {rule.verdict for part in parts for rule in part.rules}
        return tuple(verdict for verdict in VERDICTS if verdict in given)

    @property
    def groups(self) -> tuple[str, ...]:
        """The domains, variants counted once: D1, D2, ... rather than D1, D2a, D2b, ..."""
        return tuple(dict.fromkeys(domain.group or domain.letter for domain in self.domains))

    def domain(self, letter: str, effect: str | None = None) -> Domain:
        """The domain of a letter, in either case.

        Args:
          effect: which variant where a domain has several: rob2's D2 has assignment (D2a) and adhering (D2b).

        Raises:
          InputError: the tool has no such domain or variant, or the letter leaves a choice.
        """
        key = fold(letter)
        exact = [domain for domain in self.domains if fold(domain.letter) == key]
        found = exact or [domain for domain in self.domains if domain.group and fold(domain.group) == key]
        if not found:
            letters = ", ".join(domain.letter for domain in self.domains)
            raise InputError(f"tool {self.name}: no domain {letter!r}; its domains are {letters}")
        variants = [domain for domain in found if not domain.effect or effect is None or domain.effect == fold(effect)]
        if len(variants) == 1:
            return variants[0]
        choices = " or ".join(f"{domain.effect!r} ({domain.letter})" for domain in found)
        problem = "needs an effect" if effect is None else f"has no effect {effect!r}"
        raise InputError(f"tool {self.name}: domain {letter} {problem}; give {choices}")

    def read_verdict(self, word: object) -> str | None:
        """The verdict that a word of this tool stands for, or None: rob2 reads "Some concerns", rob1 "unclear"."""
        return self._verdict_words.get(verdict_word(word))

    @functools.cached_property
    def _verdict_words(self) -> dict[str, str]:
        own = {verdict_word(word): verdict for verdict, word in self.words.items()}
        return {**self.aliases, **own, **{verdict: verdict for verdict in VERDICTS}}

    def overall(self, verdicts: Mapping[str, str | None], high_if_sc_count: int | None = None) -> str | None:
        """The judgement of the whole: low if all domains are, high if any is, otherwise moderate.

        Args:
          verdicts: domain -> verdict in the tool's words; of variants one, under its own letter or the group's.
          high_if_sc_count: so many domains of moderate (some concerns) make it high; None: they never do. The tool
            leaves that to the reader's judgement.

        Returns:
          None where a domain is left out or has no verdict.

        Raises:
          InputError: the tool has no overall judgement; an unknown domain or verdict; two variants of a domain.
        """
        if not self.has_overall:
            raise InputError(f"tool {self.name}: has no overall judgement, its domains stand for themselves")
        counts = high_if_sc_count is None or (isinstance(high_if_sc_count, int) and high_if_sc_count >= 1)
        if not counts or isinstance(high_if_sc_count, bool):
            raise InputError(f"high_if_sc_count: must be None or at least 1, not {high_if_sc_count!r}")
        given: dict[str, str | None] = {}
        for letter, word in verdicts.items():
            group = self._group(letter)
            if group in given:
                raise InputError(f"tool {self.name}: two verdicts for {group}")
            given[group] = None if word is None else self.read_verdict(word)
            if word is not None and given[group] is None:
                raise InputError(f"tool {self.name}: {letter}: no verdict {word!r}{nearest(str(word), self.verdicts)}")
        if any(given.get(group) is None for group in self.groups):
            return None
        concerns = list(given.values()).count("moderate")
        if high_if_sc_count is not None and concerns >= high_if_sc_count:
            return "high"
        return max(given.values(), key=VERDICTS.index)

    def _group(self, letter: str) -> str:
        for domain in self.domains:
            if fold(letter) in (fold(domain.letter), fold(domain.group or domain.letter)):
                return domain.group or domain.letter
        raise InputError(f"tool {self.name}: no domain {letter!r}{nearest(str(letter), self.groups)}")


def steps_of(domains: Sequence[Domain]) -> int:
    """The most steps that one of the domains has."""
    return max(len(domain.steps) for domain in domains)
