"""Decision tools from YAML and JSON: every field, name and word is checked. The format: docs/vprm_tools.md."""

from collections.abc import Sequence
from typing import Any as Value

from thoth_jax.errors import InputError, nearest
from vprm_jax.tools.checks import check_domain
from vprm_jax.tools.conditions import Any, Condition, Every, Not, Test
from vprm_jax.tools.marked import Fields, Items, Text, parse, read_file
from vprm_jax.tools.model import SOURCES, VERDICTS, Domain, Part, Rule, Step, Tool, fold, verdict_word

_JOINTS = ("any", "all", "not")
# What a label's value says in the short form where the label decides nothing; BaseLoader reads null as a text.
_GO_ON = ("go on", "null", "~", "")
_MOST_LABELS = 64


def read_tool(path) -> Tool:
    """A tool from a .yaml, .yml or .json file.

    Raises:
      InputError: the file cannot be read, or breaks a rule of the format; with file and line.
    """
    return _tool(read_file(path))


def parse_tool(text: str, name: str) -> Tool:
    """A tool from the text of a file; see `read_tool`."""
    return _tool(parse(text, name))


def _tool(data: Value) -> Tool:
    _check_fields(data, "tool", ("name", "domains"), ("title", "verdicts", "aliases", "answers", "overall"))
    name = _text(data, "name", "tool")
    words, aliases = _verdict_words(data)
    answers = _mapping(data, "answers", "tool")
    overall = _text(data, "overall", "tool") if "overall" in data else None
    if overall not in (None, "worst"):
        raise InputError(f"{data.at['overall']}: overall: {str(overall)!r} is not known; leave it out or write worst")
    domains: list[Domain] = []
    for item in _list(data, "domains", "tool"):
        domain = _domain(item, {**aliases, **{verdict_word(word): verdict for verdict, word in words.items()}}, answers)
        for other in domains:
            names = {fold(other.letter), fold(other.group)} - {""}
            # Variants share a group; nothing else may be read as two domains.
            if fold(domain.letter) in names or (domain.group and fold(domain.group) == fold(other.letter)):
                raise InputError(f"{item.where}: domain {domain.letter}: there is a domain of that name already")
            if domain.group and fold(domain.group) == fold(other.group) and domain.effect == other.effect:
                raise InputError(f"{item.where}: domain {domain.letter}: {domain.group} has effect {domain.effect!r}")
        domains.append(domain)
    for word in answers:
        if not any(fold(word) in step.answers for domain in domains for step in domain.steps):
            raise InputError(f"{answers.at[word]}: answers: no step has the label {str(answers[word])!r}")
    title = _text(data, "title", "tool") if "title" in data else name
    return Tool(str(name), str(title), tuple(domains), words, aliases, overall == "worst")


def _verdict_words(data: Fields) -> tuple[dict[str, str], dict[str, str]]:
    """The tool's words for the three verdicts, and the other words that it reads."""
    given = _mapping(data, "verdicts", "tool")
    words = {verdict: verdict for verdict in VERDICTS}
    for verdict in given:
        if verdict not in VERDICTS:
            raise InputError(f"{given.at[verdict]}: verdicts: no verdict {verdict!r}{nearest(verdict, VERDICTS)}")
        words[verdict] = str(_line(given[verdict], f"verdicts: {verdict}"))
    taken = {verdict: verdict for verdict in VERDICTS}
    for verdict, word in words.items():
        if taken.setdefault(verdict_word(word), verdict) != verdict:
            raise InputError(f"{given.where}: verdicts: {word!r} stands for two verdicts")
    aliases, given = {}, _mapping(data, "aliases", "tool")
    for word in given:
        verdict = taken.get(verdict_word(given[word]))
        if verdict is None:
            raise InputError(
                f"{given.at[word]}: aliases: {word}: no verdict {str(given[word])!r}{nearest(given[word], VERDICTS)}"
            )
        if taken.setdefault(verdict_word(word), verdict) != verdict:
            raise InputError(f"{given.at[word]}: aliases: {word!r} stands for two verdicts")
        aliases[verdict_word(word)] = verdict
    return words, aliases


