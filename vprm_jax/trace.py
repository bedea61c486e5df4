"""Reasoning traces: what the policy is asked, the gold text of labelled steps, and the reader of what it answers.

    <think>
    Step 1: Identify_randomization_report
    free reasoning
    Answer: reported
    </think>
    <answer>
    risk: moderate
    </answer>

The layout is that of the verifiable-process-reward paper (arXiv 2601.17223, Figure 6); the wording of the prompt is
ours. Step names, labels and verdicts are compared without case and outer white space, and never by likeness.

    >>> text = TraceFormat(tools.load("rob1"), "A").render({"Identify_randomization_report": "not_reported"})
    >>> TraceFormat(tools.load("rob1"), "A").parse(text).verdict
    'moderate'
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from thoth_jax.errors import InputError, nearest
from vprm_jax import tools

TRACE_MODES = ("full", "path")
MAX_STEPS = 64  # that are read; no domain has nearly so many

# What a tool's guidance calls a verdict that has another name here.
VERDICT_ALIASES = {
    "rob1": {"unclear": "moderate"},
    "epoc": {"unclear": "moderate"},
    "rob2": {"some concerns": "moderate", "some_concerns": "moderate"},
}

# Reasons for which nothing of a trace is read.
NO_THINK = frozenset({"no_think", "think_not_first", "think_not_closed"})
# Reasons that cost no more than the step, label or verdict that they name; all others cost the format too.
_FORMAT_STAYS = frozenset({"unknown_step", "repeated_step", "unknown_label"})

_THINK = re.compile(r"\s*+<think>")
# Possessive, so that no input makes it try twice; ASCII, so that only 0 to 9 are digits.
_LINE = re.compile(r"^[ \t]*+(?:step[ \t]++([0-9]++)[ \t]*+:|answer[ \t]*+:)(.*+)", re.M | re.I | re.A)
_RISK = re.compile(r"^[ \t]*+risk[ \t]*+:(.*+)", re.M | re.I | re.A)
_QUOTED = 60  # characters of model text in a reason


class Verified(NamedTuple):
    """A trace beside its own labels: the verdict they imply, whether it is the stated one, and where they part.

    `parts` is "" for a coherent trace, else the reason why it was not read, the step without which the labels decide
    nothing, or the step that decides otherwise.
    """

    implied: str | None
    coherent: bool
    parts: str


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """What a model text says.

    steps:    (name, label) of the domain's steps in order of appearance, each once; label None where it is missing,
              unknown, or one of several. Unknown steps are in `problems` only.
    ends:     for each of the steps, the offset in the text at which its last line ends (its name or its first answer).
    verdict:  of the last answer block, or None.
    think:    a complete think block comes first; without it nothing else is read.
    format_ok: both blocks are well formed, and the steps are numbered from 1 and answered once each.
    problems: reason codes, some with what they are about behind a colon, each once.
    """

    steps: tuple[tuple[str, str | None], ...]
    ends: tuple[int, ...]
    verdict: str | None
    think: bool
    format_ok: bool
    problems: tuple[str, ...]

    @property
    def parsed(self) -> bool:
        """There is a verdict to judge."""
        return self.verdict is not None


def implied(domain: tools.Domain, steps: Mapping[str, str | None] | Iterable[tuple[str, str | None]]) -> str | None:
    """The verdict that the rules give to step labels; None where they need a step that has no label."""
    labels = {name: label for name, label in dict(steps).items() if label is not None}
    try:
        return domain.verdict(labels)
    except InputError:
        return None


def path(domain: tools.Domain, labels: Mapping[str, str]) -> dict[str, str]:
    """The labels in the domain's order, up to the one that settles the verdict (all where nothing does)."""
    taken: dict[str, str] = {}
    for step in domain.steps:
        if labels.get(step.name) is not None:
            taken[step.name] = labels[step.name]
            if implied(domain, taken) is not None:
                break
    return taken


