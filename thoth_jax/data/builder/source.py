"""YAML -> structured procedures. Every fault is reported with its file, protocol and step.

A file is a list of protocols of one subfield. A step has an action, objects and parameters, and two sentences with
slots ({o1}, {p1}, ...) for them: `say`, the orc line, and `prose`, other wording for source texts. "5|8|10 min" is a
number with sound alternatives, the standard first. `after` names the steps whose result a step needs; left out, it
needs the step just before.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from etils import epath

from thoth_jax.errors import InputError, nearest
from thoth_jax.protocol.grammar import Step, join_blocks, render_step
from thoth_jax.rewards.score import score_batch

_CHOICES = re.compile(r"[\d.]+(?:\|[\d.]+)+")
_SLOT = re.compile(r"\{[^}]*\}")


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A parameter: `template` with "{}" for the number, or a plain text with no choice."""

    template: str
    choices: tuple[str, ...] = ()

    def standard(self) -> str:
        """The text with the number that the protocol recommends."""
        return self.template.format(self.choices[0]) if self.choices else self.template

    def draw(self, rng) -> str:
        """The text with one of the sound numbers."""
        return self.template.format(rng.choice(self.choices)) if self.choices else self.template


@dataclasses.dataclass(frozen=True)
class SourceStep:
    """One step of a procedure; `after` is None for the step of a fix, which has no place in the procedure."""

    id: str
    action: str
    objects: tuple[str, ...]
    parameters: tuple[Quantity, ...]
    say: str
    prose: str
    why: str
    after: tuple[str, ...] = ()
    hazard: str = ""