def _domain(data: Value, words: dict[str, str], answers: Fields) -> Domain:
    _check_fields(
        data,
        "domain",
        ("letter", "name", "source", "steps"),
        ("bias", "note", "group", "effect", "rules", "otherwise", "parts"),
    )
    letter = str(_text(data, "letter", "domain"))
    at = f"domain {letter}"
    source = _text(data, "source", at)
    if source not in SOURCES:
        raise InputError(f"{source.where}: {at}: source: {str(source)!r} is not one of {', '.join(SOURCES)}")
    texts = {key: str(_text(data, key, at)) if key in data else "" for key in ("bias", "note", "group", "effect")}
    if bool(texts["group"]) != bool(texts["effect"]):
        raise InputError(f"{data.where}: {at}: group and effect belong together")
    texts["effect"] = fold(texts["effect"])
    steps: list[Step] = []
    short: list[Rule] = []
    for item in _list(data, "steps", at):
        step, rules = _step(item, steps, at, words, answers)
        steps.append(step)
        short += rules
    if "parts" in data:
        if short or "rules" in data or "otherwise" in data:
            raise InputError(f"{data.at['parts']}: {at}: parts hold all rules and each its own otherwise")
        parts = tuple(
            _part(item, steps, f"{at}: part {n}", words) for n, item in enumerate(_list(data, "parts", at), 1)
        )
    elif short:
        if "rules" in data:
            raise InputError(f"{data.at['rules']}: {at}: verdicts stand beside the labels or in rules, not in both")
        parts = (Part(tuple(short), _otherwise(data, at, words)),)
    else:
        parts = (_part(data, steps, at, words),)
    domain = Domain(letter, str(_text(data, "name", at)), source=str(source), steps=tuple(steps), parts=parts, **texts)
    check_domain(domain, f"{data.where}: {at}")
    return domain


def _step(data: Value, earlier: list[Step], at: str, words: dict[str, str], answers: Fields) -> tuple[Step, list[Rule]]:
    """A step, and its rules where labels carry verdicts."""
    _check_fields(data, f"{at}: step", ("name", "question", "labels"), ("asked_if", "skip", "answers"))
    name = str(_text(data, "name", f"{at}: step"))
    at = f"{at}: step {name}"
    if fold(name) in _JOINTS:
        raise InputError(f"{data['name'].where}: {at}: the name is a word of rules; take another")
    if any(fold(step.name) == fold(name) for step in earlier):
        raise InputError(f"{data['name'].where}: {at}: there is a step of that name already")
    given = data["labels"]
    if not isinstance(given, (Items, Fields)):
        raise InputError(f"{data.at['labels']}: {at}: labels: must be a list, or a mapping from label to verdict")
    labels = [str(_line(label, f"{at}: labels", given.where)) for label in given]
    for number, label in enumerate(labels):
        if fold(label) in map(fold, labels[:number]):
            raise InputError(f"{given.where}: {at}: labels: {label!r} is given twice")
    if not 2 <= len(labels) <= _MOST_LABELS:
        raise InputError(f"{given.where}: {at}: labels: must be 2 to {_MOST_LABELS}")
    folded = [fold(label) for label in labels]
    other = {fold(word): labels[folded.index(fold(answers[word]))] for word in answers if fold(answers[word]) in folded}
    own = _mapping(data, "answers", at)
    other |= {fold(word): _label(own[word], labels, f"{own.at[word]}: {at}: answers: {word}") for word in own}
    if clash := [word for word in own if fold(word) in folded]:
        raise InputError(f"{own.at[clash[0]]}: {at}: answers: {clash[0]!r} is a label")
    skip = None
    if "skip" in data:
        skip = _label(_text(data, "skip", at), labels, f"{data.at['skip']}: {at}: skip")
        if "asked_if" not in data:
            raise InputError(f"{data.at['skip']}: {at}: skip: belongs to a step with asked_if")
    asked_if = None
    if "asked_if" in data:
        asked_if = _condition(data["asked_if"], earlier, f"{at}: asked_if", "earlier step")
    step = Step(name, str(_text(data, "question", at)), tuple(labels), asked_if, skip, other)
    rules = []
    for label in given if isinstance(given, Fields) else ():
        if not isinstance(given[label], Text) or fold(given[label]) not in _GO_ON:
            verdict = _verdict(given[label], words, f"{given.at[label]}: {at}: {label}")
            rules.append(Rule(Test(name, (label.strip(),)), verdict, f"{given.at[label]}: {at}"))
    return step, rules


def _part(data: Value, steps: list[Step], at: str, words: dict[str, str]) -> Part:
    if not isinstance(data, Fields) or "rules" not in data:
        raise InputError(f"{data.where}: {at}: no rules; give rules, or verdicts beside the labels of steps")
    if "steps" not in data:
        _check_fields(data, at, ("rules",), ("otherwise",))
    rules = []
    for number, item in enumerate(_list(data, "rules", at), 1):
        place = f"{at}: rule {number}"
        _check_fields(item, place, ("if", "then"), ())
        condition = _condition(item["if"], steps, place, "step")
        rules.append(
            Rule(condition, _verdict(item["then"], words, f"{item.at['then']}: {place}"), f"{item.where}: {at}")
        )
    return Part(tuple(rules), _otherwise(data, at, words))