class TraceFormat:
    """Prompts and traces of one domain of a tool.

    Raises:
      InputError: the tool has no such domain.
    """

    def __init__(self, tool: tools.Tool, domain: str):
        self.tool = tool
        self.domain = tool.domain(domain)
        self._names = {step.name.casefold(): step.name for step in self.domain.steps}
        self._labels = {step.name: {label.casefold(): label for label in step.labels} for step in self.domain.steps}
        self._implied: dict[tuple[str | None, ...], str | None] = {}  # by the labels of all steps, which are few
        self._verdicts = {verdict: verdict for verdict in tools.VERDICTS} | VERDICT_ALIASES.get(tool.name, {})

    def messages(self, report: str, *, trace_mode: str = "path") -> list[dict[str, str]]:
        """The chat prompt: a system turn with the layout, a user turn with the domain and the report.

        Args:
          report: the text to judge.
          trace_mode: "path" asks for the steps up to the one that settles the verdict, "full" for all.

        Raises:
          InputError: an unknown trace_mode.
        """
        lines = [f"Tool: {self.tool.title} ({self.tool.name})", f"Domain {self.domain.letter}: {self.domain.name}"]
        lines.append("Steps:")
        for number, step in enumerate(self.domain.steps, 1):
            lines.append(f"{number}. {step.name}: {step.question} [{' | '.join(step.labels)}]")
        lines += [f"Verdicts: {' | '.join(tools.VERDICTS)}", "", "Report:", report.strip()]
        system = f"{_SYSTEM} {_HOW_FAR[_checked_mode(trace_mode)]}\n\n{_LAYOUT}"
        return [{"role": "system", "content": system}, {"role": "user", "content": "\n".join(lines)}]

    def render(
        self,
        steps: Mapping[str, str] | Iterable[tuple[str, str]],
        verdict: str | None = None,
        *,
        trace_mode: str = "full",
        reasons: Mapping[str, str] | None = None,
    ) -> str:
        """The gold text of labelled steps; `parse` reads back what is given.

        Args:
          steps: step name -> label, or pairs; written in the domain's order.
          verdict: None: the one that the steps imply.
          trace_mode: "path" leaves out the steps behind the one that settles the verdict.
          reasons: step name -> the free text between name and answer, put on one line.

        Raises:
          InputError: an unknown step, label, verdict or mode; no verdict given or implied; a reason that reads as a
            step, an answer or a tag.
        """
        labels = self.labels(steps)
        verdict = implied(self.domain, labels) if verdict is None else self.verdict(verdict)
        if verdict is None:
            raise InputError(f"domain {self.domain.letter}: the steps imply no verdict and none is given")
        if _checked_mode(trace_mode) == "path":
            labels = path(self.domain, labels)
        lines = []
        for number, name in enumerate((step.name for step in self.domain.steps if step.name in labels), 1):
            lines.append(f"Step {number}: {name}")
            if reason := " ".join((reasons or {}).get(name, "").split()):
                if "<" in reason or _LINE.match(reason):
                    raise InputError(f"{name}: the reason {_cut(reason)!r} reads as a part of the trace")
                lines.append(reason)
            lines.append(f"Answer: {labels[name]}")
        return "\n".join(["<think>", *lines, "</think>", "<answer>", f"risk: {verdict}", "</answer>"])

    def labels(self, steps: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, str]:
        """Gold steps under the domain's own spelling, in the order given.

        Raises:
          InputError: a step or a label that the domain does not have; a step twice.
        """
        found: dict[str, str] = {}
        for given, label in steps.items() if isinstance(steps, Mapping) else steps:
            name = self._names.get(given.strip().casefold())
            if name is None:
                raise InputError(f"domain {self.domain.letter}: no step {given!r}{nearest(given, self._labels)}")
            known = self._labels[name]
            if label.strip().casefold() not in known:
                hint = nearest(label, known.values())
                raise InputError(f"domain {self.domain.letter}: {name}: no label {label!r}{hint}")
            if name in found:
                raise InputError(f"domain {self.domain.letter}: step {name!r} occurs twice")
            found[name] = known[label.strip().casefold()]
        return found

    def verdict(self, word: str) -> str:
        """The verdict that a word of the tool means.

        Raises:
          InputError: none.
        """
        found = self._verdicts.get(word.strip().casefold())
        if found is None:
            raise InputError(f"tool {self.tool.name}: no verdict {word!r}{nearest(word, self._verdicts)}")
        return found

    def parse(self, text: str) -> Trace:
        """Read a model text of any kind, in time linear in its length; never raises."""
        opening = _THINK.match(text)
        close = -1 if opening is None else text.find("</think>", opening.end())
        if opening is None or close < 0:
            absent = "think_not_first" if "<think>" in text else "no_think"
            return Trace((), (), None, False, False, (absent if opening is None else "think_not_closed",))
        problems: dict[str, None] = {}
        steps, ends = self._steps(text[opening.end() : close], opening.end(), problems)
        verdict = self._stated(text, close + len("</think>"), problems)
        format_ok = all(problem.partition(":")[0] in _FORMAT_STAYS for problem in problems)
        return Trace(tuple(steps.items()), ends, verdict, True, format_ok, tuple(problems))

    def verify(self, trace: Trace) -> Verified:
        """Compare the stated verdict with the one that the trace's own labels imply (the paper's C_i)."""
        if not trace.think:
            return Verified(None, False, trace.problems[0])
        labels = {name: label for name, label in trace.steps if label is not None}
        known = tuple(map(labels.get, self._labels))
        if known not in self._implied:
            self._implied[known] = implied(self.domain, labels)
        found = self._implied[known]
        if found is None:
            missing = [step.name for step in self.domain.steps if step.name not in labels]
            return Verified(None, False, f"no usable label of {missing[0]}" if missing else "the labels decide nothing")
        if trace.verdict is None:
            return Verified(found, False, "no usable verdict")
        if trace.verdict == found:
            return Verified(found, True, "")
        name, label = list(path(self.domain, labels).items())[-1]
        return Verified(found, False, f"{name} = {label} settles {found}")

    def _steps(self, think: str, offset: int, problems: dict[str, None]):
        steps: dict[str, str | None] = {}
        ends: dict[str, int] = {}
        name, count, answers = None, 0, 0  # of the step that is being read; name None: one that does not count
        if "<think>" in think or "<answer>" in think or "</answer>" in think:
            problems["tag_in_think"] = None
        for line in _LINE.finditer(think):
            number, said = line.groups()
            said = said.strip()
            if number is not None:
                if count and not answers:
                    problems["unanswered"] = None
                if count == MAX_STEPS:
                    problems["too_many_steps"] = None
                    break
                count, answers = count + 1, 0
                if number != str(count):
                    problems["misnumbered"] = None
                name = self._names.get(said.casefold())
                if name is None:
                    problems[f"unknown_step:{_cut(said)}"] = None
                elif name in steps:
                    problems[f"repeated_step:{name}"] = None
                    name = None
                else:
                    steps[name], ends[name] = None, offset + line.end()
                continue
            answers += 1
            if not count:
                problems["answer_outside_step"] = None
            elif answers > 1:
                problems["several_labels"] = None
                if name is not None:
                    steps[name] = None
            elif not said:
                problems["unanswered"] = None
            elif name is not None:
                steps[name], ends[name] = self._labels[name].get(said.casefold()), offset + line.end()
                if steps[name] is None:
                    problems[f"unknown_label:{_cut(said)}"] = None
        else:
            if count and not answers:
                problems["unanswered"] = None
        if not count:
            problems["no_steps"] = None
        return steps, tuple(ends.values())

    def _stated(self, text: str, start: int, problems: dict[str, None]) -> str | None:
        opened = text.rfind("<answer>", start)
        if opened < 0:
            problems["no_answer"] = None
            return None
        if text.find("<answer>", start) != opened:
            problems["several_answers"] = None
        elif text[start:opened].strip():
            problems["text_between"] = None
        begin = opened + len("<answer>")
        closed = text.find("</answer>", begin)
        if closed < 0:
            problems["answer_not_closed"] = None
            closed = len(text)
        elif text[closed + len("</answer>") :].strip():
            problems["text_after"] = None
        body = text[begin:closed]
        lines = _RISK.finditer(body)
        line, another = next(lines, None), next(lines, None)
        if line is None or another is not None:
            problems["no_verdict" if line is None else "several_verdicts"] = None
            return None
        if body.strip() != line.group().strip():
            problems["text_in_answer"] = None
        said = line.group(1).strip()
        verdict = self._verdicts.get(said.casefold())
        if verdict is None:
            problems[f"unknown_verdict:{_cut(said)}"] = None
        return verdict


def _cut(text: str) -> str:
    return text if len(text) <= _QUOTED else text[: _QUOTED - 1] + "~"


def _checked_mode(trace_mode: str) -> str:
    if trace_mode not in TRACE_MODES:
        raise InputError(f"trace_mode {trace_mode!r}{nearest(trace_mode, TRACE_MODES)}")
    return trace_mode


_SYSTEM = (
    "You judge a report in one domain of an assessment tool. Work through the steps of the domain in their order. "
    "For each, write its number and name, what the report says about it, and exactly one of its labels."
)
_HOW_FAR = {
    "path": "Stop after the step that settles the verdict.",
    "full": "Answer every step, also those behind the one that settles the verdict.",
}
_LAYOUT = (
    "Write nothing outside of this layout:\n"
    "<think>\nStep 1: name of the step\nwhat the report says\nAnswer: label\n</think>\n"
    "<answer>\nrisk: verdict\n</answer>"
)