@dataclasses.dataclass(frozen=True)
class Remedy:
    """What is done in a special case: `situation` and `reason` are the two clauses that describe it.

    Troubleshooting: what is seen, its cause. Constraint: what is missing, the idea. Safety: what is asked, why it is
    dangerous; only that one has a note.
    """

    situation: str
    reason: str
    fix: tuple[SourceStep, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Mix:
    """A mixture that can be scaled: `parts` are (name, µl for one)."""

    what: str
    step: str
    parts: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class SourceProtocol:
    """One protocol with everything that items are built from."""

    name: str
    aim: str
    subfield: str
    abstract: str
    materials: tuple[str, ...]
    equipments: tuple[str, ...]
    notes: tuple[str, ...]
    steps: tuple[SourceStep, ...]
    faults: tuple[Remedy, ...]
    limits: tuple[Remedy, ...]
    safety: tuple[Remedy, ...]
    swaps: tuple[tuple[str, ...], ...] = ()
    mix: Mix | None = None

    @functools.cached_property
    def needs(self) -> Mapping[str, frozenset[str]]:
        """For each step the ids of all steps that must come before it, directly or not."""
        found: dict[str, frozenset[str]] = {}
        for step in self.steps:
            found[step.id] = frozenset(step.after).union(*(found[id] for id in step.after))
        return found


def fill(text: str, objects: Sequence[str], parameters: Sequence[str]) -> str:
    """A sentence with its slots filled.

    >>> fill("Spin the {o1} for {p1}.", ["lysate"], ["5 min"])
    'Spin the lysate for 5 min.'
    """
    values = {f"o{n}": text for n, text in enumerate(objects, 1)} | {f"p{n}": t for n, t in enumerate(parameters, 1)}
    return text.format(**values)


# The loader in C where PyYAML was built with it; both read the same.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_sources(directory, check: bool = True) -> list[SourceProtocol]:
    """All protocols of a directory's .yaml files, in the order of file names.

    Args:
      check: score every step too; costs seconds.

    Raises:
      InputError: no file; broken YAML; a rule of the format that is not kept, in file, protocol and step.
    """
    files = sorted(path for path in epath.Path(directory).iterdir() if path.suffix == ".yaml")
    if not files:
        raise InputError(f"{directory}: no .yaml file")
    protocols, seen = [], {}
    for file in files:
        for protocol in read_source(file, check):
            for kind, text in (("name", protocol.name), ("aim", protocol.aim)):
                if (kind, text) in seen:
                    raise InputError(f"{file.name}: protocol {protocol.name!r}: {kind} as in {seen[kind, text]}")
                seen[kind, text] = file.name
            protocols.append(protocol)
    return protocols


def read_source(path, check: bool = True) -> list[SourceProtocol]:
    """The protocols of one file; see `read_sources`."""
    path = epath.Path(path)
    try:
        rows = yaml.load(path.read_text(), Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{path.name}{line}: broken YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path.name}: a file is a list of protocols")
    protocols = [_protocol(row, f"{path.name}: protocol {number}") for number, row in enumerate(rows, 1)]
    for protocol in protocols if check else ():
        _check_scores(protocol, path.name)
    return protocols


_LISTS = ("materials", "equipments", "notes")
_REMEDIES = {"faults": ("seen", "cause"), "limits": ("given", "idea"), "safety": ("asks", "why")}
_REQUIRED = ("name", "aim", "subfield", "abstract", *_LISTS, "steps", *_REMEDIES)


def _protocol(row: Any, where: str) -> SourceProtocol:
    if isinstance(row, dict) and isinstance(row.get("name"), str):
        where = f"{where} ({row['name']})"
    _fields(row, where, _REQUIRED, ("swaps", "mix"))
    texts = {name: _text(row, name, where) for name in ("name", "aim", "subfield", "abstract")}
    lists = {name: _texts(row[name], f"{where}: {name}") for name in _LISTS}
    steps: list[SourceStep] = []
    if not isinstance(row["steps"], list) or not 8 <= len(row["steps"]) <= 14:
        raise InputError(f"{where}: steps: must be a list of 8 to 14")
    for number, data in enumerate(row["steps"], 1):
        at = f"{where}: step {data.get('id', number) if isinstance(data, dict) else number}"
        steps.append(_step(data, at, [step.id for step in steps]))
    remedies = {
        kind: tuple(_remedy(entry, kind, f"{where}: {kind}[{number}]") for number, entry in enumerate(row[kind], 1))
        for kind in _REMEDIES
    }
    for kind, least in (("faults", 2), ("limits", 1), ("safety", 1)):
        if len(remedies[kind]) < least:
            raise InputError(f"{where}: {kind}: at least {least}")
    if texts["name"].lower() in texts["aim"].lower():
        raise InputError(f"{where}: aim: must not contain the name")
    swaps = tuple(_texts(names, f"{where}: swaps") for names in row.get("swaps") or ())
    all_steps = [*steps, *(step for entries in remedies.values() for entry in entries for step in entry.fix)]
    used = " ".join(
        text for step in all_steps for text in (*step.objects, *(q.template for q in step.parameters), step.say)
    )
    for names in swaps:
        if len(names) < 2 or names[0] not in used:
            raise InputError(f"{where}: swaps: {list(names)}: no step uses the first name")
    mix = _mix(row["mix"], where, [step.id for step in steps]) if row.get("mix") else None
    return SourceProtocol(**texts, **lists, steps=tuple(steps), **remedies, swaps=swaps, mix=mix)


def _step(row: Any, where: str, earlier: list[str] | None) -> SourceStep:
    """`earlier`: ids of the steps before; None for the step of a fix."""
    place = () if earlier is None else ("id",)
    _fields(row, where, (*place, "action", "objects", "say", "prose", "why"), ("parameters", "after", "hazard"))
    objects = _texts(row["objects"], f"{where}: objects")
    if len(objects) > 2:
        raise InputError(f"{where}: objects: at most 2")
    parameters = _texts(row.get("parameters") or [], f"{where}: parameters", least=0)
    if len(parameters) > 3:
        raise InputError(f"{where}: parameters: at most 3")
    slots = sorted([f"{{o{n}}}" for n, _ in enumerate(objects, 1)] + [f"{{p{n}}}" for n, _ in enumerate(parameters, 1)])
    for name in ("say", "prose"):
        if (found := sorted(_SLOT.findall(_text(row, name, where)))) != slots:
            raise InputError(f"{where}: {name}: slots {found}, expected {slots}")
    action = _text(row, "action", where)
    if not row["say"].lower().startswith(action.split()[0]):
        raise InputError(f"{where}: say: must start with the action {action!r}")
    common = {name: _text(row, name, where) for name in ("say", "prose", "why")}
    hazard = _text(row, "hazard", where) if row.get("hazard") else ""
    quantities = tuple(_quantity(text, where) for text in parameters)
    if earlier is None:
        return SourceStep("", action, objects, quantities, **common, hazard=hazard)
    id = _text(row, "id", where)
    if id in earlier:
        raise InputError(f"{where}: id: there is an earlier step {id!r}")
    after = tuple(earlier[-1:]) if row.get("after") is None else _texts(row["after"], f"{where}: after", least=0)
    for name in after:
        if name not in earlier:
            raise InputError(f"{where}: after: {name!r} is no earlier step{nearest(name, earlier)}")
    return SourceStep(id, action, objects, quantities, **common, after=after, hazard=hazard)


def _quantity(text: str, where: str) -> Quantity:
    choices = _CHOICES.findall(text)
    if len(choices) > 1 or "|" in _CHOICES.sub("", text):
        raise InputError(f"{where}: parameters: {text!r}: alternatives are of one number")
    if not choices:
        return Quantity(text)
    numbers = tuple(choices[0].split("|"))
    if len(set(numbers)) < len(numbers) or not all(re.fullmatch(r"\d+(\.\d+)?", number) for number in numbers):
        raise InputError(f"{where}: parameters: {text!r}: alternatives must be different numbers")
    return Quantity(_CHOICES.sub("{}", text), numbers)


def _remedy(row: Any, kind: str, where: str) -> Remedy:
    situation, reason = _REMEDIES[kind]
    required = (situation, reason, "fix", "note") if kind == "safety" else (situation, reason, "fix")
    _fields(row, where, required, ())
    if not isinstance(row["fix"], list) or not 2 <= len(row["fix"]) <= 3:
        raise InputError(f"{where}: fix: must be a list of 2 or 3 steps")
    fix = tuple(_step(data, f"{where}: fix[{number}]", None) for number, data in enumerate(row["fix"], 1))
    note = _text(row, "note", where) if kind == "safety" else ""
    return Remedy(_text(row, situation, where), _text(row, reason, where), fix, note)


def _mix(row: Any, where: str, ids: list[str]) -> Mix:
    _fields(row, f"{where}: mix", ("what", "step", "parts"), ())
    if row["step"] not in ids:
        raise InputError(f"{where}: mix: step: {row['step']!r} is no step{nearest(str(row['step']), ids)}")
    parts = row["parts"]
    if not isinstance(parts, list) or not 3 <= len(parts) <= 5:
        raise InputError(f"{where}: mix: parts: must be a list of 3 to 5")
    for part in parts:
        sound = isinstance(part, list) and len(part) == 2 and isinstance(part[0], str)
        if not sound or not isinstance(part[1], (int, float)) or isinstance(part[1], bool) or part[1] <= 0:
            raise InputError(f"{where}: mix: parts: {part!r}: must be [name, µl for one]")
    return Mix(_text(row, "what", where), row["step"], tuple((name, repr(volume)) for name, volume in parts))


def _check_scores(protocol: SourceProtocol, file: str) -> None:
    """Every step, as an answer of its own, passes the gates of SCORE against itself."""
    fixes = [step for kind in _REMEDIES for remedy in getattr(protocol, kind) for step in remedy.fix]
    steps = [*protocol.steps, *fixes]
    answers = []
    for step in steps:
        values = [quantity.standard() for quantity in step.parameters]
        key = render_step(1, Step(step.action, step.objects, tuple(values)))
        answers.append(join_blocks("x", key, f"Step 1: {fill(step.say, step.objects, values)}", "x"))
    score = score_batch(answers, answers)
    for step, total, reason in zip(steps, score.total, score.reasons, strict=True):
        if total < 2.5:
            at = f"step {step.id}" if step.id else f"fix step {step.say!r}"
            raise InputError(f"{file}: {protocol.name}: {at}: say leaves out words of its key ({reason})")


def _fields(row: Any, where: str, required: Sequence[str], optional: Sequence[str]) -> None:
    if not isinstance(row, dict):
        raise InputError(f"{where}: must be a mapping")
    for name in required:
        if row.get(name) in (None, "", []):
            raise InputError(f"{where}: no field {name!r}")
    for name in row:
        if name not in (*required, *optional):
            raise InputError(f"{where}: unknown field {name!r}{nearest(str(name), [*required, *optional])}")


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    if not isinstance(row[name], str) or not row[name].strip():
        raise InputError(f"{where}: {name}: must be a text that is not blank")
    return row[name].strip()


def _texts(values: Any, where: str, least: int = 1) -> tuple[str, ...]:
    if not isinstance(values, list) or len(values) < least:
        raise InputError(f"{where}: must be a list of texts")
    for value in values:
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{where}: {value!r} is not a text (put numbers in quotes)")
    return tuple(value.strip() for value in values)