def _otherwise(data: Fields, at: str, words: dict[str, str]) -> str | None:
    if "otherwise" not in data:
        return None
    return _verdict(data["otherwise"], words, f"{data.at['otherwise']}: {at}: otherwise")


def _condition(data: Value, steps: Sequence[Step], at: str, kind: str) -> Condition:
    if not isinstance(data, Fields) or not data:
        raise InputError(f"{data.where}: {at}: a condition is a mapping such as {{STEP: LABEL}} or {{any: [...]}}")
    parts: list[Condition] = []
    for key, value in data.items():
        where = f"{data.at[key]}: {at}"
        if key == "not":
            parts.append(Not(_condition(value, steps, at, kind)))
        elif key in ("any", "all"):
            if not isinstance(value, Items) or not value:
                raise InputError(f"{where}: {key}: must be a list of conditions")
            inner = tuple(_condition(item, steps, at, kind) for item in value)
            parts.append(inner[0] if len(inner) == 1 else Any(inner) if key == "any" else Every(inner))
        else:
            step = next((step for step in steps if fold(step.name) == fold(key)), None)
            if step is None:
                raise InputError(
                    f"{where}: no {kind} {key!r}{nearest(key, [*(step.name for step in steps), *_JOINTS])}"
                )
            named = value if isinstance(value, Items) else [value]
            labels = tuple(dict.fromkeys(_answer(label, step, f"{where}: {key}") for label in named))
            if not labels:
                raise InputError(f"{where}: {key}: names no label")
            parts.append(Test(step.name, labels))
    return parts[0] if len(parts) == 1 else Every(tuple(parts))


def _answer(value: Value, step: Step, where: str) -> str:
    label = step.read(value)
    if label is None:
        shown = str(value) if isinstance(value, Text) else "..."
        raise InputError(f"{where}: no label {shown!r}{nearest(shown, step.labels)}")
    if label == step.skip:
        raise InputError(f"{where}: {label!r} says that the question is not asked; a rule cannot wait for it")
    return label


def _label(value: Value, labels: Sequence[str], where: str) -> str:
    for label in labels:
        if isinstance(value, Text) and fold(label) == fold(value):
            return label
    raise InputError(f"{where}: no label {str(value)!r}{nearest(str(value), labels)}")


def _verdict(value: Value, words: dict[str, str], where: str) -> str:
    known = {**words, **{verdict: verdict for verdict in VERDICTS}}
    if not isinstance(value, Text) or verdict_word(value) not in known:
        shown = str(value) if isinstance(value, Text) else "..."
        raise InputError(f"{where}: no verdict {shown!r}{nearest(shown, known)}")
    return known[verdict_word(value)]


def _check_fields(data: Value, at: str, required: Sequence[str], optional: Sequence[str]) -> None:
    if not isinstance(data, Fields):
        raise InputError(f"{data.where}: {at}: must be a mapping with the fields {', '.join(required)}")
    for key in data:
        if key not in (*required, *optional):
            raise InputError(f"{data.at[key]}: {at}: unknown field {key!r}{nearest(key, [*required, *optional])}")
    for key in required:
        if key not in data:
            raise InputError(f"{data.where}: {at}: no field {key!r}")


def _text(data: Fields, key: str, at: str) -> Text:
    return _line(data[key], f"{at}: {key}")


def _line(value: Value, at: str, where: str = "") -> Text:
    """One line of text; it is shown in prompts and read back from traces, so it holds no tag."""
    where = getattr(value, "where", where)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {at}: must be a text that is not blank")
    if len(value.strip().splitlines()) > 1 or "<" in value or ">" in value:
        raise InputError(f"{where}: {at}: must be one line without < and >")
    line = Text(value.strip())
    line.where = where
    return line


def _list(data: Fields, key: str, at: str) -> Items:
    if not isinstance(data[key], Items) or not data[key]:
        raise InputError(f"{data.at[key]}: {at}: {key}: must be a list with something in it")
    return data[key]


def _mapping(data: Fields, key: str, at: str) -> Fields:
    if key not in data:
        empty = Fields()
        empty.at, empty.where = {}, data.where
        return empty
    if not isinstance(data[key], Fields):
        raise InputError(f"{data.at[key]}: {at}: {key}: must be a mapping from text to text")
    for word in data[key]:
        _line(data[key][word], f"{at}: {key}: {word}")
        _line(word, f"{at}: {key}", data[key].at[word])
    return data[key]
